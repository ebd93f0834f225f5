// AVX2 kernels of quantised tiles. Whatever the shape, a token's value is made by the same integer sums and the same
// float operations in the same order, so every shape gives the same bits:
//   per group: acc = fma(float(isum - zero * sum(a)), d_w * d_a, acc), then with a minimum acc = fma(m, d_a * sum(a), acc).
#pragma once
#include "decode_avx2.h"

namespace {

#define HETERO_INLINE inline __attribute__((always_inline))

constexpr int64_t kPanelTokens = 16;       // from here on codes are decoded once into a panel
constexpr int64_t kPrefetchBlocks = 16;    // 4 KiB of 4-bit codes

HETERO_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

HETERO_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Exact |w| x (a with the sign of w): at most 128 * 127 * 2 in 16 bits.
HETERO_INLINE __m256i signed_pairs(__m256i w, __m256i a) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
}

// Integer sums of 8 rows over one block: sum[0] for the group of 32, or sum[0], sum[1] for two groups of 16.
template <int F> HETERO_INLINE void dot_block(const __m256i *w, const int8_t *a, __m256i *sum) {
    if (F == HETERO_Q8_0) {
        sum[0] = widen(signed_pairs(w[0], broadcast4(a)));
        for (int j = 1; j < 8; j++)
            sum[0] = _mm256_add_epi32(sum[0], widen(signed_pairs(w[j], broadcast4(a + 4 * j))));
    } else if (F == HETERO_Q6_K) {  // 4 x 2 x 32 x 127 fits 16 bits
        for (int g = 0; g < 2; g++) {
            __m256i t = signed_pairs(w[4 * g], broadcast4(a + 16 * g));
            for (int j = 1; j < 4; j++)
                t = _mm256_add_epi16(t, signed_pairs(w[4 * g + j], broadcast4(a + 16 * g + 4 * j)));
            sum[g] = widen(t);
        }
    } else {  // 4 bits: 8 x 2 x 15 x 127 fits 16 bits; 5 bits: 4 x 2 x 31 x 127 does
        __m256i t = _mm256_maddubs_epi16(w[0], broadcast4(a)), u = _mm256_maddubs_epi16(w[4], broadcast4(a + 16));
        for (int j = 1; j < 4; j++) {
            t = _mm256_add_epi16(t, _mm256_maddubs_epi16(w[j], broadcast4(a + 4 * j)));
            u = _mm256_add_epi16(u, _mm256_maddubs_epi16(w[j + 4], broadcast4(a + 16 + 4 * j)));
        }
        sum[0] = is_five_bit<F>() ? _mm256_add_epi32(widen(t), widen(u)) : widen(_mm256_add_epi16(t, u));
    }
}

// Adds one block's contribution to the float accumulator of 8 rows.
template <int F>
HETERO_INLINE __m256 add_sums(__m256 acc, const __m256i *sum, const float *d, const float *m, float da, float ds,
                              int32_t s) {
    const __m256 scale = _mm256_set1_ps(da);
    __m256i whole = sum[0];
    if (F == HETERO_Q4_0) whole = _mm256_sub_epi32(whole, _mm256_set1_epi32(8 * s));
    if (F == HETERO_Q5_0) whole = _mm256_sub_epi32(whole, _mm256_set1_epi32(16 * s));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(_mm256_load_ps(d), scale), acc);
    if (F == HETERO_Q6_K)
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[1]), _mm256_mul_ps(_mm256_load_ps(m), scale), acc);
    if (has_minimum(F)) acc = _mm256_fmadd_ps(_mm256_load_ps(m), _mm256_set1_ps(ds), acc);
    return acc;
}

// The activations of T tokens of a call.
template <int T> struct TokenRows {
    const int8_t *q[T];
    const float *d[T];
    const float *ds[T];
    const int32_t *s[T];

    TokenRows(const Acts &acts, int64_t first) {
        for (int t = 0; t < T; t++) {
            const int64_t row = acts.row(first + t);
            q[t] = acts.q + row * acts.q_stride;
            d[t] = acts.d + row * acts.group_stride;
            ds[t] = acts.ds + row * acts.group_stride;
            s[t] = acts.s + row * acts.group_stride;
        }
    }
};

// Fetches what will be read kPrefetchBlocks later: codes of this tile or the next, and the next tile's scales.
template <int F> HETERO_INLINE void prefetch(const uint8_t *tile, int64_t b, int64_t blocks, int64_t size) {
    constexpr FormatInfo f = kFormats[F];
    const int64_t ahead = b + kPrefetchBlocks;
    const uint8_t *codes = ahead < blocks ? tile + ahead * f.code_bytes : tile + size + (ahead - blocks) * f.code_bytes;
    for (int i = 0; i < f.code_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char *>(codes + i), _MM_HINT_T0);
    const int64_t scale = blocks * f.code_bytes + b * f.scale_bytes * kBlock / f.scale_k;
    _mm_prefetch(reinterpret_cast<const char *>(tile + size + scale), _MM_HINT_T0);
}

// Few tokens: codes go from memory to registers, T tokens per decoding.
template <int F, int T>
void tile_registers(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, float *out, int64_t out_stride) {
    constexpr FormatInfo f = kFormats[F];
    const int64_t blocks = k / kBlock, size = tile_bytes(F, k);
    const TokenRows<T> rows(acts, first);
    ScalePanel scales;
    __m256 acc[2][T];
    for (int t = 0; t < T; t++) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t in_chunk = b % kChunkBlocks;
        if (in_chunk == 0)
            decode_scales<F>(tile + blocks * f.code_bytes, b, min64(kChunkBlocks, blocks - b), &scales);
        prefetch<F>(tile, b, blocks, size);
        for (int h = 0; h < 2; h++) {
            __m256i w[8], sum[2];
            decode_codes<F>(tile + b * f.code_bytes, h, w);
            for (int t = 0; t < T; t++) {
                dot_block<F>(w, rows.q[t] + b * kBlock, sum);
                acc[h][t] = add_sums<F>(acc[h][t], sum, scales.d[in_chunk] + 8 * h, scales.m[in_chunk] + 8 * h,
                                        rows.d[t][b], rows.ds[t][b], rows.s[t][b]);
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[h][t]);
}

// Many tokens: a chunk of the tile decoded into L1 and applied to T tokens at a time.
template <int F, int T>
void panel_tokens(const uint8_t *panel, const ScalePanel &scales, int64_t first_block, int64_t count, const Acts &acts,
                  int64_t first, float *out, int64_t out_stride) {
    const TokenRows<T> rows(acts, first);
    __m256 acc[2][T];
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++)
            acc[h][t] = first_block ? _mm256_loadu_ps(out + t * out_stride + 8 * h) : _mm256_setzero_ps();
    for (int64_t i = 0; i < count; i++) {
        const int64_t b = first_block + i;
        for (int h = 0; h < 2; h++) {
            const __m256i *w = reinterpret_cast<const __m256i *>(panel + 512 * i + 256 * h);
            for (int t = 0; t < T; t++) {
                __m256i sum[2];
                dot_block<F>(w, rows.q[t] + b * kBlock, sum);
                acc[h][t] = add_sums<F>(acc[h][t], sum, scales.d[i] + 8 * h, scales.m[i] + 8 * h, rows.d[t][b],
                                        rows.ds[t][b], rows.s[t][b]);
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[h][t]);
}

template <int F>
void tile_panel(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                int64_t out_stride) {
    constexpr FormatInfo f = kFormats[F];
    const int64_t blocks = k / kBlock;
    alignas(64) uint8_t panel[kChunkBlocks * 512];
    ScalePanel scales;
    for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
        const int64_t count = min64(kChunkBlocks, blocks - b);
        decode_scales<F>(tile + blocks * f.code_bytes, b, count, &scales);
        for (int64_t i = 0; i < 2 * count; i++) {
            __m256i w[8];
            decode_codes<F>(tile + (b + i / 2) * f.code_bytes, int(i & 1), w);
            for (int j = 0; j < 8; j++) _mm256_store_si256(reinterpret_cast<__m256i *>(panel + 256 * i) + j, w[j]);
        }
        int64_t t = 0;
        for (; t + 4 <= n; t += 4) panel_tokens<F, 4>(panel, scales, b, count, acts, first + t, out + t * out_stride, out_stride);
        for (; t < n; t++) panel_tokens<F, 1>(panel, scales, b, count, acts, first + t, out + t * out_stride, out_stride);
    }
}

template <int F>
void tile_avx2(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
               int64_t out_stride) {
    if (n >= kPanelTokens) return tile_panel<F>(tile, k, acts, first, n, out, out_stride);
    int64_t t = 0;
    for (; t + 4 <= n; t += 4) tile_registers<F, 4>(tile, k, acts, first + t, out + t * out_stride, out_stride);
    if (n - t == 3) tile_registers<F, 3>(tile, k, acts, first + t, out + t * out_stride, out_stride);
    if (n - t == 2) tile_registers<F, 2>(tile, k, acts, first + t, out + t * out_stride, out_stride);
    if (n - t == 1) tile_registers<F, 1>(tile, k, acts, first + t, out + t * out_stride, out_stride);
}

}  // namespace
