// out[m] = matrices[m] x for several matrices of the same k: one quantisation of x, one fork-join for the products.
#pragma once
#include "pool.h"
#include "tile_costs.h"

namespace {

constexpr int64_t kFewTokens = 16;        // fewer are bound by memory, more by arithmetic
constexpr int64_t kTokenBlock = 256;      // tokens whose activations stay in L2 while a strip's tiles pass
constexpr int64_t kStripTiles = 8;
constexpr int64_t kInlineElements = 16384;  // quantising fewer values than this is not worth a fork-join

// Hands memory out of the pool's scratch: first measured with a null base, then placed.
struct Arena {
    uint8_t *base;
    size_t used = 0;

    template <class T> T *take(int64_t count) { return reinterpret_cast<T *>(take_bytes(size_t(count) * sizeof(T))); }
    uint8_t *take_bytes(size_t bytes) {
        uint8_t *p = base ? base + used : nullptr;
        used += (bytes + 63) / 64 * 64;
        return p;
    }
};

struct QuantizeJob {
    Pool *pool;
    const float *x;
    int64_t n, k;
    ActBuffers to;

    static void run(void *context, int) {
        auto *job = static_cast<QuantizeJob *>(context);
        constexpr int64_t step = 8;
        for (int64_t first; (first = step * next_task(job->pool)) < job->n;)
            for (int64_t i = first; i < min64(first + step, job->n); i++)
                quantize_row(job->x + i * job->k, job->k, job->to, i);
    }
};

inline void quantize_tokens(Pool *pool, const float *x, int64_t n, int64_t k, const ActBuffers &to) {
    QuantizeJob job = {pool, x, n, k, to};
    if (n * k > kInlineElements) return pool_run(pool, QuantizeJob::run, &job);
    for (int64_t i = 0; i < n; i++) quantize_row(x + i * k, k, to, i);
}

struct LinearJob {
    Pool *pool;
    const hetero_matrix *const *matrices;
    int32_t n_matrices;
    int64_t n_tokens;
    const float *const *biases;
    float *const *outs;
    Acts acts;
    int64_t total_tiles, strip, strips, token_blocks;

    int64_t tiles(int m) const { return ceil_div(matrices[m]->n, kRows); }
    int64_t tile_size(int m) const { return tile_bytes(matrices[m]->format, matrices[m]->k); }

    // Tiles [begin, end) of a matrix. Tile kernels go over their outputs many times, and rows as far apart as a
    // matrix's would meet in the same few lines of L1.
    void run_range(int m, int64_t begin, int64_t end, int64_t first, int64_t n) const {
        const hetero_matrix &w = *matrices[m];
        const bool aside = kHasTiles && n >= kFewTokens;
        const int64_t size = tile_size(m), whole = aside ? begin : max64(begin, min64(end, w.n / kRows));
        float *out = outs[m] + first * w.n + begin * kRows;
        run_tiles(w.format, w.data + begin * size, size, whole - begin, w.k, acts, first, n, out, w.n);
        const float *bias = biases ? biases[m] : nullptr;
        if (bias)
            for (int64_t i = 0; i < n; i++)
                for (int64_t r = 0; r < (whole - begin) * kRows; r++) out[i * w.n + r] += bias[begin * kRows + r];
        for (int64_t tile = whole; tile < end; tile += 2) run_aside(m, tile, min64(2, end - tile), first, n);
    }

    // One tile or two by way of a buffer; the last tile of a matrix may have fewer than 16 rows.
    void run_aside(int m, int64_t tile, int64_t count, int64_t first, int64_t n) const {
        constexpr int64_t stride = 2 * kRows;
        const hetero_matrix &w = *matrices[m];
        const int64_t row = tile * kRows, size = tile_size(m), rows = min64(count * kRows, w.n - row);
        alignas(64) float values[kTokenBlock * stride];
        run_tiles(w.format, w.data + tile * size, size, count, w.k, acts, first, n, values, stride);
        const float *bias = biases && biases[m] ? biases[m] + row : nullptr;
        for (int64_t i = 0; i < n; i++) {
            float *out = outs[m] + (first + i) * w.n + row;
            memcpy(out, values + i * stride, size_t(rows) * sizeof(float));
            for (int64_t r = 0; r < rows && bias; r++) out[r] += bias[r];
        }
    }

    // Tiles [begin, end), counted over all matrices.
    void run_part(int64_t begin, int64_t end) const {
        for (int m = 0; m < n_matrices && end > 0; m++) {
            const int64_t count = tiles(m), from = max64(begin, 0), to = min64(end, count);
            if (from < to) run_range(m, from, to, 0, n_tokens);
            begin -= count;
            end -= count;
        }
    }

    void run_strip(int64_t index, int64_t first, int64_t n) const {
        for (int m = 0; m < n_matrices; m++) {
            const int64_t count = ceil_div(tiles(m), strip);
            if (index < count) return run_range(m, index * strip, min64((index + 1) * strip, tiles(m)), first, n);
            index -= count;
        }
    }

    static void run(void *context, int) {
        const auto *job = static_cast<LinearJob *>(context);
        if (job->n_tokens < kFewTokens) {
            for (int64_t begin, end; next_run(job->pool, job->total_tiles, job->total_tiles, &begin, &end);)
                job->run_part(begin, end);
            return;
        }
        const int64_t all = job->strips * job->token_blocks;
        for (int64_t task; (task = next_task(job->pool)) < all;) {
            const int64_t first = task / job->strips * kTokenBlock;
            job->run_strip(task % job->strips, first, min64(kTokenBlock, job->n_tokens - first));
        }
    }

    void plan() {
        total_tiles = strips = 0;
        for (int m = 0; m < n_matrices; m++) total_tiles += tiles(m);
        token_blocks = ceil_div(n_tokens, kTokenBlock);
        strip = max64(1, min64(kStripTiles, total_tiles * token_blocks / (4 * pool->n)));
        for (int m = 0; m < n_matrices; m++) strips += ceil_div(tiles(m), strip);
    }
};

inline int linear(Pool *pool, const hetero_matrix *const *matrices, int32_t n_matrices, const float *x,
                  int64_t n_tokens, const float *const *biases, float *const *outs, Message message) {
    const int64_t k = matrices[0]->k;
    LinearJob job = {pool, matrices, n_matrices, n_tokens, biases, outs, Acts(), 0, 0, 0, 0};
    job.acts.x = x;
    job.acts.x_stride = k;
    bool quantised = false, wide = false;
    for (int m = 0; m < n_matrices; m++) {
        quantised |= needs_buffers(matrices[m]->format);
        wide |= has_int8_tiles(matrices[m]->format);
    }
    if (quantised) {
        uint8_t *memory = pool_scratch(pool, ActBuffers::bytes(n_tokens, k, wide));
        if (!memory)
            return message.fail(HETERO_NO_MEMORY, "no memory for the activations of %lld tokens",
                                (long long)n_tokens);
        ActBuffers to;
        to.place(memory, n_tokens, k, wide);
        quantize_tokens(pool, x, n_tokens, k, to);
        to.fill(&job.acts);
        if (pool->deterministic) job.acts.pin();
    }
    job.plan();
    pool_run(pool, LinearJob::run, &job);
    return HETERO_OK;
}

}  // namespace
