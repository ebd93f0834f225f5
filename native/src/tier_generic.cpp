// The generic tier: no instruction set beyond the architecture's baseline.
#include "kernels_generic.h"

namespace {
const char *const kTierName = "generic";
const TileKernel kTileKernels[HETERO_FORMATS] = {
    tile_plain<HETERO_F32>,      tile_plain<HETERO_F16>,      tile_plain<HETERO_BF16>,     tile_quantised<HETERO_Q8_0>,
    tile_quantised<HETERO_Q4_0>, tile_quantised<HETERO_Q4_1>, tile_quantised<HETERO_Q5_0>, tile_quantised<HETERO_Q5_1>,
    tile_quantised<HETERO_Q4_K>, tile_quantised<HETERO_Q5_K>, tile_quantised<HETERO_Q6_K>,
};
}  // namespace

#include "cpu.h"
#include "api.h"
#include "attention.h"
#include "measure.h"
