// The generic tier: plain C++ that any compiler vectorises, and the oracle for the other tiers.
#pragma once
#include "activations.h"

namespace {

constexpr bool has_minimum(int format) { return kind_info(format).minimum; }

// Scales of one block of 32 k in float32: rows of d_w for each half group, and of the minima (sign included).
struct BlockScales {
    float d[2][kRows];
    float m[2][kRows];
};

// Those of all blocks of one entry of the scale stream, through the very functions that read a raw block.
template <int F> void entry_scales(const uint8_t *entry, BlockScales *out) {
    constexpr FormatInfo f = kFormats[F];
    constexpr bool zero_point = f.scales == kHalfZero || f.scales == kBfloatZero;
    uint8_t raw[f.raw_bytes];
    for (int r = 0; r < kRows; r++) {
        unpack_scales<F>(raw, entry, r);
        for (int g = 0; g < f.scale_k / kBlock; g++) {
            const RowScales s = row_scales<F>(raw, g);
            for (int h = 0; h < 2; h++) {
                out[g].d[h][r] = s.d[h];
                out[g].m[h][r] = zero_point ? -(s.m[h] * s.d[h]) : s.m[h];
            }
        }
    }
}

typedef float Quad __attribute__((vector_size(16)));  // four k of one row: what every vector unit has

// The block's codes in the order they lie in: 8 lines of 16 rows x 4 k. A plane of `bits` bits is put `shift` bits up.
inline void add_plane(const uint8_t *plane, int bits, int shift, uint8_t *codes) {
    if (bits == 8) memcpy(codes, plane, 512);
    if (bits == 4)
        for (int i = 0; i < 256; i++) {
            codes[i] = plane[i] & 15;
            codes[256 + i] = plane[i] >> 4;
        }
    if (bits == 2)
        for (int field = 0; field < 4; field++)
            for (int i = 0; i < 64; i++) {
                codes[64 * field + i] |= uint8_t((plane[i] >> 2 * field & 3) << shift);
                codes[256 + 64 * field + i] |= uint8_t((plane[64 + i] >> 2 * field & 3) << shift);
            }
    if (bits == 1)
        for (int i = 0; i < 64; i++)
            for (int bit = 0; bit < 8; bit++) codes[8 * i + bit] |= uint8_t((plane[i] >> bit & 1) << shift);
}

// The codes as numbers, zero point applied: w[line][row] holds four k.
template <Kind K> void block_weights(const uint8_t *block, Quad (*w)[kRows]) {
    constexpr KindInfo kind = kKindInfo[K];
    uint8_t codes[512] = {};
    float numbers[512];
    add_plane(block, kind.low, 0, codes);
    add_plane(block + 64 * kind.low, kind.high, kind.low, codes);
    for (int i = 0; i < 512; i++) numbers[i] = code_value<K>(codes[i]);
    memcpy(w, numbers, sizeof numbers);
}

// Adds one block's contribution to a token. The sums are of integers below 2^24, so float32 computes them exactly.
template <Kind K>
void add_generic(const Quad (*w)[kRows], const BlockScales &scales, const Acts &acts, int64_t row, int64_t b,
                 float *out) {
    const int8_t *q = acts.q + row * acts.q_stride + b * kBlock;
    const int64_t at = row * acts.group_stride + b;
    constexpr int groups = kKindInfo[K].groups, lines = 8 / groups;
    for (int h = 0; h < groups; h++) {
        Quad sum[kRows] = {};
        for (int j = h * lines; j < (h + 1) * lines; j++) {
            const Quad a = {float(q[4 * j]), float(q[4 * j + 1]), float(q[4 * j + 2]), float(q[4 * j + 3])};
            for (int r = 0; r < kRows; r++) sum[r] += w[j][r] * a;
        }
        for (int r = 0; r < kRows; r++)
            out[r] += ((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3])) * (scales.d[h][r] * acts.d[at]);
    }
    if (!kKindInfo[K].minimum) return;
    for (int h = 0; h < groups; h++) {
        const float ds = groups == 1 ? acts.ds[at] : half_ds(acts, at, h);
        for (int r = 0; r < kRows; r++) out[r] += scales.m[h][r] * ds;
    }
}

template <int F>
void tile_quantised(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
                    int64_t out_stride) {
    constexpr FormatInfo f = kFormats[F];
    constexpr int64_t blocks = f.scale_k / kBlock;
    const uint8_t *entry = tile + scale_offset(F, k);
    for (int64_t i = 0; i < n; i++) memset(out + i * out_stride, 0, kRows * sizeof(float));
    for (int64_t b = 0; b < k / kBlock; b += blocks, entry += f.scale_bytes) {
        BlockScales s[blocks];
        entry_scales<F>(entry, s);
        for (int64_t g = 0; g < blocks; g++, tile += code_bytes(F)) {
            Quad w[8][kRows];
            block_weights<f.kind>(tile, w);
            for (int64_t i = 0; i < n; i++)
                add_generic<f.kind>(w, s[g], acts, acts.row(first + i), b + g, out + i * out_stride);
        }
    }
}

// e4m3 as fp16 is too small by 2^8, which goes into the scale. Codes for NaN are refused when weights are checked.
inline uint16_t e4m3_as_half(uint8_t v) { return uint16_t((v & 0x80) << 8 | (v & 0x7f) << 7); }

inline void fp8_weights(const uint8_t *block, const uint8_t *scales, float (*w)[kRows]) {
    float numbers[512];
    for (int i = 0; i < 512; i++) numbers[i] = half_to_float(e4m3_as_half(block[i]));
    for (int r = 0; r < kRows; r++) {
        const float d = 256.f * load_float(scales + 4 * r);
        for (int k = 0; k < kBlock; k++) w[k][r] = numbers[64 * (k >> 2) + column_of(kFp8, r, k)] * d;
    }
}

// Block b of 32 k (or fewer at the end) of a tile as float32: w[k][row].
template <int F> void plain_weights(const uint8_t *tile, int64_t k, int64_t b, float (*w)[kRows]) {
    const uint8_t *block = tile + b * code_bytes(F);
    if (F == HETERO_FP8_E4M3)
        return fp8_weights(block, tile + scale_offset(F, k) + b / 4 * kFormats[F].scale_bytes, w);
    if (F == HETERO_F32) {
        memcpy(w, block, 2048);
        return;
    }
    uint16_t stored[512];
    float numbers[512];
    memcpy(stored, block, sizeof stored);
    for (int i = 0; i < 512; i++)
        numbers[i] = F == HETERO_F16 ? half_to_float(stored[i]) : bf16_to_float(stored[i]);
    for (int i = 0; i < kBlock; i++)
        for (int r = 0; r < kRows; r++) w[i][r] = numbers[32 * (i >> 1) + 2 * r + (i & 1)];
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
    for (int64_t b = 0; b < k; b += kBlock) {
        float w[kBlock][kRows];
        const int length = int(min64(kBlock, k - b));
        plain_weights<F>(tile, k, b / kBlock, w);
        for (int64_t i = 0; i < n; i++)
            add_plain(w, acts.x + acts.row(first + i) * acts.x_stride + b, length, out + i * out_stride);
    }
}

template <int F> constexpr TileKernel generic_kernel() {
    if constexpr (is_plain(F)) return tile_plain<F>;
    else return tile_quantised<F>;
}

}  // namespace
