// What a kernel reads on the activation side, and the interface between the drivers and one tier's kernels.
#pragma once
#include "quantize.h"

namespace {

#if defined(HETERO_AMX)
constexpr bool kHasTiles = true;  // the tier also multiplies bf16 activations
#else
constexpr bool kHasTiles = false;
#endif

// Whether kernels of that format read more of the activations than their float32 values.
constexpr bool needs_buffers(int format) {
    return !is_plain(format) || (kHasTiles && (format == HETERO_BF16 || format == HETERO_FP8_E4M3));
}

// Activations of many tokens. Plain weights read `x`; quantised weights read int8 codes per group of 32 with their
// scale d, s8 = 8 * sum of codes (for zero points), half = sum of the first 16 codes and ds = d * sum of codes (for
// minima). Token i of a call lies in row rows[i] (or row i). Tile kernels read bf16 values, zero up to a multiple of
// 32, or wide rows (see below): token i of a call lies in row i - b_first of them; null: no such tile kernel may be
// used. `next` is where the tiles lie that the caller reads after those of the call; null: behind them.
struct Acts {
    const float *x = nullptr;
    int64_t x_stride = 0;
    const int8_t *q = nullptr;
    int64_t q_stride = 0;
    const float *d = nullptr;
    const int32_t *s8 = nullptr;
    const int32_t *half = nullptr;
    const float *ds = nullptr;
    int64_t group_stride = 0;
    const int32_t *rows = nullptr;
    const uint16_t *b = nullptr;
    int64_t b_stride = 0, b_first = 0;
    const uint8_t *wide = nullptr;
    int64_t wide_stride = 0;
    const uint8_t *next = nullptr;

    int64_t row(int64_t i) const { return rows ? rows[i] : i; }
    // Only vector kernels may be used, so that one kernel serves a format whatever the number of tokens.
    void pin() { b = nullptr, wide = nullptr; }
};

// d times the sum of codes of the first or second half of the group at that place.
inline float half_ds(const Acts &acts, int64_t at, int half) {
    return acts.d[at] * float(half ? acts.s8[at] / 8 - acts.half[at] : acts.half[at]);
}

// A wide row: int8 codes of k activations in groups of 128, then for each group its scale, then for each group the
// scale times the sum of codes of its first 64 k, of its others and of all.
constexpr int64_t kWideGroup = 128;
constexpr int64_t wide_scales_at(int64_t k) { return round_up(k, kWideGroup); }

// The writable buffers behind the quantised part of an Acts.
struct ActBuffers {
    int8_t *q;
    float *d;
    int32_t *s8;
    int32_t *half;
    float *ds;
    uint16_t *b;
    uint8_t *wide;  // null: not wanted
    int64_t q_stride, group_stride, b_stride, wide_stride;

    static int64_t q_stride_of(int64_t k) { return round_up(k, kBlock) + 64; }  // rows must not alias in L1
    static int64_t group_stride_of(int64_t k) { return round_up(ceil_div(k, kBlock), 16); }
    static int64_t b_stride_of(int64_t k) { return kHasTiles ? round_up(k, kBlock) + kBlock : 0; }
    static int64_t wide_stride_of(int64_t k) {
        return round_up(wide_scales_at(k) + 16 * ceil_div(k, kWideGroup), 64) + 64;
    }
    static size_t bytes(int64_t rows, int64_t k, bool wide) {
        const int64_t tiles = 2 * b_stride_of(k) + (wide ? wide_stride_of(k) : 0);
        return size_t(rows) * size_t(tiles + q_stride_of(k) + 16 * group_stride_of(k)) + 256;
    }
    void place(uint8_t *memory, int64_t rows, int64_t k, bool with_wide) {
        q_stride = q_stride_of(k);
        group_stride = group_stride_of(k);
        b_stride = b_stride_of(k);
        b = reinterpret_cast<uint16_t *>(memory);
        d = reinterpret_cast<float *>(memory + 2 * rows * b_stride);
        ds = d + rows * group_stride;
        s8 = reinterpret_cast<int32_t *>(ds + rows * group_stride);
        half = s8 + rows * group_stride;
        wide_stride = wide_stride_of(k);
        wide = with_wide ? reinterpret_cast<uint8_t *>(half + rows * group_stride) : nullptr;
        q = reinterpret_cast<int8_t *>(half + rows * group_stride) + (with_wide ? rows * wide_stride : 0);
    }
    void fill(Acts *acts) const {
        acts->q = q;
        acts->q_stride = q_stride;
        acts->d = d;
        acts->s8 = s8;
        acts->half = half;
        acts->ds = ds;
        acts->group_stride = group_stride;
        acts->b = kHasTiles ? b : nullptr;
        acts->b_stride = b_stride;
        acts->wide = wide;
        acts->wide_stride = wide_stride;
    }
};

constexpr float kTinyAmax = 1e-30f;  // below this a group counts as zero: 127 / amax must stay finite

// N activations as codes with one scale, which is returned, and the sums of the codes' halves. A NaN or infinity makes
// the scale NaN, so that exactly this token's results become NaN.
template <int N> HETERO_INLINE float quantize_codes(const float *x, int8_t *q, int32_t *sums) {
    const float amax = amax_of(x, N);
    const bool finite = is_finite(amax);
    const float inverse = finite && amax > kTinyAmax ? 127.f / amax : 0.f;
    for (int h = 0; h < 2; h++) {
        sums[h] = 0;
        for (int i = N / 2 * h; i < N / 2 * (h + 1); i++) {
            const int32_t code = finite ? int32_t(round_even(x[i] * inverse)) : 0;
            q[i] = int8_t(code);
            sums[h] += code;
        }
    }
    return !finite ? bits_float(0x7fc00000) : amax > kTinyAmax ? amax / 127.f : 0.f;
}

// One group of 32, number `group` of a row.
inline void quantize_group(const float *x, const ActBuffers &to, int64_t row, int64_t group) {
    const int64_t at = row * to.group_stride + group;
    int32_t sums[2];
    to.d[at] = quantize_codes<kBlock>(x, to.q + row * to.q_stride + group * kBlock, sums);
    const int32_t sum = sums[0] + sums[1];
    to.s8[at] = 8 * sum;
    to.half[at] = sums[0];
    to.ds[at] = to.d[at] * float(sum);
    if (kHasTiles)
        for (int i = 0; i < kBlock; i++) to.b[row * to.b_stride + group * kBlock + i] = float_to_bf16(x[i]);
}

inline void quantize_wide_row(const float *x, int64_t k, const ActBuffers &to, int64_t row) {
    uint8_t *const codes = to.wide + row * to.wide_stride;
    const int64_t groups = ceil_div(k, kWideGroup);
    auto *const scales = reinterpret_cast<float *>(codes + wide_scales_at(k)), *const sums = scales + groups;
    for (int64_t g = 0; g < groups; g++) {
        float last[kWideGroup] = {};
        const float *from = x + g * kWideGroup;
        if (k - g * kWideGroup < kWideGroup)
            from = static_cast<float *>(memcpy(last, from, size_t(k - g * kWideGroup) * sizeof(float)));
        int32_t halves[2];
        scales[g] = quantize_codes<kWideGroup>(from, reinterpret_cast<int8_t *>(codes) + g * kWideGroup, halves);
        for (int h = 0; h < 2; h++) sums[3 * g + h] = scales[g] * float(halves[h]);
        sums[3 * g + 2] = scales[g] * float(halves[0] + halves[1]);
    }
}

inline void quantize_row(const float *x, int64_t k, const ActBuffers &to, int64_t row) {
    if (to.wide) quantize_wide_row(x, k, to, row);
    for (int64_t g = 0; g < k / kBlock; g++) quantize_group(x + g * kBlock, to, row, g);
    if (k % kBlock == 0) return;
    float last[kBlock] = {};  // only of BF16 and FP8 matrices
    memcpy(last, x + k / kBlock * kBlock, size_t(k % kBlock) * sizeof(float));
    quantize_group(last, to, row, k / kBlock);
}

// Computes one tile (16 output rows) for n tokens: out[i * out_stride + r], all 16 values written. The result of a
// token depends on nothing but its own row: in K order, acc = fma(float(isum), d_w * d_a, acc), then the minimum.
using TileKernel = void (*)(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                            int64_t out_stride);

// Two tiles of one format for the same tokens: the bits of two TileKernels, at less than twice the time.
using PairKernel = void (*)(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n,
                            float *const *outs, int64_t out_stride);

struct TileTable {
    TileKernel one[HETERO_FORMATS];
    PairKernel two[HETERO_FORMATS];
};

extern const TileTable kTileKernels;  // defined by the tier, as are:
template <int F> constexpr TileKernel tile_kernel();
template <int F> constexpr PairKernel pair_kernel();

template <int F>
void one_by_one(const uint8_t *const *tiles, int64_t k, const Acts &acts, int64_t first, int64_t n, float *const *outs,
                int64_t out_stride) {
    Acts before = acts;
    before.next = tiles[1];
    tile_kernel<F>()(tiles[0], k, before, first, n, outs[0], out_stride);
    tile_kernel<F>()(tiles[1], k, acts, first, n, outs[1], out_stride);
}

template <int... F> constexpr TileTable tile_table(std::integer_sequence<int, F...>) {
    return {{tile_kernel<F>()...}, {pair_kernel<F>()...}};
}
constexpr TileTable tile_table() { return tile_table(std::make_integer_sequence<int, HETERO_FORMATS>()); }

// `count` tiles, tile_size bytes apart, for n tokens; 16 columns of out each. `acts.next` is what is read after them.
inline void run_tiles(int format, const uint8_t *tile, int64_t tile_size, int64_t count, int64_t k, Acts acts,
                      int64_t first, int64_t n, float *out, int64_t out_stride) {
    const uint8_t *after = acts.next;
    acts.next = nullptr;
    for (; count >= 2; count -= 2, tile += 2 * tile_size, out += 2 * kRows) {
        const uint8_t *const tiles[2] = {tile, tile + tile_size};
        float *const outs[2] = {out, out + kRows};
        if (count == 2) acts.next = after;
        kTileKernels.two[format](tiles, k, acts, first, n, outs, out_stride);
    }
    if (count) {
        acts.next = after;
        kTileKernels.one[format](tile, k, acts, first, n, out, out_stride);
    }
}

extern const char *const kTierName;

}  // namespace
