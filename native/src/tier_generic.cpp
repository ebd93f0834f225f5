// The generic tier: no instruction set beyond the architecture's baseline.
#include "kernels_generic.h"

namespace {
const char *const kTierName = "generic";
template <int F> constexpr TileKernel tile_kernel() { return generic_kernel<F>(); }
template <int F> constexpr PairKernel pair_kernel() {
    return one_by_one<F>;
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
