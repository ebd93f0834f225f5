// As calls.h, for attention and for what measures.
#pragma once
#include "calls.h"

struct AttentionCaller : Caller {
    using Caller::Caller;

    // Whether the call may be refused though no argument was changed: a step without values, or rounds below 1.
    bool refusable() const { return refusable_; }

    int attention() {
        hetero_attention_args a = arguments();
        return hetero_attention(chance.or_null(pool), chance.or_null(&a), message.text, message.bytes);
    }

    int step() {
        hetero_attention_args a = arguments();
        const int64_t n = right_.tokens, half = chance.between(0, right_.d / 2), table = n * half;
        const int64_t k = n * right_.groups * right_.d, v = n * right_.groups * right_.e;
        hetero_step_args s = {};
        s.q = a.q, s.q_bytes = a.q_bytes;
        s.k = chance.at(chance.floats(k)), s.k_bytes = chance.bytes(4 * k);
        s.v = chance.at(chance.floats(v)), s.v_bytes = chance.bytes(4 * v);
        if (chance.below(2)) {
            s.q_norm = chance.at(chance.floats(right_.d)), s.q_norm_bytes = chance.bytes(4 * right_.d);
            s.k_norm = chance.at(chance.floats(right_.d)), s.k_norm_bytes = chance.bytes(4 * right_.d);
        }
        s.cos = chance.at(chance.floats(table)), s.sin = chance.at(chance.floats(table));
        s.table_bytes = chance.bytes(4 * table);
        s.half = chance.count(half), s.interleaved = int32_t(chance.below(2)), s.eps = 1e-6f;
        refusable_ = !a.v;
        return hetero_attention_step(chance.or_null(pool), chance.or_null(&a), chance.or_null(&s), message.text,
                                     message.bytes);
    }

    int append() {
        const int32_t format = kv_format();
        const int64_t page = chance.between(1, 16), n = chance.below(20), groups = chance.between(1, 3);
        const int64_t first = chance.below(40), pages = (first + n + page - 1) / page;
        const int64_t there = pages + chance.below(3) + 1;
        const int64_t width = chance.between(1, 40), store = there * page * groups * row_bytes(format, width);
        const int64_t values = n * groups * width;
        return hetero_kv_append(chance.number(format), chance.at(chance.floats(values)), chance.bytes(4 * values),
                                chance.count(n), chance.count(groups), chance.count(width), chance.count(first),
                                chance.at(table(pages, there)), chance.length(pages), chance.count(page),
                                chance.or_null(chance.room(store)), chance.capacity(store), message.text,
                                message.bytes);
    }

    int norm_rope() {
        const int64_t n = tokens(), heads = chance.between(1, 4), d = chance.between(1, 80);
        const int64_t half = chance.below(d / 2 + 1);
        const int64_t stride = heads * d + chance.below(9), read = n ? (n - 1) * stride + heads * d : 0;
        hetero_rope_args a = {};
        a.n_tokens = chance.count(n), a.heads = chance.count(heads), a.d = chance.count(d);
        a.half = chance.count(half), a.x_stride = chance.count(stride);
        a.interleaved = int32_t(chance.below(2)), a.eps = 1e-6f;
        a.x = chance.at(chance.floats(read)), a.x_bytes = chance.capacity(4 * read);
        if (chance.below(2)) a.weight = chance.at(chance.floats(d)), a.weight_bytes = chance.bytes(4 * d);
        a.cos = chance.at(chance.floats(n * half)), a.sin = chance.at(chance.floats(n * half));
        a.table_bytes = chance.bytes(4 * n * half);
        a.out = chance.at(chance.floats(n * heads * d)), a.out_bytes = chance.bytes(4 * n * heads * d);
        return hetero_norm_rope(chance.or_null(pool), chance.or_null(&a), message.text, message.bytes);
    }

    int measure_read() {
        const int64_t piece = 128 * chance.between(1, 8), count = chance.between(1, 6);
        const int64_t size = piece + chance.below(4096);
        auto *offsets = reinterpret_cast<int64_t *>(chance.room(8 * count));
        for (int64_t i = 0; i < count; i++) offsets[i] = chance.count(chance.below(size - piece + 1));
        auto *seconds = reinterpret_cast<double *>(chance.room(8));
        return hetero_measure_read(chance.or_null(pool), chance.or_null(chance.room(size)), smaller(size),
                                   chance.at(offsets), chance.length(count), smaller(piece), chance.at(seconds),
                                   message.text, message.bytes);
    }

    int measure_fill() {
        const int64_t size = chance.below(9000);
        return hetero_measure_fill(chance.or_null(pool), chance.or_null(chance.room(size, false)),
                                   size_t(chance.length(size) < 0 ? 0 : size), message.text, message.bytes);
    }

    int measure_compute() {
        auto *operations = reinterpret_cast<double *>(chance.room(8));
        auto *seconds = reinterpret_cast<double *>(chance.room(8));
        const int64_t rounds = chance.below(9) ? chance.between(1, 100) : -chance.below(100);
        refusable_ = rounds < 1;
        return hetero_measure_compute(chance.or_null(pool), chance.number(int32_t(chance.below(4))),
                                      rounds, chance.at(operations), chance.at(seconds), message.text,
                                      message.bytes);
    }

    int pools() {
        const int64_t n = chance.between(1, 4);
        auto *cpus = reinterpret_cast<int32_t *>(chance.room(4 * n));
        for (int64_t i = 0; i < n; i++) cpus[i] = chance.number(int32_t(chance.below(2)));
        auto *nodes = reinterpret_cast<int32_t *>(chance.room(4 * n));
        for (int64_t i = 0; i < n; i++) nodes[i] = chance.number(int32_t(chance.below(3)));
        hetero_pool *made = nullptr;
        const int code = hetero_pool_create(chance.at(cpus), chance.at(nodes), int32_t(chance.length(n)),
                                            chance.or_null(&made), message.text, message.bytes);
        hetero_pool_destroy(made);
        return code;
    }

  private:
    size_t smaller(int64_t right) { return size_t(max64(0, chance.length(right))); }

    int32_t *table(int64_t pages, int64_t there) {
        auto *numbers = reinterpret_cast<int32_t *>(chance.room(4 * pages));
        for (int64_t i = 0; i < pages; i++) numbers[i] = chance.number(int32_t(chance.below(there)));
        return numbers;
    }

    int32_t kv_format() {
        constexpr int32_t formats[4] = {HETERO_F32, HETERO_F16, HETERO_BF16, HETERO_Q8_0};
        return formats[chance.below(4)];
    }

    static int64_t row_bytes(int32_t format, int64_t width) {
        return format == HETERO_Q8_0 ? (width + 31) / 32 * 34 : width * (format == HETERO_F32 ? 4 : 2);
    }

    hetero_attention_args arguments() {
        hetero_attention_args a = {};
        const int32_t format = kv_format();
        const int64_t page = 8 * chance.between(1, 4), n = chance.below(6);
        const int64_t groups = chance.between(1, 3), heads = groups * chance.between(1, 10), d = chance.between(1, 70);
        const bool latent = !chance.below(4);
        const int64_t e = latent ? chance.between(1, d) : chance.between(1, 70), first = chance.below(90);
        const int64_t pages = (first + n + page - 1) / page, there = pages + chance.below(3), slots = there * page;
        a.kv_format = chance.number(format), a.n_tokens = chance.count(n), a.heads = chance.count(heads);
        a.groups = chance.count(groups), a.d = chance.count(d), a.e = chance.count(e), a.first = chance.count(first);
        a.page = chance.count(page), a.n_slots = chance.count(slots), a.n_pages = chance.length(pages);
        if (!chance.below(3)) a.window = chance.count(chance.between(1, 80));
        if (!chance.below(3)) a.chunk = chance.count(chance.between(1, 80));
        a.scale = 0.1f;
        a.q = chance.at(chance.floats(n * heads * d)), a.q_bytes = chance.bytes(4 * n * heads * d);
        const int64_t k_bytes = slots * groups * row_bytes(format, d), v_bytes = slots * groups * row_bytes(format, e);
        a.k = chance.or_null(chance.room(k_bytes)), a.k_bytes = chance.bytes(k_bytes);
        if (!latent) a.v = chance.or_null(chance.room(v_bytes));
        a.v_bytes = chance.bytes(v_bytes);
        a.pages = chance.at(table(pages, max64(1, there)));
        if (chance.below(2)) a.sinks = chance.at(chance.floats(heads)), a.sinks_bytes = chance.bytes(4 * heads);
        a.out = chance.at(chance.floats(n * heads * e)), a.out_bytes = chance.bytes(4 * n * heads * e);
        right_ = {n, groups, d, e};
        return a;
    }

    struct Right {
        int64_t tokens, groups, d, e;
    } right_ = {};
    bool refusable_ = false;
};
