// float32 to the raw rows of a target format.
#pragma once
#include <cmath>

#include "rows.h"

namespace {

inline float round_even(float v) {
    constexpr float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds |v| < 2^22 to an integer, ties to even
    return (v + magic) - magic;
}

inline float amax_of(const float *x, int n) {
    uint32_t bits = 0;  // compared as integers, so that a NaN counts as the largest of all
    for (int i = 0; i < n; i++) {
        const uint32_t b = float_bits(x[i]) & 0x7fffffff;
        bits = b > bits ? b : bits;
    }
    return bits_float(bits);
}

// As ggml: d = amax / 127, ties away from zero.
inline void quantize_q8_0(const float *x, uint8_t *block) {
    const float d = amax_of(x, kBlock) / 127.f, inverse = d != 0 ? 1.f / d : 0.f;
    store16(block, float_to_half(d));
    for (int i = 0; i < kBlock; i++) {
        const float v = is_finite(d) ? x[i] * inverse : 0.f, whole = std::floor(std::fabs(v));
        const float rounded = whole + std::floor(2.f * (std::fabs(v) - whole));
        block[2 + i] = uint8_t(int8_t(v < 0 ? -rounded : rounded));
    }
}

inline float add_lanes(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

struct Fit {
    float xq, qq;  // sum of x * q and of q * q
};

constexpr int kScaleSteps = 12;  // 0.05 % above the least error that a fine search finds

inline float clamp_code(float v) { return v < -8.f ? -8.f : v > 7.f ? 7.f : v; }

// The codes of x for the scale 1 / inverse, and how well they match x.
inline Fit fit_codes(const float *x, float inverse) {
    constexpr float magic = 12582912.f;
    Lanes xq = {}, qq = {};
    for (int i = 0; i < kBlock; i += 8) {
        const Lanes v = load_lanes(x + i);
        Lanes q = v * inverse;
        q = q < -8.f ? Lanes{} - 8.f : q;
        q = q > 7.f ? Lanes{} + 7.f : q;
        q = (q + magic) - magic;
        xq += v * q;
        qq += q * q;
    }
    return {add_lanes(xq), add_lanes(qq)};
}

// Symmetric 4 bits: of scales around amax/8 with either sign, the one whose codes leave the least squared error;
// the error of codes q with their best scale is sum(x^2) - (sum xq)^2 / sum(q^2), so the last term is maximised.
inline void quantize_q4_0(const float *x, uint8_t *block) {
    const float amax = amax_of(x, kBlock);
    float best = 0, d = 0;
    if (amax > 1e-30f && is_finite(amax)) {
        for (int step = 0; step < 2 * kScaleSteps; step++) {
            const float size = 6.5f + 3.f / kScaleSteps * float(step >> 1);
            const Fit f = fit_codes(x, (step & 1 ? size : -size) / amax);
            if (f.qq > 0 && f.xq * f.xq > best * f.qq) {
                best = f.xq * f.xq / f.qq;
                d = f.xq / f.qq;
            }
        }
    } else if (!is_finite(amax)) {
        d = amax;  // the scale carries the NaN or infinity, where check_scales finds it
    }
    const uint16_t half = float_to_half(d);
    const float rounded = half_to_float(half), inverse = rounded != 0 && is_finite(rounded) ? 1.f / rounded : 0.f;
    store16(block, half);
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; i++)
        codes[i] = uint8_t(int(inverse != 0 ? round_even(clamp_code(x[i] * inverse)) : 0.f) + 8);
    set_raw_codes<HETERO_Q4_0>(block, 0, codes);
}

inline bool can_quantize(int format) { return is_plain(format) || format == HETERO_Q8_0 || format == HETERO_Q4_0; }

inline void quantize_rows(int format, const float *x, uint8_t *rows, int64_t count) {
    const FormatInfo &f = kFormats[format];
    for (int64_t i = 0; i < count; i += f.block_k, rows += f.raw_bytes) {
        if (format == HETERO_F32) memcpy(rows, x + i, 4);
        if (format == HETERO_F16) store16(rows, float_to_half(x[i]));
        if (format == HETERO_BF16) store16(rows, float_to_bf16(x[i]));
        if (format == HETERO_Q8_0) quantize_q8_0(x + i, rows);
        if (format == HETERO_Q4_0) quantize_q4_0(x + i, rows);
    }
}

}  // namespace
