// The avx2 tier: AVX2, FMA and F16C.
#include "plain_avx2.h"

namespace {
const char *const kTierName = "avx2";
template <int F> constexpr TileKernel tile_kernel() {
    if constexpr (is_plain(F)) return plain_avx2<F>;
    else return tile_avx2<F>;
}
template <int F> constexpr PairKernel pair_kernel() {
    if constexpr (F == HETERO_FP8_E4M3) return fp8_pair_avx2;
    else return one_by_one<F>;
}
const TileTable kTileKernels = tile_table();
}  // namespace

#include "cpu.h"
#include "api.h"
#include "attention.h"
#include "measure.h"
#include "repack.h"
#include "replay.h"
#include "route.h"
