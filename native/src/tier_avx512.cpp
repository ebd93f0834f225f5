// The avx512 tier: AVX-512 F, BW, DQ, VL and VNNI.
#include "plain_avx512.h"

namespace {
const char *const kTierName = "avx512";
const TileKernel kTileKernels[HETERO_FORMATS] = {
    plain_avx512<HETERO_F32>, plain_avx512<HETERO_F16>, plain_avx512<HETERO_BF16>, tile_avx512<HETERO_Q8_0>,
    tile_avx512<HETERO_Q4_0>, tile_avx512<HETERO_Q4_1>, tile_avx512<HETERO_Q5_0>,  tile_avx512<HETERO_Q5_1>,
    tile_avx512<HETERO_Q4_K>, tile_avx512<HETERO_Q5_K>, tile_avx512<HETERO_Q6_K>,
};
}  // namespace

#include "cpu.h"
#include "api.h"
#include "attention.h"
#include "measure.h"
