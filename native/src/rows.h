// One row between ggml's raw layout, the 16-row tile and float32. Codes and scales are moved, never recomputed.
#pragma once
#include "common.h"

namespace {

// Where things lie in a raw block of each quantised format.
struct RawLayout {
    int codes;  // low 4 (or all 8) bits
    int high;   // the fifth bit, or bits 5-6; -1: none
    int d;      // fp16 scale
    int m;      // fp16 minimum (K-quants: dmin); -1: none
    int sub;    // K-quants: the packed scales
};

constexpr RawLayout kRaw[HETERO_FORMATS] = {
    {0, -1, -1, -1, -1}, {0, -1, -1, -1, -1}, {0, -1, -1, -1, -1},  {2, -1, 0, -1, -1},
    {2, -1, 0, -1, -1},  {4, -1, 0, 2, -1},   {6, 2, 0, -1, -1},    {8, 4, 0, 2, -1},
    {16, -1, 0, 2, 4},   {48, 16, 0, 2, 4},   {0, 128, 208, -1, 192},
};

inline int byte_bits(const uint8_t *p, int shift, int mask) { return *p >> shift & mask; }

inline void set_bits(uint8_t *p, int shift, int mask, int value) {
    *p = uint8_t((*p & ~(mask << shift)) | (value & mask) << shift);
}

// The bit fields that hold code k of group g (32 codes) of a raw block: low part, then high part.
struct Field {
    int low, low_shift, high, high_shift;
};

template <int F> inline Field raw_field(int g, int k) {
    const RawLayout &r = kRaw[F];
    if (F == HETERO_Q4_0 || F == HETERO_Q4_1 || F == HETERO_Q5_0 || F == HETERO_Q5_1)
        return {r.codes + (k & 15), k >> 4 << 2, r.high + (k >> 3), k & 7};
    if (F == HETERO_Q4_K || F == HETERO_Q5_K) return {r.codes + 32 * (g >> 1) + k, (g & 1) * 4, r.high + k, g};
    if (F == HETERO_Q6_K)
        return {r.codes + 64 * (g >> 2) + 32 * (g & 1) + k, (g >> 1 & 1) * 4, r.high + 32 * (g >> 2) + k, (g & 3) * 2};
    return {r.codes + k, 0, 0, 0};
}

template <int F> constexpr int low_mask() { return F == HETERO_Q8_0 ? 255 : 15; }
template <int F> constexpr int high_mask() {
    return F == HETERO_Q6_K ? 3 : F == HETERO_Q5_0 || F == HETERO_Q5_1 || F == HETERO_Q5_K ? 1 : 0;
}

template <int F> inline void get_raw_codes(const uint8_t *block, int g, uint8_t *codes) {
    for (int k = 0; k < kBlock; k++) {
        const Field f = raw_field<F>(g, k);
        codes[k] = uint8_t(byte_bits(block + f.low, f.low_shift, low_mask<F>()));
        if (high_mask<F>()) codes[k] |= uint8_t(byte_bits(block + f.high, f.high_shift, high_mask<F>()) << 4);
    }
}

template <int F> inline void set_raw_codes(uint8_t *block, int g, const uint8_t *codes) {
    for (int k = 0; k < kBlock; k++) {
        const Field f = raw_field<F>(g, k);
        set_bits(block + f.low, f.low_shift, low_mask<F>(), codes[k]);
        if (high_mask<F>()) set_bits(block + f.high, f.high_shift, high_mask<F>(), codes[k] >> 4);
    }
}

// The same codes in a tile's block: 64-byte lines of 16 rows x 4 k; nibble k low and k + 16 high; bit planes behind.
template <int F> inline void set_tile_codes(uint8_t *block, int r, const uint8_t *codes) {
    for (int k = 0; k < kBlock; k++) {
        const int line = k >> 2, column = r * 4 + (k & 3);
        if (F == HETERO_Q8_0) {
            block[line * 64 + column] = codes[k];
            continue;
        }
        set_bits(block + (line & 3) * 64 + column, line >> 2 << 2, 15, codes[k]);
        if (high_mask<F>() == 1) set_bits(block + 256 + line * 8 + (column >> 3), column & 7, 1, codes[k] >> 4);
        if (high_mask<F>() == 3) set_bits(block + 256 + (line >> 2) * 64 + column, (line & 3) * 2, 3, codes[k] >> 4);
    }
}

template <int F> inline void get_tile_codes(const uint8_t *block, int r, uint8_t *codes) {
    for (int k = 0; k < kBlock; k++) {
        const int line = k >> 2, column = r * 4 + (k & 3);
        if (F == HETERO_Q8_0) {
            codes[k] = block[line * 64 + column];
            continue;
        }
        int c = byte_bits(block + (line & 3) * 64 + column, line >> 2 << 2, 15);
        if (high_mask<F>() == 1) c |= byte_bits(block + 256 + line * 8 + (column >> 3), column & 7, 1) << 4;
        if (high_mask<F>() == 3) c |= byte_bits(block + 256 + (line >> 2) * 64 + column, (line & 3) * 2, 3) << 4;
        codes[k] = uint8_t(c);
    }
}

// K-quants: eight 6-bit scales and minima packed into 12 bytes.
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

// A tile's K-quant scale entry: d[16] fp16, dmin[16] fp16, lo[8][16] = low nibbles of scale and minimum,
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

template <int F> void pack_scales(const uint8_t *block, uint8_t *entry, int r) {
    const RawLayout &raw = kRaw[F];
    store16(entry + 2 * r, load16(block + raw.d));
    if (raw.m >= 0) store16(entry + 32 + 2 * r, load16(block + raw.m));
    if (F == HETERO_Q4_K || F == HETERO_Q5_K) {
        uint8_t scale[8], minimum[8];
        get_sub_scales(block + raw.sub, scale, minimum);
        set_tile_sub_scales(entry, r, scale, minimum);
    }
    if (F == HETERO_Q6_K)
        for (int g = 0; g < 16; g++) entry[32 + 16 * g + r] = block[raw.sub + g];
}

template <int F> void unpack_scales(uint8_t *block, const uint8_t *entry, int r) {
    const RawLayout &raw = kRaw[F];
    store16(block + raw.d, load16(entry + 2 * r));
    if (raw.m >= 0) store16(block + raw.m, load16(entry + 32 + 2 * r));
    if (F == HETERO_Q4_K || F == HETERO_Q5_K) {
        uint8_t scale[8], minimum[8];
        get_tile_sub_scales(entry, r, scale, minimum);
        set_sub_scales(block + raw.sub, scale, minimum);
    }
    if (F == HETERO_Q6_K)
        for (int g = 0; g < 16; g++) block[raw.sub + g] = entry[32 + 16 * g + r];
}

// Row r of a tile, to and from a raw row of k inputs. The tile was zeroed before its rows are packed.
template <int F> void pack_row(const uint8_t *row, uint8_t *tile, int r, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    if (F == HETERO_F32) {
        for (int64_t i = 0; i < k; i++) memcpy(tile + 64 * i + 4 * r, row + 4 * i, 4);
    } else if (is_plain(F)) {
        for (int64_t i = 0; i < k; i++) memcpy(tile + 64 * (i >> 1) + 4 * r + 2 * (i & 1), row + 2 * i, 2);
    } else {
        uint8_t codes[kBlock], *entry = tile + scale_offset(F, k);
        for (int64_t b = 0; b < k / f.block_k; b++, row += f.raw_bytes, entry += f.scale_bytes) {
            for (int g = 0; g < f.block_k / kBlock; g++, tile += f.code_bytes) {
                get_raw_codes<F>(row, g, codes);
                set_tile_codes<F>(tile, r, codes);
            }
            pack_scales<F>(row, entry, r);
        }
    }
}

template <int F> void unpack_row(uint8_t *row, const uint8_t *tile, int r, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    if (F == HETERO_F32) {
        for (int64_t i = 0; i < k; i++) memcpy(row + 4 * i, tile + 64 * i + 4 * r, 4);
    } else if (is_plain(F)) {
        for (int64_t i = 0; i < k; i++) memcpy(row + 2 * i, tile + 64 * (i >> 1) + 4 * r + 2 * (i & 1), 2);
    } else {
        uint8_t codes[kBlock];
        const uint8_t *entry = tile + scale_offset(F, k);
        for (int64_t b = 0; b < k / f.block_k; b++, row += f.raw_bytes, entry += f.scale_bytes) {
            for (int g = 0; g < f.block_k / kBlock; g++, tile += f.code_bytes) {
                get_tile_codes<F>(tile, r, codes);
                set_raw_codes<F>(row, g, codes);
            }
            unpack_scales<F>(row, entry, r);
        }
    }
}

constexpr int zero_point(int format) {
    return format == HETERO_Q4_0 ? 8 : format == HETERO_Q5_0 ? 16 : format == HETERO_Q6_K ? 32 : 0;
}

inline float load_plain(int format, const uint8_t *p) {
    float v;
    if (format == HETERO_F32) return memcpy(&v, p, 4), v;
    return format == HETERO_F16 ? half_to_float(load16(p)) : bf16_to_float(load16(p));
}

// A raw row as float32, in the very order of operations of ggml's reference (scale products first).
template <int F> void dequantize_row(const uint8_t *row, float *out, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    const RawLayout &raw = kRaw[F];
    if (is_plain(F)) {
        for (int64_t i = 0; i < k; i++) out[i] = load_plain(F, row + i * f.raw_bytes);
        return;
    }
    uint8_t codes[kBlock], scale[8] = {}, minimum[8] = {};
    for (int64_t b = 0; b < k / f.block_k; b++, row += f.raw_bytes) {
        const float d = half_to_float(load16(row + raw.d)), m = raw.m >= 0 ? half_to_float(load16(row + raw.m)) : 0;
        if (F == HETERO_Q4_K || F == HETERO_Q5_K) get_sub_scales(row + raw.sub, scale, minimum);
        for (int g = 0; g < f.block_k / kBlock; g++, out += kBlock) {
            get_raw_codes<F>(row, g, codes);
            const bool two_level = F == HETERO_Q4_K || F == HETERO_Q5_K;
            const float low = two_level ? -(m * float(minimum[g])) : m;
            for (int i = 0; i < kBlock; i++) {
                const int q = F == HETERO_Q8_0 ? int(int8_t(codes[i])) : int(codes[i]) - zero_point(F);
                float dw = two_level ? d * float(scale[g]) : d;
                if (F == HETERO_Q6_K) dw = d * float(int8_t(row[raw.sub + 2 * g + (i >> 4)]));
                out[i] = raw.m >= 0 ? dw * float(q) + low : dw * float(q);
            }
        }
    }
}

// Index of the first block of a raw row with a scale (or plain value) that is not finite, or -1.
template <int F> int64_t bad_block(const uint8_t *row, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    for (int64_t b = 0; b < k / f.block_k; b++, row += f.raw_bytes) {
        if (is_plain(F) && !is_finite(load_plain(F, row))) return b;
        if (is_plain(F)) continue;
        if (!is_finite_half(load16(row + kRaw[F].d))) return b;
        if (kRaw[F].m >= 0 && !is_finite_half(load16(row + kRaw[F].m))) return b;
    }
    return -1;
}

struct RowFunctions {
    void (*pack)(const uint8_t *, uint8_t *, int, int64_t);
    void (*unpack)(uint8_t *, const uint8_t *, int, int64_t);
    void (*dequantize)(const uint8_t *, float *, int64_t);
    int64_t (*bad_block)(const uint8_t *, int64_t);
};

template <int F> constexpr RowFunctions row_functions() {
    return {pack_row<F>, unpack_row<F>, dequantize_row<F>, bad_block<F>};
}

constexpr RowFunctions kRowFunctions[HETERO_FORMATS] = {
    row_functions<HETERO_F32>(),  row_functions<HETERO_F16>(),  row_functions<HETERO_BF16>(),
    row_functions<HETERO_Q8_0>(), row_functions<HETERO_Q4_0>(), row_functions<HETERO_Q4_1>(),
    row_functions<HETERO_Q5_0>(), row_functions<HETERO_Q5_1>(), row_functions<HETERO_Q4_K>(),
    row_functions<HETERO_Q5_K>(), row_functions<HETERO_Q6_K>(),
};

}  // namespace
