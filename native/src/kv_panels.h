// Rows of the KV cache as float32: keys turned into panels, values as panels or where they lie. A code of Q8_0 times its
// fp16 scale is exact in float32, so attention over codes has the bits of attention over the numbers they stand for.
#pragma once
#include "kv_rows.h"
#include "lanes.h"

namespace {

constexpr int kBlockKeys = 64;  // positions of a block; block b holds positions 64 b .. 64 b + 63
constexpr int kStrips = kBlockKeys / kLanes;

template <int F> constexpr int64_t value_bytes() { return F == HETERO_F32 ? 4 : 2; }

// Where the block of Q8_0 with value i lies in a row, and value i's code in it.
constexpr int64_t block_at(int64_t i) { return i / kBlock * kQ8Bytes; }
constexpr int64_t code_at(int64_t i) { return block_at(i) + 2 + i % kBlock; }

// Value i of a row.
template <int F> HETERO_INLINE float widen(const uint8_t *row, int64_t i) {
    if (F == HETERO_Q8_0) return float(int8_t(row[code_at(i)])) * half_to_float(load16(row + block_at(i)));
    const uint8_t *p = row + i * value_bytes<F>();
    if (F == HETERO_F32) {
        float v;
        memcpy(&v, p, 4);
        return v;
    }
    return F == HETERO_BF16 ? bf16_to_float(load16(p)) : half_to_float(load16(p));
}

// Values i .. i + 15 of a row; i is a multiple of 16.
#if defined(__AVX2__)
HETERO_INLINE float scale_at(const uint8_t *row, int64_t i) { return _cvtsh_ss(load16(row + block_at(i))); }
HETERO_INLINE __m128i codes_at(const uint8_t *row, int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(row + code_at(i)));
}
#endif

#if defined(__AVX512F__)
template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *row, int64_t i) {
    if (F == HETERO_Q8_0) {
        const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes_at(row, i)));
        return Sixteen{codes} * all_of(scale_at(row, i));
    }
    const uint8_t *p = row + i * value_bytes<F>();
    if (F == HETERO_F32) return load(reinterpret_cast<const float *>(p));
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    if (F == HETERO_F16) return {_mm512_cvtph_ps(v)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
}
#elif defined(__AVX2__)
template <int F> HETERO_INLINE __m256 widen_8(const uint8_t *p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    if (F == HETERO_F16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *row, int64_t i) {
    if (F == HETERO_Q8_0) {
        const __m128i codes = codes_at(row, i);
        const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
        const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)));
        return Sixteen{low, high} * all_of(scale_at(row, i));
    }
    const uint8_t *p = row + i * value_bytes<F>();
    if (F == HETERO_F32) return load(reinterpret_cast<const float *>(p));
    return {widen_8<F>(p), widen_8<F>(p + 16)};
}
#else
template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *row, int64_t i) {
    float v[kLanes];
    for (int j = 0; j < kLanes; j++) v[j] = widen<F>(row, i + j);
    return load(v);
}
#endif

#if defined(__AVX2__)
// Eight rows of eight 32-bit values to columns, in place.
HETERO_INLINE void turn_8(__m256 *v) {
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

// Eight pairs of 16-bit values as float32: the first and the second of each.
template <int F> HETERO_INLINE void widen_pairs(__m256 pairs, float *first, float *second) {
    const __m256i v = _mm256_castps_si256(pairs);
    if (F == HETERO_BF16) {
        _mm256_storeu_ps(first, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
        _mm256_storeu_ps(second, _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000)))));
        return;
    }
    const __m256i apart = _mm256_shuffle_epi8(
        v, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)));
    const __m256i sorted = _mm256_permute4x64_epi64(apart, 0xd8);
    _mm256_storeu_ps(first, _mm256_cvtph_ps(_mm256_castsi256_si128(sorted)));
    _mm256_storeu_ps(second, _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1)));
}

HETERO_INLINE void load_turned(const uint8_t *const *rows, int64_t at, __m256 *v) {
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) v[r] = _mm256_loadu_ps(reinterpret_cast<const float *>(rows[r] + at));
    turn_8(v);
}

// 32 bytes of each of eight rows, from `at` on, as float32 columns kLanes floats apart.
template <int F> HETERO_INLINE void turn_rows(const uint8_t *const *rows, int64_t at, float *to) {
    __m256 v[8];
    load_turned(rows, at, v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (F == HETERO_F32)
            _mm256_storeu_ps(to + i * kLanes, v[i]);
        else
            widen_pairs<F>(v[i], to + 2 * i * kLanes, to + (2 * i + 1) * kLanes);
    }
}

// A block of 32 codes of each of eight rows in the same way.
HETERO_INLINE void turn_codes(const uint8_t *const *rows, int64_t at, float *to) {
    __m256 v[8];
    load_turned(rows, at + 2, v);
    uint16_t halves[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) halves[r] = load16(rows[r] + at);
    const __m256 scales = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves)));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
        for (int byte = 0; byte < 4; byte++) {
            const __m256i up = _mm256_slli_epi32(_mm256_castps_si256(v[i]), 24 - 8 * byte);
            const __m256 codes = _mm256_cvtepi32_ps(_mm256_srai_epi32(up, 24));
            _mm256_storeu_ps(to + (4 * i + byte) * kLanes, _mm256_mul_ps(codes, scales));
        }
}
#endif

// Rows of keys [d] to a panel [strip][d][16 keys].
template <int F> void key_panel(const uint8_t *const *rows, int64_t d, int strips, float *panel) {
    for (int half = 0; half < 2 * strips; half++) {
        const uint8_t *const *eight = rows + 8 * half;
        float *to = panel + half / 2 * d * kLanes + half % 2 * 8;
        int64_t i = 0;
#if defined(__AVX2__)
        constexpr int64_t step = F == HETERO_Q8_0 ? kBlock : 32 / value_bytes<F>();
        for (; i + step <= d; i += step)
            if constexpr (F == HETERO_Q8_0)
                turn_codes(eight, block_at(i), to + i * kLanes);
            else
                turn_rows<F>(eight, i * value_bytes<F>(), to + i * kLanes);
#endif
        for (; i < d; i++)
            for (int r = 0; r < 8; r++) to[i * kLanes + r] = widen<F>(eight[r], i);
    }
}

// `count` rows of values [e] to a panel [strip of 16 columns][64][16], columns beyond e zero.
template <int F> void value_panel(const uint8_t *const *rows, int64_t e, int64_t count, float *panel) {
    for (int64_t j = 0; j < count; j++) {
        const uint8_t *row = rows[j];
        float *to = panel + j * kLanes;
        int64_t i = 0;
        for (; i + kLanes <= e; i += kLanes, to += kBlockKeys * kLanes) store(to, widen_16<F>(row, i));
        for (int c = 0; i < e && c < kLanes; c++) to[c] = i + c < e ? widen<F>(row, i + c) : 0.f;
    }
}

// Where a product finds strip s of the values at position j: in a panel ...
struct ValuePanel {
    const float *panel;

    HETERO_INLINE Sixteen at(int64_t s, int64_t j) const { return load(panel + (s * kBlockKeys + j) * kLanes); }
};

// ... or in the cache, where few rows would not pay for a panel.
template <int F> struct ValueRows {
    const uint8_t *const *rows;

    HETERO_INLINE Sixteen at(int64_t s, int64_t j) const { return widen_16<F>(rows[j], s * kLanes); }
};

}  // namespace
