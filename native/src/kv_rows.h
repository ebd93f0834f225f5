// Rows of the KV cache: what they take and how float32 values are stored in them.
#pragma once
#include "checks.h"
#include "quantize.h"

namespace {

constexpr int kQ8Bytes = 34;  // of 32 values: their scale in fp16, then their codes

constexpr bool is_kv_format(int format) {
    return (format >= HETERO_F32 && format <= HETERO_BF16) || format == HETERO_Q8_0;
}

// Rows of Q8_0 are whole blocks; the last one is filled up with zeros.
constexpr int64_t kv_row_bytes(int format, int64_t width) {
    return format == HETERO_Q8_0 ? ceil_div(width, kBlock) * kQ8Bytes : width * (format == HETERO_F32 ? 4 : 2);
}

// The least fp16 that is not below v >= 0.
inline uint16_t half_from_below(float v) {
    const uint16_t half = float_to_half(v);
    return uint16_t(half + (half_to_float(half) < v));
}

// 32 values to codes within -127..127 of the least scale that reaches them all, so that no value is off by more than half
// of it. Where one of them is no finite number or beyond what the scale can be, all of them become NaN.
inline void store_block(const float *x, uint8_t *block) {
    const float amax = amax_of(x, kBlock);
    const uint16_t half = is_finite(amax) ? half_from_below(amax / 127.f) : 0x7e00;
    const bool finite = is_finite_half(half);
    const float d = half_to_float(half), inverse = finite && d > 0 ? 1.f / d : 0.f;
    store16(block, finite ? half : 0x7e00);
    for (int i = 0; i < kBlock; i++) block[2 + i] = uint8_t(int8_t(finite ? int(round_even(x[i] * inverse)) : 0));
}

inline void store_blocks(const float *values, int64_t n, uint8_t *row) {
    for (; n >= kBlock; n -= kBlock, values += kBlock, row += kQ8Bytes) store_block(values, row);
    if (!n) return;
    float last[kBlock] = {};
    memcpy(last, values, size_t(n) * 4);
    store_block(last, row);
}

// A row of `n` float32 values in the type of a store.
inline void store_row(int format, const float *values, int64_t n, uint8_t *row) {
    if (format == HETERO_Q8_0) return store_blocks(values, n, row);
    if (format == HETERO_F32) {
        memcpy(row, values, size_t(n) * 4);
        return;
    }
    int64_t i = 0;
#if defined(__F16C__)
    for (; format == HETERO_F16 && i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(values + i);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(row + 2 * i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    if (format == HETERO_BF16)
        for (; i < n; i++) store16(row + 2 * i, float_to_bf16(values[i]));
    for (; i < n; i++) store16(row + 2 * i, float_to_half(values[i]));
}

// The rows of `groups` groups, one after another.
inline void store_rows(int format, const float *values, int64_t groups, int64_t width, uint8_t *rows) {
    const int64_t size = kv_row_bytes(format, width);
    for (int64_t g = 0; g < groups; g++) store_row(format, values + g * width, width, rows + g * size);
}

}  // namespace
