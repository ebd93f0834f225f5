// The generic tier: plain C++ that any compiler vectorises, and the oracle for the other tiers.
#pragma once
#include "activations.h"

namespace {

// Scales of one block of 32 k in float32: rows of d_w for each half group, and of the minimum (sign included).
struct BlockScales {
    float d[2][kRows];
    float m[kRows];
};

constexpr bool has_minimum(int format) {
    return format == HETERO_Q4_1 || format == HETERO_Q5_1 || format == HETERO_Q4_K || format == HETERO_Q5_K;
}

template <int F> void block_scales(const uint8_t *scales, int64_t block, BlockScales *out) {
    constexpr FormatInfo f = kFormats[F];
    const uint8_t *entry = scales + (block / (f.scale_k / kBlock)) * f.scale_bytes;
    const int g = int(block % (f.scale_k / kBlock));
    for (int r = 0; r < kRows; r++) {
        const float d = half_to_float(load16(entry + 2 * r));
        out->d[0][r] = out->d[1][r] = d;
        if (has_minimum(F)) out->m[r] = half_to_float(load16(entry + 32 + 2 * r));
        if (F == HETERO_Q4_K || F == HETERO_Q5_K) {
            const int lo = entry[kSubLow + 16 * g + r], hi = entry[kSubHigh + 16 * (g >> 1) + r] >> 4 * (g & 1);
            out->d[0][r] = out->d[1][r] = d * float((lo & 15) | (hi & 3) << 4);
            out->m[r] = -(out->m[r] * float(lo >> 4 | (hi & 12) << 2));
        }
        if (F == HETERO_Q6_K)
            for (int h = 0; h < 2; h++) out->d[h][r] = d * float(int8_t(entry[32 + 16 * (2 * g + h) + r]));
    }
}

typedef float Quad __attribute__((vector_size(16)));  // four k of one row: what every vector unit has

// The block's codes in the order they lie in: 8 lines of 16 rows x 4 k.
template <int F> void block_codes(const uint8_t *block, uint8_t *codes) {
    if (F == HETERO_Q8_0) {
        memcpy(codes, block, 512);
        return;
    }
    for (int i = 0; i < 256; i++) {
        codes[i] = block[i] & 15;
        codes[256 + i] = block[i] >> 4;
    }
    if (high_mask<F>() == 1)
        for (int i = 0; i < 64; i++)
            for (int bit = 0; bit < 8; bit++) codes[8 * i + bit] |= uint8_t((block[256 + i] >> bit & 1) << 4);
    if (high_mask<F>() == 3)
        for (int field = 0; field < 4; field++)
            for (int i = 0; i < 64; i++) {
                codes[64 * field + i] |= uint8_t((block[256 + i] >> 2 * field & 3) << 4);
                codes[256 + 64 * field + i] |= uint8_t((block[320 + i] >> 2 * field & 3) << 4);
            }
}

// The codes as numbers, zero point applied: w[line][row] holds four k.
template <int F> void block_weights(const uint8_t *block, Quad (*w)[kRows]) {
    uint8_t codes[512];
    float numbers[512];
    block_codes<F>(block, codes);
    for (int i = 0; i < 512; i++)
        numbers[i] = F == HETERO_Q8_0 ? float(int8_t(codes[i])) : float(int(codes[i]) - zero_point(F));
    memcpy(w, numbers, sizeof numbers);
}

// Adds one block's contribution to a token. The sums are of integers below 2^24, so float32 computes them exactly.
template <int F>
void add_generic(const Quad (*w)[kRows], const BlockScales &scales, const Acts &acts, int64_t row, int64_t b,
                 float *out) {
    const int8_t *q = acts.q + row * acts.q_stride + b * kBlock;
    const float d = acts.d[row * acts.group_stride + b], ds = acts.ds[row * acts.group_stride + b];
    constexpr int groups = F == HETERO_Q6_K ? 2 : 1, lines = 8 / groups;
    for (int h = 0; h < groups; h++) {
        Quad sum[kRows] = {};
        for (int j = h * lines; j < (h + 1) * lines; j++) {
            const Quad a = {float(q[4 * j]), float(q[4 * j + 1]), float(q[4 * j + 2]), float(q[4 * j + 3])};
            for (int r = 0; r < kRows; r++) sum[r] += w[j][r] * a;
        }
        for (int r = 0; r < kRows; r++)
            out[r] += ((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3])) * (scales.d[h][r] * d);
    }
    if (has_minimum(F))
        for (int r = 0; r < kRows; r++) out[r] += scales.m[r] * ds;
}

template <int F>
void tile_quantised(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                    int64_t out_stride) {
    const uint8_t *scales = tile + scale_offset(F, k);
    for (int64_t i = 0; i < n; i++) memset(out + i * out_stride, 0, kRows * sizeof(float));
    for (int64_t b = 0; b < k / kBlock; b++) {
        Quad w[8][kRows];
        BlockScales s;
        block_weights<F>(tile + b * kFormats[F].code_bytes, w);
        block_scales<F>(scales, b, &s);
        for (int64_t i = 0; i < n; i++) add_generic<F>(w, s, acts, acts.row(first + i), b, out + i * out_stride);
    }
}

// One block of 32 k (or fewer at the end) as float32: w[k][row].
template <int F> void plain_weights(const uint8_t *block, float (*w)[kRows]) {
    if (F == HETERO_F32) {
        memcpy(w, block, 2048);
        return;
    }
    uint16_t stored[512];
    float numbers[512];
    memcpy(stored, block, sizeof stored);
    for (int i = 0; i < 512; i++)
        numbers[i] = F == HETERO_F16 ? half_to_float(stored[i]) : bf16_to_float(stored[i]);
    for (int k = 0; k < kBlock; k++)
        for (int r = 0; r < kRows; r++) w[k][r] = numbers[32 * (k >> 1) + 2 * r + (k & 1)];
}

// out[row] += sum over k of w[k][row] * x[k], in K order, with the 16 sums in registers.
inline void add_plain(const float (*w)[kRows], const float *x, int length, float *out) {
    Quad a[4], v[4];
    memcpy(a, out, sizeof a);
    for (int k = 0; k < length; k++) {
        memcpy(v, w[k], sizeof v);
        const Quad xk = Quad{} + x[k];
        a[0] += v[0] * xk;
        a[1] += v[1] * xk;
        a[2] += v[2] * xk;
        a[3] += v[3] * xk;
    }
    memcpy(out, a, sizeof a);
}

template <int F>
void tile_plain(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                int64_t out_stride) {
    for (int64_t i = 0; i < n; i++) memset(out + i * out_stride, 0, kRows * sizeof(float));
    for (int64_t b = 0; b < k; b += kBlock, tile += kFormats[F].code_bytes) {
        float w[kBlock][kRows];
        const int length = int(min64(kBlock, k - b));
        plain_weights<F>(tile, w);
        for (int64_t i = 0; i < n; i++)
            add_plain(w, acts.x + acts.row(first + i) * acts.x_stride + b, length, out + i * out_stride);
    }
}

}  // namespace
