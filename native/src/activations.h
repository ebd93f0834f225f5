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
// minima). Token i of a call lies in row rows[i] (or row i). Tile kernels read bf16 values, zero up to a multiple of 32:
// token i of a call lies in row i - b_first of them; null: no tile kernel may be used.
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

    int64_t row(int64_t i) const { return rows ? rows[i] : i; }
};

// d times the sum of codes of the first or second half of the group at that place.
inline float half_ds(const Acts &acts, int64_t at, int half) {
    return acts.d[at] * float(half ? acts.s8[at] / 8 - acts.half[at] : acts.half[at]);
}

// The writable buffers behind the quantised part of an Acts.
struct ActBuffers {
    int8_t *q;
    float *d;
    int32_t *s8;
    int32_t *half;
    float *ds;
    uint16_t *b;
    int64_t q_stride, group_stride, b_stride;

    static int64_t q_stride_of(int64_t k) { return round_up(k, kBlock) + 64; }  // rows must not alias in L1
    static int64_t group_stride_of(int64_t k) { return round_up(ceil_div(k, kBlock), 16); }
    static int64_t b_stride_of(int64_t k) { return kHasTiles ? round_up(k, kBlock) + kBlock : 0; }
    static size_t bytes(int64_t rows, int64_t k) {
        return size_t(rows) * size_t(2 * b_stride_of(k) + q_stride_of(k) + 16 * group_stride_of(k)) + 256;
    }
    void place(uint8_t *memory, int64_t rows, int64_t k) {
        q_stride = q_stride_of(k);
        group_stride = group_stride_of(k);
        b_stride = b_stride_of(k);
        b = reinterpret_cast<uint16_t *>(memory);
        d = reinterpret_cast<float *>(memory + 2 * rows * b_stride);
        ds = d + rows * group_stride;
        s8 = reinterpret_cast<int32_t *>(ds + rows * group_stride);
        half = s8 + rows * group_stride;
        q = reinterpret_cast<int8_t *>(half + rows * group_stride);
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
    }
};

constexpr float kTinyAmax = 1e-30f;  // below this a group counts as zero: 127 / amax must stay finite

// One group of 32, number `group` of a row. A NaN or infinity makes the scale NaN, so that exactly this token's results
// become NaN.
inline void quantize_group(const float *x, const ActBuffers &to, int64_t row, int64_t group) {
    const int64_t at = row * to.group_stride + group;
    int8_t *q = to.q + row * to.q_stride + group * kBlock;
    const float amax = amax_of(x, kBlock);
    const bool finite = is_finite(amax);
    const float inverse = finite && amax > kTinyAmax ? 127.f / amax : 0.f;
    int32_t sums[2] = {0, 0};
    for (int h = 0; h < 2; h++)
        for (int i = 16 * h; i < 16 * h + 16; i++) {
            const int32_t code = finite ? int32_t(round_even(x[i] * inverse)) : 0;
            q[i] = int8_t(code);
            sums[h] += code;
        }
    const int32_t sum = sums[0] + sums[1];
    to.d[at] = !finite ? bits_float(0x7fc00000) : amax > kTinyAmax ? amax / 127.f : 0.f;
    to.s8[at] = 8 * sum;
    to.half[at] = sums[0];
    to.ds[at] = to.d[at] * float(sum);
    if (kHasTiles)
        for (int i = 0; i < kBlock; i++) to.b[row * to.b_stride + group * kBlock + i] = float_to_bf16(x[i]);
}

inline void quantize_row(const float *x, int64_t k, const ActBuffers &to, int64_t row) {
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
    for (int i = 0; i < 2; i++) tile_kernel<F>()(tiles[i], k, acts, first, n, outs[i], out_stride);
}

template <int... F> constexpr TileTable tile_table(std::integer_sequence<int, F...>) {
    return {{tile_kernel<F>()...}, {pair_kernel<F>()...}};
}
constexpr TileTable tile_table() { return tile_table(std::make_integer_sequence<int, HETERO_FORMATS>()); }

// `count` tiles, tile_size bytes apart, for n tokens; 16 columns of out each.
inline void run_tiles(int format, const uint8_t *tile, int64_t tile_size, int64_t count, int64_t k, const Acts &acts,
                      int64_t first, int64_t n, float *out, int64_t out_stride) {
    for (; count >= 2; count -= 2, tile += 2 * tile_size, out += 2 * kRows) {
        const uint8_t *const tiles[2] = {tile, tile + tile_size};
        float *const outs[2] = {out, out + kRows};
        kTileKernels.two[format](tiles, k, acts, first, n, outs, out_stride);
    }
    if (count) kTileKernels.one[format](tile, k, acts, first, n, out, out_stride);
}

extern const char *const kTierName;

}  // namespace
