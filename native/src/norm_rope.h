// RMS norm of heads and rotary positions, and the storing of new keys and values: what comes before attention.
#pragma once
#include "api.h"
#include "kv_rows.h"
#include "lanes.h"

namespace {

constexpr int64_t kMaxPage = 1024;

inline float dot(const float *a, const float *b, int64_t n) {
    Sixteen sum = all_of(0.f);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
    float total = sum_of(sum);
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

// How heads are normed by weight [d] (null: not) and turned by a token's cos and sin [half].
struct Turn {
    int64_t d, half;
    bool interleaved;
    float eps;

    void apply(const float *x, const float *weight, const float *cos, const float *sin, float *out) const {
        const float scale = weight ? 1.0f / sqrtf(dot(x, x, d) / float(d) + eps) : 1.0f;
        if (weight)
            for (int64_t i = 0; i < d; i++) out[i] = x[i] * scale * weight[i];
        else
            memcpy(out, x, size_t(d) * 4);
        if (half) rotate(cos, sin, out);
    }

    void rotate(const float *cos, const float *sin, float *out) const {
        float u[kMaxHalf], v[kMaxHalf];
        for (int64_t i = 0; i < half; i++) {
            u[i] = interleaved ? out[2 * i] : out[i];
            v[i] = interleaved ? out[2 * i + 1] : out[i + half];
        }
        for (int64_t i = 0; i < half; i++) {
            out[i] = u[i] * cos[i] - v[i] * sin[i];
            out[i + half] = v[i] * cos[i] + u[i] * sin[i];
        }
    }

    static constexpr int64_t kMaxHalf = 1024;
};

struct NormRopeJob {
    Pool *pool;
    const hetero_rope_args *a;

    void run_token(int64_t t) const {
        const Turn turn = {a->d, a->half, a->interleaved != 0, a->eps};
        for (int64_t head = 0; head < a->heads; head++)
            turn.apply(a->x + t * a->x_stride + head * a->d, a->weight, a->cos + t * a->half, a->sin + t * a->half,
                       a->out + (t * a->heads + head) * a->d);
    }

    static void run(void *context, int) {
        auto *job = static_cast<NormRopeJob *>(context);
        constexpr int64_t step = 8;
        for (int64_t first; (first = step * next_task(job->pool)) < job->a->n_tokens;)
            for (int64_t t = first; t < min64(first + step, job->a->n_tokens); t++) job->run_token(t);
    }
};

// Turns the new keys of a step and stores them with the values.
struct StoreJob {
    Pool *pool;
    const hetero_attention_args *a;
    const hetero_step_args *s;
    float *memory;  // d floats per worker

    void run_token(int64_t t, float *turned) const {
        const Turn turn = {a->d, s->half, s->interleaved != 0, s->eps};
        const int64_t at = a->first + t, slot = a->pages[at / a->page] * a->page + at % a->page;
        const int64_t key = kv_row_bytes(a->kv_format, a->d), value = kv_row_bytes(a->kv_format, a->e);
        uint8_t *keys = const_cast<uint8_t *>(a->k) + slot * a->groups * key;
        for (int64_t g = 0; g < a->groups; g++) {
            turn.apply(s->k + (t * a->groups + g) * a->d, s->k_norm, s->cos + t * s->half, s->sin + t * s->half, turned);
            store_row(a->kv_format, turned, a->d, keys + g * key);
        }
        uint8_t *values = const_cast<uint8_t *>(a->v) + slot * a->groups * value;
        store_rows(a->kv_format, s->v + t * a->groups * a->e, a->groups, a->e, values);
    }

    static void run(void *context, int worker) {
        auto *job = static_cast<StoreJob *>(context);
        constexpr int64_t step = 4;
        for (int64_t first; (first = step * next_task(job->pool)) < job->a->n_tokens;)
            for (int64_t t = first; t < min64(first + step, job->a->n_tokens); t++)
                job->run_token(t, job->memory + worker * job->a->d);
    }
};

// `pool` null, or little to do: on the calling thread.
inline void store_new(Pool *pool, const hetero_attention_args *a, const hetero_step_args *s, float *memory) {
    StoreJob job = {pool, a, s, memory};
    if (pool && a->n_tokens * a->groups * (a->d + a->e) > kInlineElements) return pool_run(pool, StoreJob::run, &job);
    for (int64_t t = 0; t < a->n_tokens; t++) job.run_token(t, memory);
}

inline int check_rope(const hetero_rope_args *a, Message message) {
    if (!a) return message.fail(HETERO_BAD_ARGUMENT, "norm_rope: null pointer");
    if (a->n_tokens < 0 || a->n_tokens > kMaxRows || a->heads < 1 || a->heads > 65536 || a->d < 1 || a->d > (1 << 20) ||
        a->half < 0 || a->half > Turn::kMaxHalf || 2 * a->half > a->d || a->x_stride < a->heads * a->d ||
        a->x_stride > (1 << 26))
        return message.fail(HETERO_BAD_ARGUMENT, "norm_rope: shapes out of range");
    const int64_t row = a->heads * a->d, read = a->n_tokens ? 4 * ((a->n_tokens - 1) * a->x_stride + row) : 0;
    if (a->x_bytes < size_t(read))
        return message.fail(HETERO_BAD_ARGUMENT, "x: %zu bytes given, %lld needed", a->x_bytes, (long long)read);
    const int64_t table = 4 * a->n_tokens * a->half;
    if (const int code = check_buffer("x", a->x, size_t(read), read, message)) return code;
    if (const int code = check_buffer("out", a->out, a->out_bytes, product({4, a->n_tokens, row}), message)) return code;
    if (const int code = check_optional("weight", a->weight, a->weight_bytes, 4 * a->d, message)) return code;
    if (const int code = check_buffer("cos", a->cos, a->table_bytes, table, message)) return code;
    return check_buffer("sin", a->sin, a->table_bytes, table, message);
}

}  // namespace

extern "C" {

int hetero_kv_append(int32_t kv_format, const float *values, size_t values_bytes, int64_t n_tokens, int64_t groups,
                     int64_t width, int64_t first, const int32_t *pages, int64_t n_pages, int64_t page, uint8_t *store,
                     size_t store_bytes, char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!is_kv_format(kv_format) || !pages || !store || n_tokens < 0 || groups < 1 || groups > 65536 || width < 1 ||
        width > 65536 || n_tokens > kMaxRows || first < 0 || first > kMaxRows || page < 1 || page > kMaxPage)
        return m.fail(HETERO_BAD_ARGUMENT, "kv_append: arguments out of range");
    const int64_t row = groups * kv_row_bytes(kv_format, width), total = int64_t(store_bytes) / (row * page);
    const int64_t bytes = product({4, n_tokens, groups, width});
    if (const int code = check_buffer("values", values, values_bytes, bytes, m)) return code;
    if (const int code = check_aligned("pages", pages, m)) return code;
    if (n_pages < ceil_div(first + n_tokens, page))
        return m.fail(HETERO_BAD_ARGUMENT, "kv_append: %lld pages given for %lld positions", (long long)n_pages,
                      (long long)(first + n_tokens));
    for (int64_t i = first / page; i * page < first + n_tokens; i++)
        if (pages[i] < 0 || pages[i] >= total)
            return m.fail(HETERO_BAD_ARGUMENT, "kv_append: page %d does not exist", pages[i]);
    for (int64_t t = 0; t < n_tokens; t++) {
        const int64_t at = first + t;
        const float *from = values + t * groups * width;
        store_rows(kv_format, from, groups, width, store + (pages[at / page] * page + at % page) * row);
    }
    return HETERO_OK;
}

int hetero_norm_rope(hetero_pool *pool, const hetero_rope_args *args, char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool) return m.fail(HETERO_BAD_ARGUMENT, "norm_rope: no pool");
    if (const int code = check_rope(args, m)) return code;
    NormRopeJob job = {pool, args};
    if (args->n_tokens * args->heads * args->d > kInlineElements) {
        const Locked locked(pool);
        pool_run(pool, NormRopeJob::run, &job);
    } else {
        for (int64_t t = 0; t < args->n_tokens; t++) job.run_token(t);
    }
    return HETERO_OK;
}

int hetero_linear_heads(hetero_pool *pool, const hetero_matrix *matrix, int64_t heads, const float *x, size_t x_bytes,
                        int64_t n_tokens, float *out, size_t out_bytes, char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool || n_tokens < 0 || n_tokens > kMaxRows) return m.fail(HETERO_BAD_ARGUMENT, "linear_heads needs a pool and tokens");
    if (const int code = check_matrix(matrix, m)) return code;
    if (heads < 1 || heads > 65536 || matrix->n % heads || matrix->n / heads % kRows)
        return m.fail(HETERO_BAD_ARGUMENT, "linear_heads: %lld rows do not make %lld heads of whole tiles",
                      (long long)matrix->n, (long long)heads);
    const int64_t rows = matrix->n / heads, k = matrix->k;
    if (const int code = check_buffer("x", x, x_bytes, product({4, heads, n_tokens, k}), m)) return code;
    if (const int code = check_buffer("out", out, out_bytes, product({4, heads, n_tokens, rows}), m)) return code;
    if (!n_tokens) return HETERO_OK;
    const Locked locked(pool);
    const size_t bytes = size_t(packed_bytes(matrix->format, rows, k));
    for (int64_t h = 0; h < heads; h++) {
        const hetero_matrix part = {matrix->format, rows, k, matrix->data + h * bytes, bytes};
        const hetero_matrix *parts[1] = {&part};
        float *outs[1] = {out + h * n_tokens * rows};
        if (const int code = linear(pool, parts, 1, x + h * n_tokens * k, n_tokens, nullptr, outs, m)) return code;
    }
    return HETERO_OK;
}

}  // extern "C"
