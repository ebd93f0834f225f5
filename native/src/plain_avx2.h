// AVX2 kernels of F32, F16, BF16 and FP8 tiles: float32 FMA in K order, one accumulator per output.
#pragma once
#include "kernels_avx2.h"

namespace {

constexpr int64_t kFp8Group = kFormats[HETERO_FP8_E4M3].block_k;  // inputs that share a scale
constexpr int64_t kPlainChunk = 256;  // inputs of a float32 panel: 16 KiB

// 8 rows x 2 k of a 16-bit format as float32: the even k and the odd k.
template <int F> HETERO_INLINE void widen_pairs(const uint8_t *p, __m256 *even, __m256 *odd) {
    const __m256i v = load(p);
    if (F == HETERO_BF16) {
        *even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        *odd = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000))));
    } else {
        const __m256i split = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                               0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        const __m256i sorted = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, split), 0xd8);
        *even = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
        *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
    }
}

HETERO_INLINE void prefetch_line(const uint8_t *line) {
    _mm_prefetch(reinterpret_cast<const char *>(line + 8192), _MM_HINT_T0);
}

// One token of a 16-bit tile, from memory to registers.
template <int F> void plain_one(const uint8_t *tile, int64_t k, const float *x, float *out) {
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, even, odd;
    for (int64_t j = 0; j < k; j += 2, tile += 64) {
        prefetch_line(tile);
        for (int h = 0; h < 2; h++) {
            widen_pairs<F>(tile + 32 * h, &even, &odd);
            acc[h] = _mm256_fmadd_ps(even, _mm256_set1_ps(x[j]), acc[h]);
            if (j + 1 < k) acc[h] = _mm256_fmadd_ps(odd, _mm256_set1_ps(x[j + 1]), acc[h]);
        }
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + 8 * h, acc[h]);
}

// `lines` lines of 16 rows x 2 k to a float32 panel [k][16].
template <int F> void widen_lines(const uint8_t *from, int64_t lines, float *panel) {
    for (int64_t j = 0; j < lines; j++, from += 64, panel += 2 * kRows) {
        prefetch_line(from);
        for (int h = 0; h < 2; h++) {
            __m256 even, odd;
            widen_pairs<F>(from + 32 * h, &even, &odd);
            _mm256_store_ps(panel + 8 * h, even);
            _mm256_store_ps(panel + kRows + 8 * h, odd);
        }
    }
}

// The scale of FP8 rows, times what e4m3 is too small by when it is read as fp16.
HETERO_INLINE void fp8_scale(const uint8_t *entry, __m256 *d) {
    for (int h = 0; h < 2; h++)
        d[h] = _mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float *>(entry) + 8 * h), _mm256_set1_ps(256.f));
}

// Two k of 16 FP8 rows as float32: w[k][half]. A code's sign and exponent are moved to where fp16 has them.
HETERO_INLINE void fp8_pair(const uint8_t *p, const __m256 *d, __m256 (*w)[2]) {
    const __m256i v = load(p), zero = _mm256_setzero_si256(), kept = _mm256_set1_epi16(int16_t(0xbf80));
    const __m256i up[2] = {_mm256_unpacklo_epi8(zero, v), _mm256_unpackhi_epi8(zero, v)};
    for (int i = 0; i < 2; i++) {
        const __m256i half = _mm256_and_si256(_mm256_srai_epi16(up[i], 1), kept);
        w[i][0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), d[0]);
        w[i][1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), d[1]);
    }
}

// One token of one FP8 tile or two, from memory to registers; two do not wait for each other's sums.
template <int Tiles> void fp8_one(const uint8_t *const *tiles, int64_t k, const float *x, float *const *outs) {
    const int64_t ahead = Tiles * tile_bytes(HETERO_FP8_E4M3, k);  // what comes next
    __m256 acc[Tiles][2], d[Tiles][2], w[2][2];
    for (int n = 0; n < Tiles; n++) acc[n][0] = acc[n][1] = _mm256_setzero_ps();
    for (int64_t from = 0; from < k; from += kFp8Group) {
        for (int n = 0; n < Tiles; n++)
            fp8_scale(tiles[n] + scale_offset(HETERO_FP8_E4M3, k) + from / kFp8Group * 64, d[n]);
        for (int64_t j = from; j < min64(k, from + kFp8Group); j += 2)
#pragma GCC unroll 2
            for (int n = 0; n < Tiles; n++) {
                _mm_prefetch(reinterpret_cast<const char *>(tiles[n] + ahead + 16 * j), _MM_HINT_T0);
                fp8_pair(tiles[n] + 16 * j, d[n], w);
                for (int i = 0; i < 2 && j + i < k; i++) {
                    const __m256 a = _mm256_set1_ps(x[j + i]);
                    for (int h = 0; h < 2; h++) acc[n][h] = _mm256_fmadd_ps(w[i][h], a, acc[n][h]);
                }
            }
    }
    for (int n = 0; n < Tiles; n++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(outs[n] + 8 * h, acc[n][h]);
}

inline void fp8_pair_avx2(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                          float *const *outs, int64_t out_stride) {
    if (n != 1) return one_by_one<HETERO_FP8_E4M3>(tiles, k, acts, first, n, outs, out_stride);
    fp8_one<2>(tiles, k, acts.x + acts.row(first) * acts.x_stride, outs);
}

// `count` k of an FP8 tile, whose scales are in entries from `scales` on, to a float32 panel [k][16].
inline void widen_fp8(const uint8_t *tile, const uint8_t *scales, int64_t count, float *panel) {
    __m256 d[2], w[2][2];
    for (int64_t from = 0; from < count; from += kFp8Group, scales += 64) {
        fp8_scale(scales, d);
        for (int64_t j = from; j < min64(count, from + kFp8Group); j += 2, tile += 32, panel += 2 * kRows) {
            if (j % 4 == 0) prefetch_line(tile);
            fp8_pair(tile, d, w);
            for (int i = 0; i < 2; i++)
                for (int h = 0; h < 2; h++) _mm256_store_ps(panel + kRows * i + 8 * h, w[i][h]);
        }
    }
}

// T tokens over `count` inputs of a float32 panel [k][16].
template <int T>
void plain_tokens(const float *panel, int64_t first_k, int64_t count, const Acts &acts, int64_t first, float *out,
                  int64_t out_stride) {
    const float *x[T];
    __m256 acc[2][T];
    for (int t = 0; t < T; t++) {
        x[t] = acts.x + acts.row(first + t) * acts.x_stride + first_k;
        for (int h = 0; h < 2; h++)
            acc[h][t] = first_k ? _mm256_loadu_ps(out + t * out_stride + 8 * h) : _mm256_setzero_ps();
    }
    for (int64_t j = 0; j < count; j++) {
        const __m256 w[2] = {_mm256_loadu_ps(panel + kRows * j), _mm256_loadu_ps(panel + kRows * j + 8)};
        for (int t = 0; t < T; t++) {
            const __m256 a = _mm256_set1_ps(x[t][j]);
            for (int h = 0; h < 2; h++) acc[h][t] = _mm256_fmadd_ps(w[h], a, acc[h][t]);
        }
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[h][t]);
}

template <int F>
void plain_avx2(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                int64_t out_stride) {
    const float *x = acts.x + acts.row(first) * acts.x_stride;
    if (n == 1 && F == HETERO_FP8_E4M3) return fp8_one<1>(&tile, k, x, &out);
    if (n == 1 && F != HETERO_F32) return plain_one<F>(tile, k, x, out);
    alignas(64) float decoded[kPlainChunk * kRows];
    for (int64_t b = 0; b < k; b += kPlainChunk) {
        const int64_t count = min64(kPlainChunk, k - b);
        const uint8_t *from = tile + b / kBlock * code_bytes(F);
        if (F == HETERO_FP8_E4M3) widen_fp8(from, tile + scale_offset(F, k) + b / kFp8Group * 64, count, decoded);
        else if (F != HETERO_F32) widen_lines<F>(from, (count + 1) / 2, decoded);
        const float *panel = F == HETERO_F32 ? reinterpret_cast<const float *>(from) : decoded;
        int64_t t = 0;
        for (; t + 6 <= n; t += 6) plain_tokens<6>(panel, b, count, acts, first + t, out + t * out_stride, out_stride);
        for (; t + 4 <= n; t += 4) plain_tokens<4>(panel, b, count, acts, first + t, out + t * out_stride, out_stride);
        for (; t + 2 <= n; t += 2) plain_tokens<2>(panel, b, count, acts, first + t, out + t * out_stride, out_stride);
        for (; t < n; t++) plain_tokens<1>(panel, b, count, acts, first + t, out + t * out_stride, out_stride);
    }
}

}  // namespace
