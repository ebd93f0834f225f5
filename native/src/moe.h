// The routed experts of one layer: pairs of (token, slot) sorted by expert; gate, up and activation fused with the
// quantisation of the intermediate; then each task owns output columns over all experts and merges them itself,
// token by token in slot order. Two fork-joins for a decode step, three for a prefill.
#pragma once
#include "gating.h"
#include "linear.h"

namespace {

constexpr int64_t kMoeTokens = 2048;       // tokens per pass: bounds the scratch memory
constexpr int64_t kUnitRows = 32;          // rows of the intermediate per unit of work: one group of activations
constexpr int64_t kRunUnits = 8;           // taken at a stretch: what lies behind one is fetched while it is computed
constexpr int64_t kPairBlock = kHasTiles ? 256 : 128;  // pairs whose gate and up values stay in L1/L2
constexpr int64_t kFewPairs = 4;           // for each active expert; fewer are bound by memory
constexpr int64_t kFromStride = 16;        // 128 bytes, so that workers do not share lines
constexpr int64_t kMerged = 32;            // columns of a token that are summed over its slots in registers
constexpr int64_t kColumnBytes = 1 << 19;  // a task's unmerged columns, which should stay in L2

// Pairs of one expert that are worked on at a time.
struct PairBlock {
    int64_t first, n;
    int32_t expert;
};

struct MoeJob {
    Pool *pool;
    const hetero_bank *bank;
    const float *x;
    int64_t n_tokens, top_k;
    const int32_t *ids;
    const float *weights;
    float *out;

    int64_t n_pairs, n_active, n_blocks, units, strip, strip_stride;
    int64_t gate_tile, up_tile, down_tile, h_stride;
    bool few;                // few pairs per expert: bound by memory
    int32_t *offsets;        // [n_experts + 1] pairs of expert e: offsets[e] .. offsets[e + 1]
    int32_t *active;         // experts that have pairs, the most loaded first
    PairBlock *blocks;       // the pairs of active experts in turn
    int32_t *pair_token;     // [n_pairs] in expert order
    int32_t *pair_of;        // [n_tokens * top_k] where that slot's pair lies, or -1
    float *h;                // [n_pairs, h_stride] when down is plain
    float *columns;          // per worker [n_pairs, strip_stride], or of few pairs [n_pairs, whole tiles of hidden]
    uint8_t *gathered;       // per worker [kPairBlock] rows of bf16 or wide activations in pair order, for tile kernels
    int64_t *gathered_from;  // per worker, kFromStride apart: the first of these pairs, or -1
    uint8_t *token_memory, *h_memory;
    Acts tokens, hidden;
    ActBuffers h_to;

    bool wide() const { return has_int8_tiles(bank->gate_format) || has_int8_tiles(bank->up_format); }
    int64_t gathered_stride() const {
        const int64_t bf16 = 2 * ActBuffers::b_stride_of(bank->hidden);
        return min64(kPairBlock, n_tokens * top_k) * (bf16 + (wide() ? ActBuffers::wide_stride_of(bank->hidden) : 0));
    }

    void layout(Arena *arena) {
        const bool quantised = needs_buffers(bank->gate_format) || needs_buffers(bank->up_format);
        const bool h_quantised = needs_buffers(bank->down_format);
        const int64_t slots = n_tokens * top_k;
        offsets = arena->take<int32_t>(bank->n_experts + 1);
        active = arena->take<int32_t>(bank->n_experts);
        blocks = arena->take<PairBlock>(bank->n_experts + slots / kPairBlock);
        pair_token = arena->take<int32_t>(slots);
        pair_of = arena->take<int32_t>(slots);
        h_stride = round_up(bank->inter, kUnitRows);
        h = arena->take<float>(is_plain(bank->down_format) ? slots * h_stride : 0);
        token_memory = arena->take_bytes(quantised ? ActBuffers::bytes(n_tokens, bank->hidden, wide()) : 0);
        h_memory = arena->take_bytes(h_quantised ? ActBuffers::bytes(slots, bank->inter, false) : 0);
        gathered = arena->take_bytes(kHasTiles && quantised ? size_t(pool->n * gathered_stride()) : 0);
        gathered_from = arena->take<int64_t>(pool->n * kFromStride);
        const int64_t tiles = ceil_div(bank->hidden, kRows);
        strip = max64(1, min64(kColumnBytes / (max64(1, slots) * kRows * 4), ceil_div(tiles, pool->n)));
        strip_stride = strip * kRows;
        const int64_t streamed = min64(slots, kFewPairs * bank->n_experts) * tiles * kRows;
        columns = arena->take<float>(max64(pool->n * slots * strip_stride, streamed));
    }

    // Counting sort of the slots by expert; within an expert pairs stay in token order.
    void sort() {
        memset(offsets, 0, size_t(bank->n_experts + 1) * sizeof(int32_t));
        const int64_t slots = n_tokens * top_k;
        for (int64_t i = 0; i < slots; i++)
            if (ids[i] >= 0) offsets[ids[i] + 1]++;
        n_active = 0;
        for (int64_t e = 0; e < bank->n_experts; e++) {
            if (offsets[e + 1]) active[n_active++] = int32_t(e);
            offsets[e + 1] += offsets[e];
        }
        n_pairs = offsets[bank->n_experts];
        for (int64_t i = 0; i < slots; i++) {
            pair_of[i] = ids[i] < 0 ? -1 : offsets[ids[i]]++;
            if (ids[i] >= 0) pair_token[pair_of[i]] = int32_t(i / top_k);
        }
        for (int64_t e = bank->n_experts; e > 0; e--) offsets[e] = offsets[e - 1];  // undo the advance
        offsets[0] = 0;
        few = n_pairs < kFewPairs * n_active;
        if (!few) sort_active();
        cut_blocks();
    }

    // Each active expert's pairs in as few blocks as there can be, of about the same size.
    void cut_blocks() {
        n_blocks = 0;
        for (int64_t a = 0; a < n_active; a++) {
            const int64_t all = load(active[a]), size = round_up(ceil_div(all, ceil_div(all, kPairBlock)), 32);
            for (int64_t at = 0; at < all; at += size)
                blocks[n_blocks++] = {offsets[active[a]] + at, min64(size, all - at), active[a]};
        }
    }

    int64_t load(int32_t e) const { return offsets[e + 1] - offsets[e]; }

    // Most loaded first (shell sort: at most a few hundred entries), so that the last tasks to start are short.
    void sort_active() {
        for (int64_t gap = n_active / 2; gap > 0; gap /= 2)
            for (int64_t i = gap; i < n_active; i++)
                for (int64_t j = i; j >= gap && load(active[j]) > load(active[j - gap]); j -= gap) {
                    const int32_t swapped = active[j];
                    active[j] = active[j - gap];
                    active[j - gap] = swapped;
                }
    }

    const uint8_t *expert(int32_t e) const { return bank->data + int64_t(e) * bank->stride; }

    // The gate and the up tile of rows [16 tile, 16 tile + 16).
    const uint8_t *gate_up_tiles(const PairBlock &block, int64_t tile) const {
        return expert(block.expert) + tile * (gate_tile + up_tile);
    }

    // A block's activations: tiles are loaded at a fixed stride, so their rows are gathered, once for all of the
    // block's units that a worker takes in turn.
    Acts gather(const PairBlock &block, int worker) const {
        Acts acts = tokens;
        const Use gate = use_of(bank->gate_format, block.n, tokens), up = use_of(bank->up_format, block.n, tokens);
        if (gate == Use::kVectors && up == Use::kVectors) return acts;
        uint8_t *to = gathered + worker * gathered_stride();
        acts.b_first = block.first;
        int64_t *from = gathered_from + worker * kFromStride;
        const bool known = *from == block.first;
        *from = block.first;
        if (gate == Use::kBf16Tiles || up == Use::kBf16Tiles) {
            acts.b = reinterpret_cast<uint16_t *>(to);
            to = gather_rows(block, tokens.b, 2 * tokens.b_stride, to, known);
        }
        if (gate == Use::kInt8Tiles || up == Use::kInt8Tiles) {
            acts.wide = to;
            gather_rows(block, tokens.wide, tokens.wide_stride, to, known);
        }
        return acts;
    }

    // The rows of a block's pairs, unless they are there already; where they end.
    uint8_t *gather_rows(const PairBlock &block, const void *rows, int64_t stride, uint8_t *to, bool known) const {
        for (int64_t i = 0; i < block.n && !known; i++)
            memcpy(to + i * stride, static_cast<const uint8_t *>(rows) + pair_token[block.first + i] * stride,
                   size_t(stride));
        return to + block.n * stride;
    }

    // Rows [32 unit, 32 unit + 32) of one expert's intermediate for a block of its pairs.
    // `next`: the tiles that this worker reads afterwards, or null.
    void gate_up(const PairBlock &block, int64_t unit, int worker, const uint8_t *next) const {
        alignas(64) float gate[kPairBlock * kUnitRows], up[kPairBlock * kUnitRows];
        const int64_t n = block.n;
        Acts acts = gather(block, worker);
        for (int64_t half = 0; half < 2; half++) {
            const int64_t tile = 2 * unit + half, at = half * kRows;
            if (tile * kRows >= bank->inter) {  // a ragged end: the missing half counts as zero
                for (int64_t i = 0; i < n; i++) {
                    memset(gate + i * kUnitRows + at, 0, kRows * sizeof(float));
                    memset(up + i * kUnitRows + at, 0, kRows * sizeof(float));
                }
                break;
            }
            const uint8_t *w = gate_up_tiles(block, tile);
            if (half) acts.next = next;
            const uint8_t *const tiles[2] = {w, w + gate_tile};
            float *const outs[2] = {gate + at, up + at};
            const int32_t formats[2] = {bank->gate_format, bank->up_format};
            if (formats[0] == formats[1])
                kTileKernels.two[formats[0]](tiles, bank->hidden, acts, block.first, n, outs, kUnitRows);
            else
                for (int i = 0; i < 2; i++)
                    kTileKernels.one[formats[i]](tiles[i], bank->hidden, acts, block.first, n, outs[i], kUnitRows);
        }
        const int length = int(min64(kUnitRows, bank->inter - unit * kUnitRows));
        add_bias(bank->gate_bias, block.expert, unit, length, n, gate);
        add_bias(bank->up_bias, block.expert, unit, length, n, up);
        for (int64_t i = 0; i < n * kUnitRows; i += kGateLanes) gate_lanes(bank->activation, gate + i, up + i);
        for (int64_t i = 0; i < n; i++) store_h(gate + i * kUnitRows, length, block.first + i, unit);
    }

    void add_bias(const float *biases, int32_t e, int64_t unit, int length, int64_t n, float *values) const {
        if (!biases) return;
        const float *bias = biases + e * bank->inter + unit * kUnitRows;
        for (int64_t i = 0; i < n; i++)
            for (int r = 0; r < length; r++) values[i * kUnitRows + r] += bias[r];
    }

    void store_h(const float *values, int length, int64_t pair, int64_t unit) const {
        if (is_plain(bank->down_format))
            memcpy(h + pair * h_stride + unit * kUnitRows, values, size_t(length) * sizeof(float));
        if (needs_buffers(bank->down_format)) quantize_group(values, h_to, pair, unit);
    }

    static void run_gate_up(void *context, int worker) {
        const auto *job = static_cast<MoeJob *>(context);
        each_node(job->pool, job->units, worker, [&](NodePart part, int node) {
            const int64_t all = job->n_blocks * part.count, longest = job->few ? all : kRunUnits;
            const auto block = [&](int64_t i) -> const PairBlock & { return job->blocks[i / part.count]; };
            const auto unit = [&](int64_t i) { return part.first + i % part.count; };
            for (int64_t i, end; next_run(job->pool, all, longest, &i, &end, node);)
                for (; i < end; i++) {
                    const uint8_t *next = i + 1 < end ? job->gate_up_tiles(block(i + 1), 2 * unit(i + 1)) : nullptr;
                    job->gate_up(block(i), unit(i), worker, next);
                }
        });
    }

    const uint8_t *down_tiles(int32_t e, int64_t tile) const {
        return expert(e) + bank->down_offset + tile * down_tile;
    }

    // Output columns of tiles [begin, end): every expert's part, then the weighted sum of each token's slots.
    void down(int64_t begin, int64_t end, float *y) const {
        Acts acts = hidden;
        for (int64_t a = 0; a < n_active; a++) {
            const int64_t first = offsets[active[a]], n = load(active[a]);
            acts.next = a + 1 < n_active ? down_tiles(active[a + 1], begin) : nullptr;
            run_tiles(bank->down_format, down_tiles(active[a], begin), down_tile, end - begin, bank->inter, acts, first,
                      n, y + first * strip_stride, strip_stride);
        }
        const int64_t column = begin * kRows, count = min64(bank->hidden, end * kRows) - column;
        for (int64_t t = 0; t < n_tokens; t++) merge(t, column, count, y, strip_stride);
    }

    // Output columns [column, column + count) of a token: y holds those of each pair.
    void merge(int64_t token, int64_t column, int64_t count, const float *y, int64_t stride) const {
        float *to = out + token * bank->hidden + column;
        int64_t done = 0;
        if (!bank->down_bias)
            for (; done + kMerged <= count; done += kMerged) merge_some(token, y + done, stride, to + done);
        memset(to + done, 0, size_t(count - done) * sizeof(float));
        for (int64_t slot = token * top_k; slot < (token + 1) * top_k && done < count; slot++) {
            if (pair_of[slot] < 0) continue;
            const float *from = y + pair_of[slot] * stride, w = weights[slot];
            const float *bias = bank->down_bias ? bank->down_bias + ids[slot] * bank->hidden + column : nullptr;
            for (int64_t c = done; c < count; c++) to[c] += w * (bias ? from[c] + bias[c] : from[c]);
        }
    }

    // As merge for kMerged columns, whose sums stay in registers.
    void merge_some(int64_t token, const float *y, int64_t stride, float *to) const {
        Lanes sums[kMerged / 8] = {};
        for (int64_t slot = token * top_k; slot < (token + 1) * top_k; slot++) {
            if (pair_of[slot] < 0) continue;
            const float *from = y + pair_of[slot] * stride, w = weights[slot];
            for (int i = 0; i < kMerged / 8; i++) sums[i] += w * load_lanes(from + 8 * i);
        }
        memcpy(to, sums, sizeof sums);
    }

    // Few pairs: the experts' down tiles as one stream, so that memory is read in long runs. Values go to `columns`
    // [n_pairs, whole tiles of hidden] and are merged afterwards.
    static void run_down_stream(void *context, int worker) {
        const auto *job = static_cast<MoeJob *>(context);
        each_node(job->pool, ceil_div(job->bank->hidden, kRows), worker, [&](NodePart part, int node) {
            const int64_t all = job->n_active * part.count;
            for (int64_t i, end; next_run(job->pool, all, all, &i, &end, node);)
                while (i < end) {  // those of one expert
                    const int64_t tile = i % part.count, count = min64(end - i, part.count - tile);
                    job->stream_tiles(job->active[i / part.count], part.first + tile, count);
                    i += count;
                }
        });
    }

    void stream_tiles(int32_t e, int64_t tile, int64_t count) const {
        const int64_t first = offsets[e], stride = round_up(bank->hidden, kRows);
        run_tiles(bank->down_format, down_tiles(e, tile), down_tile, count, bank->inter, hidden, first, load(e),
                  columns + first * stride + tile * kRows, stride);
    }

    void merge_stream() {
        const int64_t stride = round_up(bank->hidden, kRows);
        for (int64_t t = 0; t < n_tokens; t++) merge(t, 0, bank->hidden, columns, stride);
    }

    static void run_down(void *context, int worker) {
        const auto *job = static_cast<MoeJob *>(context);
        float *y = job->columns + worker * job->n_tokens * job->top_k * job->strip_stride;
        each_node(job->pool, ceil_div(job->bank->hidden, kRows), worker, [&](NodePart part, int node) {
            for (int64_t begin, end; next_run(job->pool, part.count, job->strip, &begin, &end, node);)
                job->down(part.first + begin, part.first + end, y);
        });
    }

    int run(Message message) {
        Arena measure = {nullptr};
        layout(&measure);
        Arena arena = {pool_scratch(pool, measure.used)};
        if (!arena.base)
            return message.fail(HETERO_NO_MEMORY, "no memory for the experts' intermediate values: %zu bytes",
                                measure.used);
        layout(&arena);
        units = ceil_div(bank->inter, kUnitRows);
        gate_tile = tile_bytes(bank->gate_format, bank->hidden);
        up_tile = tile_bytes(bank->up_format, bank->hidden);
        down_tile = tile_bytes(bank->down_format, bank->inter);
        sort();
        for (int i = 0; i < pool->n; i++) gathered_from[i * kFromStride] = -1;
        prepare_activations();
        if (n_pairs) pool_run(pool, run_gate_up, this);
        if (!few) {
            pool_run(pool, run_down, this);
            return HETERO_OK;
        }
        pool_run(pool, run_down_stream, this);
        merge_stream();
        return HETERO_OK;
    }

    void prepare_activations() {
        tokens = Acts();
        hidden = Acts();
        tokens.x = x;
        tokens.x_stride = bank->hidden;
        tokens.rows = pair_token;
        if (needs_buffers(bank->gate_format) || needs_buffers(bank->up_format)) {
            ActBuffers to;
            to.place(token_memory, n_tokens, bank->hidden, wide());
            quantize_tokens(pool, x, n_tokens, bank->hidden, to);
            to.fill(&tokens);
        }
        hidden.x = h;
        hidden.x_stride = h_stride;
        if (needs_buffers(bank->down_format)) {
            h_to.place(h_memory, n_tokens * top_k, bank->inter, false);
            h_to.fill(&hidden);
        }
        if (pool->deterministic) tokens.pin(), hidden.pin();
    }
};

inline int moe(Pool *pool, const hetero_bank *bank, const float *x, int64_t n_tokens, const int32_t *ids,
               const float *weights, int64_t top_k, float *out, Message message) {
    for (int64_t first = 0; first < n_tokens; first += kMoeTokens) {
        MoeJob job = {};
        job.pool = pool;
        job.bank = bank;
        job.n_tokens = min64(kMoeTokens, n_tokens - first);
        job.top_k = top_k;
        job.x = x + first * bank->hidden;
        job.ids = ids + first * top_k;
        job.weights = weights + first * top_k;
        job.out = out + first * bank->hidden;
        if (const int code = job.run(message)) return code;
    }
    return HETERO_OK;
}

}  // namespace
