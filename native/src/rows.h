// One row between ggml's raw layout, the 16-row tile and float32. Codes and scales are moved, never recomputed.
#pragma once
#include "scales.h"

namespace {

// Row r of a tile, to and from a raw row of k inputs. The tile was zeroed before its rows are packed.
template <int F> void pack_row(const uint8_t *row, uint8_t *tile, int r, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    if (F == HETERO_F32) {
        for (int64_t i = 0; i < k; i++) memcpy(tile + 64 * i + 4 * r, row + 4 * i, 4);
    } else if (is_bare(F)) {
        for (int64_t i = 0; i + 1 < k; i += 2) memcpy(tile + 32 * i + 4 * r, row + 2 * i, 4);
        if (k & 1) memcpy(tile + 32 * (k - 1) + 4 * r, row + 2 * (k - 1), 2);
    } else {
        uint8_t *entry = tile + scale_offset(F, k);
        for (int64_t b = 0; b < k; b += f.block_k, row += f.raw_bytes) {
            for (int g = 0; g < f.block_k / kBlock && b + g * kBlock < k; g++, tile += code_bytes(F))
                pack_codes<F>(row, g, tile, r);
            pack_scales<F>(row, entry, r);
            entry += f.scale_bytes;
        }
    }
}

template <int F> void unpack_row(uint8_t *row, const uint8_t *tile, int r, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    if (F == HETERO_F32) {
        for (int64_t i = 0; i < k; i++) memcpy(row + 4 * i, tile + 64 * i + 4 * r, 4);
    } else if (is_bare(F)) {
        for (int64_t i = 0; i < k; i++) memcpy(row + 2 * i, tile + 64 * (i >> 1) + 4 * r + 2 * (i & 1), 2);
    } else {
        uint8_t codes[kBlock];
        const uint8_t *entry = tile + scale_offset(F, k);
        for (int64_t b = 0; b < k; b += f.block_k, row += f.raw_bytes) {
            for (int g = 0; g < f.block_k / kBlock && b + g * kBlock < k; g++, tile += code_bytes(F)) {
                get_tile_codes<f.kind>(tile, r, codes);
                set_raw_codes<F>(row, g, codes);
            }
            unpack_scales<F>(row, entry, r);
            entry += f.scale_bytes;
        }
    }
}

inline float load_plain(int format, const uint8_t *p) {
    if (format == HETERO_F32) return load_float(p);
    return format == HETERO_F16 ? half_to_float(load16(p)) : bf16_to_float(load16(p));
}

// What a code stands for, before scale and minimum.
template <Kind K> inline float code_value(uint8_t code) {
    if (K == kFp8) return e4m3_to_float(code);
    if (K == kS8) return float(int8_t(code));
    return kKindInfo[K].book ? float(code_book(K)[code & 15]) : float(int(code) - kKindInfo[K].zero);
}

// A raw row as float32, in the very order of operations of ggml's reference (scale products first).
template <int F> void dequantize_row(const uint8_t *row, float *out, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    constexpr bool zero_point = f.scales == kHalfZero || f.scales == kBfloatZero;
    if (is_bare(F)) {
        for (int64_t i = 0; i < k; i++) out[i] = load_plain(F, row + i * f.raw_bytes);
        return;
    }
    uint8_t codes[kBlock];
    for (int64_t b = 0; b < k; b += f.block_k, row += f.raw_bytes) {
        for (int g = 0; g < f.block_k / kBlock; g++) {
            const int64_t at = b + g * kBlock;
            const RowScales s = row_scales<F>(row, g);
            get_raw_codes<F>(row, g, codes);
            for (int i = 0; i < kBlock && at + i < k; i++) {
                const float d = s.d[i >> 4], m = s.m[i >> 4], value = code_value<f.kind>(codes[i]);
                out[at + i] = zero_point ? d * (value - m) : kind_info(F).minimum ? d * value + m : d * value;
            }
        }
    }
}

// Index of the first block of a raw row with a scale (or plain value) that is not finite, or -1.
template <int F> int64_t bad_block(const uint8_t *row, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    for (int64_t b = 0; b < ceil_div(k, f.block_k); b++, row += f.raw_bytes) {
        if (is_bare(F)) {
            if (!is_finite(load_plain(F, row))) return b;
            continue;
        }
        if (!scales_are_finite<F>(row)) return b;
        if (f.kind == kFp8)
            for (int i = 0; i < f.block_k; i++)
                if ((row[f.codes + i] & 0x7f) == 0x7f) return b;
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

struct RowTable {
    RowFunctions of[HETERO_FORMATS];
    const RowFunctions &operator[](int format) const { return of[format]; }
};

template <int... F> constexpr RowTable row_table(std::integer_sequence<int, F...>) { return {{row_functions<F>()...}}; }

constexpr RowTable kRowFunctions = row_table(std::make_integer_sequence<int, HETERO_FORMATS>());

}  // namespace
