// AMX kernels of bf16 tiles: weights are decoded once per call with the scales folded in, 16 rows x 32 k a tile, and
// TDPBF16PS multiplies two of them, as of gate and up, by two tiles of 16 tokens x 32 k. C tiles are loaded from and
// stored to the output itself.
#pragma once
#include "pairs_avx512.h"
#include "tile_costs.h"

namespace {

constexpr int64_t kTileChunk = 16;    // blocks decoded at once: panels of 16 KiB, two of which stay in L1
constexpr int64_t kTileBytes = 1024;  // of a block in bf16
constexpr int64_t kTileRows = 16;     // tokens of a tile

struct alignas(64) TileConfig {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles 0 to 3 hold sums, of tokens 0.. with both weight tiles and of tokens 16..; 4 and 5 hold those tokens, 6 and 7
// weights. There are up to 32 tokens.
inline void configure_tiles(int64_t tokens) {
    TileConfig config;
    const auto rows = uint8_t(min64(tokens, kTileRows)), more = uint8_t(tokens > kTileRows ? tokens - kTileRows : 1);
    config.rows[0] = config.rows[1] = config.rows[4] = rows;
    config.rows[2] = config.rows[3] = config.rows[5] = more;
    _tile_loadconfig(&config);
}

// Two registers of float32, 16 rows each, to a line of 16 rows x 2 k of bf16.
HETERO_INLINE __m512i bf16_line(__m512 k0, __m512 k1) {
    alignas(64) static constexpr uint16_t order[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    // vcvtne2ps2bf16 rounds both at once, but the emulated CPU of the tests gets its upper half wrong.
    const __m256i first = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(k0));
    const __m256i second = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(k1));
    return _mm512_permutex2var_epi16(_mm512_castsi256_si512(first), load512(order), _mm512_castsi256_si512(second));
}

// Whether codes of 4 bits and fewer are looked up as floats: those that no zero point was added to.
template <Kind K> constexpr bool is_short() {
    return kKindInfo[K].low + kKindInfo[K].high <= 4 && !kKindInfo[K].book;
}
template <Kind K> constexpr bool is_five_bit() { return K == kU5 || K == kU5M; }

// Code t of each row's four, as a float with the zero point applied. Codes of up to 5 bits are looked up by the low
// bits of an index; others have had their zero point taken off as bytes.
template <Kind K> HETERO_INLINE __m512 code_number(__m512i line, int t, __m512 low, __m512 high) {
    if (!is_short<K>() && !is_five_bit<K>())
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(line, 24 - 8 * t), 24));
    const __m512i index = t ? _mm512_srli_epi32(line, 8 * t) : line;
    return is_five_bit<K>() ? _mm512_permutex2var_ps(low, index, high) : _mm512_permutexvar_ps(index, low);
}

// Blocks of a quantised tile as bf16 weights: lines of 16 rows x 2 k.
template <Kind K> void decode_bf16(const uint8_t *codes, const ScalePanel &scales, int64_t count, uint8_t *panel) {
    constexpr bool minimum = kKindInfo[K].minimum;
    constexpr int zero = zero_512<K>();  // codes come out unsigned
    const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 low = _mm512_sub_ps(steps, _mm512_set1_ps(zero)), high = _mm512_add_ps(low, _mm512_set1_ps(16));
    for (int64_t i = 0; i < count; i++, codes += kind_bytes(K))
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++, panel += 128) {
            const int g = j / (8 / kKindInfo[K].groups);
            __m512i line = code_line_512<K>(codes, j);
            if (!is_short<K>() && !is_five_bit<K>()) line = _mm512_sub_epi8(line, _mm512_set1_epi8(char(zero)));
            const __m512 d = _mm512_load_ps(scales.d[g][i]);
            __m512 w[4];
#pragma GCC unroll 4
            for (int t = 0; t < 4; t++) {
                const __m512 number = code_number<K>(line, t, low, high);
                w[t] = minimum ? _mm512_fmadd_ps(number, d, _mm512_load_ps(scales.m[g][i])) : _mm512_mul_ps(number, d);
            }
            _mm512_store_si512(panel, bf16_line(w[0], w[1]));
            _mm512_store_si512(panel + 64, bf16_line(w[2], w[3]));
        }
}

// Blocks of an FP8 tile of k inputs from block `first` on.
inline void decode_fp8_bf16(const uint8_t *tile, int64_t k, int64_t first, int64_t count, uint8_t *panel) {
    const uint8_t *scales = tile + scale_offset(HETERO_FP8_E4M3, k);
    for (int64_t b = first; b < first + count; b++) {
        const __m512 d = fp8_scale_512(scales + b / 4 * 64);
        for (int j = 0; j < 8; j++, panel += 128) {
            __m512 w[4];
            fp8_line_512(tile + 512 * b + 64 * j, d, w);
            _mm512_store_si512(panel, bf16_line(w[0], w[1]));
            _mm512_store_si512(panel + 64, bf16_line(w[2], w[3]));
        }
    }
}

// Where `count` blocks of a tile from block `first` on lie in bf16: in `panel`, or where they are.
using Decoder = const uint8_t *(*)(const uint8_t *tile, int64_t k, int64_t first, int64_t count, uint8_t *panel);

template <int F>
const uint8_t *decode_tile(const uint8_t *tile, int64_t k, int64_t first, int64_t count, uint8_t *panel) {
    if constexpr (F == HETERO_BF16) return tile + first * kTileBytes;
    else if constexpr (F == HETERO_FP8_E4M3) decode_fp8_bf16(tile, k, first, count, panel);
    else if constexpr (!is_plain(F)) {
        ScalePanel scales;
        decode_scales<F>(tile + scale_offset(F, k), first, count, &scales);
        decode_bf16<kind_of(F)>(tile + first * code_bytes(F), scales, count, panel);
    }
    return panel;
}

// M tiles of tokens (1 or 2) by W tiles of weights: per step M x W products of 16 x 16 x 32.
struct TileProduct {
    const uint8_t *weights[2];
    int64_t steps;
    const uint16_t *b;
    int64_t b_stride;
    float *out[2];
    int64_t out_stride;
    bool add;

    template <int M, int W> void run() const {
        const int64_t from = 2 * b_stride, to = 4 * out_stride;
        const uint16_t *b1 = M > 1 ? b + kTileRows * b_stride : nullptr;
        float *const c00 = out[0], *const c10 = M > 1 ? c00 + kTileRows * out_stride : nullptr;
        float *const c01 = out[1], *const c11 = M > 1 && W > 1 ? c01 + kTileRows * out_stride : nullptr;
        _tile_zero(0);
        if (W > 1) _tile_zero(1);
        if (M > 1) _tile_zero(2);
        if (M > 1 && W > 1) _tile_zero(3);
        if (add) {
            _tile_loadd(0, c00, to);
            if (W > 1) _tile_loadd(1, c01, to);
            if (M > 1) _tile_loadd(2, c10, to);
            if (M > 1 && W > 1) _tile_loadd(3, c11, to);
        }
        for (int64_t s = 0; s < steps; s++) {
            _tile_loadd(4, b + s * kBlock, from);
            _tile_loadd(6, weights[0] + s * kTileBytes, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (W > 1) _tile_loadd(7, weights[1] + s * kTileBytes, 64);
            if (W > 1) _tile_dpbf16ps(1, 4, 7);
            if (M > 1) _tile_loadd(5, b1 + s * kBlock, from);
            if (M > 1) _tile_dpbf16ps(2, 5, 6);
            if (M > 1 && W > 1) _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, c00, to);
        if (W > 1) _tile_stored(1, c01, to);
        if (M > 1) _tile_stored(2, c10, to);
        if (M > 1 && W > 1) _tile_stored(3, c11, to);
    }

    // All n tokens: 32 at a time, then what is left.
    template <int W> void run_tokens(int64_t n) {
        if (n >= 2 * kTileRows) configure_tiles(2 * kTileRows);
        for (; n >= 2 * kTileRows; n -= 2 * kTileRows) {
            run<2, W>();
            b += 2 * kTileRows * b_stride;
            for (int w = 0; w < W; w++) out[w] += 2 * kTileRows * out_stride;
        }
        if (n) configure_tiles(n);
        if (n > kTileRows) run<2, W>();
        else if (n) run<1, W>();
    }
};

// W tiles of a format and the same k, which read the same activations.
template <int W>
void tiles_amx(Decoder decode, const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
               float *const *outs, int64_t out_stride) {
    alignas(64) uint8_t panel[W][kTileChunk * kTileBytes];
    const int64_t blocks = ceil_div(k, kBlock);
    for (int64_t at = 0; at < blocks; at += kTileChunk) {
        TileProduct product = {{}, min64(kTileChunk, blocks - at), acts.b + (first - acts.b_first) * acts.b_stride,
                               acts.b_stride, {}, out_stride, at > 0};
        product.b += at * kBlock;
        for (int w = 0; w < W; w++) {
            product.weights[w] = decode(tiles[w], k, at, product.steps, panel[w]);
            product.out[w] = outs[w];
        }
        product.run_tokens<W>(n);
    }
    _tile_release();
}

}  // namespace
