// AVX-512 VNNI kernels of quantised tiles: one register holds a line of 16 rows x 4 k, and one vpdpbusd multiplies it
// by four activations of a token, read from memory as a broadcast. Codes are always the unsigned operand and
// activations the signed one; signed codes are read with their sign bit flipped, and numbers of a code book moved up,
// which adds a zero point. Integer sums are exact and the float operations are those of kernels_avx2.h in the same order, so both
// tiers give the same bits.
#pragma once
#include "kernels_avx2.h"

namespace {

constexpr int kTokens512 = 8;           // 8 integer and 8 float accumulators, codes and scales in the other registers
constexpr int64_t kPanelTokens512 = 33;  // from here on codes are decoded once into a panel

HETERO_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

// sum += the products of 16 x 4 unsigned codes and four activations. Written out, because gcc 12 broadcasts with an
// instruction of its own and moves accumulators about.
HETERO_INLINE void add_products(__m512i &sum, __m512i w, const int8_t *a) {
    typedef int32_t Four __attribute__((may_alias, aligned(1)));
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four *>(a)));
}

// A field of a plane of pairs, put `up` bits up.
template <int Up> HETERO_INLINE __m512i pair_field_512(__m512i plane, int field) {
    const int by = 2 * field - Up;
    const __m512i moved = by == 0  ? plane
                          : by > 0 ? _mm512_srli_epi16(plane, unsigned(by))
                                   : _mm512_slli_epi16(plane, unsigned(-by));
    return _mm512_and_si512(moved, _mm512_set1_epi8(3 << Up));
}

// `value` added to the codes whose bit is set in line j of a plane of bits.
HETERO_INLINE __m512i add_bits(__m512i codes, const uint8_t *plane, int j, int value) {
    uint64_t bits;
    memcpy(&bits, plane + 8 * j, 8);
    return _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(char(value)));
}

// What is subtracted from codes: here also of those that are stored as signed numbers.
template <Kind K> constexpr int zero_512() { return K == kS8 ? 128 : kKindInfo[K].zero; }

// Codes of line j (k = 4 j .. 4 j + 3) of all 16 rows of a block, as unsigned bytes.
template <Kind K> HETERO_INLINE __m512i code_line_512(const uint8_t *block, int j) {
    constexpr KindInfo kind = kKindInfo[K];
    const uint8_t *high = block + 64 * kind.low;
    if (kind.low == 8) return _mm512_xor_si512(load512(block + 64 * j), _mm512_set1_epi8(-128));
    if (kind.low == 2) {
        const __m512i low = pair_field_512<0>(load512(block + 64 * (j >> 2)), j & 3);
        return kind.high ? add_bits(low, high, j, 4) : low;
    }
    const __m512i pair = load512(block + 64 * (j & 3));
    const __m512i nibbles = _mm512_and_si512(j < 4 ? pair : _mm512_srli_epi16(pair, 4), _mm512_set1_epi8(15));
    if (kind.book) {
        const __m512i numbers = _mm512_broadcast_i32x4(load128(code_book(K)));
        return _mm512_shuffle_epi8(_mm512_add_epi8(numbers, _mm512_set1_epi8(char(kind.zero))), nibbles);
    }
    if (kind.high == 1) return add_bits(nibbles, high, j, 16);
    if (kind.high == 2)
        return _mm512_or_si512(nibbles, pair_field_512<4>(load512(high + 64 * (j >> 2)), j & 3));
    return nibbles;
}

// Signed bytes need no panel: flipping the sign bit costs as much as reading a panel.
template <Kind K> constexpr bool has_panel_512() { return K != kS8; }

// The activations of T tokens for up to kChunkBlocks blocks: pointers to the codes, copies of the rest, which then lie
// at fixed distances from the stack pointer and need no registers for addresses.
template <Kind K, int T> struct ChunkTokens {
    static constexpr KindInfo kind = kKindInfo[K];
    static constexpr int groups = kind.groups;
    const int8_t *q[T];
    alignas(64) float d[T][kChunkBlocks];
    alignas(64) int32_t start[groups][kind.minimum ? 1 : T][kChunkBlocks];  // minus the zero point times the codes' sum
    alignas(64) float ds[groups][kind.minimum ? T : 1][kChunkBlocks];

    HETERO_INLINE ChunkTokens(const Acts &acts, int64_t first, int64_t first_block, int64_t count) {
        for (int t = 0; t < T; t++) {
            const int64_t row = acts.row(first + t), at = row * acts.group_stride + first_block;
            q[t] = acts.q + row * acts.q_stride + first_block * kBlock;
            for (int64_t i = 0; i < count; i += 16) {  // rows of groups are padded to 16
                _mm512_store_ps(d[t] + i, _mm512_loadu_ps(acts.d + at + i));
                const __m512i s8 = load512(acts.s8 + at + i);
                if (groups == 2) {
                    const __m512i half = load512(acts.half + at + i);
                    put_half(0, t, i, half);
                    put_half(1, t, i, _mm512_sub_epi32(_mm512_srai_epi32(s8, 3), half));
                } else if (kind.minimum) {
                    _mm512_store_ps(ds[0][kind.minimum ? t : 0] + i, _mm512_loadu_ps(acts.ds + at + i));
                } else {
                    const __m512i twice = _mm512_mullo_epi32(s8, _mm512_set1_epi32(-zero_512<K>() / 4));
                    _mm512_store_si512(start[0][kind.minimum ? 0 : t] + i, _mm512_srai_epi32(twice, 1));
                }
            }
        }
    }
    HETERO_INLINE void put_half(int g, int t, int64_t i, __m512i sum) {
        if (kind.minimum) {
            const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(d[t] + i), _mm512_cvtepi32_ps(sum));
            _mm512_store_ps(ds[g][kind.minimum ? t : 0] + i, scaled);
        } else {
            const __m512i zeros = _mm512_mullo_epi32(sum, _mm512_set1_epi32(-kind.zero));
            _mm512_store_si512(start[g][kind.minimum ? 0 : t] + i, zeros);
        }
    }
    // Where the sum of products of a group begins.
    HETERO_INLINE __m512i begin(int g, int t, int64_t i) const {
        return kind.minimum ? _mm512_setzero_si512() : _mm512_set1_epi32(start[g][kind.minimum ? 0 : t][i]);
    }
};

// Block i of a chunk: 32 k for 16 rows and T tokens.
template <Kind K, int T, bool Panel>
HETERO_INLINE void add_block_512(const uint8_t *block, const ScalePanel &scales, const ChunkTokens<K, T> &tokens,
                                 int64_t i, __m512 *acc) {
    constexpr bool minimum = kKindInfo[K].minimum;
    constexpr int groups = kKindInfo[K].groups, lines = 8 / groups;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m512i sum[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) sum[t] = tokens.begin(g, t, i);
#pragma GCC unroll 8
        for (int j = g * lines; j < (g + 1) * lines; j++) {
            const __m512i w = Panel ? load512(block + 64 * j) : code_line_512<K>(block, j);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                add_products(sum[t], w, tokens.q[t] + i * kBlock + 4 * j);
        }
        const __m512 scale = _mm512_load_ps(scales.d[g][i]);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_mul_ps(scale, _mm512_set1_ps(tokens.d[t][i])),
                                     acc[t]);
    }
    if (!minimum) return;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        const __m512 m = _mm512_load_ps(scales.m[g][i]);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(tokens.ds[g][minimum ? t : 0][i]), acc[t]);
    }
}

template <Kind K, int T, bool Panel>
__attribute__((noinline)) void add_chunk_512(const Chunk &chunk, const Acts &acts, int64_t first, float *out,
                                             int64_t out_stride) {
    constexpr int64_t bytes = Panel ? 512 : kind_bytes(K);
    const ChunkTokens<K, T> tokens(acts, first, chunk.first_block, chunk.count);
    __m512 acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        acc[t] = chunk.first_block ? _mm512_loadu_ps(out + t * out_stride) : _mm512_setzero_ps();
    for (int64_t i = 0; i < chunk.count; i++) {
        if (Panel) chunk.fetch->next_block();
        else if (chunk.ahead.tile) prefetch<K>(chunk.ahead, chunk.first_block + i);
        add_block_512<K, T, Panel>(chunk.codes + i * bytes, *chunk.scales, tokens, i, acc);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * out_stride, acc[t]);
}

template <Kind K, bool Panel>
void add_tokens_512(Chunk chunk, const Acts &acts, int64_t first, int64_t n, float *out, int64_t stride) {
    int64_t t = 0;
    for (; t + kTokens512 <= n; t += kTokens512, chunk.ahead.tile = nullptr)  // the first pass fetches for all
        add_chunk_512<K, kTokens512, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if ((n - t) & 4) {
        add_chunk_512<K, 4, Panel>(chunk, acts, first + t, out + t * stride, stride);
        t += 4;
        chunk.ahead.tile = nullptr;
    }
    if (n - t == 3) add_chunk_512<K, 3, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (n - t == 2) add_chunk_512<K, 2, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (n - t == 1) add_chunk_512<K, 1, Panel>(chunk, acts, first + t, out + t * stride, stride);
}

// Kinds that one token is faster with by 32 bytes at a time: where decoding takes so little that memory bounds it,
// those loads get 0 to 15 % more out of it than loads of 64 bytes (measured).
template <Kind K> constexpr bool is_light() { return K == kS8 || K == kU4 || K == kU4M || K == kU6; }

template <int F>
void tile_avx512(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                 int64_t out_stride) {
    constexpr Kind kind = kind_of(F);
    constexpr bool has_panel = has_panel_512<kind>();
    if constexpr (is_light<kind>())
        if (n == 1) return tile_avx2<F>(tile, k, acts, first, n, out, out_stride);
    const int64_t blocks = k / kBlock;
    alignas(64) uint8_t panel[has_panel ? kChunkBlocks * 512 : 64];
    ScalePanel scales;
    Fetch fetch(acts.next, tile + tile_bytes(F, k), tile_bytes(F, k), blocks * max64(1, n / kTokens512));
    for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
        const int64_t count = min64(kChunkBlocks, blocks - b);
        Chunk chunk = {tile + b * code_bytes(F), &scales, b, count, ahead_of<F>(tile, k), &fetch};
        decode_scales<F>(tile + scale_offset(F, k), b, count, &scales);
        if (n < kPanelTokens512 || !has_panel) {
            add_tokens_512<kind, false>(chunk, acts, first, n, out, out_stride);
            continue;
        }
        const uint8_t *codes = chunk.codes;
        for (int64_t i = 0; i < count; i++, codes += code_bytes(F))
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                _mm512_store_si512(panel + (has_panel ? 512 * i + 64 * j : 0), code_line_512<kind>(codes, j));
        chunk.codes = panel;
        add_tokens_512<kind, has_panel>(chunk, acts, first, n, out, out_stride);
    }
}

}  // namespace
