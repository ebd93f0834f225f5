// What joins an expert's gate and up: every activation is gate * sigmoid(t(gate)), times up or up + 1.
#pragma once
#include "activations.h"

namespace {

// g * sigmoid(t) of eight values, good to about 1e-7; NaN stays NaN.
inline Lanes times_sigmoid_8(Lanes g, Lanes t) {
    Lanes x = -t;
    x = x < -87.f ? Lanes{} - 87.f : x;
    x = x > 88.f ? Lanes{} + 88.f : x;
    const Lanes shifted = x * 1.44269504088896341f + 12582912.f;  // 1.5 * 2^23: the integer ends up in the low bits
    const Lanes n = shifted - 12582912.f;
    const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.f;
    LaneBits bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127u) << 23;
    Lanes power;
    memcpy(&power, &bits, sizeof power);
    return t < -88.f ? g * 0.f : g / (p * power + 1.f);
}

constexpr float kGptOssLimit = 7.f, kGptOssSlope = 1.702f;  // of OpenAI's gpt-oss
constexpr float kClampedLimit = 10.f;                       // of DeepSeek-V4

inline Lanes at_most(Lanes v, float limit) { return v > limit ? Lanes{} + limit : v; }

// gate[i] = activation(gate[i], up[i]) for eight values.
inline void gate_8(int activation, float *gate, const float *up) {
    Lanes g = load_lanes(gate), u = load_lanes(up);
    if (activation == HETERO_GPT_OSS) {
        g = at_most(g, kGptOssLimit);
        u = -at_most(-at_most(u, kGptOssLimit), kGptOssLimit) + 1.f;
        g = times_sigmoid_8(g, g * kGptOssSlope) * u;
    } else if (activation == HETERO_GELU_TANH) {  // (1 + tanh(y)) / 2 = sigmoid(2 y)
        g = times_sigmoid_8(g, (g + g * g * g * 0.044715f) * 1.5957691216057308f) * u;
    } else {
        if (activation == HETERO_CLAMPED_SILU) {
            g = at_most(g, kClampedLimit);
            u = -at_most(-at_most(u, kClampedLimit), kClampedLimit);
        }
        g = times_sigmoid_8(g, g) * u;
    }
    memcpy(gate, &g, sizeof g);
}

}  // namespace
