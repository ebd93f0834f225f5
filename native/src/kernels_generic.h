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

// The block's codes as signed numbers, zero point applied: w[k][row].
template <int F> void block_codes(const uint8_t *block, int16_t (*w)[kRows]) {
    uint8_t codes[kBlock];
    for (int r = 0; r < kRows; r++) {
        get_tile_codes<F>(block, r, codes);
        for (int k = 0; k < kBlock; k++)
            w[k][r] = F == HETERO_Q8_0 ? int16_t(int8_t(codes[k])) : int16_t(codes[k] - zero_point(F));
    }
}

template <int F>
void add_block(const int16_t (*w)[kRows], const BlockScales &scales, const Acts &acts, int64_t row, int64_t b,
               float *out) {
    const int8_t *q = acts.q + row * acts.q_stride + b * kBlock;
    const float d = acts.d[row * acts.group_stride + b], ds = acts.ds[row * acts.group_stride + b];
    constexpr int groups = F == HETERO_Q6_K ? 2 : 1, length = kBlock / groups;
    for (int h = 0; h < groups; h++) {
        int32_t sum[kRows] = {};
        for (int k = h * length; k < (h + 1) * length; k++)
            for (int r = 0; r < kRows; r++) sum[r] += int32_t(w[k][r]) * q[k];
        for (int r = 0; r < kRows; r++) out[r] += float(sum[r]) * (scales.d[h][r] * d);
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
        int16_t w[kBlock][kRows];
        BlockScales s;
        block_codes<F>(tile + b * kFormats[F].code_bytes, w);
        block_scales<F>(scales, b, &s);
        for (int64_t i = 0; i < n; i++) add_block<F>(w, s, acts, acts.row(first + i), b, out + i * out_stride);
    }
}

template <int F>
void tile_plain(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                int64_t out_stride) {
    for (int64_t i = 0; i < n; i++) memset(out + i * out_stride, 0, kRows * sizeof(float));
    for (int64_t b = 0; b < k; b += kBlock, tile += kFormats[F].code_bytes) {
        float w[kBlock][kRows];
        const int length = int(min64(kBlock, k - b));
        for (int j = 0; j < length; j++)
            for (int r = 0; r < kRows; r++)
                w[j][r] = load_plain(F, tile + (F == HETERO_F32 ? 64 * j : 64 * (j >> 1) + 2 * (j & 1)) + 4 * r);
        for (int64_t i = 0; i < n; i++) {
            const float *x = acts.x + acts.row(first + i) * acts.x_stride + b;
            float *o = out + i * out_stride;
            for (int j = 0; j < length; j++)
                for (int r = 0; r < kRows; r++) o[r] += w[j][r] * x[j];
        }
    }
}

}  // namespace
