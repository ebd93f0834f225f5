// AVX-512 VNNI kernels of quantised tiles: one register holds a line of 16 rows x 4 k, and one vpdpbusd multiplies it by
// four activations of a token, read from memory as a broadcast. Codes are always the unsigned operand and activations
// the signed one; signed codes are read with their sign bit flipped, which adds a zero point. Integer sums are exact and
// the float operations are those of kernels_avx2.h in the same order, so both tiers give the same bits.
#pragma once
#include "kernels_avx2.h"

namespace {

constexpr int kTokens512 = 8;           // 8 integer and 8 float accumulators, codes and scales in the other registers
constexpr int64_t kPanelTokens512 = 9;  // from here on codes are decoded once into a panel

HETERO_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

// sum += the products of 16 x 4 unsigned codes and four activations. Written out, because gcc 12 broadcasts with an
// instruction of its own and moves accumulators about.
HETERO_INLINE void add_products(__m512i &sum, __m512i w, const int8_t *a) {
    typedef int32_t Four __attribute__((may_alias, aligned(1)));
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four *>(a)));
}

// Codes of line j (k = 4 j .. 4 j + 3) of all 16 rows of a block, as unsigned bytes.
template <int F> HETERO_INLINE __m512i code_line_512(const uint8_t *block, int j) {
    if (F == HETERO_Q8_0) return _mm512_xor_si512(load512(block + 64 * j), _mm512_set1_epi8(-128));
    const __m512i pair = load512(block + 64 * (j & 3));
    const __m512i nibbles = _mm512_and_si512(j < 4 ? pair : _mm512_srli_epi16(pair, 4), _mm512_set1_epi8(15));
    if (is_five_bit<F>()) {
        uint64_t fifth;
        memcpy(&fifth, block + 256 + 8 * j, 8);
        return _mm512_mask_add_epi8(nibbles, fifth, nibbles, _mm512_set1_epi8(16));
    }
    if (F != HETERO_Q6_K) return nibbles;
    const __m512i plane = load512(block + 256 + 64 * (j >> 2));
    const int field = j & 3;
    const __m512i moved = field == 0   ? _mm512_slli_epi16(plane, 4)
                          : field == 1 ? _mm512_slli_epi16(plane, 2)
                          : field == 2 ? plane
                                       : _mm512_srli_epi16(plane, 2);
    return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
}

// Q8_0 needs no panel: flipping the sign bit costs as much as reading a panel.
template <int F> constexpr bool has_panel_512() { return F != HETERO_Q8_0; }

// The activations of T tokens for up to kChunkBlocks blocks: pointers to the codes, copies of the rest, which then lie at
// fixed distances from the stack pointer and need no registers for addresses.
template <int F, int T> struct ChunkTokens {
    const int8_t *q[T];
    alignas(64) float d[T][kChunkBlocks];
    alignas(64) int32_t zero[T][kChunkBlocks];  // multiples of the sum of the codes: 8 times; Q6_K's first half: 32 times
    alignas(64) int32_t last[F == HETERO_Q6_K ? T : 1][kChunkBlocks];  // Q6_K's second half
    alignas(64) float ds[has_minimum(F) ? T : 1][kChunkBlocks];

    HETERO_INLINE ChunkTokens(const Acts &acts, int64_t first, int64_t first_block, int64_t count) {
        for (int t = 0; t < T; t++) {
            const int64_t row = acts.row(first + t), at = row * acts.group_stride + first_block;
            q[t] = acts.q + row * acts.q_stride + first_block * kBlock;
            for (int64_t i = 0; i < count; i += 16) {  // rows of groups are padded to 16
                _mm512_store_ps(d[t] + i, _mm512_loadu_ps(acts.d + at + i));
                if (has_minimum(F)) _mm512_store_ps(ds[t] + i, _mm512_loadu_ps(acts.ds + at + i));
                if (F == HETERO_Q6_K) copy_halves(acts, t, at, i);
                else if (!has_minimum(F)) _mm512_store_si512(zero[t] + i, zeros(load512(acts.s8 + at + i)));
            }
        }
    }
    HETERO_INLINE static __m512i zeros(__m512i s8) {
        return F == HETERO_Q5_0 ? _mm512_slli_epi32(s8, 1) : F == HETERO_Q8_0 ? _mm512_slli_epi32(s8, 4) : s8;
    }
    HETERO_INLINE void copy_halves(const Acts &acts, int t, int64_t at, int64_t i) {
        const __m512i half = _mm512_slli_epi32(load512(acts.half + at + i), 5);
        _mm512_store_si512(zero[t] + i, half);
        _mm512_store_si512(last[F == HETERO_Q6_K ? t : 0] + i,
                           _mm512_sub_epi32(_mm512_slli_epi32(load512(acts.s8 + at + i), 2), half));
    }
};

// One block of 32 k for 16 rows and T tokens; i counts blocks within the chunk.
template <int F, int T, bool Panel>
HETERO_INLINE void add_block_512(const uint8_t *block, const float *d, const float *m, const ChunkTokens<F, T> &tokens,
                                 int64_t i, __m512 *acc) {
    constexpr int groups = F == HETERO_Q6_K ? 2 : 1, lines = 8 / groups;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m512i sum[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) sum[t] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int j = g * lines; j < (g + 1) * lines; j++) {
            const __m512i w = Panel ? load512(block + 64 * j) : code_line_512<F>(block, j);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                add_products(sum[t], w, tokens.q[t] + i * kBlock + 4 * j);
        }
        const __m512 scale = _mm512_load_ps(g ? m : d);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const int32_t *zero = g ? tokens.last[F == HETERO_Q6_K ? t : 0] : tokens.zero[t];
            if (!has_minimum(F)) sum[t] = _mm512_sub_epi32(sum[t], _mm512_set1_epi32(zero[i]));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_mul_ps(scale, _mm512_set1_ps(tokens.d[t][i])),
                                     acc[t]);
        }
    }
    if (has_minimum(F)) {
        const __m512 minimum = _mm512_load_ps(m);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(tokens.ds[has_minimum(F) ? t : 0][i]), acc[t]);
    }
}

// A chunk of a tile: `count` blocks from first_block on. `codes` is where they lie, decoded or not.
struct Chunk512 {
    const uint8_t *codes;
    const ScalePanel *scales;
    int64_t first_block, count;
    const uint8_t *tile;  // null: nothing is fetched ahead
    int64_t blocks, tile_size;
};

template <int F, int T, bool Panel>
__attribute__((noinline)) void add_chunk_512(const Chunk512 &chunk, const Acts &acts, int64_t first, float *out,
                                             int64_t out_stride) {
    constexpr int64_t block_bytes = Panel ? 512 : code_bytes(F);
    const ChunkTokens<F, T> tokens(acts, first, chunk.first_block, chunk.count);
    const ScalePanel &scales = *chunk.scales;
    __m512 acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        acc[t] = chunk.first_block ? _mm512_loadu_ps(out + t * out_stride) : _mm512_setzero_ps();
    for (int64_t i = 0; i < chunk.count; i++) {
        if (chunk.tile) prefetch<F, Panel>(chunk.tile, chunk.first_block + i, chunk.blocks, chunk.tile_size);
        add_block_512<F, T, Panel>(chunk.codes + i * block_bytes, scales.d[i], scales.m[i], tokens, i, acc);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * out_stride, acc[t]);
}

template <int F, bool Panel>
void add_tokens_512(Chunk512 chunk, const Acts &acts, int64_t first, int64_t n, float *out, int64_t stride) {
    int64_t t = 0;
    for (; t + kTokens512 <= n; t += kTokens512, chunk.tile = nullptr)  // the first pass fetches for all
        add_chunk_512<F, kTokens512, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if ((n - t) & 4) {
        add_chunk_512<F, 4, Panel>(chunk, acts, first + t, out + t * stride, stride);
        t += 4;
        chunk.tile = nullptr;
    }
    if (n - t == 3) add_chunk_512<F, 3, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (n - t == 2) add_chunk_512<F, 2, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (n - t == 1) add_chunk_512<F, 1, Panel>(chunk, acts, first + t, out + t * stride, stride);
}

template <int F>
void tile_avx512(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                 int64_t out_stride) {
    // One token is bound by memory, and the loads of 32 bytes get 0 to 15 % more out of it than those of 64 (measured).
    if (n == 1) return tile_avx2<F>(tile, k, acts, first, n, out, out_stride);
    const int64_t blocks = k / kBlock, size = tile_bytes(F, k);
    alignas(64) uint8_t panel[has_panel_512<F>() ? kChunkBlocks * 512 : 64];
    ScalePanel scales;
    for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
        const int64_t count = min64(kChunkBlocks, blocks - b);
        const uint8_t *codes = tile + b * code_bytes(F);
        Chunk512 chunk = {codes, &scales, b, count, tile, blocks, size};
        decode_scales<F>(tile + scale_offset(F, k), b, count, &scales);
        if (n < kPanelTokens512 || !has_panel_512<F>()) {
            add_tokens_512<F, false>(chunk, acts, first, n, out, out_stride);
            continue;
        }
        for (int64_t i = 0; i < count; i++, codes += code_bytes(F))
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                _mm512_store_si512(panel + (has_panel_512<F>() ? 512 * i + 64 * j : 0), code_line_512<F>(codes, j));
        chunk.codes = panel;
        add_tokens_512<F, has_panel_512<F>()>(chunk, acts, first, n, out, out_stride);
    }
}

}  // namespace
