// When tile kernels are used: per matrix or expert, by what its format and number of tokens cost on each kind of
// kernel.
#pragma once
#include "activations.h"

namespace {

constexpr int64_t kFewestTileTokens = 8;  // fewer are bound by memory whatever multiplies them
constexpr int64_t kMostCompared = 512;    // tokens; who is faster then is faster with more

// 4 or 8 bits in groups of 64 or 128 k: the scales of so many k can wait until int8 tiles have been added up.
constexpr bool has_int8_tiles(int format) {
    const FormatInfo &f = kFormats[format];
    const bool codes = f.kind == kU4 || f.kind == kU4M || f.kind == kS8;
    return kHasTiles && codes && (f.block_k == 64 || f.block_k == 128);
}

// Cycles for 16 rows x 32 k: to decode them, and then for every tile of 16 tokens (docs/kernels.md).
struct TileCost {
    int64_t decode, tile;

    constexpr int64_t of(int64_t n) const { return decode + tile * ceil_div(n, 16); }
};

// Cycles to decode to bf16, measured on Zen 5, by kind.
constexpr int kDecodeCycles[kKinds] = {0, 0, 0, 70, 71, 56, 57, 65, 65, 87, 60, 75, 80, 80, 80};

// The products take 16 cycles, loading and storing their sums 2.
constexpr TileCost bf16_cost(int format) { return {kDecodeCycles[kind_of(format)], 18}; }

// The products take 8 cycles, and for each group storing 16 x 16 sums 16 and scaling them 36 (with a minimum 48),
// measured on Zen 5.
constexpr TileCost int8_cost(int format) {
    const FormatInfo &f = kFormats[format];
    return {f.kind == kS8 ? 0 : 8, 8 + (16 + (f.kind == kU4M ? 48 : 36)) * kBlock / f.block_k};
}

// 45 cycles for eight tokens by vpdpbusd, 144 by float32 multiply-adds.
constexpr int64_t vector_cost(int format, int64_t n) { return n * (kind_of(format) <= kFp8 ? 144 : 45) / 8; }

// So many tokens from which on tiles are never slower than vectors.
constexpr int64_t fewest_tokens(int format, TileCost tiles) {
    int64_t n = kMostCompared;
    while (n > kFewestTileTokens && tiles.of(n - 1) < vector_cost(format, n - 1)) n--;
    return n;
}

// Int8 tiles are used from `int8` tokens on and below `int8_end`, bf16 tiles from `bf16` on.
struct Choice {
    int64_t int8 = INT64_MAX, int8_end = 0, bf16 = INT64_MAX;
};

constexpr Choice choice_of(int format) {
    Choice c;
    if (!kHasTiles || !needs_buffers(format)) return c;
    c.bf16 = fewest_tokens(format, bf16_cost(format));
    if (!has_int8_tiles(format)) return c;
    c.int8 = fewest_tokens(format, int8_cost(format));
    c.int8_end = c.int8;
    while (c.int8_end <= kMostCompared && int8_cost(format).of(c.int8_end) <= bf16_cost(format).of(c.int8_end))
        c.int8_end++;
    if (c.int8_end > kMostCompared) c.int8_end = INT64_MAX;
    return c;
}

struct Choices {
    Choice of[HETERO_FORMATS];

    constexpr Choices() : of() {
        for (int f = 0; f < HETERO_FORMATS; f++) of[f] = choice_of(f);
    }
};
constexpr Choices kChoices;

enum class Use { kVectors, kBf16Tiles, kInt8Tiles };

// What multiplies n tokens that have what `acts` has. One more token never leads back to what fewer tokens left.
inline Use use_of(int format, int64_t n, const Acts &acts) {
    const Choice &c = kChoices.of[format];
    if (acts.wide && n >= c.int8 && n < c.int8_end) return Use::kInt8Tiles;
    return acts.b && n >= c.bf16 ? Use::kBf16Tiles : Use::kVectors;
}

}  // namespace
