// Codes of a group of 32 inputs between a raw block and a tile's block: bit fields are moved, never recomputed.
#pragma once
#include "common.h"

namespace {

inline int byte_bits(const uint8_t *p, int shift, int mask) { return *p >> shift & mask; }

inline void set_bits(uint8_t *p, int shift, int mask, int value) {
    *p = uint8_t((*p & ~(mask << shift)) | (value & mask) << shift);
}

// The bit fields that hold code k of group g (32 codes) of a raw block: low part, then high part.
struct Field {
    int low, low_shift, high, high_shift;
};

template <int F> inline Field raw_field(int g, int k) {
    constexpr FormatInfo f = kFormats[F];
    if (F == HETERO_Q4_K || F == HETERO_Q5_K) return {f.codes + 32 * (g >> 1) + k, (g & 1) * 4, f.high + k, g};
    if (F == HETERO_Q6_K)
        return {f.codes + 64 * (g >> 2) + 32 * (g & 1) + k, (g >> 1 & 1) * 4, f.high + 32 * (g >> 2) + k, (g & 3) * 2};
    if (F == HETERO_Q2_K || F == HETERO_Q3_K) return {f.codes + 32 * (g >> 2) + k, (g & 3) * 2, f.high + k, g};
    if (F == HETERO_NVFP4) return {f.codes + 16 * g + 8 * (k >> 4) + (k & 7), k >> 3 << 2 & 4, 0, 0};
    if (kind_info(F).low == 8) return {f.codes + 32 * g + k, 0, 0, 0};
    return {f.codes + 16 * g + (k & 15), k >> 4 << 2, f.high + (k >> 3), k & 7};
}

constexpr int mask_of(int bits) { return (1 << bits) - 1; }

template <int F> inline void get_raw_codes(const uint8_t *block, int g, uint8_t *codes) {
    constexpr KindInfo kind = kind_info(F);
    for (int k = 0; k < kBlock; k++) {
        const Field f = raw_field<F>(g, k);
        codes[k] = uint8_t(byte_bits(block + f.low, f.low_shift, mask_of(kind.low)));
        if (kind.high) codes[k] |= uint8_t(byte_bits(block + f.high, f.high_shift, mask_of(kind.high)) << kind.low);
    }
}

template <int F> inline void set_raw_codes(uint8_t *block, int g, const uint8_t *codes) {
    constexpr KindInfo kind = kind_info(F);
    for (int k = 0; k < kBlock; k++) {
        const Field f = raw_field<F>(g, k);
        set_bits(block + f.low, f.low_shift, mask_of(kind.low), codes[k]);
        if (kind.high) set_bits(block + f.high, f.high_shift, mask_of(kind.high), codes[k] >> kind.low);
    }
}

// A tile's block has lines of 64 codes, 16 rows x 4 k; a code is a bit field in one plane or two. In a plane of nibbles
// line j shares bytes with line j + 4, in one of pairs lines 4 i .. 4 i + 3 share 64 bytes, in one of bits a line takes
// 8.
inline Field plane_field(int bits, int line, int column) {
    if (bits == 8) return {line * 64 + column, 0, 0, 0};
    if (bits == 4) return {(line & 3) * 64 + column, line >> 2 << 2, 0, 0};
    if (bits == 2) return {(line >> 2) * 64 + column, (line & 3) * 2, 0, 0};
    return {line * 8 + (column >> 3), column & 7, 0, 0};
}

// Where code k of row r lies in a line. FP8 keeps 8 rows of one k together, which widen to a register as they stand.
constexpr int column_of(Kind kind, int r, int k) {
    return kind == kFp8 ? (k >> 1 & 1) * 32 + (r >> 3) * 16 + (k & 1) * 8 + (r & 7) : r * 4 + (k & 3);
}

// The plane of `Bits` bits, from bit `from` of each code on; a plane of bits was zeroed before.
template <int Bits> inline void set_plane(uint8_t *plane, int r, const uint8_t *codes, int from) {
    uint8_t fields[kBlock], joined[16] = {};
    for (int k = 0; k < kBlock; k++) fields[k] = uint8_t(codes[k] >> from & mask_of(Bits));
    if (Bits == 1) {
        for (int line = 0; line < 8; line++) {
            const uint8_t *four = fields + 4 * line;
            const int nibble = four[0] | four[1] << 1 | four[2] << 2 | four[3] << 3;
            plane[8 * line + (r >> 1)] |= uint8_t(nibble << (r & 1) * 4);
        }
        return;
    }
    if (Bits == 4)
        for (int i = 0; i < 16; i++) joined[i] = uint8_t(fields[i] | fields[16 + i] << 4);
    if (Bits == 2)
        for (int i = 0; i < 8; i++) {
            const uint8_t *half = fields + 16 * (i >> 2) + (i & 3);
            joined[i] = uint8_t(half[0] | half[4] << 2 | half[8] << 4 | half[12] << 6);
        }
    for (int line = 0; line < Bits; line++) memcpy(plane + 64 * line + 4 * r, joined + 4 * line, 4);
}

// 32 codes into row r of a block. A line of one row is four bytes, or half a byte in a plane of bits.
template <Kind K> inline void set_tile_codes(uint8_t *block, int r, const uint8_t *codes) {
    constexpr KindInfo kind = kKindInfo[K];
    if (kind.low == 8) {
        for (int k = 0; k < kBlock; k++) block[64 * (k >> 2) + column_of(K, r, k)] = codes[k];
        return;
    }
    set_plane<kind.low>(block, r, codes, 0);
    if (kind.high) set_plane<kind.high>(block + 64 * kind.low, r, codes, kind.low);
}

// Formats whose raw blocks hold the codes of a line of one row as four bytes, in the tile's own order.
template <int F> constexpr bool moves_words() {
    constexpr KindInfo kind = kind_info(F);
    if (F == HETERO_NVFP4 || F == HETERO_Q4_K || kind_of(F) == kFp8 || kind.high) return false;
    return kind.low == 4 || kind.low == 8;
}

// A group of 32 codes of a raw block into row r of a tile's block.
template <int F> inline void pack_codes(const uint8_t *block, int g, uint8_t *tile, int r) {
    constexpr FormatInfo f = kFormats[F];
    constexpr int lines = kind_info(F).low == 4 ? 4 : 8;
    if (moves_words<F>()) {
        const uint8_t *from = block + f.codes + 4 * lines * g;
        for (int line = 0; line < lines; line++) memcpy(tile + 64 * line + 4 * r, from + 4 * line, 4);
        return;
    }
    uint8_t codes[kBlock];
    get_raw_codes<F>(block, g, codes);
    set_tile_codes<f.kind>(tile, r, codes);
}

template <Kind K> inline void get_tile_codes(const uint8_t *block, int r, uint8_t *codes) {
    constexpr KindInfo kind = kKindInfo[K];
    for (int k = 0; k < kBlock; k++) {
        const int column = column_of(K, r, k);
        const Field low = plane_field(kind.low, k >> 2, column), high = plane_field(kind.high, k >> 2, column);
        int c = byte_bits(block + low.low, low.low_shift, mask_of(kind.low));
        if (kind.high) c |= byte_bits(block + 64 * kind.low + high.low, high.low_shift, mask_of(kind.high)) << kind.low;
        codes[k] = uint8_t(c);
    }
}

}  // namespace
