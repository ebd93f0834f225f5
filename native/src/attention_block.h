// Attention of rows (a token's query heads) over one block of 64 cached positions: keys and values as float32 panels that
// all rows share, the scores, and the softmax that goes from block to block.
// A row's arithmetic is the same in every grouping of rows: each score is one sum over d in order, each output one sum
// over the row's positions in order, and blocks lie at fixed positions.
#pragma once
#include <type_traits>

#include "kv_panels.h"

namespace {

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
