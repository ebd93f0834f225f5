// Causal attention of new tokens over a paged KV cache: tiles of query rows walk over blocks of positions and share each
// block's panels. Positions are cut into segments of fixed length, which are attended alone and then merged in order; so
// a few tokens over many positions have work for all threads, and the bits are those of one thread.
#pragma once
#include "attention_block.h"
#include "norm_rope.h"

namespace {

constexpr int64_t kSegment = 512;       // positions; a multiple of kBlockKeys
constexpr int64_t kRowsBytes = 384 << 10;  // what the rows of a tile may take of L2
constexpr int64_t kFewestRows = 24;     // in a tile; fewer are not worth the panels they read
constexpr int64_t kMostRows = 256;
constexpr int64_t kSplitBytes = 64 << 20;  // that segments may wait in
static_assert(kSegment % kBlockKeys == 0, "a block belongs to one segment");

// The first position that a query at `position` sees: its window and its chunk cut off what lies before.
inline int64_t first_visible(const hetero_attention_args *a, int64_t position) {
    const int64_t in_window = a->window ? max64(0, position - a->window + 1) : 0;
    return a->chunk ? max64(in_window, position / a->chunk * a->chunk) : in_window;
}

// Some tokens' heads of one group.
struct Tile {
    int64_t group, head, heads, token, tokens;

    int64_t rows() const { return heads * tokens; }
};

// How a call's work is cut: into tiles, and where those are too few for the threads into segments as well.
struct Cut {
    int64_t heads, head_chunks, tokens, token_tiles, first_segment, segments;
    bool split;

    Cut(const hetero_attention_args *a, int64_t width, int64_t threads) {
        const int64_t per_group = a->heads / a->groups, wanted = ceil_div(a->n_tokens * a->heads, 4 * threads);
        const int64_t most = max64(kRowsAtOnce, min64(kMostRows, kRowsBytes / (4 * (a->d + 2 * width))));
        const int64_t rows = min64(max64(wanted, kFewestRows), most);
        head_chunks = ceil_div(per_group, rows);
        heads = ceil_div(per_group, head_chunks);
        tokens = max64(1, min64(rows / heads, a->n_tokens));
        token_tiles = ceil_div(a->n_tokens, tokens);
        first_segment = first_visible(a, a->first) / kSegment;
        segments = (a->first + a->n_tokens - 1) / kSegment - first_segment + 1;
        const int64_t part_bytes = product({tiles(a), heads * tokens, segments, width + kLanes + 1, 4});
        split = threads > 1 && segments > 1 && tiles(a) < 2 * threads && part_bytes <= kSplitBytes;
    }

    int64_t tiles(const hetero_attention_args *a) const { return a->groups * head_chunks * token_tiles; }

    // The last tokens first: they see most and take longest.
    Tile tile(const hetero_attention_args *a, int64_t i) const {
        const int64_t group = i % a->groups, chunk = i / a->groups % head_chunks, per_group = a->heads / a->groups;
        const int64_t token = (token_tiles - 1 - i / a->groups / head_chunks) * tokens, head = chunk * heads;
        return {group, head, min64(heads, per_group - head), token, min64(tokens, a->n_tokens - token)};
    }
};

// What a tile's rows have found in all segments so far.
struct Total {
    float *found, *top, *sum;
};

struct AttentionJob {
    Pool *pool;
    const hetero_attention_args *a;
    const hetero_step_args *s;  // null: q is ready
    int64_t width, threads;
    Cut cut;
    uint8_t *memory = nullptr;
    int64_t serial = 0;
    bool merging = false;

    AttentionJob(Pool *owner, const hetero_attention_args *args, const hetero_step_args *step)
        : pool(owner), a(args), s(step), width(round_up(args->e, kLanes)), threads(owner ? owner->n : 1),
          cut(args, width, threads) {}

    int64_t most_rows() const { return cut.heads * cut.tokens; }
    int64_t part_floats() const { return round_up(most_rows() * (width + kLanes + 1), kLanes); }
    int64_t zero_floats() const { return round_up(a->d, kLanes); }  // at least a row's bytes in every format
    int64_t next() { return pool ? int64_t(next_task(pool)) : serial++; }

    // A worker's memory: places for a tile's rows, their totals and a block's panels.
    struct Desk {
        float *q, *found, *keys, *values, *zeros;
        int64_t *from, *own;
        Total total;
    };

    Desk desk(Arena &arena) const {
        const int64_t rows = most_rows();
        Desk k;
        k.found = arena.take<float>(part_floats());
        k.total.found = arena.take<float>(rows * width);
        k.keys = arena.take<float>(kBlockKeys * a->d);
        k.values = arena.take<float>(kBlockKeys * width);
        k.q = arena.take<float>(rows * a->d);
        k.zeros = arena.take<float>(zero_floats());
        k.total.top = arena.take<float>(rows);
        k.total.sum = arena.take<float>(rows);
        k.from = arena.take<int64_t>(rows);
        k.own = arena.take<int64_t>(rows);
        return k;
    }

    size_t desk_bytes() const {
        Arena arena = {nullptr};
        desk(arena);
        return arena.used;
    }

    size_t bytes() const {
        const int64_t parts = cut.split ? cut.tiles(a) * cut.segments * part_floats() : 0;
        return size_t(threads) * desk_bytes() + size_t(parts) * 4;
    }

    float *part(int64_t i, int64_t segment) const {
        auto *parts = reinterpret_cast<float *>(memory + size_t(threads) * desk_bytes());
        return parts + (i * cut.segments + segment - cut.first_segment) * part_floats();
    }

    // The rows of a tile, their results in `part`.
    Rows rows_of(const Desk &k, const Tile &tile, float *part) const {
        const int64_t rows = most_rows();
        for (int64_t r = 0; r < tile.rows(); r++) {
            k.own[r] = a->first + tile.token + r / tile.heads;
            k.from[r] = first_visible(a, k.own[r]);
        }
        return {k.q, part, part + rows * width, part + rows * (width + kLanes), k.from, k.own, a->d, width};
    }

    void load_queries(const Tile &tile, float *q) const {
        for (int64_t r = 0; r < tile.rows(); r++, q += a->d) {
            const int64_t t = tile.token + r / tile.heads;
            const int64_t head = tile.group * (a->heads / a->groups) + tile.head + r % tile.heads;
            const float *source = a->q + (t * a->heads + head) * a->d;
            if (s) {
                const Turn turn = {a->d, s->half, s->interleaved != 0, s->eps};
                turn.apply(source, s->q_norm, s->cos + t * s->half, s->sin + t * s->half, q);
                source = q;
            }
            for (int64_t i = 0; i < a->d; i++) q[i] = source[i] * a->scale;
        }
    }

    // Where the keys and values of `count` positions lie.
    void find(int64_t group, int64_t first, int64_t count, const uint8_t **keys, const uint8_t **values) const {
        const int64_t key = kv_row_bytes(a->kv_format, a->d), value = a->v ? kv_row_bytes(a->kv_format, a->e) : key;
        const uint8_t *v = a->v ? a->v : a->k;
        for (int64_t j = 0; j < count;) {
            const int64_t in_page = (first + j) % a->page, stop = min64(count, j + a->page - in_page);
            int64_t row = (a->pages[(first + j) / a->page] * a->page + in_page) * a->groups + group;
            for (; j < stop; j++, row += a->groups) keys[j] = a->k + row * key, values[j] = v + row * value;
        }
    }

    // The rows [begin, end) over the `count` positions from `first` on, all of one block.
    template <int F>
    void attend_at(const Desk &k, int64_t group, const Rows &rows, int64_t begin, int64_t end, int64_t first,
                   int64_t count) const {
        const uint8_t *keys[kBlockKeys], *values[kBlockKeys];
        find(group, first, count, keys, values);
        for (int64_t j = count; j < kBlockKeys; j++) keys[j] = reinterpret_cast<const uint8_t *>(k.zeros);
        if (end - begin <= kFewRows && a->e % kLanes == 0)
            return attend_few<F>(rows, begin, end, first, count, keys, values, k.keys);
        key_panel<F>(keys, a->d, kStrips, k.keys);
        value_panel<F>(values, a->e, count, k.values);
        attend_block(rows, begin, end, first, k.keys, k.values);
    }

    void attend_segment(const Desk &k, const Tile &tile, const Rows &rows, int64_t segment) const {
        const int64_t last = tile.rows() - 1, stop = min64((segment + 1) * kSegment, rows.own[last] + 1);
        memset(rows.found, 0, size_t(tile.rows() * width) * 4);
        memset(rows.sums, 0, size_t(tile.rows() * kLanes) * 4);
        for (int64_t r = 0; r <= last; r++) rows.top[r] = -INFINITY;
        const int64_t start = max64(segment * kSegment, rows.from[0]) / kBlockKeys * kBlockKeys;
        for (int64_t first = start; first < stop; first += kBlockKeys) {
            int64_t begin = 0, end = tile.rows();
            while (rows.own[begin] < first) begin++;
            while (rows.from[end - 1] >= first + kBlockKeys) end--;
            const int64_t count = min64(kBlockKeys, stop - first);
            if (a->kv_format == HETERO_F32)
                attend_at<HETERO_F32>(k, tile.group, rows, begin, end, first, count);
            else if (a->kv_format == HETERO_F16)
                attend_at<HETERO_F16>(k, tile.group, rows, begin, end, first, count);
            else if (a->kv_format == HETERO_Q8_0)
                attend_at<HETERO_Q8_0>(k, tile.group, rows, begin, end, first, count);
            else
                attend_at<HETERO_BF16>(k, tile.group, rows, begin, end, first, count);
        }
    }

    // Adds what the rows found in a segment to their totals. A total without weights is an empty one.
    void merge_segment(const Tile &tile, const Rows &rows, int64_t segment, const Total &total) const {
        for (int64_t r = 0; r < tile.rows(); r++) {
            if (rows.own[r] < segment * kSegment || rows.from[r] >= (segment + 1) * kSegment) continue;
            const float *found = rows.found + r * width, sum = sum_of(load(rows.sums + r * kLanes)), top = rows.top[r];
            float *to = total.found + r * width;
            if (total.sum[r] == 0) {
                memcpy(to, found, size_t(width) * 4);
                total.top[r] = top, total.sum[r] = sum;
                continue;
            }
            const float best = top > total.top[r] ? top : total.top[r];
            const Sixteen old = exp_of(all_of(total.top[r] - best)), added = exp_of(all_of(top - best));
            for (int64_t i = 0; i < width; i += kLanes) store(to + i, fma(load(found + i), added, load(to + i) * old));
            float sums[kLanes];
            store(sums, fma(all_of(sum), added, all_of(total.sum[r]) * old));
            total.top[r] = best, total.sum[r] = sums[0];
        }
    }

    void begin_total(const Tile &tile, const Total &total) const {
        memset(total.found, 0, size_t(tile.rows() * width) * 4);
        for (int64_t r = 0; r < tile.rows(); r++) {
            const int64_t head = tile.group * (a->heads / a->groups) + tile.head + r % tile.heads;
            total.top[r] = a->sinks ? a->sinks[head] : -INFINITY;
            total.sum[r] = a->sinks ? 1.f : 0.f;
        }
    }

    void finish(const Tile &tile, const Total &total) const {
        for (int64_t r = 0; r < tile.rows(); r++) {
            const int64_t head = tile.group * (a->heads / a->groups) + tile.head + r % tile.heads;
            float *out = a->out + ((tile.token + r / tile.heads) * a->heads + head) * a->e;
            for (int64_t i = 0; i < a->e; i++) out[i] = total.found[r * width + i] / total.sum[r];
        }
    }

    // A whole tile; its segments wait in `parts` when it was split.
    void run_tile(const Desk &k, int64_t i) const {
        const Tile tile = cut.tile(a, i);
        if (!cut.split) load_queries(tile, k.q);
        begin_total(tile, k.total);
        Rows rows = rows_of(k, tile, k.found);
        for (int64_t n = rows.from[0] / kSegment; n <= rows.own[tile.rows() - 1] / kSegment; n++) {
            if (cut.split)
                rows = rows_of(k, tile, part(i, n));
            else
                attend_segment(k, tile, rows, n);
            merge_segment(tile, rows, n, k.total);
        }
        finish(tile, k.total);
    }

    // One segment of a tile, to `parts`.
    void run_segment(const Desk &k, int64_t i, int64_t segment) const {
        const Tile tile = cut.tile(a, i);
        const Rows rows = rows_of(k, tile, part(i, segment));
        if (rows.own[tile.rows() - 1] < segment * kSegment || rows.from[0] >= (segment + 1) * kSegment) return;
        load_queries(tile, k.q);
        attend_segment(k, tile, rows, segment);
    }

    static void run(void *context, int worker) {
        auto *job = static_cast<AttentionJob *>(context);
        Arena arena = {job->memory + size_t(worker) * job->desk_bytes()};
        const Desk k = job->desk(arena);
        memset(k.zeros, 0, size_t(job->zero_floats()) * 4);
        const bool segments = job->cut.split && !job->merging;
        const int64_t per_tile = segments ? job->cut.segments : 1, total = job->cut.tiles(job->a) * per_tile;
        for (int64_t i; (i = job->next()) < total;)
            if (segments)
                job->run_segment(k, i / per_tile, job->cut.first_segment + i % per_tile);
            else
                job->run_tile(k, i);
    }

    void run_all() {
        if (!pool) return run(this, 0);
        pool_run(pool, run, this);
        if (!cut.split) return;
        merging = true;
        pool_run(pool, run, this);
    }
};

inline int check_attention(const hetero_attention_args *a, Message message) {
    if (!a || !a->pages) return message.fail(HETERO_BAD_ARGUMENT, "attention: null pointer");
    if (!is_kv_format(a->kv_format))
        return message.fail(HETERO_BAD_ARGUMENT, "attention: KV format %d is not F32, F16, BF16 or Q8_0", a->kv_format);
    if (a->n_tokens < 0 || a->n_tokens > kMaxRows || a->first < 0 || a->first > kMaxRows || a->heads < 1 ||
        a->groups < 1 || a->heads > 65536 || a->heads % a->groups || a->d < 1 || a->e < 1 || a->d > 65536 ||
        a->e > 65536 || a->page < 8 || a->page > kMaxPage || a->page % 8 || (!a->v && a->e > a->d) || a->window < 0 ||
        a->window > kMaxRows || a->chunk < 0 || a->chunk > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: shapes out of range");
    if (a->n_slots < 0 || a->n_slots > kMaxRows || a->n_slots % a->page)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: %lld slots in pages of %lld", (long long)a->n_slots,
                            (long long)a->page);
    const int64_t rows = product({a->n_slots, a->groups}), queries = product({4, a->n_tokens, a->heads});
    const int64_t k_bytes = product({rows, kv_row_bytes(a->kv_format, a->d)});
    const int64_t v_bytes = product({rows, kv_row_bytes(a->kv_format, a->e)});
    if (const int code = check_buffer("keys", a->k, a->k_bytes, k_bytes, message)) return code;
    if (const int code = check_optional("values", a->v, a->v_bytes, v_bytes, message)) return code;
    if (const int code = check_optional("sinks", a->sinks, a->sinks_bytes, 4 * a->heads, message)) return code;
    if (const int code = check_buffer("q", a->q, a->q_bytes, product({queries, a->d}), message)) return code;
    if (const int code = check_buffer("out", a->out, a->out_bytes, product({queries, a->e}), message)) return code;
    if (const int code = check_aligned("pages", a->pages, message)) return code;
    const int64_t needed = ceil_div(a->first + a->n_tokens, a->page);
    if (a->n_pages < needed) return message.fail(HETERO_BAD_ARGUMENT, "attention: %lld pages given, %lld needed",
                                                 (long long)a->n_pages, (long long)needed);
    for (int64_t i = 0; i < needed; i++)
        if (a->pages[i] < 0 || a->pages[i] >= a->n_slots / a->page)
            return message.fail(HETERO_BAD_ARGUMENT, "attention: page %d does not exist", a->pages[i]);
    return HETERO_OK;
}

// The part of a step's arguments that plain attention does not have; a has been checked.
inline int check_step(const hetero_attention_args *a, const hetero_step_args *s, Message message) {
    if (!a->v || s->half < 0 || s->half > Turn::kMaxHalf || 2 * s->half > a->d)
        return message.fail(HETERO_BAD_ARGUMENT, "attention step: no values, or %lld pairs to turn",
                            (long long)s->half);
    const int64_t added = product({4, a->n_tokens, a->groups}), table = 4 * a->n_tokens * s->half;
    if (const int code = check_buffer("new k", s->k, s->k_bytes, product({added, a->d}), message)) return code;
    if (const int code = check_buffer("new v", s->v, s->v_bytes, product({added, a->e}), message)) return code;
    if (const int code = check_optional("q norm", s->q_norm, s->q_norm_bytes, 4 * a->d, message)) return code;
    if (const int code = check_optional("k norm", s->k_norm, s->k_norm_bytes, 4 * a->d, message)) return code;
    if (const int code = check_buffer("cos", s->cos, s->table_bytes, table, message)) return code;
    return check_buffer("sin", s->sin, s->table_bytes, table, message);
}

// `pool` null: on the calling thread, in scratch that the caller gives.
inline int attention(Pool *pool, const hetero_attention_args *a, const hetero_step_args *s, uint8_t *given,
                     size_t given_bytes, Message message) {
    hetero_attention_args args = *a;
    if (s) args.q = s->q, args.q_bytes = s->q_bytes;
    if (const int code = check_attention(&args, message)) return code;
    if (s)
        if (const int code = check_step(&args, s, message)) return code;
    if (!args.n_tokens) return HETERO_OK;
    AttentionJob job(pool, &args, s);
    const size_t turned = s ? size_t(round_up(job.threads * args.d, kLanes)) * 4 : 0, bytes = job.bytes() + turned;
    if (!pool && given_bytes < bytes)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: scratch of %zu bytes, %zu needed", given_bytes, bytes);
    uint8_t *scratch = pool ? pool_scratch(pool, bytes) : given;
    if (!scratch) return message.fail(HETERO_NO_MEMORY, "attention: no memory for %zu bytes of scratch", bytes);
    job.memory = scratch + turned;
    if (s) store_new(pool, &args, s, reinterpret_cast<float *>(scratch));
    job.run_all();
    return HETERO_OK;
}

}  // namespace

extern "C" {

int hetero_attention(hetero_pool *pool, const hetero_attention_args *args, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || !args) return message.fail(HETERO_BAD_ARGUMENT, "attention: null pointer");
    const Locked locked(pool);
    return attention(pool, args, nullptr, nullptr, 0, message);
}

int hetero_attention_step(hetero_pool *pool, const hetero_attention_args *args, const hetero_step_args *step,
                          char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || !args || !step) return message.fail(HETERO_BAD_ARGUMENT, "attention step: null pointer");
    const Locked locked(pool);
    return attention(pool, args, step, nullptr, 0, message);
}

int hetero_attention_alone(const hetero_attention_args *args, const hetero_step_args *step, uint8_t *scratch,
                           size_t scratch_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!args || !scratch) return message.fail(HETERO_BAD_ARGUMENT, "attention: null pointer");
    if (const int code = check_aligned("scratch", reinterpret_cast<int64_t *>(scratch), message)) return code;
    return attention(nullptr, args, step, scratch, scratch_bytes, message);
}

}  // extern "C"
