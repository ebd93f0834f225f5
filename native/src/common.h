// Formats, the geometry of tiles, scalar conversions and error messages: what every other part needs.
// All of a tier library lives in one translation unit and in an anonymous namespace, so that two tiers loaded
// into one process can never share a symbol compiled for the other's instruction set.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "../hetero.h"

#define HETERO_INLINE inline __attribute__((always_inline))

namespace {

constexpr int kRows = 16;    // output rows of a tile
constexpr int kBlock = 32;   // inputs of a block
constexpr int kSuper = 256;  // inputs of a K-quant's super-block

// How a format's codes lie in a tile's block and what they stand for: all that a kernel's inner loop needs to know.
enum Kind { kF32, kF16, kBF16, kFp8, kS8, kU4, kU4M, kU5, kU5M, kU6, kU2M, kU3, kNl4, kFp4, kFp4x2, kKinds };

struct KindInfo {
    int low, high;  // bits of a code in the plane of low bits and in that behind it
    int zero;       // what is subtracted from a code; in a code book: the size of its smallest number
    int groups;     // scales that share a block of 32 k: 1, or 2 of 16 k each
    bool minimum;   // a minimum is added for each scale
    bool book;      // a code is an index into a code book
};

constexpr KindInfo kKindInfo[kKinds] = {
    {32, 0, 0, 1, false, false}, {16, 0, 0, 1, false, false}, {16, 0, 0, 1, false, false},   // kF32 kF16 kBF16
    {8, 0, 0, 1, false, false},  {8, 0, 0, 1, false, false},                                 // kFp8 kS8
    {4, 0, 8, 1, false, false},  {4, 0, 0, 1, true, false},                                  // kU4 kU4M
    {4, 1, 16, 1, false, false}, {4, 1, 0, 1, true, false},   {4, 2, 32, 2, false, false},   // kU5 kU5M kU6
    {2, 0, 0, 2, true, false},   {2, 1, 4, 2, false, false},                                 // kU2M kU3
    {4, 0, 128, 1, false, true}, {4, 0, 12, 1, false, true},  {4, 0, 12, 2, false, true},    // kNl4 kFp4 kFp4x2
};

// The numbers of the code books: ggml's non-linear 4 bits, and e2m1 doubled.
constexpr int8_t kNl4Book[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4Book[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr const int8_t *code_book(Kind kind) { return kind == kNl4 ? kNl4Book : kFp4Book; }

// What an entry of the scale stream holds: one float32, fp16, bf16 or e8m0; ue4m3 for each 16 inputs, of themselves or
// under one float32; fp16 and a minimum; fp16 or bf16 and an integer zero point; or one fp16 (two with minima) over 8
// or 16 integer scales.
enum Scales {
    kNone, kFloat, kHalf, kBfloat, kE8m0, kE4m3, kE4m3Float, kHalfMin, kHalfZero, kBfloatZero, kSub2, kSub3, kSubXs,
    kSub4, kSub6
};

struct FormatInfo {
    const char *name;
    Kind kind;
    Scales scales;
    int block_k;      // inputs of a raw block
    int raw_bytes;    // bytes of a raw block
    int codes;        // where its codes (or their low bits) begin
    int high;         // where their high bits begin; 0: none
    int d;            // where its scale is (of two levels: the floating-point one)
    int m;            // where its minimum, zero point or float32 of the whole row is; -1: none
    int sub;          // where integer scales are; -1: none
    int scale_k;      // inputs that one entry of the tile's scale stream covers; 0: no scales
    int scale_bytes;  // bytes of that entry, for 16 rows
};

constexpr FormatInfo kFormats[HETERO_FORMATS] = {
    {"F32", kF32, kNone, 1, 4, 0, 0, 0, -1, -1, 0, 0},
    {"F16", kF16, kNone, 1, 2, 0, 0, 0, -1, -1, 0, 0},
    {"BF16", kBF16, kNone, 1, 2, 0, 0, 0, -1, -1, 0, 0},
    {"Q8_0", kS8, kHalf, 32, 34, 2, 0, 0, -1, -1, 32, 32},
    {"Q4_0", kU4, kHalf, 32, 18, 2, 0, 0, -1, -1, 32, 32},
    {"Q4_1", kU4M, kHalfMin, 32, 20, 4, 0, 0, 2, -1, 32, 64},
    {"Q5_0", kU5, kHalf, 32, 22, 6, 2, 0, -1, -1, 32, 32},
    {"Q5_1", kU5M, kHalfMin, 32, 24, 8, 4, 0, 2, -1, 32, 64},
    {"Q4_K", kU4M, kSub4, 256, 144, 16, 0, 0, 2, 4, 256, 256},
    {"Q5_K", kU5M, kSub4, 256, 176, 48, 16, 0, 2, 4, 256, 256},
    {"Q6_K", kU6, kSub6, 256, 210, 0, 128, 208, -1, 192, 256, 288},
    {"Q2_K", kU2M, kSub2, 256, 84, 16, 0, 80, 82, 0, 256, 320},
    {"Q3_K", kU3, kSub3, 256, 110, 32, 0, 108, -1, 96, 256, 224},
    {"IQ4_NL", kNl4, kHalf, 32, 18, 2, 0, 0, -1, -1, 32, 32},
    {"IQ4_XS", kNl4, kSubXs, 256, 136, 8, 0, 0, -1, 2, 256, 128},
    {"MXFP4", kFp4, kE8m0, 32, 17, 1, 0, 0, -1, -1, 32, 16},
    {"NVFP4", kFp4x2, kE4m3, 64, 36, 4, 0, 0, -1, -1, 64, 64},
    {"FP8_E4M3", kFp8, kFloat, 128, 132, 4, 0, 0, -1, -1, 128, 64},
    {"I4_32", kU4, kBfloat, 32, 18, 2, 0, 0, -1, -1, 32, 32},
    {"I4_64", kU4, kBfloat, 64, 34, 2, 0, 0, -1, -1, 64, 32},
    {"I4_128", kU4, kBfloat, 128, 66, 2, 0, 0, -1, -1, 128, 32},
    {"I4_32_F16", kU4, kHalf, 32, 18, 2, 0, 0, -1, -1, 32, 32},
    {"I4_64_F16", kU4, kHalf, 64, 34, 2, 0, 0, -1, -1, 64, 32},
    {"I4_128_F16", kU4, kHalf, 128, 66, 2, 0, 0, -1, -1, 128, 32},
    {"U4_32", kU4M, kBfloatZero, 32, 20, 4, 0, 0, 2, -1, 32, 48},
    {"U4_64", kU4M, kBfloatZero, 64, 36, 4, 0, 0, 2, -1, 64, 48},
    {"U4_128", kU4M, kBfloatZero, 128, 68, 4, 0, 0, 2, -1, 128, 48},
    {"U4_32_F16", kU4M, kHalfZero, 32, 20, 4, 0, 0, 2, -1, 32, 48},
    {"U4_64_F16", kU4M, kHalfZero, 64, 36, 4, 0, 0, 2, -1, 64, 48},
    {"U4_128_F16", kU4M, kHalfZero, 128, 68, 4, 0, 0, 2, -1, 128, 48},
    {"NVFP4_F32_64", kFp4x2, kE4m3Float, 64, 40, 8, 0, 4, 0, -1, 64, 128},
    {"NVFP4_F32_128", kFp4x2, kE4m3Float, 128, 76, 12, 0, 4, 0, -1, 128, 192},
    {"NVFP4_F32_256", kFp4x2, kE4m3Float, 256, 148, 20, 0, 4, 0, -1, 256, 320},
    {"I8_32", kS8, kBfloat, 32, 34, 2, 0, 0, -1, -1, 32, 32},
    {"I8_64", kS8, kBfloat, 64, 66, 2, 0, 0, -1, -1, 64, 32},
    {"I8_128", kS8, kBfloat, 128, 130, 2, 0, 0, -1, -1, 128, 32},
    {"I8_32_F16", kS8, kHalf, 32, 34, 2, 0, 0, -1, -1, 32, 32},
    {"I8_64_F16", kS8, kHalf, 64, 66, 2, 0, 0, -1, -1, 64, 32},
    {"I8_128_F16", kS8, kHalf, 128, 130, 2, 0, 0, -1, -1, 128, 32},
    {"I8_32_F32", kS8, kFloat, 32, 36, 4, 0, 0, -1, -1, 32, 64},
    {"I8_64_F32", kS8, kFloat, 64, 68, 4, 0, 0, -1, -1, 64, 64},
    {"I8_128_F32", kS8, kFloat, 128, 132, 4, 0, 0, -1, -1, 128, 64},
};

constexpr Kind kind_of(int format) { return kFormats[format].kind; }
constexpr KindInfo kind_info(int format) { return kKindInfo[kFormats[format].kind]; }

// Formats whose weights are floating-point numbers themselves: their kernels read float32 activations.
constexpr bool is_plain(int format) { return kFormats[format].kind <= kFp8; }
// Those without scales.
constexpr bool is_bare(int format) { return format <= HETERO_BF16; }

// Bytes of a tile's block of 16 rows x 32 k.
constexpr int kind_bytes(Kind kind) { return 64 * (kKindInfo[kind].low + kKindInfo[kind].high); }
constexpr int code_bytes(int format) { return kind_bytes(kFormats[format].kind); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
constexpr int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t raw_row_bytes(int format, int64_t k) {
    return ceil_div(k, kFormats[format].block_k) * kFormats[format].raw_bytes;
}

inline int64_t scale_offset(int format, int64_t k) { return ceil_div(k, kBlock) * code_bytes(format); }

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

#pragma GCC diagnostic ignored "-Wpsabi"  // they are passed between inlined functions only

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
