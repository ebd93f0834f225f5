// The amx tier: bf16 or int8 tiles for many tokens, the avx512 kernels for the others.
#define HETERO_AMX
#include "kernels_amx_int8.h"

namespace {
const char *const kTierName = "amx";
template <int F> constexpr TileKernel tile_kernel() {
    if constexpr (F == HETERO_F32 || F == HETERO_F16) return plain_avx512<F>;
    else return tile_amx<F>;
}
template <int F> constexpr PairKernel pair_kernel() {
    if constexpr (F == HETERO_F32 || F == HETERO_F16) return pair_kernel_512<F>();
    else return pair_amx<F>;
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

// Linux grants tiles to a process that asks, once for all of its threads; loading this library asks.
__attribute__((constructor)) static void ask_for_tiles() { request_amx(); }
