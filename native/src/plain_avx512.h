// AVX-512 kernels of F32, F16, BF16 and FP8 tiles: float32 FMA in K order, one accumulator per output, as in
// plain_avx2.h.
#pragma once
#include "kernels_avx512.h"
#include "plain_avx2.h"

namespace {

// 16 rows x 2 k of a 16-bit format as float32: the even k and the odd k.
template <int F> HETERO_INLINE void widen_pairs_512(const uint8_t *p, __m512 *even, __m512 *odd) {
    const __m512i v = load512(p);
    if (F == HETERO_BF16) {
        *even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        *odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000))));
    } else {
        *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
        *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
    }
}

// One token of a 16-bit tile, from memory to registers.
template <int F> void plain_one_512(const uint8_t *tile, int64_t k, const float *x, float *out) {
    __m512 acc = _mm512_setzero_ps(), even, odd;
    for (int64_t j = 0; j < k; j += 2, tile += 64) {
        prefetch_line(tile);
        widen_pairs_512<F>(tile, &even, &odd);
        acc = _mm512_fmadd_ps(even, _mm512_set1_ps(x[j]), acc);
        if (j + 1 < k) acc = _mm512_fmadd_ps(odd, _mm512_set1_ps(x[j + 1]), acc);
    }
    _mm512_storeu_ps(out, acc);
}

// `lines` lines of 16 rows x 2 k to a float32 panel [k][16].
template <int F> void widen_lines_512(const uint8_t *from, int64_t lines, float *panel) {
    for (int64_t j = 0; j < lines; j++, from += 64, panel += 2 * kRows) {
        prefetch_line(from);
        __m512 even, odd;
        widen_pairs_512<F>(from, &even, &odd);
        _mm512_store_ps(panel, even);
        _mm512_store_ps(panel + kRows, odd);
    }
}

// As fp8_scale and fp8_pair of plain_avx2.h; a line is four k of 16 rows.
HETERO_INLINE __m512 fp8_scale_512(const uint8_t *entry) {
    return _mm512_mul_ps(_mm512_loadu_ps(reinterpret_cast<const float *>(entry)), _mm512_set1_ps(256.f));
}

HETERO_INLINE void fp8_line_512(const uint8_t *p, __m512 d, __m512 *w) {
    const __m512i v = load512(p), zero = _mm512_setzero_si512(), kept = _mm512_set1_epi16(int16_t(0xbf80));
    const __m512i up[2] = {_mm512_unpacklo_epi8(zero, v), _mm512_unpackhi_epi8(zero, v)};
    for (int i = 0; i < 2; i++) {
        const __m512i half = _mm512_and_si512(_mm512_srai_epi16(up[i], 1), kept);
        w[i] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), d);
        w[2 + i] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), d);
    }
}

inline void widen_fp8_512(const uint8_t *tile, const uint8_t *scales, int64_t count, float *panel) {
    __m512 w[4];
    for (int64_t from = 0; from < count; from += kFp8Group, scales += 64) {
        const __m512 d = fp8_scale_512(scales);
        for (int64_t j = from; j < min64(count, from + kFp8Group); j += 4, tile += 64, panel += 4 * kRows) {
            prefetch_line(tile);
            fp8_line_512(tile, d, w);
            for (int i = 0; i < 4; i++) _mm512_store_ps(panel + kRows * i, w[i]);
        }
    }
}

// T tokens over `count` inputs of a float32 panel [k][16].
template <int T>
void plain_tokens_512(const float *panel, int64_t first_k, int64_t count, const Acts &acts, int64_t first, float *out,
                      int64_t out_stride) {
    const float *x[T];
    __m512 acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        x[t] = acts.x + acts.row(first + t) * acts.x_stride + first_k;
        acc[t] = first_k ? _mm512_loadu_ps(out + t * out_stride) : _mm512_setzero_ps();
    }
    for (int64_t j = 0; j < count; j++) {
        const __m512 w = _mm512_loadu_ps(panel + kRows * j);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t][j]), acc[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * out_stride, acc[t]);
}

// `count` inputs of a tile from input `first` on, a multiple of kPlainChunk, as a float32 panel [k][16]: where it lies.
template <int F>
const float *plain_panel_512(const uint8_t *tile, int64_t k, int64_t first, int64_t count, float *decoded) {
    const uint8_t *from = tile + first / kBlock * code_bytes(F);
    if (F == HETERO_F32) return reinterpret_cast<const float *>(from);
    if (F == HETERO_FP8_E4M3)
        widen_fp8_512(from, tile + scale_offset(F, k) + first / kFp8Group * 64, count, decoded);
    else
        widen_lines_512<F>(from, (count + 1) / 2, decoded);
    return decoded;
}

template <int F>
void plain_avx512(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                  int64_t stride) {
    const float *x = acts.x + acts.row(first) * acts.x_stride;
    if (n == 1 && F == HETERO_FP8_E4M3) return fp8_one<1>(&tile, k, x, &out);
    if (n == 1 && F != HETERO_F32) return plain_one_512<F>(tile, k, x, out);
    alignas(64) float decoded[kPlainChunk * kRows];
    for (int64_t b = 0; b < k; b += kPlainChunk) {
        const int64_t count = min64(kPlainChunk, k - b);
        const float *panel = plain_panel_512<F>(tile, k, b, count, decoded);
        int64_t t = 0;
        for (; t + 8 <= n; t += 8) plain_tokens_512<8>(panel, b, count, acts, first + t, out + t * stride, stride);
        for (; t + 4 <= n; t += 4) plain_tokens_512<4>(panel, b, count, acts, first + t, out + t * stride, stride);
        for (; t + 2 <= n; t += 2) plain_tokens_512<2>(panel, b, count, acts, first + t, out + t * stride, stride);
        for (; t < n; t++) plain_tokens_512<1>(panel, b, count, acts, first + t, out + t * stride, stride);
    }
}

}  // namespace
