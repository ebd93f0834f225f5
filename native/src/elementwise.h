// What lies between a model's products: sums of vectors, gates, and values moved to where the next product wants them.
#pragma once
#include "api.h"
#include "gating.h"

namespace {

// Pieces of a large array for all workers, a small one on the calling thread.
template <class Piece> struct PiecesJob {
    Pool *pool;
    int64_t count;
    const Piece *piece;

    static constexpr int64_t kStep = 4096;

    static void run(void *context, int) {
        auto *job = static_cast<PiecesJob *>(context);
        for (int64_t first; (first = kStep * next_task(job->pool)) < job->count;)
            (*job->piece)(first, min64(kStep, job->count - first));
    }
};

// piece(first, n) for all of `count` values.
template <class Piece> void in_pieces(Pool *pool, int64_t count, const Piece &piece) {
    if (count <= kInlineElements) return piece(0, count);
    PiecesJob<Piece> job = {pool, count, &piece};
    const Locked locked(pool);
    pool_run(pool, PiecesJob<Piece>::run, &job);
}

inline void gate_many(int activation, const float *gate, const float *up, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += kGateLanes) {
        const size_t some = size_t(min64(kGateLanes, n - i)) * 4;
        float g[kGateLanes] = {}, u[kGateLanes] = {};
        memcpy(g, gate + i, some);
        memcpy(u, up + i, some);
        gate_lanes(activation, g, u);
        memcpy(out + i, g, some);
    }
}

// x [n, n]: along rows (columns) each value over the sum of its row (column) plus eps.
inline void over_sums(float *x, int64_t n, bool rows, float eps) {
    const int64_t line = rows ? n : 1, step = rows ? 1 : n;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t j = 0; j < n; j++) sum += x[i * line + j * step];
        for (int64_t j = 0; j < n; j++) x[i * line + j * step] /= sum + eps;
    }
}

inline void balance(float *x, int64_t n, int32_t iterations, float eps) {
    for (int64_t i = 0; i < n; i++) {
        float *row = x + i * n, top = row[0], sum = 0;
        for (int64_t j = 1; j < n; j++) top = row[j] > top ? row[j] : top;
        for (int64_t j = 0; j < n; j++) sum += row[j] = expf(row[j] - top);
        for (int64_t j = 0; j < n; j++) row[j] = row[j] / sum + eps;
    }
    over_sums(x, n, false, eps);
    for (int32_t i = 1; i < iterations; i++) {
        over_sums(x, n, true, eps);
        over_sums(x, n, false, eps);
    }
}

// The floats that rows of `width` at two strides reach over; -1 where that is no number of floats.
inline int64_t reach(int64_t n, int64_t m, int64_t width, int64_t stride_n, int64_t stride_m) {
    if (!n || !m) return 0;
    if (stride_n < 0 || stride_m < 0) return -1;
    const int64_t far = product({n - 1, stride_n}), near = product({m - 1, stride_m});
    return far > kMaxReach || near > kMaxReach ? -1 : far + near + width;
}

}  // namespace

extern "C" {

int hetero_add(hetero_pool *pool, const float *a, const float *b, float *out, size_t bytes, int64_t count, char *text,
               size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || count < 0 || count > kMaxReach) return message.fail(HETERO_BAD_ARGUMENT, "add needs a pool and values");
    for (const float *part : {a, b, static_cast<const float *>(out)})
        if (const int code = check_buffer("add", part, bytes, 4 * count, message)) return code;
    in_pieces(pool, count, [=](int64_t first, int64_t n) {
        for (int64_t i = first; i < first + n; i++) out[i] = a[i] + b[i];
    });
    return HETERO_OK;
}

int hetero_gate(hetero_pool *pool, int32_t activation, const float *gate, const float *up, float *out, size_t bytes,
                int64_t count, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || count < 0 || count > kMaxReach || activation < 0 || activation >= HETERO_ACTIVATIONS)
        return message.fail(HETERO_BAD_ARGUMENT, "gate needs a pool, an activation and values");
    for (const float *part : {gate, up, static_cast<const float *>(out)})
        if (const int code = check_buffer("gate", part, bytes, 4 * count, message)) return code;
    in_pieces(pool, count, [=](int64_t first, int64_t n) {
        gate_many(activation, gate + first, up + first, out + first, n);
    });
    return HETERO_OK;
}

int hetero_balance(float *x, size_t bytes, int64_t n_matrices, int64_t n, int32_t iterations, float eps, char *text,
                   size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (n_matrices < 0 || n_matrices > kMaxRows || n < 1 || n > 64 || iterations < 1 || iterations > 1000)
        return message.fail(HETERO_BAD_ARGUMENT, "balance: shapes or iterations out of range");
    if (const int code = check_buffer("balance", x, bytes, 4 * n_matrices * n * n, message)) return code;
    for (int64_t i = 0; i < n_matrices; i++) balance(x + i * n * n, n, iterations, eps);
    return HETERO_OK;
}

int hetero_copy(const hetero_copy_args *a, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!a || a->n < 0 || a->m < 0 || a->width < 1 || a->n > kMaxRows || a->m > kMaxRows || a->width > kMaxReach)
        return message.fail(HETERO_BAD_ARGUMENT, "copy: shapes out of range");
    const int64_t from = reach(a->n, a->m, a->width, a->from_n, a->from_m), to = reach(a->n, a->m, a->width, a->to_n, a->to_m);
    if (from < 0 || to < 0 || a->from_bytes < size_t(4 * from) || a->to_bytes < size_t(4 * to))
        return message.fail(HETERO_BAD_ARGUMENT, "copy: %zu and %zu bytes given, %lld and %lld floats needed",
                            a->from_bytes, a->to_bytes, (long long)from, (long long)to);
    if (const int code = check_buffer("from", a->from, size_t(4 * from), 4 * from, message)) return code;
    if (const int code = check_buffer("to", a->to, size_t(4 * to), 4 * to, message)) return code;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->m; j++)
            memcpy(a->to + i * a->to_n + j * a->to_m, a->from + i * a->from_n + j * a->from_m, size_t(a->width) * 4);
    return HETERO_OK;
}

}  // extern "C"
