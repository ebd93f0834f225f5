// AVX2 kernels of quantised tiles. Whatever the shape, a token's value is made by the same integer sums and the same
// float operations in the same order, so every shape gives the same bits. Per group of weights:
//   acc = fma(float(isum - zero * sum(a)), d_w * d_a, acc), then with a minimum acc = fma(m, d_a * sum(a), acc).
#pragma once
#include "decode_avx2.h"

namespace {

constexpr int kTokensAtOnce = 4;         // 8 integer accumulators, 2 code registers, 1 of activations: no spills
constexpr int64_t kPanelTokens = 12;     // from here on codes are decoded once into a panel

// How far ahead memory is asked for: 6 to 9 KiB, measured.
template <int F> constexpr int64_t prefetch_blocks() { return F == HETERO_Q8_0 ? 16 : 24; }

HETERO_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

// The sum in place; the empty asm keeps gcc from regrouping a chain of sums, where it would first make all the
// products and spill them.
HETERO_INLINE void add16(__m256i &sum, __m256i v) {
    sum = _mm256_add_epi16(sum, v);
    asm("" : "+x"(sum));
}

HETERO_INLINE void add32(__m256i &sum, __m256i v) {
    sum = _mm256_add_epi32(sum, v);
    asm("" : "+x"(sum));
}

HETERO_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

template <int F> constexpr bool is_signed() { return F == HETERO_Q8_0 || F == HETERO_Q6_K; }

// Lines whose products of pairs can be added in 16 bits: 4-bit codes 8 x 2 x 15 x 127 = 30480; 5-bit codes
// 4 x 2 x 31 x 127 = 31496; Q6_K 4 x 2 x 32 x 127 = 32512; Q8_0 1 x 2 x 128 x 127 = 32512.
template <int F> constexpr int lines_in_16_bits() {
    return F == HETERO_Q8_0 ? 1 : is_five_bit<F>() || F == HETERO_Q6_K ? 4 : 8;
}

// Products of 8 rows x 4 k, added in pairs. Signed codes go as |w| times (a with the sign of w), which is exact.
template <int F> HETERO_INLINE __m256i products(__m256i w, __m256i magnitude, __m256i a) {
    return is_signed<F>() ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
}

// Where a kernel takes its codes from: the block in memory, or a panel of decoded lines of 16 rows.
template <int F, bool Panel> HETERO_INLINE __m256i code_line(const uint8_t *block, int j, int half) {
    return Panel ? load(block + 64 * j + 32 * half) : decode_line<F>(block, j, half);
}

// The activations of T tokens of a call.
template <int T> struct TokenRows {
    const int8_t *q[T];
    const float *d[T];
    const float *ds[T];
    const int32_t *s8[T];

    TokenRows(const Acts &acts, int64_t first) {
        for (int t = 0; t < T; t++) {
            const int64_t row = acts.row(first + t);
            q[t] = acts.q + row * acts.q_stride;
            d[t] = acts.d + row * acts.group_stride;
            ds[t] = acts.ds + row * acts.group_stride;
            s8[t] = acts.s8 + row * acts.group_stride;
        }
    }
};

// Adds the integer sums of one group to the float accumulators of 16 rows.
template <int F, int T>
HETERO_INLINE void scale_sums(const __m256i (*sum)[2], const float *scale, const TokenRows<T> &rows, int64_t b,
                              __m256 (*acc)[2]) {
    for (int t = 0; t < T; t++) {
        const __m256 d = _mm256_set1_ps(rows.d[t][b]);
        __m256i zero = _mm256_setzero_si256();
        if (F == HETERO_Q4_0) zero = _mm256_set1_epi32(rows.s8[t][b]);
        if (F == HETERO_Q5_0) zero = _mm256_slli_epi32(_mm256_set1_epi32(rows.s8[t][b]), 1);
        for (int h = 0; h < 2; h++) {
            const __m256i whole = kind_info(F).zero && !is_signed<F>() ? _mm256_sub_epi32(sum[t][h], zero) : sum[t][h];
            acc[t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(_mm256_load_ps(scale + 8 * h), d),
                                        acc[t][h]);
        }
    }
}

// One block of 32 k for 16 rows and T tokens: each broadcast of activations serves 16 rows, each line T tokens.
template <int F, int T, bool Panel>
HETERO_INLINE void add_block(const uint8_t *block, const float *d, const float *m, const TokenRows<T> &rows, int64_t b,
                             __m256 (*acc)[2]) {
    constexpr int run = lines_in_16_bits<F>();
    __m256i sum[T][2];
#pragma GCC unroll 8
    for (int first = 0; first < 8; first += run) {
        __m256i pairs[T][2];
#pragma GCC unroll 8
        for (int j = first; j < first + run; j++) {
            const __m256i w0 = code_line<F, Panel>(block, j, 0), w1 = code_line<F, Panel>(block, j, 1);
            const __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m256i a = broadcast4(rows.q[t] + b * kBlock + 4 * j);
                const __m256i p0 = products<F>(w0, abs0, a), p1 = products<F>(w1, abs1, a);
                if (j == first) {
                    pairs[t][0] = p0;
                    pairs[t][1] = p1;
                } else {
                    add16(pairs[t][0], p0);
                    add16(pairs[t][1], p1);
                }
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            for (int h = 0; h < 2; h++) {
                if (first == 0 || F == HETERO_Q6_K) sum[t][h] = widen(pairs[t][h]);
                else add32(sum[t][h], widen(pairs[t][h]));
            }
        if (F == HETERO_Q6_K) scale_sums<F>(sum, first ? m : d, rows, b, acc);
    }
    if (F != HETERO_Q6_K) scale_sums<F>(sum, d, rows, b, acc);
    if (has_minimum(F))
        for (int t = 0; t < T; t++)
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm256_fmadd_ps(_mm256_load_ps(m + 8 * h), _mm256_set1_ps(rows.ds[t][b]), acc[t][h]);
}

// Fetches what will be read later. From memory to registers: codes of this tile or the next.
// With a panel there is more time: the same block of the next tile. Either way the next tile's scales.
template <int F, bool Panel>
HETERO_INLINE void prefetch(const uint8_t *tile, int64_t b, int64_t blocks, int64_t size) {
    constexpr FormatInfo f = kFormats[F];
    const int64_t ahead = b + (Panel ? blocks : prefetch_blocks<F>());
    const uint8_t *codes = ahead < blocks ? tile + ahead * code_bytes(F) : tile + size + (ahead - blocks) * code_bytes(F);
    for (int i = 0; i < code_bytes(F); i += 64)
        _mm_prefetch(reinterpret_cast<const char *>(codes + i), Panel ? _MM_HINT_T1 : _MM_HINT_T0);
    const int64_t scale = blocks * code_bytes(F) + b * f.scale_bytes * kBlock / f.scale_k;
    _mm_prefetch(reinterpret_cast<const char *>(tile + size + scale), _MM_HINT_T0);
}

// T tokens over `count` blocks from `first_block` on, whose codes start at `codes`.
template <int F, int T, bool Panel>
__attribute__((noinline)) void add_chunk(const uint8_t *codes, const ScalePanel &scales, int64_t first_block,
                                         int64_t count, const Acts &acts, int64_t first, float *out,
                                         int64_t out_stride, const uint8_t *tile, int64_t blocks, int64_t size) {
    constexpr int64_t block_bytes = Panel ? 512 : code_bytes(F);
    const TokenRows<T> rows(acts, first);
    __m256 acc[T][2];
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++)
            acc[t][h] = first_block ? _mm256_loadu_ps(out + t * out_stride + 8 * h) : _mm256_setzero_ps();
    for (int64_t i = 0; i < count; i++) {
        if (tile) prefetch<F, Panel>(tile, first_block + i, blocks, size);
        add_block<F, T, Panel>(codes + i * block_bytes, scales.d[i], scales.m[i], rows, first_block + i, acc);
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[t][h]);
}

template <int F> void decode_panel(const uint8_t *codes, int64_t count, uint8_t *panel) {
    for (int64_t i = 0; i < count; i++, codes += code_bytes(F), panel += 512)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            for (int h = 0; h < 2; h++)
                _mm256_store_si256(reinterpret_cast<__m256i *>(panel + 64 * j + 32 * h), decode_line<F>(codes, j, h));
}

template <int F, bool Panel>
void add_tokens(const uint8_t *codes, const ScalePanel &scales, int64_t b, int64_t count, const Acts &acts,
                int64_t first, int64_t n, float *out, int64_t out_stride, const uint8_t *tile, int64_t blocks,
                int64_t size) {
    int64_t t = 0;
    for (; t + kTokensAtOnce <= n; t += kTokensAtOnce, tile = nullptr)  // the first pass fetches for all
        add_chunk<F, kTokensAtOnce, Panel>(codes, scales, b, count, acts, first + t, out + t * out_stride, out_stride,
                                           tile, blocks, size);
    const int64_t row = first + t, rest = n - t;
    float *to = out + t * out_stride;
    if (rest == 3) add_chunk<F, 3, Panel>(codes, scales, b, count, acts, row, to, out_stride, tile, blocks, size);
    if (rest == 2) add_chunk<F, 2, Panel>(codes, scales, b, count, acts, row, to, out_stride, tile, blocks, size);
    if (rest == 1) add_chunk<F, 1, Panel>(codes, scales, b, count, acts, row, to, out_stride, tile, blocks, size);
}

template <int F>
void tile_avx2(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
               int64_t out_stride) {
    const int64_t blocks = k / kBlock, size = tile_bytes(F, k);
    alignas(64) uint8_t panel[kChunkBlocks * 512];
    ScalePanel scales;
    for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
        const int64_t count = min64(kChunkBlocks, blocks - b);
        const uint8_t *codes = tile + b * code_bytes(F);
        decode_scales<F>(tile + scale_offset(F, k), b, count, &scales);
        if (n < kPanelTokens) {
            add_tokens<F, false>(codes, scales, b, count, acts, first, n, out, out_stride, tile, blocks, size);
        } else {
            decode_panel<F>(codes, count, panel);
            add_tokens<F, true>(panel, scales, b, count, acts, first, n, out, out_stride, tile, blocks, size);
        }
    }
}

}  // namespace
