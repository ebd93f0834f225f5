// AVX2: from the bytes of a tile to vectors of codes (8 rows x 4 k) and of float32 scales (8 rows).
#pragma once
#include <immintrin.h>

#include "kernels_generic.h"

namespace {

constexpr int64_t kChunkBlocks = 64;  // blocks of 32 k whose scales (8 KiB) and codes (32 KiB) are decoded at once

inline __m256i load(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
inline __m128i load128(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }

// The 32 bits at p as bytes of 0 or `value`.
inline __m256i spread_bits(const uint8_t *p, int value) {
    uint32_t bits;
    memcpy(&bits, p, 4);
    const __m256i spread = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202,
                                              0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, bit), _mm256_set1_epi8(char(value)));
}

// Field j of a plane of pairs, put `up` bits up.
template <int Up> inline __m256i pair_field(__m256i plane, int field) {
    const int by = 2 * field - Up;
    const __m256i moved = by == 0  ? plane
                          : by > 0 ? _mm256_srli_epi16(plane, by)
                                   : _mm256_slli_epi16(plane, by < 0 ? -by : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8(3 << Up));
}

// The numbers of a code book, `offset` added, once for each half of a register.
template <Kind K> inline __m256i book_numbers(int offset) {
    const __m128i numbers = _mm_add_epi8(load128(code_book(K)), _mm_set1_epi8(char(offset)));
    return _mm256_broadcastsi128_si256(numbers);
}

// Codes that AVX2 kernels read as signed numbers; all others are unsigned, with a zero point to be taken off.
template <Kind K> constexpr bool is_signed() { return K == kS8 || K == kNl4; }

// Codes of line j (k = 4 j .. 4 j + 3) of rows [8 half, 8 half + 8) of a block, as numbers if signed, else as stored
// (of a code book: as numbers with the zero point added).
template <Kind K> HETERO_INLINE __m256i decode_line(const uint8_t *block, int j, int half) {
    constexpr KindInfo kind = kKindInfo[K];
    const uint8_t *high = block + 64 * kind.low;
    if (kind.low == 8) return load(block + 64 * j + 32 * half);
    if (kind.low == 2) {
        const __m256i low = pair_field<0>(load(block + 64 * (j >> 2) + 32 * half), j & 3);
        return kind.high ? _mm256_or_si256(low, spread_bits(high + 8 * j + 4 * half, 4)) : low;
    }
    const __m256i pair = load(block + 64 * (j & 3) + 32 * half);
    const __m256i nibbles = _mm256_and_si256(j < 4 ? pair : _mm256_srli_epi16(pair, 4), _mm256_set1_epi8(15));
    if (kind.book) return _mm256_shuffle_epi8(book_numbers<K>(is_signed<K>() ? 0 : kind.zero), nibbles);
    if (kind.high == 1) return _mm256_or_si256(nibbles, spread_bits(high + 8 * j + 4 * half, 16));
    if (kind.high == 2)
        return _mm256_or_si256(nibbles, pair_field<4>(load(high + 64 * (j >> 2) + 32 * half), j & 3));
    return nibbles;
}

inline __m256 halves(const uint8_t *p) { return _mm256_cvtph_ps(load128(p)); }
inline __m256 bfloats(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

inline __m256 bytes_to_float(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)); }
inline __m256 signed_bytes_to_float(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)); }
inline __m256 negated(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.f)); }

// float32 scales of up to kChunkBlocks blocks: for each half of a block, or once, d and the minimum (with its sign).
struct ScalePanel {
    alignas(64) float d[2][kChunkBlocks][kRows];
    alignas(64) float m[2][kChunkBlocks][kRows];
};

// d of 16 rows, and 16 bytes, one for each row, as float32 times d.
#ifdef __AVX512F__
using RowFloats = __m512;

HETERO_INLINE RowFloats row_halves(const uint8_t *p) { return _mm512_cvtph_ps(load(p)); }
HETERO_INLINE RowFloats negated_rows(RowFloats v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.f)); }

template <bool Signed> HETERO_INLINE void put_products(float *to, RowFloats d, __m128i bytes) {
    const __m512i wide = Signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
    _mm512_store_ps(to, _mm512_mul_ps(d, _mm512_cvtepi32_ps(wide)));
}
#else
struct RowFloats {
    __m256 half[2];
};

HETERO_INLINE RowFloats row_halves(const uint8_t *p) { return {{halves(p), halves(p + 16)}}; }
HETERO_INLINE RowFloats negated_rows(RowFloats v) { return {{negated(v.half[0]), negated(v.half[1])}}; }

template <bool Signed> HETERO_INLINE void put_products(float *to, RowFloats d, __m128i bytes) {
    const __m128i upper = _mm_srli_si128(bytes, 8);
    const __m256 low = Signed ? signed_bytes_to_float(bytes) : bytes_to_float(bytes);
    const __m256 high = Signed ? signed_bytes_to_float(upper) : bytes_to_float(upper);
    _mm256_store_ps(to, _mm256_mul_ps(d.half[0], low));
    _mm256_store_ps(to + 8, _mm256_mul_ps(d.half[1], high));
}
#endif

inline void decode_sub4(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const RowFloats d = row_halves(entry);
    const RowFloats m = negated_rows(row_halves(entry + 32));
    const __m128i low = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30);
    for (int g = 0; g < 8; g++) {
        const __m128i lo = load128(entry + kSubLow + 16 * g), pair = load128(entry + kSubHigh + 16 * (g >> 1));
        const __m128i hi = g & 1 ? _mm_srli_epi16(pair, 4) : pair;
        const __m128i scale = _mm_or_si128(_mm_and_si128(lo, low), _mm_and_si128(_mm_slli_epi16(hi, 4), two));
        const __m128i minimum =
            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(lo, 4), low), _mm_and_si128(_mm_slli_epi16(hi, 2), two));
        put_products<false>(out->d[0][at + g], d, scale);
        put_products<false>(out->m[0][at + g], m, minimum);
    }
}

inline void decode_sub6(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const RowFloats d = row_halves(entry);
    for (int g = 0; g < 16; g++) put_products<true>(out->d[g & 1][at + (g >> 1)], d, load128(entry + 32 + 16 * g));
}

inline void decode_sub2(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const RowFloats d = row_halves(entry);
    const RowFloats m = negated_rows(row_halves(entry + 32));
    const __m128i low = _mm_set1_epi8(15);
    for (int g = 0; g < 16; g++) {
        const __m128i both = load128(entry + 64 + 16 * g);
        put_products<false>(out->d[g & 1][at + (g >> 1)], d, _mm_and_si128(both, low));
        put_products<false>(out->m[g & 1][at + (g >> 1)], m, _mm_and_si128(_mm_srli_epi16(both, 4), low));
    }
}

// Q3_K (F: 16 groups of 16) and IQ4_XS (8 of 32).
template <int F> inline void decode_six_bits(const uint8_t *entry, ScalePanel *out, int64_t at) {
    const RowFloats d = row_halves(entry);
    constexpr bool sixteens = kind_info(F).groups == 2;
    const __m128i low = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30), zero = _mm_set1_epi8(32);
    for (int g = 0; g < (sixteens ? 16 : 8); g++) {
        const Field f = six_bits_in_tile<F>(g, 0);
        const __m128i lo = _mm_and_si128(_mm_srli_epi16(load128(entry + f.low), f.low_shift), low);
        const __m128i hi = _mm_and_si128(_mm_slli_epi16(_mm_srli_epi16(load128(entry + f.high), f.high_shift), 4), two);
        put_products<true>(sixteens ? out->d[g & 1][at + (g >> 1)] : out->d[0][at + g], d,
                           _mm_sub_epi8(_mm_or_si128(lo, hi), zero));
    }
}

inline void decode_e8m0(const uint8_t *entry, float *to) {
    for (int h = 0; h < 2; h++) {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(entry + 8 * h)));
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        _mm256_store_si256(reinterpret_cast<__m256i *>(to + 8 * h), _mm256_blendv_epi8(normal, small, is_small));
    }
}

// Eight scales under the float32 of their rows, as `under` has it.
inline __m256 scales_under(const uint8_t *wholes, __m256 scale) {
    const __m256 whole = _mm256_loadu_ps(reinterpret_cast<const float *>(wholes));
    return _mm256_blendv_ps(_mm256_mul_ps(scale, whole), _mm256_div_ps(scale, negated(whole)), whole);
}

// ue4m3 as fp16 is too small by 2^8; half of it is meant. F: under a float32 or not.
template <int F> inline void decode_e4m3(const uint8_t *entry, ScalePanel *out, int64_t at) {
    constexpr FormatInfo f = kFormats[F];
    for (int g = 0; g < f.scale_k / 16; g++)
        for (int h = 0; h < 2; h++) {
            const __m128i v =
                _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(entry + 16 * g + 8 * h)));
            const __m128i half = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x7f)), 7);
            const __m128i kept = _mm_andnot_si128(_mm_cmpeq_epi16(v, _mm_set1_epi16(0x7f)), half);
            const __m256 scale = _mm256_mul_ps(_mm256_cvtph_ps(kept), _mm256_set1_ps(128.f));
            float *to = out->d[g & 1][at + (g >> 1)] + 8 * h;
            if (f.scales == kE4m3) _mm256_store_ps(to, scale);
            else _mm256_store_ps(to, scales_under(entry + f.scale_k + 32 * h, scale));
        }
}

// One float32 or 16-bit scale, the latter with a minimum or a zero point.
template <Scales S> inline void decode_pairs(const uint8_t *entry, float *d, float *m) {
    if (S == kFloat) {
        memcpy(d, entry, 4 * kRows);
        return;
    }
    for (int h = 0; h < 2; h++) {
        const uint8_t *at = entry + 16 * h;
        const __m256 scale = S == kBfloat || S == kBfloatZero ? bfloats(at) : halves(at);
        _mm256_store_ps(d + 8 * h, scale);
        if (S == kHalfMin) _mm256_store_ps(m + 8 * h, halves(at + 32));
        if (S == kHalfZero || S == kBfloatZero) {
            const __m128i zero = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(entry + 32 + 8 * h));
            _mm256_store_ps(m + 8 * h, negated(_mm256_mul_ps(bytes_to_float(zero), scale)));
        }
    }
}

// Scales of blocks [first, first + count); first is a multiple of kChunkBlocks, so entries are whole.
template <int F> inline void decode_scales(const uint8_t *scales, int64_t first, int64_t count, ScalePanel *out) {
    constexpr FormatInfo f = kFormats[F];
    constexpr int64_t blocks = f.scale_k / kBlock;
    const uint8_t *entry = scales + first / blocks * f.scale_bytes;
    for (int64_t b = 0; b < count; b += blocks, entry += f.scale_bytes) {
        if constexpr (f.scales == kSub2) decode_sub2(entry, out, b);
        else if constexpr (f.scales == kSub3 || f.scales == kSubXs) decode_six_bits<F>(entry, out, b);
        else if constexpr (f.scales == kSub4) decode_sub4(entry, out, b);
        else if constexpr (f.scales == kSub6) decode_sub6(entry, out, b);
        else if constexpr (f.scales == kE4m3 || f.scales == kE4m3Float) decode_e4m3<F>(entry, out, b);
        else
            for (int64_t i = b; i < b + blocks; i++) {
                if constexpr (f.scales == kE8m0) decode_e8m0(entry, out->d[0][i]);
                else decode_pairs<f.scales>(entry, out->d[0][i], out->m[0][i]);
            }
    }
}

}  // namespace
