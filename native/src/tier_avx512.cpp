// The avx512 tier: AVX-512 F, BW, DQ, VL and VNNI.
#include "pairs_avx512.h"

namespace {
const char *const kTierName = "avx512";
template <int F> constexpr TileKernel tile_kernel() {
    if constexpr (is_plain(F)) return plain_avx512<F>;
    else return tile_avx512<F>;
}
template <int F> constexpr PairKernel pair_kernel() { return pair_kernel_512<F>(); }
const TileTable kTileKernels = tile_table();
}  // namespace

#include "cpu.h"
#include "api.h"
#include "attention.h"
#include "measure.h"
#include "repack.h"
#include "replay.h"
#include "route.h"
