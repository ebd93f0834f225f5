// AVX-512 kernels of two tiles at once. Each broadcast of four activations serves 32 rows, so that the multiplier and
// not the loads bounds the loop; for one token there are two chains of sums where one would wait for itself. At most
// six tokens: 12 integer and 12 float accumulators, 2 registers of codes, 1 of activations.
#pragma once
#include "plain_avx512.h"

namespace {

HETERO_INLINE void add_products(__m512i &sum, __m512i w, __m512i a) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
}

// The sums of lines of group g of block i, of two tiles of 16 rows and T tokens.
template <Kind K, int T>
HETERO_INLINE void sum_pair(const Chunk *chunks, const ChunkTokens<K, T> &tokens, int64_t i, int g,
                            __m512i (*sum)[2]) {
    constexpr int lines = 8 / kKindInfo[K].groups;
    const uint8_t *block0 = chunks[0].codes + i * kind_bytes(K), *block1 = chunks[1].codes + i * kind_bytes(K);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) sum[t][0] = sum[t][1] = tokens.begin(g, t, i);
#pragma GCC unroll 8
    for (int j = g * lines; j < (g + 1) * lines; j++) {
        // Else gcc keeps planes, each of four lines, and spills.
        if (kKindInfo[K].low == 2) asm("" : "+r"(block0), "+r"(block1));
        const __m512i w0 = code_line_512<K>(block0, j), w1 = code_line_512<K>(block1, j);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            int32_t four;
            memcpy(&four, tokens.q[t] + i * kBlock + 4 * j, 4);
            const __m512i a = _mm512_set1_epi32(four);
            add_products(sum[t][0], w0, a);
            add_products(sum[t][1], w1, a);
        }
    }
}

// As add_block_512, for two tiles.
template <Kind K, int T>
HETERO_INLINE void add_block_pair(const Chunk *chunks, const ChunkTokens<K, T> &tokens, int64_t i, __m512 (*acc)[2]) {
    constexpr bool minimum = kKindInfo[K].minimum;
    constexpr int groups = kKindInfo[K].groups;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m512i sum[T][2];
        if (g) asm volatile("" ::: "memory");  // else gcc loads the second group's codes early, and spills
        sum_pair<K, T>(chunks, tokens, i, g, sum);
        const __m512 scale[2] = {_mm512_load_ps(chunks[0].scales->d[g][i]), _mm512_load_ps(chunks[1].scales->d[g][i])};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 d = _mm512_set1_ps(tokens.d[t][i]);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t][h]), _mm512_mul_ps(scale[h], d), acc[t][h]);
        }
    }
    if (!minimum) return;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 ds = _mm512_set1_ps(tokens.ds[g][minimum ? t : 0][i]);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm512_fmadd_ps(_mm512_load_ps(chunks[h].scales->m[g][i]), ds, acc[t][h]);
        }
}

template <Kind K, int T>
__attribute__((noinline)) void add_pair(const Chunk *chunks, const Acts &acts, int64_t first, int64_t t0,
                                        float *const *outs, int64_t out_stride) {
    const int64_t first_block = chunks[0].first_block, count = chunks[0].count;
    const ChunkTokens<K, T> tokens(acts, first + t0, first_block, count);
    __m512 acc[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++)
            acc[t][h] = first_block ? _mm512_loadu_ps(outs[h] + (t0 + t) * out_stride) : _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i++) {
        chunks[0].fetch->next_block();
        add_block_pair<K, T>(chunks, tokens, i, acc);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm512_storeu_ps(outs[h] + (t0 + t) * out_stride, acc[t][h]);
}

// Kinds whose decoding, not memory, bounds one token: two tiles at once are a quarter faster, for others slower
// (measured).
template <Kind K> constexpr bool is_heavy() { return kKindInfo[K].low == 2; }

constexpr int64_t kPairTokens = 6;

// The tokens of a call in as few passes as there can be, of four to six tokens each; of seven, three by one tile at a
// time.
template <Kind K>
void add_tokens_pair(Chunk *chunks, const Acts &acts, int64_t first, int64_t n, float *const *outs, int64_t stride) {
    if constexpr (is_heavy<K>())
        if (n == 1) return add_pair<K, 1>(chunks, acts, first, 0, outs, stride);
    int64_t t = 0;
    for (int64_t passes = ceil_div(n, kPairTokens); n - t >= 4; passes--) {
        const int64_t size = ceil_div(n - t, passes);
        if (size == 6) add_pair<K, 6>(chunks, acts, first, t, outs, stride);
        if (size == 5) add_pair<K, 5>(chunks, acts, first, t, outs, stride);
        if (size == 4) add_pair<K, 4>(chunks, acts, first, t, outs, stride);
        t += size;
    }
    if (t == n) return;
    for (int h = 0; h < 2; h++) {
        chunks[h].ahead.tile = nullptr;
        add_tokens_512<K, false>(chunks[h], acts, first + t, n - t, outs[h] + t * stride, stride);
    }
}

// Blocks of two tiles that tokens pass over at a time. With half of kChunkBlocks, codes, scales and a pass's
// activations fit into L1, which makes kinds of few operations 5 % faster, and others slower (measured).
template <Kind K> constexpr int64_t pair_blocks() {
    return kKindInfo[K].groups == 1 && !kKindInfo[K].minimum ? kChunkBlocks / 2 : kChunkBlocks;
}

template <int F>
void pair_avx512(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                 float *const *outs, int64_t out_stride) {
    if (n < 4 && !(n == 1 && is_heavy<kind_of(F)>()))
        return one_by_one<F>(tiles, k, acts, first, n, outs, out_stride);
    const int64_t blocks = k / kBlock;
    ScalePanel scales[2];
    const int64_t size = tile_bytes(F, k);
    Fetch fetch(acts.next, tiles[1] + size, 2 * size, blocks * max64(1, n / kPairTokens));
    constexpr int64_t most = pair_blocks<kind_of(F)>();
    for (int64_t b = 0; b < blocks; b += most) {
        Chunk chunks[2];
        for (int h = 0; h < 2; h++) {
            const int64_t count = min64(most, blocks - b);
            chunks[h] = {tiles[h] + b * code_bytes(F), &scales[h], b, count, ahead_of<F>(tiles[h], k), &fetch};
            decode_scales<F>(tiles[h] + scale_offset(F, k), b, count, &scales[h]);
        }
        add_tokens_pair<kind_of(F)>(chunks, acts, first, n, outs, out_stride);
    }
}

// Four k of 16 rows of a 16-bit or FP8 tile as float32.
template <int F> HETERO_INLINE void widen_four_512(const uint8_t *p, __m512 d, __m512 *w) {
    if (F == HETERO_FP8_E4M3) return fp8_line_512(p, d, w);
    widen_pairs_512<F>(p, &w[0], &w[1]);
    widen_pairs_512<F>(p + 64, &w[2], &w[3]);
}

// Up to four tokens of two 16-bit or FP8 tiles, from memory to registers.
template <int F, int T>
void plain_few_512(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, float *const *outs,
                   int64_t out_stride) {
    constexpr int64_t bytes = code_bytes(F) / kBlock;  // of one k
    const int64_t ahead = 2 * tile_bytes(F, k);
    const float *x[T];
    __m512 acc[2][T], d[2] = {}, w[2][4];
    for (int t = 0; t < T; t++) x[t] = acts.x + acts.row(first + t) * acts.x_stride;
    for (int h = 0; h < 2; h++)
        for (int t = 0; t < T; t++) acc[h][t] = _mm512_setzero_ps();
    for (int64_t from = 0; from < k; from += kFp8Group) {
        if (F == HETERO_FP8_E4M3)
            for (int h = 0; h < 2; h++) d[h] = fp8_scale_512(tiles[h] + scale_offset(F, k) + from / kFp8Group * 64);
        for (int64_t j = from; j < min64(k, from + kFp8Group); j += 4) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                for (int64_t line = 0; line < 4 * bytes; line += 64)
                    _mm_prefetch(reinterpret_cast<const char *>(tiles[h] + ahead + bytes * j + line), _MM_HINT_T0);
                widen_four_512<F>(tiles[h] + bytes * j, d[h], w[h]);
            }
            for (int i = 0; i < 4 && j + i < k; i++)
#pragma GCC unroll 4
                for (int t = 0; t < T; t++)
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++)
                        acc[h][t] = _mm512_fmadd_ps(w[h][i], _mm512_set1_ps(x[t][j + i]), acc[h][t]);
        }
    }
    for (int h = 0; h < 2; h++)
        for (int t = 0; t < T; t++) _mm512_storeu_ps(outs[h] + t * out_stride, acc[h][t]);
}

// T tokens over `count` inputs of two float32 panels [k][16].
template <int T>
void plain_tokens_pair(const float *const *panels, int64_t first_k, int64_t count, const Acts &acts, int64_t first,
                       int64_t t0, float *const *outs, int64_t out_stride) {
    const float *x[T], *panel0 = panels[0], *panel1 = panels[1];
    __m512 acc[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        x[t] = acts.x + acts.row(first + t0 + t) * acts.x_stride + first_k;
        for (int h = 0; h < 2; h++)
            acc[t][h] = first_k ? _mm512_loadu_ps(outs[h] + (t0 + t) * out_stride) : _mm512_setzero_ps();
    }
    for (int64_t j = 0; j < count; j++) {
        const __m512 w0 = _mm512_loadu_ps(panel0 + kRows * j), w1 = _mm512_loadu_ps(panel1 + kRows * j);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m512 a = _mm512_set1_ps(x[t][j]);
            acc[t][0] = _mm512_fmadd_ps(w0, a, acc[t][0]);
            acc[t][1] = _mm512_fmadd_ps(w1, a, acc[t][1]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm512_storeu_ps(outs[h] + (t0 + t) * out_stride, acc[t][h]);
}

// Fewer than this many tokens read the tiles themselves, four at a time, and others a panel.
constexpr int64_t kPlainPanelTokens = 12;

template <int F>
void few_pairs_512(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                   float *const *outs, int64_t stride) {
    for (int64_t t = 0; t < n; t += 4) {
        float *const at[2] = {outs[0] + t * stride, outs[1] + t * stride};
        if (n - t >= 4) plain_few_512<F, 4>(tiles, k, acts, first + t, at, stride);
        if (n - t == 3) plain_few_512<F, 3>(tiles, k, acts, first + t, at, stride);
        if (n - t == 2) plain_few_512<F, 2>(tiles, k, acts, first + t, at, stride);
        if (n - t == 1) plain_few_512<F, 1>(tiles, k, acts, first + t, at, stride);
    }
}

template <int F>
void plain_pair_512(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                    float *const *outs, int64_t stride) {
    if (F != HETERO_F32 && n < kPlainPanelTokens) return few_pairs_512<F>(tiles, k, acts, first, n, outs, stride);
    alignas(64) float decoded[2][kPlainChunk * kRows];
    const float *panels[2];
    for (int64_t b = 0; b < k; b += kPlainChunk) {
        const int64_t count = min64(kPlainChunk, k - b);
        for (int h = 0; h < 2; h++) panels[h] = plain_panel_512<F>(tiles[h], k, b, count, decoded[h]);
        int64_t t = 0;
        for (; t + 6 <= n; t += 6) plain_tokens_pair<6>(panels, b, count, acts, first, t, outs, stride);
        if (n - t >= 4) plain_tokens_pair<4>(panels, b, count, acts, first, t, outs, stride), t += 4;
        if (n - t >= 2) plain_tokens_pair<2>(panels, b, count, acts, first, t, outs, stride), t += 2;
        if (t < n) plain_tokens_pair<1>(panels, b, count, acts, first, t, outs, stride);
    }
}

template <int F> constexpr PairKernel pair_kernel_512() {
    if constexpr (is_plain(F)) return plain_pair_512<F>;
    else return pair_avx512<F>;
}

}  // namespace
