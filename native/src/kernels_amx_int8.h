// AMX kernels of int8 tiles, for 4 or 8 bits in groups of 64 or 128 k: codes are a tile of 16 rows x 64 k as they lie or
// as soon as they are unpacked, TDPBSSD multiplies two of them by two tiles of 16 tokens x 64 k of wide rows, and each
// group's sums are scaled as in the vector kernels. As few tokens as the vector kernels are faster for go to those.
#pragma once
#include "kernels_amx.h"

namespace {

constexpr int64_t kTileK = 64;                    // of an int8 tile
constexpr int64_t kTileSums = kTileRows * kRows;  // of a tile of sums
constexpr int64_t kMostTokens = 2 * kTileRows;    // that are worked on at a time
constexpr int64_t kInt8Chunk = 32;                // blocks decoded at once: panels of 16 KiB, as of bf16

// Blocks of a tile as signed bytes: lines of 16 rows x 4 k.
template <Kind K> void decode_int8(const uint8_t *codes, int64_t count, uint8_t *panel) {
    const __m512i zero = _mm512_set1_epi8(char(kKindInfo[K].zero));
    for (int64_t i = 0; i < count; i++, codes += kind_bytes(K))
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++, panel += 64)
            _mm512_store_si512(panel, _mm512_sub_epi8(code_line_512<K>(codes, j), zero));
}

// The integer sums over `steps` times 64 k of M tiles of tokens by W tiles of weights: of tokens 0.. with each of the
// weights, then of tokens 16.. .
template <int M, int W>
HETERO_INLINE void multiply_int8(const uint8_t *q, int64_t stride, const uint8_t *const *weights, int64_t steps,
                                 int32_t (*sums)[kTileSums]) {
    const uint8_t *q1 = M > 1 ? q + kTileRows * stride : nullptr;
    _tile_zero(0);
    if (W > 1) _tile_zero(1);
    if (M > 1) _tile_zero(2);
    if (M > 1 && W > 1) _tile_zero(3);
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, q + s * kTileK, stride);
        _tile_loadd(6, weights[0] + s * kTileBytes, 64);
        _tile_dpbssd(0, 4, 6);
        if (W > 1) _tile_loadd(7, weights[1] + s * kTileBytes, 64);
        if (W > 1) _tile_dpbssd(1, 4, 7);
        if (M > 1) _tile_loadd(5, q1 + s * kTileK, stride);
        if (M > 1) _tile_dpbssd(2, 5, 6);
        if (M > 1 && W > 1) _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums[0], 64);
    if (W > 1) _tile_stored(1, sums[1], 64);
    if (M > 1) _tile_stored(2, sums[W], 64);
    if (M > 1 && W > 1) _tile_stored(3, sums[W + 1], 64);
}

// Blocks of W tiles of a format, decoded, and the wide rows of tokens.
template <int F, int W> struct Int8Chunk {
    static constexpr bool kMinimum = kind_info(F).minimum;
    static constexpr int64_t kGroup = kFormats[F].block_k, kGroupBlocks = kGroup / kBlock;

    static constexpr bool kDecoded = kind_of(F) != kS8;  // bytes are a tile as they lie

    alignas(64) uint8_t panel[W][kDecoded ? kInt8Chunk * kBlock * kRows : 64];
    const uint8_t *codes[W];
    ScalePanel scales[W];
    int64_t k, first_block, count;

    void decode(const uint8_t *const *tiles) {
        for (int w = 0; w < W; w++) {
            decode_scales<F>(tiles[w] + scale_offset(F, k), first_block, count, &scales[w]);
            codes[w] = tiles[w] + first_block * code_bytes(F);
            if constexpr (!kDecoded) continue;
            decode_int8<kind_of(F)>(codes[w], count, panel[w]);
            codes[w] = panel[w];
        }
    }

    // acc += the sums of one group for n tokens with tile w, scaled; `block` counts within the chunk.
    HETERO_INLINE void add_sums(const int32_t *sums, int w, int64_t block, const uint8_t *row, int64_t stride,
                                int64_t n, float *acc) const {
        const __m512 d = _mm512_load_ps(scales[w].d[0][block]);
        const __m512 m = kMinimum ? _mm512_load_ps(scales[w].m[0][block]) : _mm512_setzero_ps();
        const int64_t at = (first_block + block) * kBlock, group = at / kWideGroup;
        const int64_t part = kGroup == kWideGroup ? 2 : at / kTileK % 2;
        const float *of = reinterpret_cast<const float *>(row + wide_scales_at(k)) + group;
        const float *total = of + ceil_div(k, kWideGroup) + 2 * group + part;
        for (int64_t t = 0; t < n; t++, of += stride / 4, total += stride / 4) {
            const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(*of));
            __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load512(sums + t * kRows)), scale,
                                         _mm512_load_ps(acc + t * kRows));
            if (kMinimum) sum = _mm512_fmadd_ps(m, _mm512_set1_ps(*total), sum);
            _mm512_store_ps(acc + t * kRows, sum);
        }
    }

    // The chunk's part of the outputs of n tokens, up to 16 M.
    template <int M>
    void run(const uint8_t *rows, int64_t stride, int64_t n, float *const *outs, int64_t out_stride) const {
        alignas(64) int32_t sums[M * W][kTileSums];
        alignas(64) float acc[M * W][kTileSums];
        for (int w = 0; w < W; w++)
            for (int64_t t = 0; t < n; t++)
                _mm512_store_ps(acc[t / kTileRows * W + w] + t % kTileRows * kRows,
                                first_block ? _mm512_loadu_ps(outs[w] + t * out_stride) : _mm512_setzero_ps());
        for (int64_t b = 0; b < count; b += kGroupBlocks) {
            const uint8_t *weights[W];
            for (int w = 0; w < W; w++) weights[w] = codes[w] + b * kBlock * kRows;
            multiply_int8<M, W>(rows + (first_block + b) * kBlock, stride, weights, kGroup / kTileK, sums);
            for (int i = 0; i < M * W; i++)
                add_sums(sums[i], i % W, b, rows + i / W * kTileRows * stride, stride,
                         min64(kTileRows, n - i / W * kTileRows), acc[i]);
        }
        for (int w = 0; w < W; w++)
            for (int64_t t = 0; t < n; t++)
                _mm512_storeu_ps(outs[w] + t * out_stride,
                                 _mm512_load_ps(acc[t / kTileRows * W + w] + t % kTileRows * kRows));
    }
};

// W tiles of a format and the same k, which read the same activations.
template <int F, int W>
void int8_tiles(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n, float *const *outs,
                int64_t out_stride) {
    Int8Chunk<F, W> chunk;
    chunk.k = k;
    for (int64_t at = 0; at < k / kBlock; at += kInt8Chunk) {
        chunk.first_block = at, chunk.count = min64(kInt8Chunk, k / kBlock - at);
        chunk.decode(tiles);
        for (int64_t t = 0, some; t < n; t += some) {
            some = min64(kMostTokens, n - t);
            if (!t || some < kMostTokens) configure_tiles(some);
            float *to[W];
            for (int w = 0; w < W; w++) to[w] = outs[w] + t * out_stride;
            const uint8_t *rows = acts.wide + (first - acts.b_first + t) * acts.wide_stride;
            if (some > kTileRows) chunk.template run<2>(rows, acts.wide_stride, some, to, out_stride);
            else chunk.template run<1>(rows, acts.wide_stride, some, to, out_stride);
        }
    }
    _tile_release();
}

// W tiles by whatever is fastest; `vectors` is the AVX-512 kernel's part.
template <int F, int W, class Vectors>
HETERO_INLINE void run_amx(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                           float *const *outs, int64_t out_stride, const Vectors &vectors) {
    const Use use = use_of(F, n, acts);
    if (use == Use::kVectors) return vectors();
    if constexpr (has_int8_tiles(F))
        if (use == Use::kInt8Tiles) return int8_tiles<F, W>(tiles, k, acts, first, n, outs, out_stride);
    tiles_amx<W>(decode_tile<F>, tiles, k, acts, first, n, outs, out_stride);
}

template <int F>
void tile_amx(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
              int64_t out_stride) {
    run_amx<F, 1>(&tile, k, acts, first, n, &out, out_stride, [&] {
        if constexpr (is_plain(F)) plain_avx512<F>(tile, k, acts, first, n, out, out_stride);
        else tile_avx512<F>(tile, k, acts, first, n, out, out_stride);
    });
}

template <int F>
void pair_amx(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n, float *const *outs,
              int64_t out_stride) {
    run_amx<F, 2>(tiles, k, acts, first, n, outs, out_stride,
                  [&] { pair_kernel_512<F>()(tiles, k, acts, first, n, outs, out_stride); });
}

}  // namespace
