// The amx tier: bf16 tiles for many tokens, the avx512 kernels for the others.
#define HETERO_AMX
#include "kernels_amx.h"

namespace {
const char *const kTierName = "amx";
const TileKernel kTileKernels[HETERO_FORMATS] = {
    plain_avx512<HETERO_F32>, plain_avx512<HETERO_F16>, tile_amx<HETERO_BF16>, tile_amx<HETERO_Q8_0>,
    tile_amx<HETERO_Q4_0>,    tile_amx<HETERO_Q4_1>,    tile_amx<HETERO_Q5_0>, tile_amx<HETERO_Q5_1>,
    tile_amx<HETERO_Q4_K>,    tile_amx<HETERO_Q5_K>,    tile_amx<HETERO_Q6_K>,
};
}  // namespace

#include "cpu.h"
#include "api.h"
#include "attention.h"
#include "measure.h"

// Linux grants tiles to a process that asks, once for all of its threads; loading this library asks.
__attribute__((constructor)) static void ask_for_tiles() { request_amx(); }
