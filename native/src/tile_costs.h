// When tile kernels are used: per matrix or expert, by what its format and number of tokens cost on either kind of kernel.
#pragma once
#include "activations.h"

namespace {

constexpr int64_t kFewestTileTokens = 8;  // fewer are bound by memory whatever multiplies them

// Cycles to decode 16 rows x 32 k to bf16, measured on Zen 5, by kind.
constexpr int kDecodeCycles[kKinds] = {0, 0, 0, 70, 71, 56, 57, 65, 65, 87, 60, 75, 80, 80, 80};

// Cycles for 16 rows x 32 k and n tokens: 16 for every tile of 16 tokens and the loading and storing of its sums; or
// 45 for each eight tokens by vpdpbusd, 144 by float32 multiply-adds (docs/kernels.md).
constexpr int64_t tile_cycles(Kind kind, int64_t n) { return kDecodeCycles[kind] + 18 * ceil_div(n, 16); }
constexpr int64_t vector_cycles(Kind kind, int64_t n) { return n * (kind <= kFp8 ? 144 : 45) / 8; }

// Whether n tokens go to the tile kernels; a pool that is pinned to one kernel per format has no use for this.
inline bool tiles_win(int format, int64_t n) {
    const Kind kind = kind_of(format);
    return kHasTiles && needs_buffers(format) && n >= kFewestTileTokens && tile_cycles(kind, n) < vector_cycles(kind, n);
}

}  // namespace
