// What joins an expert's gate and up: every activation is gate * sigmoid(t(gate)), times up or up + 1.
#pragma once
#include "activations.h"

namespace {

// As many values as a register of the tier holds.
#if defined(__AVX512F__)
constexpr int kGateLanes = 16;
#else
constexpr int kGateLanes = 8;
#endif
typedef float GateLanes __attribute__((vector_size(4 * kGateLanes)));
typedef uint32_t GateBits __attribute__((vector_size(4 * kGateLanes)));

HETERO_INLINE GateLanes load_gates(const float *p) {
    GateLanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

// g * sigmoid(t), good to about 1e-7; NaN stays NaN.
inline GateLanes times_sigmoid(GateLanes g, GateLanes t) {
    GateLanes x = -t;
    x = x < -87.f ? GateLanes{} - 87.f : x;
    x = x > 88.f ? GateLanes{} + 88.f : x;
    const GateLanes shifted = x * 1.44269504088896341f + 12582912.f;  // 1.5 * 2^23: the integer ends up in the low bits
    const GateLanes n = shifted - 12582912.f;
    const GateLanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    GateLanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.f;
    GateBits bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127u) << 23;
    GateLanes power;
    memcpy(&power, &bits, sizeof power);
    return t < -88.f ? g * 0.f : g / (p * power + 1.f);
}

constexpr float kGptOssLimit = 7.f, kGptOssSlope = 1.702f;  // of OpenAI's gpt-oss
constexpr float kClampedLimit = 10.f;                       // of DeepSeek-V4

inline GateLanes at_most(GateLanes v, float limit) { return v > limit ? GateLanes{} + limit : v; }

// gate[i] = activation(gate[i], up[i]) for kGateLanes values.
inline void gate_lanes(int activation, float *gate, const float *up) {
    GateLanes g = load_gates(gate), u = load_gates(up);
    if (activation == HETERO_GPT_OSS) {
        g = at_most(g, kGptOssLimit);
        u = -at_most(-at_most(u, kGptOssLimit), kGptOssLimit) + 1.f;
        g = times_sigmoid(g, g * kGptOssSlope) * u;
    } else if (activation == HETERO_GELU_TANH) {  // (1 + tanh(y)) / 2 = sigmoid(2 y)
        g = times_sigmoid(g, (g + g * g * g * 0.044715f) * 1.5957691216057308f) * u;
    } else {
        if (activation == HETERO_CLAMPED_SILU) {
            g = at_most(g, kClampedLimit);
            u = -at_most(-at_most(u, kClampedLimit), kClampedLimit);
        }
        g = times_sigmoid(g, g) * u;
    }
    memcpy(gate, &g, sizeof g);
}

}  // namespace
