// Sixteen float32 at once in whatever registers the tier has. One lane's arithmetic is the same in avx2 and avx512, so
// their results have the same bits; generic rounds a product before it is added.
#pragma once
#include <math.h>

#include "common.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;

#if defined(__AVX2__)
HETERO_INLINE float greatest_of_8(__m256 v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#endif

#if defined(__AVX512F__)
struct Sixteen {
    __m512 v;
};

HETERO_INLINE Sixteen all_of(float v) { return {_mm512_set1_ps(v)}; }
HETERO_INLINE Sixteen load(const float *p) { return {_mm512_loadu_ps(p)}; }
HETERO_INLINE void store(float *p, Sixteen a) { _mm512_storeu_ps(p, a.v); }
HETERO_INLINE Sixteen operator+(Sixteen a, Sixteen b) { return {_mm512_add_ps(a.v, b.v)}; }
HETERO_INLINE Sixteen operator-(Sixteen a, Sixteen b) { return {_mm512_sub_ps(a.v, b.v)}; }
HETERO_INLINE Sixteen operator*(Sixteen a, Sixteen b) { return {_mm512_mul_ps(a.v, b.v)}; }
HETERO_INLINE Sixteen operator/(Sixteen a, Sixteen b) { return {_mm512_div_ps(a.v, b.v)}; }
HETERO_INLINE Sixteen greater(Sixteen a, Sixteen b) { return {_mm512_max_ps(a.v, b.v)}; }
HETERO_INLINE Sixteen fma(Sixteen a, Sixteen b, Sixteen c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HETERO_INLINE Sixteen minus_fma(Sixteen a, Sixteen b, Sixteen c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

// p * 2^n for whole n from -126 on, 0 where x < -87.
HETERO_INLINE Sixteen times_power(Sixteen p, Sixteen n, Sixteen x) {
    const __m512i shift = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    const __mmask16 low = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-87.f), _CMP_NLT_UQ);
    return {_mm512_maskz_mul_ps(low, p.v, _mm512_castsi512_ps(shift))};
}

HETERO_INLINE float greatest(Sixteen a) {
    return greatest_of_8(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}

#elif defined(__AVX2__)
struct Sixteen {
    __m256 a, b;
};

HETERO_INLINE Sixteen all_of(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
HETERO_INLINE Sixteen load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HETERO_INLINE void store(float *p, Sixteen v) { _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b); }
HETERO_INLINE Sixteen operator+(Sixteen x, Sixteen y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
HETERO_INLINE Sixteen operator-(Sixteen x, Sixteen y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
HETERO_INLINE Sixteen operator*(Sixteen x, Sixteen y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
HETERO_INLINE Sixteen operator/(Sixteen x, Sixteen y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
HETERO_INLINE Sixteen greater(Sixteen x, Sixteen y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
HETERO_INLINE Sixteen fma(Sixteen x, Sixteen y, Sixteen z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
HETERO_INLINE Sixteen minus_fma(Sixteen x, Sixteen y, Sixteen z) {
    return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}

HETERO_INLINE __m256 times_power_8(__m256 p, __m256 n, __m256 x) {
    const __m256i shift = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23);
    const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(-87.f), _CMP_NLT_UQ);
    return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(shift)), low);
}

// p * 2^n for whole n from -126 on, 0 where x < -87.
HETERO_INLINE Sixteen times_power(Sixteen p, Sixteen n, Sixteen x) {
    return {times_power_8(p.a, n.a, x.a), times_power_8(p.b, n.b, x.b)};
}

HETERO_INLINE float greatest(Sixteen v) { return greatest_of_8(_mm256_max_ps(v.a, v.b)); }

#else
struct Sixteen {
    Lanes a, b;
};

HETERO_INLINE Sixteen all_of(float v) { return {Lanes{} + v, Lanes{} + v}; }
HETERO_INLINE Sixteen load(const float *p) { return {load_lanes(p), load_lanes(p + 8)}; }
HETERO_INLINE void store(float *p, Sixteen v) { memcpy(p, &v, sizeof v); }
HETERO_INLINE Sixteen operator+(Sixteen x, Sixteen y) { return {x.a + y.a, x.b + y.b}; }
HETERO_INLINE Sixteen operator-(Sixteen x, Sixteen y) { return {x.a - y.a, x.b - y.b}; }
HETERO_INLINE Sixteen operator*(Sixteen x, Sixteen y) { return {x.a * y.a, x.b * y.b}; }
HETERO_INLINE Sixteen operator/(Sixteen x, Sixteen y) { return {x.a / y.a, x.b / y.b}; }
HETERO_INLINE Sixteen greater(Sixteen x, Sixteen y) { return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b}; }
HETERO_INLINE Sixteen fma(Sixteen x, Sixteen y, Sixteen z) { return z + x * y; }
HETERO_INLINE Sixteen minus_fma(Sixteen x, Sixteen y, Sixteen z) { return z - x * y; }

// p * 2^n for whole n from -126 on, 0 where x < -87.
HETERO_INLINE Sixteen times_power(Sixteen p, Sixteen n, Sixteen x) {
    float values[3][kLanes];
    store(values[0], p), store(values[1], n), store(values[2], x);
    for (int i = 0; i < kLanes; i++) {
        const bool low = values[2][i] < -87.f;
        values[0][i] = low ? 0.f : values[0][i] * bits_float(uint32_t(int32_t(low ? 0 : values[1][i]) + 127) << 23);
    }
    return load(values[0]);
}

HETERO_INLINE float greatest(Sixteen v) {
    float values[kLanes], top;
    store(values, v);
    top = values[0];
    for (int i = 1; i < kLanes; i++) top = values[i] > top ? values[i] : top;
    return top;
}
#endif

// Sum of the lanes, in one order for all tiers.
HETERO_INLINE float sum_of(Sixteen a) {
    float v[kLanes];
    store(v, a);
    for (int half = kLanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

// e^x for x <= 0 (Cephes' polynomial, about 1 ulp); NaN stays NaN, below -87 it is 0.
HETERO_INLINE Sixteen exp_of(Sixteen x) {
    const Sixteen magic = all_of(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Sixteen n = greater(fma(x, all_of(1.44269504088896341f), magic) - magic, all_of(-126.f));
    const Sixteen r = fma(n, all_of(2.12194440e-4f), minus_fma(n, all_of(0.693359375f), x));
    Sixteen p = fma(all_of(1.9875691500e-4f), r, all_of(1.3981999507e-3f));
    p = fma(p, r, all_of(8.3334519073e-3f));
    p = fma(p, r, all_of(4.1665795894e-2f));
    p = fma(p, r, all_of(1.6666665459e-1f));
    p = fma(p, r, all_of(5.0000001201e-1f));
    p = fma(p, r * r, r + all_of(1.f));
    return times_power(p, n, x);
}

}  // namespace
