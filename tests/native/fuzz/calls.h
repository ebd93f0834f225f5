// One random call of each function of hetero.h. The code it returned goes back to the caller.
#pragma once
#include "chance.h"
#include "src/common.h"

struct Text {
    char *text;
    size_t bytes;
};

struct Caller {
    Caller(Chance &chance, hetero_pool *pool, Text message) : chance(chance), pool(pool), message(message) {}

    Chance &chance;
    hetero_pool *const pool;
    const Text message;

    int format() { return int(chance.below(HETERO_FORMATS)); }
    int64_t rows() { return chance.between(1, 40); }
    int64_t tokens() { return chance.below(12) ? chance.below(24) : chance.between(100, 300); }
    // Inputs that the format allows.
    int64_t inputs(int format) {
        const int64_t block = kFormats[format].kind == kFp8 ? 1 : kFormats[format].block_k;
        return block * chance.between(1, block == 1 ? 200 : 512 / block);
    }
    // Inputs that all three formats allow.
    int64_t common_inputs(int a, int b, int c) {
        int64_t k = 1;
        for (const int f : {a, b, c})
            if (kFormats[f].kind != kFp8) k = max64(k, kFormats[f].block_k);
        return k * chance.between(1, k == 1 ? 100 : 512 / k);
    }

    int pack() {
        const int f = format();
        const int64_t n = rows(), k = inputs(f), raw = n * raw_row_bytes(f, k), size = packed_bytes(f, n, k);
        uint8_t *const source = chance.room(raw), *const tiles = chance.room(size);
        const bool back = chance.below(2);
        return back ? pack_with(hetero_unpack, f, n, k, tiles, size, source, raw)
                    : pack_with(hetero_pack, f, n, k, source, raw, tiles, size);
    }
    template <class F>
    int pack_with(F function, int f, int64_t n, int64_t k, uint8_t *from, int64_t from_size, uint8_t *to,
                  int64_t size) {
        return function(chance.number(f), chance.count(n), chance.count(k), chance.at(from), chance.bytes(from_size),
                        chance.at(to), chance.bytes(size), message.text, message.bytes);
    }

    int convert() {
        const bool back = chance.below(2);
        const int targets[] = {HETERO_F32, HETERO_F16, HETERO_BF16, HETERO_Q8_0, HETERO_Q4_0};
        const int f = back ? format() : targets[chance.below(5)];
        const int64_t n = rows(), k = inputs(f), raw = n * raw_row_bytes(f, k);
        uint8_t *const coded = chance.at(chance.room(raw));
        float *const values = chance.at(chance.floats(n * k));
        const int32_t number = chance.number(f);
        const int64_t rows = chance.count(n), width = chance.count(k);
        const size_t coded_bytes = chance.bytes(raw), value_bytes = chance.bytes(4 * n * k);
        float *const counts = chance.floats(k);  // others than positive numbers are refused
        for (int64_t i = 0; i < k; i++) counts[i] = 0.5f + float(chance.below(8));
        float *const importance = back || chance.below(2) ? nullptr : chance.at(counts);
        return back ? hetero_dequantize(number, rows, width, coded, coded_bytes, values, value_bytes, message.text,
                                        message.bytes)
                    : hetero_quantize(number, rows, width, values, value_bytes, importance, chance.bytes(4 * k), coded,
                                      coded_bytes, message.text, message.bytes);
    }

    int check_scales() {
        const int f = format();
        const int64_t n = rows(), k = inputs(f), raw = n * raw_row_bytes(f, k);
        auto *block = reinterpret_cast<int64_t *>(chance.room(8));
        return hetero_check_scales(chance.number(f), chance.count(n), chance.count(k), chance.at(chance.room(raw)),
                                   chance.bytes(raw), chance.at(block), message.text, message.bytes);
    }

    int join_rows() {
        int f = format();
        while (!joins(f)) f = format();
        const FormatInfo &info = kFormats[f];
        const int64_t n = rows(), k = inputs(f), group = info.block_k * chance.between(1, 3);
        const bool two_levels = info.scales == kE4m3Float;
        const bool zero = info.scales == kHalfZero || info.scales == kBfloatZero;
        const int64_t groups = ceil_div(k, two_levels ? 16 : group);
        const int64_t item = info.scales == kFloat ? 4 : info.scales == kE8m0 || two_levels ? 1 : 2;
        const int64_t codes = n * k * kKindInfo[info.kind].low / 8, scales = n * groups * item;
        const int64_t extra = n * (two_levels ? 4 : zero ? groups : 0), raw = n * raw_row_bytes(f, k);
        return hetero_join_rows(chance.number(f), chance.count(n), chance.count(k), chance.count(group),
                                chance.at(chance.room(codes)), chance.bytes(codes), chance.at(chance.room(scales)),
                                chance.bytes(scales), chance.at(chance.room(extra)), chance.bytes(extra),
                                chance.at(chance.room(raw)), chance.bytes(raw), message.text, message.bytes);
    }
    static bool joins(int f) {
        const KindInfo kind = kind_info(f);
        const Scales s = kFormats[f].scales;
        return !kind.high && (kind.low == 4 || kind.low == 8) && s != kE4m3 && s != kHalfMin && s < kSub2;
    }

    int transpose() {
        const int64_t item = chance.below(2) ? 2 : 4, lines = chance.between(1, 70), columns = chance.between(1, 70);
        const int64_t step = chance.between(1, 3), stride = columns * step + chance.below(5);
        const int64_t in = item * ((lines - 1) * stride + (columns - 1) * step + 1), out = item * lines * columns;
        return hetero_transpose(chance.number(int32_t(item)), chance.count(lines), chance.count(columns),
                                chance.count(stride), chance.count(step), chance.at(chance.room(in)), chance.bytes(in),
                                chance.at(chance.room(out)), chance.bytes(out), message.text, message.bytes);
    }

    int awq() {
        const int64_t n = 8 * chance.between(1, 40), k = 8 * chance.between(1, 20), size = n * k / 2;
        auto *words = reinterpret_cast<uint32_t *>(chance.room(size));
        return hetero_awq_codes(chance.count(n), chance.count(k), chance.at(words), chance.bytes(size),
                                chance.at(chance.room(size)), chance.bytes(size), message.text, message.bytes);
    }

    hetero_matrix matrix(int f, int64_t n, int64_t k) {
        const int64_t size = packed_bytes(f, n, k);
        return {chance.number(f), chance.count(n), chance.count(k), chance.at(chance.room(size)), chance.bytes(size)};
    }

    int gather() {
        const int f = format();
        const int64_t n = rows(), k = inputs(f), count = chance.below(6);
        const hetero_matrix m = matrix(f, n, k);
        auto *ids = reinterpret_cast<int64_t *>(chance.room(8 * count));
        for (int64_t i = 0; i < count; i++) ids[i] = chance.count(chance.below(n));
        return hetero_gather_rows(chance.or_null(&m), chance.at(ids), chance.length(count),
                                  chance.at(chance.floats(count * k)), chance.bytes(4 * count * k), message.text,
                                  message.bytes);
    }

    int tile() {
        const int f = format();
        const int64_t k = inputs(f), size = tile_bytes(f, k), n = chance.between(1, 40);
        const int64_t scratch = 24 * n * (k + 192) + 4096;
        return hetero_tile(chance.number(f), chance.count(k), chance.at(chance.room(size)), chance.bytes(size),
                           chance.at(chance.floats(n * k)), chance.bytes(4 * n * k), chance.count(n),
                           chance.at(chance.room((scratch + 63) / 64 * 64, false)), chance.capacity(scratch / 64 * 64),
                           chance.at(chance.floats(16 * n)), chance.bytes(64 * n), message.text, message.bytes);
    }

    int linear() {
        constexpr int kMost = 3;
        const int n_matrices = int(chance.between(1, kMost)), f = format();
        const int64_t n = tokens(), k = inputs(f);
        hetero_matrix matrices[kMost];
        const hetero_matrix *pointers[kMost];
        const float *biases[kMost];
        float *outs[kMost];
        size_t bias_bytes[kMost], out_bytes[kMost];
        for (int m = 0; m < n_matrices; m++) {
            const int64_t width = rows();
            matrices[m] = matrix(f, width, k);
            pointers[m] = chance.or_null(&matrices[m]);
            biases[m] = chance.below(3) ? nullptr : chance.at(chance.floats(width));
            bias_bytes[m] = chance.bytes(4 * width);
            outs[m] = chance.at(chance.floats(n * width));
            out_bytes[m] = chance.bytes(4 * n * width);
        }
        return hetero_linear(chance.or_null(pool), pointers, int32_t(chance.length(n_matrices)),
                             chance.at(chance.floats(n * k)), chance.bytes(4 * n * k), chance.count(n),
                             chance.below(2) ? biases : nullptr, bias_bytes, outs, out_bytes, message.text,
                             message.bytes);
    }

    int heads() {
        const int f = format();
        const int64_t k = inputs(f), heads = chance.between(1, 3), width = 16 * chance.between(1, 2), n = tokens();
        const hetero_matrix m = matrix(f, heads * width, k);
        return hetero_linear_heads(chance.or_null(pool), chance.or_null(&m), chance.count(heads),
                                   chance.at(chance.floats(heads * n * k)), chance.bytes(4 * heads * n * k),
                                   chance.count(n),
                                   chance.at(chance.floats(heads * n * width)), chance.bytes(4 * heads * n * width),
                                   message.text, message.bytes);
    }

    hetero_bank bank(int64_t experts, bool with_data) {
        const int gate = format(), up = chance.below(3) ? gate : format(), down = chance.below(3) ? gate : format();
        const int64_t hidden = common_inputs(gate, up, gate), inter = common_inputs(down, down, down);
        const int64_t down_at = packed_bytes(gate, inter, hidden) + packed_bytes(up, inter, hidden);
        const int64_t stride = round_up(down_at + packed_bytes(down, hidden, inter), 64);
        hetero_bank b = {};
        b.gate_format = chance.number(gate), b.up_format = chance.number(up), b.down_format = chance.number(down);
        b.n_experts = chance.count(experts), b.hidden = chance.count(hidden), b.inter = chance.count(inter);
        b.stride = chance.count(stride), b.down_offset = chance.count(down_at);
        b.bytes = chance.bytes(with_data ? experts * stride : 0);
        if (with_data) b.data = chance.at(chance.room(experts * stride));
        b.activation = chance.number(int32_t(chance.below(HETERO_ACTIVATIONS)));
        if (with_data && chance.below(2)) {
            const int64_t wide = 4 * experts * inter, narrow = 4 * experts * hidden;
            b.gate_bias = chance.at(chance.floats(wide / 4)), b.gate_bias_bytes = chance.bytes(wide);
            b.up_bias = chance.at(chance.floats(wide / 4)), b.up_bias_bytes = chance.bytes(wide);
            b.down_bias = chance.at(chance.floats(narrow / 4)), b.down_bias_bytes = chance.bytes(narrow);
        }
        right_ = {gate, up, down, hidden, inter, stride};
        return b;
    }

    int expert() {
        const hetero_bank b = bank(1, false);
        const Right &r = right_;
        const int64_t sizes[3] = {r.inter * raw_row_bytes(r.gate, r.hidden), r.inter * raw_row_bytes(r.up, r.hidden),
                                  r.hidden * raw_row_bytes(r.down, r.inter)};
        uint8_t *parts[3];
        size_t bytes[3];
        for (int i = 0; i < 3; i++) parts[i] = chance.at(chance.room(sizes[i])), bytes[i] = chance.bytes(sizes[i]);
        uint8_t *const packed = chance.at(chance.room(r.stride));
        const size_t size = chance.bytes(r.stride);
        if (chance.below(2))
            return hetero_pack_expert(&b, parts[0], bytes[0], parts[1], bytes[1], parts[2], bytes[2], packed, size,
                                      message.text, message.bytes);
        return hetero_unpack_expert(&b, packed, size, parts[0], bytes[0], parts[1], bytes[1], parts[2], bytes[2],
                                    message.text, message.bytes);
    }

    int moe() {
        const int64_t experts = chance.between(1, 5), n = tokens(), top_k = chance.between(1, 4), slots = n * top_k;
        const hetero_bank b = bank(experts, true);
        const int64_t size = n * right_.hidden;
        auto *ids = reinterpret_cast<int32_t *>(chance.room(4 * slots));
        for (int64_t i = 0; i < slots; i++) ids[i] = int32_t(chance.below(experts + 1)) - 1;
        if (slots) ids[chance.below(slots)] = chance.number(0);
        return hetero_moe(chance.or_null(pool), chance.or_null(&b), chance.at(chance.floats(size)),
                          chance.bytes(4 * size), chance.count(n), chance.at(ids), chance.bytes(4 * slots),
                          chance.at(chance.floats(slots)), chance.bytes(4 * slots), chance.count(top_k),
                          chance.at(chance.floats(size)), chance.bytes(4 * size), message.text, message.bytes);
    }

    int route() {
        const int64_t n = tokens(), groups = chance.between(1, 8), experts = groups * chance.between(1, 20);
        const int64_t top_k = chance.between(1, experts < 10 ? experts : 10), slots = n * top_k;
        hetero_router r = {};
        r.n_experts = chance.count(experts), r.top_k = chance.count(top_k), r.n_group = chance.count(groups);
        r.topk_group = chance.count(chance.between(1, groups));
        r.sigmoid = int32_t(chance.below(2)), r.norm_topk = int32_t(chance.below(2));
        r.group_top2 = experts >= 2 * groups ? int32_t(chance.below(2)) : 0;
        r.scaling = 2.5f;
        if (chance.below(2)) r.bias = chance.at(chance.floats(experts)), r.bias_bytes = chance.bytes(4 * experts);
        auto *ids = reinterpret_cast<int32_t *>(chance.room(4 * slots, false));
        const int code = hetero_route(chance.or_null(pool), chance.or_null(&r), chance.at(chance.floats(n * experts)),
                                      chance.bytes(4 * n * experts), chance.count(n), chance.at(ids),
                                      chance.bytes(4 * slots), chance.at(chance.floats(slots)), chance.bytes(4 * slots),
                                      message.text, message.bytes);
        for (int64_t i = 0; !code && !chance.changed() && i < slots; i++)
            if (ids[i] < 0 || ids[i] >= experts) return -1;  // a choice beside the experts
        return code;
    }

  private:
    struct Right {
        int gate, up, down;
        int64_t hidden, inter, stride;
    } right_ = {};
};
