// AVX2: from the bytes of a tile to vectors of codes (8 rows x 4 k) and of float32 scales (8 rows).
#pragma once
#include <immintrin.h>

#include "kernels_generic.h"

namespace {

constexpr int64_t kChunkBlocks = 64;  // blocks of 32 k whose scales (8 KiB) and codes (32 KiB) are decoded at once

template <int F> constexpr bool is_five_bit() { return F == HETERO_Q5_0 || F == HETERO_Q5_1 || F == HETERO_Q5_K; }

inline __m256i load(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }

// The 32 bits at p as bytes of 0 or 16.
inline __m256i fifth_bits(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202,
                                              0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, bit), _mm256_set1_epi8(16));
}

// Codes of line J (k = 4 J .. 4 J + 3) of rows [8 half, 8 half + 8) of a block. Q8_0 and Q6_K come out signed, the
// others as stored.
template <int F> inline __attribute__((always_inline)) __m256i decode_line(const uint8_t *block, int j, int half) {
    if (F == HETERO_Q8_0) return load(block + 64 * j + 32 * half);
    const __m256i low = _mm256_set1_epi8(15), pair = load(block + 64 * (j & 3) + 32 * half);
    const __m256i nibbles = _mm256_and_si256(j < 4 ? pair : _mm256_srli_epi16(pair, 4), low);
    if (is_five_bit<F>()) return _mm256_or_si256(nibbles, fifth_bits(block + 256 + 8 * j + 4 * half));
    if (F != HETERO_Q6_K) return nibbles;
    const __m256i plane = load(block + 256 + 64 * (j >> 2) + 32 * half);
    const int field = j & 3;
    const __m256i moved = field == 0   ? _mm256_slli_epi16(plane, 4)
                          : field == 1 ? _mm256_slli_epi16(plane, 2)
                          : field == 2 ? plane
                                       : _mm256_srli_epi16(plane, 2);
    const __m256i code = _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
    return _mm256_sub_epi8(code, _mm256_set1_epi8(32));
}

inline __m256 halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

inline __m256 bytes_to_float(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)); }

// float32 scales of up to kChunkBlocks blocks: d[block][16 rows], and the minimum (with its sign), or for Q6_K
// the scale of the second group of 16.
struct ScalePanel {
    alignas(64) float d[kChunkBlocks][kRows];
    alignas(64) float m[kChunkBlocks][kRows];
};

inline void decode_sub_scales(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const __m256 minus = _mm256_set1_ps(-0.f);
    const __m256 d[2] = {halves(entry), halves(entry + 16)};
    const __m256 m[2] = {_mm256_xor_ps(halves(entry + 32), minus), _mm256_xor_ps(halves(entry + 48), minus)};
    const __m128i low = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30);
    for (int g = 0; g < 8; g++) {
        const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i *>(entry + kSubLow + 16 * g));
        const __m128i pair = _mm_loadu_si128(reinterpret_cast<const __m128i *>(entry + kSubHigh + 16 * (g >> 1)));
        const __m128i hi = g & 1 ? _mm_srli_epi16(pair, 4) : pair;
        const __m128i scale = _mm_or_si128(_mm_and_si128(lo, low), _mm_and_si128(_mm_slli_epi16(hi, 4), two));
        const __m128i minimum =
            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(lo, 4), low), _mm_and_si128(_mm_slli_epi16(hi, 2), two));
        for (int h = 0; h < 2; h++) {
            const __m128i s = h ? _mm_srli_si128(scale, 8) : scale, n = h ? _mm_srli_si128(minimum, 8) : minimum;
            _mm256_store_ps(out->d[at + g] + 8 * h, _mm256_mul_ps(d[h], bytes_to_float(s)));
            _mm256_store_ps(out->m[at + g] + 8 * h, _mm256_mul_ps(m[h], bytes_to_float(n)));
        }
    }
}

inline void decode_q6_scales(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const __m256 d[2] = {halves(entry), halves(entry + 16)};
    for (int g = 0; g < 16; g++)
        for (int h = 0; h < 2; h++) {
            const __m128i s = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(entry + 32 + 16 * g + 8 * h));
            float *to = (g & 1 ? out->m[at + (g >> 1)] : out->d[at + (g >> 1)]) + 8 * h;
            _mm256_store_ps(to, _mm256_mul_ps(d[h], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s))));
        }
}

// Scales of blocks [first, first + count); first is a multiple of kChunkBlocks, so super-blocks are whole.
template <int F> inline void decode_scales(const uint8_t *scales, int64_t first, int64_t count, ScalePanel *out) {
    constexpr FormatInfo f = kFormats[F];
    constexpr int64_t blocks = f.scale_k / kBlock;
    const uint8_t *entry = scales + first / blocks * f.scale_bytes;
    for (int64_t b = 0; b < count; b += blocks, entry += f.scale_bytes) {
        if (F == HETERO_Q4_K || F == HETERO_Q5_K) {
            decode_sub_scales(entry, out, b);
        } else if (F == HETERO_Q6_K) {
            decode_q6_scales(entry, out, b);
        } else {
            for (int h = 0; h < 2; h++) {
                _mm256_store_ps(out->d[b] + 8 * h, halves(entry + 16 * h));
                if (has_minimum(F)) _mm256_store_ps(out->m[b] + 8 * h, halves(entry + 32 + 16 * h));
            }
        }
    }
}

}  // namespace
