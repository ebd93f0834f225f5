// From the ways in which quantised checkpoints store a matrix to raw rows: codes are reordered and joined with their
// scales, never recomputed. And transposed matrices turned, in pieces that stay in a cache.
#pragma once
#include "checks.h"

namespace {

// 32 codes of 4 bits in reading order (the low nibble first) to a raw block's order: byte j holds codes j and j + 16.
inline void order_nibbles(const uint8_t *from, uint8_t *to) {
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
    uint64_t first, second;
    memcpy(&first, from, 8);
    memcpy(&second, from + 8, 8);
    const uint64_t even = (first & kLow) | (second & kLow) << 4, odd = (first >> 4 & kLow) | (second & ~kLow);
    uint8_t parts[2][8];
    memcpy(parts[0], &even, 8);
    memcpy(parts[1], &odd, 8);
    for (int i = 0; i < 8; i++) {
        to[2 * i] = parts[0][i];
        to[2 * i + 1] = parts[1][i];
    }
}

constexpr int scale_item(Scales scales) {
    return scales == kFloat ? 4 : scales == kE8m0 || scales == kE4m3Float ? 1 : 2;
}

// Formats of whole codes of 4 or 8 bits under scales that a checkpoint has one by one.
constexpr bool can_join(int format) {
    const FormatInfo &f = kFormats[format];
    const bool whole = !kKindInfo[f.kind].high && (kKindInfo[f.kind].low == 4 || kKindInfo[f.kind].low == 8);
    return whole && f.scales != kE4m3 && f.scales != kHalfMin && f.scales < kSub2 && f.scales != kNone;
}

// Inputs that share one of the scales handed in: those of an e4m3 scale, or `group`.
constexpr int64_t scale_inputs(int format, int64_t group) {
    return kFormats[format].scales == kE4m3Float ? 16 : group;
}

// What else a block holds: nothing, a zero point per group, or a float32 per row.
constexpr int64_t extra_bytes(int format, int64_t groups) {
    const Scales s = kFormats[format].scales;
    return s == kE4m3Float ? 4 : s == kHalfZero || s == kBfloatZero ? groups : 0;
}

template <int Bits> void join_codes(const uint8_t *codes, int64_t count, uint8_t *to, int64_t room) {
    if (Bits == 8) {
        memcpy(to, codes, size_t(count));
        memset(to + count, 0, size_t(room - count));  // FP8's last block
    } else {
        for (int64_t i = 0; i < count; i += kBlock) order_nibbles(codes + i / 2, to + i / 2);
    }
}

template <int Bits, int Item>
void join_row(const FormatInfo &f, int64_t k, int64_t group, const uint8_t *codes, const uint8_t *scales,
              const uint8_t *extra, uint8_t *row) {
    const bool two_levels = f.scales == kE4m3Float;
    for (int64_t at = 0; at < k; at += f.block_k, row += f.raw_bytes) {
        const int64_t g = at / group;
        if (two_levels) {
            memcpy(row + f.d, scales + at / 16, size_t(f.block_k / 16));
            memcpy(row + f.m, extra, 4);
        } else {
            memcpy(row + f.d, scales + g * Item, Item);
            if (f.m >= 0) row[f.m] = extra[g], row[f.m + 1] = 0;
        }
        join_codes<Bits>(codes + at * Bits / 8, min64(f.block_k, k - at), row + f.codes, f.block_k);
    }
}

template <int Bits, int Item>
void join_rows(int format, int64_t n, int64_t k, int64_t group, const uint8_t *codes, const uint8_t *scales,
               const uint8_t *extra, uint8_t *rows) {
    const FormatInfo &f = kFormats[format];
    const int64_t groups = ceil_div(k, group), per_row = Item * ceil_div(k, scale_inputs(format, group));
    for (int64_t r = 0; r < n; r++, codes += k * Bits / 8, scales += per_row, extra += extra_bytes(format, groups))
        join_row<Bits, Item>(f, k, group, codes, scales, extra, rows + r * raw_row_bytes(format, k));
}

// out[c][l] = in[l * stride + c * step], in squares whose lines of both stay in the first cache.
template <class T>
void transpose(const T *in, int64_t lines, int64_t columns, int64_t stride, int64_t step, T *out) {
    constexpr int64_t kSide = 32;
    for (int64_t l0 = 0; l0 < lines; l0 += kSide)
        for (int64_t c0 = 0; c0 < columns; c0 += kSide)
            for (int64_t c = c0; c < min64(columns, c0 + kSide); c++)
                for (int64_t l = l0; l < min64(lines, l0 + kSide); l++)
                    out[c * lines + l] = in[l * stride + c * step];
}

// AWQ: which nibble of a word holds output 0, 1, ... of its eight.
constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// Words of eight outputs of one input each, [k][words], to codes of outputs in reading order, [8 words][k / 2] bytes.
// 16 columns of words at once give 128 rows, a cache line each.
inline void awq_codes(const uint32_t *in, int64_t k, int64_t words, uint8_t *out) {
    constexpr int kSide = 16;
    for (int64_t c0 = 0; c0 < words; c0 += kSide) {
        const int count = int(min64(kSide, words - c0));
        for (int64_t i = 0; i < k; i += 8) {
            uint32_t line[8][kSide] = {};
            for (int l = 0; l < 8; l++) memcpy(line[l], in + (i + l) * words + c0, size_t(count) * 4);
            for (int j = 0; j < 8; j++) {
                uint32_t joined[kSide] = {};
                for (int l = 0; l < 8; l++)
                    for (int c = 0; c < kSide; c++) joined[c] |= (line[l][c] >> 4 * kAwqOrder[j] & 15) << 4 * l;
                for (int c = 0; c < count; c++) memcpy(out + (8 * (c0 + c) + j) * (k / 2) + i / 2, &joined[c], 4);
            }
        }
    }
}

}  // namespace

extern "C" {

int hetero_join_rows(int32_t format, int64_t n, int64_t k, int64_t group, const uint8_t *codes, size_t codes_bytes,
                     const uint8_t *scales, size_t scales_bytes, const uint8_t *extra, size_t extra_size,
                     uint8_t *rows, size_t rows_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, n, k, message)) return code;
    const FormatInfo &f = kFormats[format];
    if (!can_join(format)) return message.fail(HETERO_BAD_ARGUMENT, "%s is not joined from parts here", f.name);
    if (group < 1 || group > kMaxInputs || group % f.block_k)
        return message.fail(HETERO_BAD_ARGUMENT, "groups of %lld inputs for %s, expected a multiple of %d",
                            (long long)group, f.name, f.block_k);
    const int bits = kKindInfo[f.kind].low;
    const int64_t groups = ceil_div(k, group), item = scale_item(f.scales);
    const int64_t per_row = item * ceil_div(k, scale_inputs(format, group));
    if (const int code = check_buffer("codes", codes, codes_bytes, n * k * bits / 8, message)) return code;
    if (const int code = check_buffer("scales", scales, scales_bytes, n * per_row, message)) return code;
    if (const int code = check_buffer("extra", extra, extra_size, n * extra_bytes(format, groups), message)) return code;
    if (const int code = check_buffer("rows", rows, rows_bytes, n * raw_row_bytes(format, k), message)) return code;
    if (bits == 8 && item == 4) join_rows<8, 4>(format, n, k, group, codes, scales, extra, rows);
    else if (bits == 8) join_rows<8, 2>(format, n, k, group, codes, scales, extra, rows);
    else if (item == 1) join_rows<4, 1>(format, n, k, group, codes, scales, extra, rows);
    else join_rows<4, 2>(format, n, k, group, codes, scales, extra, rows);
    return HETERO_OK;
}

int hetero_transpose(int32_t item, int64_t lines, int64_t columns, int64_t stride, int64_t step, const uint8_t *in,
                     size_t in_bytes, uint8_t *out, size_t out_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (item != 2 && item != 4) return message.fail(HETERO_BAD_ARGUMENT, "items of %d bytes, expected 2 or 4", item);
    for (const int64_t count : {lines, columns, stride, step})
        if (count < 1 || count > kMaxRows)
            return message.fail(HETERO_BAD_ARGUMENT, "a size of %lld is out of range", (long long)count);
    const int64_t last = product({lines - 1, stride}), span = product({columns - 1, step});
    if (last > kMaxStride || span > kMaxStride || product({lines, columns}) > kMaxStride)
        return message.fail(HETERO_BAD_ARGUMENT, "%lld x %lld items are out of range", (long long)lines,
                            (long long)columns);
    if (const int code = check_buffer("in", in, in_bytes, item * (last + span + 1), message)) return code;
    if (const int code = check_buffer("out", out, out_bytes, item * lines * columns, message)) return code;
    const auto *in16 = reinterpret_cast<const uint16_t *>(in);
    const auto *in32 = reinterpret_cast<const uint32_t *>(in);
    auto *out16 = reinterpret_cast<uint16_t *>(out);
    auto *out32 = reinterpret_cast<uint32_t *>(out);
    if (const int code = item == 2 ? check_aligned("in", in16, message) : check_aligned("in", in32, message))
        return code;
    if (const int code = item == 2 ? check_aligned("out", out16, message) : check_aligned("out", out32, message))
        return code;
    if (item == 2) transpose(in16, lines, columns, stride, step, out16);
    else transpose(in32, lines, columns, stride, step, out32);
    return HETERO_OK;
}

int hetero_awq_codes(int64_t n, int64_t k, const uint32_t *words, size_t words_bytes, uint8_t *codes,
                     size_t codes_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (n < 1 || k < 1 || n > kMaxRows || k > kMaxInputs || n % 8 || k % 8)
        return message.fail(HETERO_BAD_ARGUMENT, "AWQ codes of %lld x %lld, expected multiples of 8", (long long)n,
                            (long long)k);
    if (const int code = check_buffer("words", words, words_bytes, n * k / 2, message)) return code;
    if (const int code = check_buffer("codes", codes, codes_bytes, n * k / 2, message)) return code;
    awq_codes(words, k, n / 8, codes);
    return HETERO_OK;
}

}
