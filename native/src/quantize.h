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

inline float add_lanes(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

struct Fit {
    float xq, qq;  // sums of w * x * q and of w * q * q
};

// How a symmetric format's scale is searched: codes low..high, and sizes amax / d that are tried, in `steps` steps.
struct Search {
    float low, high, first, width;
    int steps;
    bool negative;  // also scales of the other sign: 4 bits reach -8 but only +7
};

constexpr Search kSearch4 = {-8.f, 7.f, 6.5f, 3.f, 12, true};  // 0.05 % above the least error of a fine search
constexpr Search kSearch8 = {-127.f, 127.f, 122.f, 5.4f, 18, false};  // the largest value is cut by half a step at most

inline float clamp_code(float v, const Search &s) { return v < s.low ? s.low : v > s.high ? s.high : v; }

// The codes of x for the scale 1 / inverse, and how well they match x where input i weighs w[i].
inline Fit fit_codes(const float *x, const float *w, float inverse, const Search &s) {
    constexpr float magic = 12582912.f;
    Lanes xq = {}, qq = {};
    for (int i = 0; i < kBlock; i += 8) {
        const Lanes v = load_lanes(x + i);
        Lanes q = v * inverse;
        q = q < s.low ? Lanes{} + s.low : q;
        q = q > s.high ? Lanes{} + s.high : q;
        q = (q + magic) - magic;
        const Lanes weighted = load_lanes(w + i) * q;
        xq += v * weighted;
        qq += weighted * q;
    }
    return {add_lanes(xq), add_lanes(qq)};
}

// Of scales around the one that maps amax to the last code, that whose codes leave the least squared error weighted by
// w; the error of codes q with their best scale is sum(w x^2) - (sum w x q)^2 / sum(w q^2), so the last term is
// maximised. A NaN or infinity in x becomes the scale, where check_scales finds it.
inline float best_scale(const float *x, const float *w, const Search &s) {
    const float amax = amax_of(x, kBlock);
    if (!is_finite(amax)) return amax;
    float best = 0, d = 0;
    if (amax <= 1e-30f) return d;
    for (int step = 0; step <= s.steps; step++) {
        const float size = s.first + s.width / float(s.steps) * float(step);
        for (int sign = s.negative ? -1 : 1; sign <= 1; sign += 2) {
            const Fit f = fit_codes(x, w, float(sign) * size / amax, s);
            if (f.qq > 0 && f.xq * f.xq > best * f.qq) {
                best = f.xq * f.xq / f.qq;
                d = f.xq / f.qq;
            }
        }
    }
    return d;
}

// Writes the scale and gives the codes of x for it as it is stored.
inline void scaled_codes(const float *x, const float *w, const Search &s, uint8_t *scale, int *codes) {
    const uint16_t half = float_to_half(best_scale(x, w, s));
    const float d = half_to_float(half), inverse = d != 0 && is_finite(d) ? 1.f / d : 0.f;
    store16(scale, half);
    for (int i = 0; i < kBlock; i++) codes[i] = inverse != 0 ? int(round_even(clamp_code(x[i] * inverse, s))) : 0;
}

inline void quantize_q8_0(const float *x, const float *w, uint8_t *block) {
    int codes[kBlock];
    scaled_codes(x, w, kSearch8, block, codes);
    for (int i = 0; i < kBlock; i++) block[2 + i] = uint8_t(int8_t(codes[i]));
}

inline void quantize_q4_0(const float *x, const float *w, uint8_t *block) {
    int codes[kBlock];
    scaled_codes(x, w, kSearch4, block, codes);
    uint8_t unsigned_codes[kBlock];
    for (int i = 0; i < kBlock; i++) unsigned_codes[i] = uint8_t(codes[i] + 8);
    set_raw_codes<HETERO_Q4_0>(block, 0, unsigned_codes);
}

inline bool can_quantize(int format) { return is_bare(format) || format == HETERO_Q8_0 || format == HETERO_Q4_0; }

// Rows of k inputs, of which input i weighs importance[i] where a scale is chosen (null: all the same).
inline void quantize_rows(int format, const float *x, const float *importance, uint8_t *rows, int64_t count,
                          int64_t k) {
    const FormatInfo &f = kFormats[format];
    float alike[kBlock];
    for (float &w : alike) w = 1;
    for (int64_t i = 0; i < count; i += f.block_k, rows += f.raw_bytes) {
        const float *const w = importance ? importance + i % k : alike;
        if (format == HETERO_F32) memcpy(rows, x + i, 4);
        if (format == HETERO_F16) store16(rows, float_to_half(x[i]));
        if (format == HETERO_BF16) store16(rows, float_to_bf16(x[i]));
        if (format == HETERO_Q8_0) quantize_q8_0(x + i, w, rows);
        if (format == HETERO_Q4_0) quantize_q4_0(x + i, w, rows);
    }
}

}  // namespace
