// Scales of a raw block: to and from an entry of a tile's scale stream, and as float32.
#pragma once
#include "codes.h"

namespace {

// K-quants of 4 and 5 bits: eight 6-bit scales and minima packed into 12 bytes.
inline void get_sub_scales(const uint8_t *s, uint8_t *scale, uint8_t *minimum) {
    for (int g = 0; g < 4; g++) {
        scale[g] = s[g] & 63;
        minimum[g] = s[g + 4] & 63;
        scale[g + 4] = uint8_t((s[g + 8] & 15) | s[g] >> 6 << 4);
        minimum[g + 4] = uint8_t(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
    }
}

inline void set_sub_scales(uint8_t *s, const uint8_t *scale, const uint8_t *minimum) {
    for (int g = 0; g < 4; g++) {
        s[g] = uint8_t(scale[g] | scale[g + 4] >> 4 << 6);
        s[g + 4] = uint8_t(minimum[g] | minimum[g + 4] >> 4 << 6);
        s[g + 8] = uint8_t((scale[g + 4] & 15) | minimum[g + 4] << 4);
    }
}

// Their entry in a tile: d[16] fp16, dmin[16] fp16, lo[8][16] = low nibbles of scale and minimum,
// hi[4][16] = their upper two bits, two groups to a byte. 256 bytes: the source's 6 bits, in whole lines.
constexpr int kSubLow = 64, kSubHigh = 192;

inline void get_tile_sub_scales(const uint8_t *entry, int r, uint8_t *scale, uint8_t *minimum) {
    for (int g = 0; g < 8; g++) {
        const int lo = entry[kSubLow + 16 * g + r], hi = entry[kSubHigh + 16 * (g >> 1) + r] >> 4 * (g & 1);
        scale[g] = uint8_t((lo & 15) | (hi & 3) << 4);
        minimum[g] = uint8_t(lo >> 4 | (hi & 12) << 2);
    }
}

inline void set_tile_sub_scales(uint8_t *entry, int r, const uint8_t *scale, const uint8_t *minimum) {
    for (int g = 0; g < 8; g++) {
        entry[kSubLow + 16 * g + r] = uint8_t((scale[g] & 15) | minimum[g] << 4);
        set_bits(entry + kSubHigh + 16 * (g >> 1) + r, 4 * (g & 1), 15, scale[g] >> 4 | minimum[g] >> 4 << 2);
    }
}

// Q3_K (16 groups) and IQ4_XS (8): 6-bit scales without minima. In a raw block their bits lie at these places.
template <int F> inline Field six_bits(int g) {
    if (F == HETERO_Q3_K) return {g & 7, g >> 3 << 2, 8 + (g & 3), g >> 2 << 1};
    return {2 + (g >> 1), (g & 1) * 4, g >> 2, (g & 3) * 2};
}

// In a tile's entry behind d[16]: lo[groups / 2][16], two groups to a byte, then hi[groups / 4][16], four to a byte.
template <int F> inline Field six_bits_in_tile(int g, int r) {
    constexpr int low = 32, high = low + 8 * (F == HETERO_Q3_K ? 16 : 8);
    return {low + 16 * (g >> 1) + r, (g & 1) * 4, high + 16 * (g >> 2) + r, (g & 3) * 2};
}

inline void move_six_bits(const uint8_t *from, Field at, uint8_t *to, Field place) {
    set_bits(to + place.low, place.low_shift, 15, byte_bits(from + at.low, at.low_shift, 15));
    set_bits(to + place.high, place.high_shift, 3, byte_bits(from + at.high, at.high_shift, 3));
}

// A raw block's scales into row r of an entry.
template <int F> void pack_scales(const uint8_t *block, uint8_t *entry, int r) {
    constexpr FormatInfo f = kFormats[F];
    constexpr Scales s = f.scales;
    if (s == kFloat) memcpy(entry + 4 * r, block + f.d, 4);
    else if (s == kE8m0) entry[r] = block[f.d];
    else if (s == kE4m3 || s == kE4m3Float)
        for (int g = 0; g < f.block_k / 16; g++) entry[16 * g + r] = block[f.d + g];
    else store16(entry + 2 * r, load16(block + f.d));
    if (s == kE4m3Float) memcpy(entry + f.block_k + 4 * r, block + f.m, 4);
    if (s == kHalfMin || s == kSub2 || s == kSub4) store16(entry + 32 + 2 * r, load16(block + f.m));
    if (s == kHalfZero || s == kBfloatZero) entry[32 + r] = block[f.m];
    if (s == kSub4) {
        uint8_t scale[8], minimum[8];
        get_sub_scales(block + f.sub, scale, minimum);
        set_tile_sub_scales(entry, r, scale, minimum);
    }
    if (s == kSub2 || s == kSub6)
        for (int g = 0; g < 16; g++) entry[(s == kSub2 ? 64 : 32) + 16 * g + r] = block[f.sub + g];
    if (s == kSub3 || s == kSubXs)
        for (int g = 0; g < (s == kSub3 ? 16 : 8); g++)
            move_six_bits(block + f.sub, six_bits<F>(g), entry, six_bits_in_tile<F>(g, r));
}

// Row r of an entry into a raw block.
template <int F> void unpack_scales(uint8_t *block, const uint8_t *entry, int r) {
    constexpr FormatInfo f = kFormats[F];
    constexpr Scales s = f.scales;
    if (s == kFloat) memcpy(block + f.d, entry + 4 * r, 4);
    else if (s == kE8m0) block[f.d] = entry[r];
    else if (s == kE4m3 || s == kE4m3Float)
        for (int g = 0; g < f.block_k / 16; g++) block[f.d + g] = entry[16 * g + r];
    else store16(block + f.d, load16(entry + 2 * r));
    if (s == kE4m3Float) memcpy(block + f.m, entry + f.block_k + 4 * r, 4);
    if (s == kHalfMin || s == kSub2 || s == kSub4) store16(block + f.m, load16(entry + 32 + 2 * r));
    if (s == kHalfZero || s == kBfloatZero) {
        block[f.m] = entry[32 + r];
        block[f.m + 1] = 0;
    }
    if (s == kSub4) {
        uint8_t scale[8], minimum[8];
        get_tile_sub_scales(entry, r, scale, minimum);
        set_sub_scales(block + f.sub, scale, minimum);
    }
    if (s == kSub2 || s == kSub6)
        for (int g = 0; g < 16; g++) block[f.sub + g] = entry[(s == kSub2 ? 64 : 32) + 16 * g + r];
    if (s == kSub3 || s == kSubXs)
        for (int g = 0; g < (s == kSub3 ? 16 : 8); g++)
            move_six_bits(entry, six_bits_in_tile<F>(g, r), block + f.sub, six_bits<F>(g));
}

// 2^(e - 128): half of what e8m0 means, since e2m1 numbers are kept doubled.
inline float e8m0_half(uint8_t e) { return bits_float(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23); }

// Half of an unsigned e4m3 number; as in ggml the sign bit is ignored and 0x7f counts as zero.
inline float ue4m3_half(uint8_t v) {
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    if (v == 0x7f) return 0.f;
    return exponent ? bits_float(uint32_t(exponent + 119) << 23 | uint32_t(mantissa) << 20) : float(mantissa) / 1024.f;
}

// A signed e4m3 number (of the kind without infinities).
inline float e4m3_to_float(uint8_t v) {
    const uint32_t sign = uint32_t(v & 0x80) << 24;
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    if ((v & 0x7f) == 0x7f) return bits_float(sign | 0x7fc00000);
    const float magnitude =
        exponent ? bits_float(uint32_t(exponent + 120) << 23 | uint32_t(mantissa) << 20) : float(mantissa) / 512.f;
    return bits_float(float_bits(magnitude) | sign);
}

inline float load_float(const uint8_t *p) {
    float v;
    memcpy(&v, p, 4);
    return v;
}

// A scale under the float32 of its row, which is a factor, or negative and then the divisor: as files have either.
inline float under(float whole, float scale) { return whole < 0 ? scale / -whole : scale * whole; }

// Scales of one group of 32 inputs of a row: each half's d and minimum (with its sign; of formats with a zero point:
// that zero point).
struct RowScales {
    float d[2], m[2];
};

template <int F> RowScales row_scales(const uint8_t *block, int g) {
    constexpr FormatInfo f = kFormats[F];
    constexpr Scales s = f.scales;
    const uint8_t *at = block + f.d;
    if (s == kFloat) return {{load_float(at), load_float(at)}, {0, 0}};
    if (s == kE8m0) return {{e8m0_half(*at), e8m0_half(*at)}, {0, 0}};
    if (s == kE4m3) return {{ue4m3_half(at[2 * g]), ue4m3_half(at[2 * g + 1])}, {0, 0}};
    if (s == kE4m3Float) {
        const float whole = load_float(block + f.m);
        return {{under(whole, ue4m3_half(at[2 * g])), under(whole, ue4m3_half(at[2 * g + 1]))}, {0, 0}};
    }
    const uint16_t bits = load16(at);
    const float d = s == kBfloat || s == kBfloatZero ? bf16_to_float(bits) : half_to_float(bits);
    const float m = s == kHalfMin || s == kSub2 || s == kSub4 ? half_to_float(load16(block + f.m)) : 0.f;
    if (s == kHalfZero || s == kBfloatZero) return {{d, d}, {float(block[f.m]), float(block[f.m])}};
    if (s == kSub4) {
        uint8_t scale[8], minimum[8];
        get_sub_scales(block + f.sub, scale, minimum);
        const float dg = d * float(scale[g]), mg = -(m * float(minimum[g]));
        return {{dg, dg}, {mg, mg}};
    }
    RowScales out = {{d, d}, {m, m}};
    for (int h = 0; h < 2; h++) {
        const uint8_t *sub = block + f.sub + 2 * g + h;
        if (s == kSub6) out.d[h] = d * float(int8_t(*sub));
        if (s == kSub2) out.d[h] = d * float(*sub & 15), out.m[h] = -(m * float(*sub >> 4));
        if (s == kSub3 || s == kSubXs) {
            const Field at_bits = six_bits<F>(s == kSub3 ? 2 * g + h : g);
            const int low = byte_bits(block + f.sub + at_bits.low, at_bits.low_shift, 15);
            out.d[h] = d * float((low | byte_bits(block + f.sub + at_bits.high, at_bits.high_shift, 3) << 4) - 32);
        }
    }
    return out;
}

// Whether a block's scales are numbers; FP8's may not be so large that 256 times as much is infinite.
template <int F> bool scales_are_finite(const uint8_t *block) {
    constexpr FormatInfo f = kFormats[F];
    const uint8_t *at = block + f.d;
    switch (f.scales) {
        case kFloat: return is_finite(256.f * load_float(at));
        case kE8m0: return *at != 255;
        case kE4m3: return true;
        case kE4m3Float:
            return is_finite(load_float(block + f.m)) && is_finite(under(load_float(block + f.m), 448.f));
        case kBfloat: case kBfloatZero: return is_finite(bf16_to_float(load16(at)));
        case kHalfMin: case kSub2: case kSub4: return is_finite_half(load16(at)) && is_finite_half(load16(block + f.m));
        default: return is_finite_half(load16(at));
    }
}

}  // namespace
