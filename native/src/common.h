// Formats, the geometry of tiles, scalar conversions and error messages: what every other part needs.
// All of a tier library lives in one translation unit and in an anonymous namespace, so that two tiers loaded
// into one process can never share a symbol compiled for the other's instruction set.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../hetero.h"

#define HETERO_INLINE inline __attribute__((always_inline))

namespace {

constexpr int kRows = 16;    // output rows of a tile
constexpr int kBlock = 32;   // inputs of a block
constexpr int kSuper = 256;  // inputs of a K-quant's super-block

struct FormatInfo {
    int block_k;      // inputs of a raw block
    int raw_bytes;    // bytes of a raw block
    int code_bytes;   // bytes of a tile's block of 16 rows x 32 k
    int scale_k;      // inputs that one entry of the tile's scale stream covers; 0: no scales
    int scale_bytes;  // bytes of that entry, for 16 rows
};

constexpr FormatInfo kFormats[HETERO_FORMATS] = {
    {1, 4, 2048, 0, 0},      {1, 2, 1024, 0, 0},      {1, 2, 1024, 0, 0},        // F32 F16 BF16
    {32, 34, 512, 32, 32},                                                       // Q8_0
    {32, 18, 256, 32, 32},   {32, 20, 256, 32, 64},                              // Q4_0 Q4_1
    {32, 22, 320, 32, 32},   {32, 24, 320, 32, 64},                              // Q5_0 Q5_1
    {256, 144, 256, 256, 256}, {256, 176, 320, 256, 256}, {256, 210, 384, 256, 288},  // Q4_K Q5_K Q6_K
};

constexpr bool is_plain(int format) { return format <= HETERO_BF16; }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t raw_row_bytes(int format, int64_t k) {
    return k / kFormats[format].block_k * kFormats[format].raw_bytes;
}

inline int64_t scale_offset(int format, int64_t k) { return ceil_div(k, kBlock) * kFormats[format].code_bytes; }

inline int64_t tile_bytes(int format, int64_t k) {
    const FormatInfo &f = kFormats[format];
    const int64_t scales = f.scale_k ? ceil_div(k, f.scale_k) * f.scale_bytes : 0;
    return round_up(scale_offset(format, k) + scales, 64);
}

inline int64_t packed_bytes(int format, int64_t n, int64_t k) { return ceil_div(n, kRows) * tile_bytes(format, k); }

// --- scalar conversions (memcpy is the defined way to reinterpret; it compiles to nothing) ---

inline uint32_t float_bits(float v) {
    uint32_t b;
    memcpy(&b, &v, 4);
    return b;
}

inline float bits_float(uint32_t b) {
    float v;
    memcpy(&v, &b, 4);
    return v;
}

inline uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

inline void store16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

inline float bf16_to_float(uint16_t v) { return bits_float(uint32_t(v) << 16); }

// Masks instead of branches, so that loops over it vectorise; exact also where denormals are flushed to zero.
inline float half_to_float(uint16_t h) {
    const uint32_t shifted = uint32_t(h & 0x7fff) << 13, exponent = shifted & 0x0f800000;
    const uint32_t normal = shifted + (112u << 23) + ((112u << 23) & -uint32_t(exponent == 0x0f800000));
    const uint32_t subnormal = float_bits(bits_float(shifted + (113u << 23)) - bits_float(113u << 23));
    const uint32_t is_subnormal = -uint32_t(exponent == 0);
    return bits_float((normal & ~is_subnormal) | (subnormal & is_subnormal) | uint32_t(h & 0x8000) << 16);
}

inline uint16_t float_to_bf16(float v) {
    const uint32_t b = float_bits(v);
    if ((b & 0x7fffffff) > 0x7f800000) return uint16_t(b >> 16 | 64);  // keep NaN a (quiet) NaN
    return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

inline uint16_t float_to_half(float v) {
    const uint32_t b = float_bits(v), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds beyond 65504
    if (magnitude < 0x38800000) {                                 // subnormal: let the adder round to 2^-24
        const float rounded = bits_float(magnitude) + 0.5f;
        return uint16_t(sign | (float_bits(rounded) - 0x3f000000));
    }
    return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

inline bool is_finite(float v) { return (float_bits(v) & 0x7f800000) != 0x7f800000; }
inline bool is_finite_half(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

// --- eight values at once; compilers split them where registers are shorter ---

typedef float Lanes __attribute__((vector_size(32)));
typedef uint32_t LaneBits __attribute__((vector_size(32)));

HETERO_INLINE Lanes load_lanes(const float *p) {
    Lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

// --- error messages ---

struct Message {
    char *text;
    size_t bytes;

    __attribute__((format(printf, 3, 4))) int fail(int code, const char *format, ...) const {
        if (text && bytes) {
            va_list args;
            va_start(args, format);
            vsnprintf(text, bytes, format, args);
            va_end(args);
        }
        return code;
    }
};

}  // namespace
