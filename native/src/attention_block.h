// Attention of rows (a token's query heads) over one block of 64 cached positions: keys and values as float32 panels that
// all rows share, the scores, and the softmax that goes from block to block.
// A row's arithmetic is the same in every grouping of rows: each score is one sum over d in order, each output one sum
// over the row's positions in order, and blocks lie at fixed positions.
#pragma once
#include <type_traits>

#include "lanes.h"

namespace {

constexpr int kBlockKeys = 64;  // positions of a block; block b holds positions 64 b .. 64 b + 63
constexpr int kStrips = kBlockKeys / kLanes;
constexpr int kRowsAtOnce = 6;

// How many strips of 16 lanes `rows` rows are multiplied with at once: all sums in registers, and enough of them to
// fill the multipliers' latency.
constexpr int strips_at_once(int rows) {
#if defined(__AVX512F__)
    return rows > 0 ? 4 : 0;
#elif defined(__AVX2__)
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
    return rows > 0 ? 1 : 0;
#endif
}

// --- panels ---

template <int F> constexpr int64_t value_bytes() { return F == HETERO_F32 ? 4 : 2; }

template <int F> HETERO_INLINE float widen(const uint8_t *p) {
    if (F == HETERO_F32) {
        float v;
        memcpy(&v, p, 4);
        return v;
    }
    return F == HETERO_BF16 ? bf16_to_float(load16(p)) : half_to_float(load16(p));
}

#if defined(__AVX512F__)
template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *p) {
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

template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *p) {
    if (F == HETERO_F32) return load(reinterpret_cast<const float *>(p));
    return {widen_8<F>(p), widen_8<F>(p + 16)};
}
#else
template <int F> HETERO_INLINE Sixteen widen_16(const uint8_t *p) {
    float v[kLanes];
    for (int i = 0; i < kLanes; i++) v[i] = widen<F>(p + i * value_bytes<F>());
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

// 32 bytes of each of eight rows, from `at` on, as float32 columns kLanes floats apart.
template <int F> HETERO_INLINE void turn_rows(const uint8_t *const *rows, int64_t at, float *to) {
    __m256 v[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) v[r] = _mm256_loadu_ps(reinterpret_cast<const float *>(rows[r] + at));
    turn_8(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (F == HETERO_F32)
            _mm256_storeu_ps(to + i * kLanes, v[i]);
        else
            widen_pairs<F>(v[i], to + 2 * i * kLanes, to + (2 * i + 1) * kLanes);
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
        constexpr int64_t step = 32 / value_bytes<F>();
        for (; i + step <= d; i += step) turn_rows<F>(eight, i * value_bytes<F>(), to + i * kLanes);
#endif
        for (; i < d; i++)
            for (int r = 0; r < 8; r++) to[i * kLanes + r] = widen<F>(eight[r] + i * value_bytes<F>());
    }
}

// `count` rows of values [e] to a panel [strip of 16 columns][64][16], columns beyond e zero.
template <int F> void value_panel(const uint8_t *const *rows, int64_t e, int64_t count, float *panel) {
    for (int64_t j = 0; j < count; j++) {
        const uint8_t *row = rows[j];
        float *to = panel + j * kLanes;
        int64_t i = 0;
        for (; i + kLanes <= e; i += kLanes, to += kBlockKeys * kLanes)
            store(to, widen_16<F>(row + i * value_bytes<F>()));
        for (int c = 0; i < e && c < kLanes; c++) to[c] = i + c < e ? widen<F>(row + (i + c) * value_bytes<F>()) : 0.f;
    }
}

// --- products ---

// out[r][16 c ..] = q[r] times C strips of keys.
template <int R, int C> void score_strips(const float *q, int64_t d, const float *keys, float *out) {
    Sixteen sum[R][C];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) sum[r][c] = all_of(0.f);
    for (int64_t i = 0; i < d; i++) {
        Sixteen k[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) k[c] = load(keys + (c * d + i) * kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const Sixteen x = all_of(q[r * d + i]);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) sum[r][c] = fma(x, k[c], sum[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) store(out + r * kBlockKeys + c * kLanes, sum[r][c]);
}

// Where a product finds strip s of the values at position j: in a panel ...
struct ValuePanel {
    const float *panel;

    HETERO_INLINE Sixteen at(int64_t s, int64_t j) const { return load(panel + (s * kBlockKeys + j) * kLanes); }
};

// ... or in the cache, where few rows would not pay for a panel.
template <int F> struct ValueRows {
    const uint8_t *const *rows;

    HETERO_INLINE Sixteen at(int64_t s, int64_t j) const { return widen_16<F>(rows[j] + s * kLanes * value_bytes<F>()); }
};

// out[r][c] += sum over j in begin .. end of p[r][j] * values[j][c], for C strips of columns from `strip` on.
template <int R, int C, class Values>
void mix_strips(const float *p, const Values &values, int64_t strip, int begin, int end, float *out, int64_t out_stride) {
    Sixteen sum[R][C];
    out += strip * kLanes;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) sum[r][c] = load(out + r * out_stride + c * kLanes);
    for (int j = begin; j < end; j++) {
        Sixteen v[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) v[c] = values.at(strip + c, j);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const Sixteen x = all_of(p[r * kBlockKeys + j]);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) sum[r][c] = fma(x, v[c], sum[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) store(out + r * out_stride + c * kLanes, sum[r][c]);
}

// --- rows ---

// Rows that walk over the cache together: what they ask for and what they have found, row after row.
struct Rows {
    const float *q;   // [rows][d], scaled
    float *found;     // [rows][width]: sums of values, weighted relative to `top`
    float *sums;      // [rows][16]: sums of weights
    float *top;       // [rows]: largest score so far
    const int64_t *from;  // [rows]: the first position that a row sees
    const int64_t *own;   // [rows]: the last one
    int64_t d, width;     // width: of a value, rounded up to strips

    Rows at(int64_t row) const {
        return {q + row * d, found + row * width, sums + row * kLanes, top + row, from + row, own + row, d, width};
    }
};

// Turns a row's scores, of which [begin, end) count, into weights and adds them up; earlier sums shrink to the new top.
inline void weigh(float *scores, int begin, int end, const Rows &rows, int r) {
    const int strips = int(ceil_div(end, kLanes));
    for (int j = 0; j < begin; j++) scores[j] = -INFINITY;
    for (int j = end; j < strips * kLanes; j++) scores[j] = -INFINITY;
    Sixteen best = load(scores);
    for (int s = 1; s < strips; s++) best = greater(best, load(scores + s * kLanes));
    float *sums = rows.sums + r * kLanes, top = greatest(best);
    if (top > rows.top[r]) {
        float fix[kLanes];
        store(fix, exp_of(all_of(rows.top[r] - top)));
        const Sixteen factor = all_of(fix[0]);
        for (int64_t i = 0; i < rows.width; i += kLanes)
            store(rows.found + r * rows.width + i, load(rows.found + r * rows.width + i) * factor);
        store(sums, load(sums) * factor);
        rows.top[r] = top;
    }
    Sixteen sum = load(sums);
    const Sixteen highest = all_of(rows.top[r]);
    for (int s = 0; s < strips; s++) {
        const Sixteen p = exp_of(load(scores + s * kLanes) - highest);
        store(scores + s * kLanes, p);
        sum = sum + p;
    }
    store(sums, sum);
}

template <int R, class Values> void mix(const Rows &rows, const Values &values, const float *p, int begin, int end) {
    constexpr int C = strips_at_once(R);
    const int64_t strips = rows.width / kLanes;
    int64_t s = 0;
    for (; s + C <= strips; s += C) mix_strips<R, C>(p, values, s, begin, end, rows.found, rows.width);
    for (; s < strips; s++) mix_strips<R, 1>(p, values, s, begin, end, rows.found, rows.width);
}

// What R rows see of the block that begins at `first`: each its own [begin, end), all of them [all_begin, all_end).
template <int R> struct Seen {
    int begin[R], end[R], all_begin = 0, all_end = kBlockKeys, last = 0;

    Seen(const Rows &rows, int64_t first) {
        for (int r = 0; r < R; r++) {
            begin[r] = int(max64(rows.from[r] - first, 0));
            end[r] = int(min64(rows.own[r] + 1 - first, kBlockKeys));
            all_begin = begin[r] > all_begin ? begin[r] : all_begin;
            all_end = end[r] < all_end ? end[r] : all_end;
            last = end[r] > last ? end[r] : last;
        }
    }
};

// From scores [R][64] to what the rows have found. A row multiplies only values that it may see, so that a NaN elsewhere
// cannot reach it.
template <int R, class Values>
void weigh_and_mix(const Rows &rows, const Seen<R> &seen, float *scores, const Values &values) {
    for (int r = 0; r < R; r++) weigh(scores + r * kBlockKeys, seen.begin[r], seen.end[r], rows, r);
    const bool common = seen.all_begin < seen.all_end;
    const int before = common ? seen.all_begin : kBlockKeys, after = common ? seen.all_end : kBlockKeys;
    for (int r = 0; r < R; r++) {
        const int end = seen.end[r] < before ? seen.end[r] : before;
        if (seen.begin[r] < end) mix<1>(rows.at(r), values, scores + r * kBlockKeys, seen.begin[r], end);
    }
    if (common) mix<R>(rows, values, scores, before, after);
    for (int r = 0; r < R; r++)
        if (after < seen.end[r]) mix<1>(rows.at(r), values, scores + r * kBlockKeys, after, seen.end[r]);
}

// R rows over the panels of the block that begins at `first`, which each of them sees at least in part.
template <int R> void attend_rows(const Rows &rows, int64_t first, const float *keys, const ValuePanel &values) {
    constexpr int C = strips_at_once(R);
    float scores[R * kBlockKeys];
    const Seen<R> seen(rows, first);
    for (int s = 0; s * kLanes < seen.last; s += C)
        score_strips<R, C>(rows.q, rows.d, keys + s * rows.d * kLanes, scores + s * kLanes);
    weigh_and_mix<R>(rows, seen, scores, values);
}

// f(rows from i on, a constant count of them) for all rows from begin to end.
template <class F> void by_tiles(int64_t begin, int64_t end, const F &f) {
    for (; begin + kRowsAtOnce <= end; begin += kRowsAtOnce) f(begin, std::integral_constant<int, kRowsAtOnce>());
    switch (end - begin) {
    case 1: return f(begin, std::integral_constant<int, 1>());
    case 2: return f(begin, std::integral_constant<int, 2>());
    case 3: return f(begin, std::integral_constant<int, 3>());
    case 4: return f(begin, std::integral_constant<int, 4>());
    case 5: return f(begin, std::integral_constant<int, 5>());
    default: return;
    }
}

inline void attend_block(const Rows &all, int64_t begin, int64_t end, int64_t first, const float *keys,
                         const float *values) {
    by_tiles(begin, end, [&](int64_t r, auto count) {
        attend_rows<decltype(count)::value>(all.at(r), first, keys, ValuePanel{values});
    });
}

constexpr int kFewRows = 16;  // up to so many share no panel of values, and one of keys that stays in L1

// The same for few rows and `count` positions, whose keys and values lie at the given addresses.
template <int F>
void attend_few(const Rows &all, int64_t begin, int64_t end, int64_t first, int64_t count, const uint8_t *const *keys,
                const uint8_t *const *values, float *panel) {
    constexpr int C = 2;
    float scores[kFewRows * kBlockKeys];
    for (int64_t s = 0; s * kLanes < count; s += C) {
        key_panel<F>(keys + s * kLanes, all.d, C, panel);
        by_tiles(begin, end, [&](int64_t r, auto n) {
            float *to = scores + (r - begin) * kBlockKeys + s * kLanes;
            score_strips<decltype(n)::value, C>(all.q + r * all.d, all.d, panel, to);
        });
    }
    by_tiles(begin, end, [&](int64_t r, auto n) {
        constexpr int R = decltype(n)::value;
        weigh_and_mix<R>(all.at(r), Seen<R>(all.at(r), first), scores + (r - begin) * kBlockKeys, ValueRows<F>{values});
    });
}

}  // namespace
