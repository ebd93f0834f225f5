// Attention of a few tokens over a paged KV cache, and the norm and rotation before it: the dense steps of a decode
// that would otherwise spend their time in the overhead of many small torch operations.
#pragma once
#include "api.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions of this file only

namespace {

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8v __attribute__((vector_size(32)));

constexpr int kHeadsAtOnce = 8;   // query heads that share one pass over a page of keys
constexpr int kMaxPage = 1024;

inline f8 load8(const float *p) {
    f8 v;
    memcpy(&v, p, 32);
    return v;
}

inline void store8(float *p, f8 v) { memcpy(p, &v, 32); }
inline f8 splat(float v) { return f8{v, v, v, v, v, v, v, v}; }

// Sum of the lanes in a fixed order.
inline float lanes_sum(f8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// e^x for x <= 0 (Cephes' polynomial, about 1 ulp); NaN stays NaN, below -87 it is 0.
inline f8 exp8(f8 x) {
    const f8 magic = splat(12582912.0f);
    f8 n = x * 1.44269504088896341f + magic;
    n = n - magic;
    const f8 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    f8 p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const i8v shift = (__builtin_convertvector(n < -126.0f ? splat(-126.0f) : n, i8v) + 127) << 23;
    f8 scale;
    memcpy(&scale, &shift, 32);
    return x < -87.0f ? splat(0.0f) : p * scale;
}

// One stored row of `n` values to float32.
inline void widen(int format, const uint8_t *row, int64_t n, float *out) {
    if (format == HETERO_F32) {
        memcpy(out, row, size_t(n) * 4);
    } else if (format == HETERO_BF16) {
        for (int64_t i = 0; i < n; i++) out[i] = bf16_to_float(load16(row + 2 * i));
    } else {
        int64_t i = 0;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(row + 2 * i))));
#endif
        for (; i < n; i++) out[i] = half_to_float(load16(row + 2 * i));
    }
}

inline void narrow(int format, const float *values, int64_t n, uint8_t *row) {
    if (format == HETERO_F32) {
        memcpy(row, values, size_t(n) * 4);
    } else {
        for (int64_t i = 0; i < n; i++)
            store16(row + 2 * i, format == HETERO_BF16 ? float_to_bf16(values[i]) : float_to_half(values[i]));
    }
}

inline float dot(const float *a, const float *b, int64_t n) {
    f8 s0 = splat(0), s1 = splat(0);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s0 += load8(a + i) * load8(b + i);
        s1 += load8(a + i + 8) * load8(b + i + 8);
    }
    for (; i + 8 <= n; i += 8) s0 += load8(a + i) * load8(b + i);
    float sum = lanes_sum(s0 + s1);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// acc[0..n) += sum over j of p[j] * rows[j * stride ..], four vectors of the accumulator in registers at a time.
inline void add_weighted(float *acc, const float *p, const float *rows, int64_t stride, int64_t count, int64_t n) {
    int64_t c = 0;
    for (; c + 32 <= n; c += 32) {
        f8 a0 = load8(acc + c), a1 = load8(acc + c + 8), a2 = load8(acc + c + 16), a3 = load8(acc + c + 24);
        for (int64_t j = 0; j < count; j++) {
            const float *row = rows + j * stride + c;
            a0 += load8(row) * p[j], a1 += load8(row + 8) * p[j];
            a2 += load8(row + 16) * p[j], a3 += load8(row + 24) * p[j];
        }
        store8(acc + c, a0), store8(acc + c + 8, a1), store8(acc + c + 16, a2), store8(acc + c + 24, a3);
    }
    for (; c < n; c++)
        for (int64_t j = 0; j < count; j++) acc[c] += rows[j * stride + c] * p[j];
}

// The first position that a query at `position` sees: its window and its chunk cut off what lies before.
inline int64_t first_visible(const hetero_attention_args *a, int64_t position) {
    const int64_t in_window = a->window ? max64(0, position - a->window + 1) : 0;
    return a->chunk ? max64(in_window, position / a->chunk * a->chunk) : in_window;
}

struct AttentionJob {
    Pool *pool;
    const hetero_attention_args *a;
    int64_t head_chunks;
    float *scratch;
    int64_t scratch_floats;  // per worker

    // The chunk of query heads [r0, r0 + heads) of group g for token t: online softmax, page by page in order.
    void run_heads(int64_t t, int64_t g, int64_t r0, int heads, float *memory) const {
        const int64_t per_group = a->heads / a->groups, first_head = g * per_group + r0;
        float *q = memory, *acc = q + kHeadsAtOnce * a->d, *scores = acc + kHeadsAtOnce * a->e;
        float *keys = scores + kHeadsAtOnce * a->page, *values = a->v ? keys + a->page * a->d : keys;
        float top[kHeadsAtOnce], sum[kHeadsAtOnce];
        for (int r = 0; r < heads; r++) {
            top[r] = a->sinks ? a->sinks[first_head + r] : -INFINITY;
            sum[r] = a->sinks ? 1 : 0;
            const float *source = a->q + (t * a->heads + first_head + r) * a->d;
            for (int64_t i = 0; i < a->d; i++) q[r * a->d + i] = source[i] * a->scale;
        }
        memset(acc, 0, size_t(heads) * a->e * 4);
        const int64_t length = a->first + t + 1;
        for (int64_t start = first_visible(a, length - 1), count; start < length; start += count) {
            count = min64(a->page - start % a->page, length - start);
            load_page(a->k, a->d, start, count, g, keys);
            if (a->v) load_page(a->v, a->e, start, count, g, values);
            for (int r = 0; r < heads; r++)
                attend_page(q + r * a->d, keys, values, count, scores, acc + r * a->e, top[r], sum[r]);
        }
        for (int r = 0; r < heads; r++) {
            float *out = a->out + (t * a->heads + first_head + r) * a->e;
            for (int64_t i = 0; i < a->e; i++) out[i] = acc[r * a->e + i] / sum[r];
        }
    }

    void load_page(const uint8_t *store, int64_t width, int64_t start, int64_t count, int64_t g, float *to) const {
        const int64_t size = a->kv_format == HETERO_F32 ? 4 : 2;
        const int64_t slot = a->pages[start / a->page] * a->page + start % a->page;
        for (int64_t j = 0; j < count; j++)
            widen(a->kv_format, store + ((slot + j) * a->groups + g) * width * size, width, to + j * width);
    }

    void attend_page(const float *q, const float *keys, const float *values, int64_t count, float *scores, float *acc,
                     float &top, float &sum) const {
        float best = top;
        for (int64_t j = 0; j < count; j++) {
            scores[j] = dot(q, keys + j * a->d, a->d);
            best = scores[j] > best ? scores[j] : best;
        }
        const int64_t padded = round_up(count, 8);
        for (int64_t j = count; j < padded; j++) scores[j] = -INFINITY;
        const float fix = top == best ? 1.0f : exp8(splat(top - best))[0];
        f8 total = splat(0);
        for (int64_t j = 0; j < padded; j += 8) {
            const f8 p = exp8(load8(scores + j) - best);
            store8(scores + j, p);
            total += p;
        }
        sum = sum * fix + lanes_sum(total);
        if (fix != 1.0f)
            for (int64_t i = 0; i < a->e; i++) acc[i] *= fix;
        add_weighted(acc, scores, values, a->v ? a->e : a->d, count, a->e);
        top = best;
    }

    static void run(void *context, int worker) {
        auto *job = static_cast<AttentionJob *>(context);
        const hetero_attention_args *a = job->a;
        const int64_t per_group = a->heads / a->groups, total = a->n_tokens * a->groups * job->head_chunks;
        float *memory = job->scratch + worker * job->scratch_floats;
        for (int64_t i; (i = next_task(job->pool)) < total;) {
            const int64_t chunk = i % job->head_chunks, g = i / job->head_chunks % a->groups;
            const int64_t t = i / job->head_chunks / a->groups, r0 = chunk * kHeadsAtOnce;
            job->run_heads(t, g, r0, int(min64(kHeadsAtOnce, per_group - r0)), memory);
        }
    }
};

inline int64_t worker_floats(const hetero_attention_args *a) {
    return round_up(kHeadsAtOnce * (a->d + a->e + a->page) + a->page * (a->d + (a->v ? a->e : 0)), 16);
}

// Bytes of scratch for all workers and `more` floats before them.
inline size_t attention_scratch(const hetero_attention_args *a, const Pool *pool, int64_t more) {
    return size_t(worker_floats(a) * pool->n + more) * 4;
}

inline void run_attention(Pool *pool, const hetero_attention_args *a, float *scratch) {
    AttentionJob job = {pool, a, ceil_div(a->heads / a->groups, kHeadsAtOnce), scratch, worker_floats(a)};
    pool_run(pool, AttentionJob::run, &job);
}

inline int check_attention(const hetero_attention_args *a, Message message) {
    if (!a || !a->pages) return message.fail(HETERO_BAD_ARGUMENT, "attention: null pointer");
    if (a->kv_format < 0 || a->kv_format > HETERO_BF16)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: KV format %d is not F32, F16 or BF16", a->kv_format);
    if (a->n_tokens < 0 || a->n_tokens > kMaxRows || a->first < 0 || a->first > kMaxRows || a->heads < 1 ||
        a->groups < 1 || a->heads > 65536 || a->heads % a->groups || a->d < 1 || a->e < 1 || a->d > 65536 ||
        a->e > 65536 || a->page < 8 || a->page > kMaxPage || a->page % 8 || (!a->v && a->e > a->d) || a->window < 0 ||
        a->window > kMaxRows || a->chunk < 0 || a->chunk > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: shapes out of range");
    if (a->n_slots < 0 || a->n_slots > kMaxRows || a->n_slots % a->page)
        return message.fail(HETERO_BAD_ARGUMENT, "attention: %lld slots in pages of %lld", (long long)a->n_slots,
                            (long long)a->page);
    const int64_t size = a->kv_format == HETERO_F32 ? 4 : 2, queries = product({4, a->n_tokens, a->heads});
    const int64_t slots = product({size, a->n_slots, a->groups}), k_bytes = product({slots, a->d});
    if (const int code = check_buffer("keys", a->k, a->k_bytes, k_bytes, message)) return code;
    if (const int code = check_optional("values", a->v, a->v_bytes, product({slots, a->e}), message)) return code;
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

struct NormRopeJob {
    Pool *pool;
    const hetero_rope_args *a;

    void run_head(int64_t t, int64_t head) const {
        const float *x = a->x + t * a->x_stride + head * a->d;
        float *out = a->out + (t * a->heads + head) * a->d;
        float scale = 1;
        if (a->weight) scale = 1.0f / sqrtf(dot(x, x, a->d) / float(a->d) + a->eps);
        const float *c = a->cos + t * a->half, *s = a->sin + t * a->half;
        for (int64_t i = 0; i < a->d; i++) out[i] = a->weight ? x[i] * scale * a->weight[i] : x[i];
        if (!a->half) return;
        float turned[2 * 1024];
        memcpy(turned, out, size_t(a->half) * 8);
        for (int64_t i = 0; i < a->half; i++) {
            const float u = a->interleaved ? turned[2 * i] : turned[i];
            const float v = a->interleaved ? turned[2 * i + 1] : turned[i + a->half];
            out[i] = u * c[i] - v * s[i];
            out[i + a->half] = v * c[i] + u * s[i];
        }
    }

    static void run(void *context, int) {
        auto *job = static_cast<NormRopeJob *>(context);
        for (int64_t t; (t = next_task(job->pool)) < job->a->n_tokens;)
            for (int64_t head = 0; head < job->a->heads; head++) job->run_head(t, head);
    }
};

// The part of a step's arguments that plain attention does not have; a has been checked.
inline int check_step(const hetero_attention_args *a, const hetero_step_args *s, Message message) {
    if (!a->v || s->half < 0 || s->half > 1024 || 2 * s->half > a->d)
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

// Turns the new keys and stores them with the values; `turned` holds one token's keys.
inline void store_new(const hetero_attention_args *a, const hetero_step_args *s, float *turned) {
    const hetero_rope_args keys = {a->n_tokens, a->groups, a->d, s->half, a->groups * a->d, s->interleaved, s->eps,
                                   s->k, 0, s->k_norm, 0, s->cos, s->sin, 0, turned, 0};
    const NormRopeJob job = {nullptr, &keys};
    for (int64_t head = 0; head < a->n_tokens * a->groups; head++) job.run_head(head / a->groups, head % a->groups);
    const int64_t size = a->kv_format == HETERO_F32 ? 4 : 2;
    for (int64_t t = 0; t < a->n_tokens; t++) {
        const int64_t at = a->first + t, slot = a->pages[at / a->page] * a->page + at % a->page;
        const int64_t k_row = a->groups * a->d, v_row = a->groups * a->e;
        narrow(a->kv_format, turned + t * k_row, k_row, const_cast<uint8_t *>(a->k) + slot * k_row * size);
        narrow(a->kv_format, s->v + t * v_row, v_row, const_cast<uint8_t *>(a->v) + slot * v_row * size);
    }
}

inline void turn_queries(const hetero_attention_args *a, const hetero_step_args *s) {
    const hetero_rope_args queries = {a->n_tokens, a->heads, a->d, s->half, a->heads * a->d, s->interleaved, s->eps,
                                      s->q, 0, s->q_norm, 0, s->cos, s->sin, 0, const_cast<float *>(a->q), 0};
    const NormRopeJob job = {nullptr, &queries};
    for (int64_t head = 0; head < a->n_tokens * a->heads; head++) job.run_head(head / a->heads, head % a->heads);
}

inline int check_rope(const hetero_rope_args *a, Message message) {
    if (!a) return message.fail(HETERO_BAD_ARGUMENT, "norm_rope: null pointer");
    if (a->n_tokens < 0 || a->n_tokens > kMaxRows || a->heads < 1 || a->heads > 65536 || a->d < 1 || a->d > (1 << 20) ||
        a->half < 0 || a->half > 1024 || 2 * a->half > a->d || a->x_stride < a->heads * a->d || a->x_stride > (1 << 26))
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

int hetero_attention(hetero_pool *pool, const hetero_attention_args *args, char *message,
                                   size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool) return m.fail(HETERO_BAD_ARGUMENT, "attention: no pool");
    if (const int code = check_attention(args, m)) return code;
    if (!args->n_tokens) return HETERO_OK;
    const Locked locked(pool);
    auto *scratch = reinterpret_cast<float *>(pool_scratch(pool, attention_scratch(args, pool, 0)));
    if (!scratch) return m.fail(HETERO_NO_MEMORY, "attention: no memory for scratch");
    run_attention(pool, args, scratch);
    return HETERO_OK;
}

int hetero_attention_step(hetero_pool *pool, const hetero_attention_args *args, const hetero_step_args *step,
                          char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool || !args || !step) return m.fail(HETERO_BAD_ARGUMENT, "attention step: null pointer");
    hetero_attention_args turned = *args;
    turned.q = step->q;
    turned.q_bytes = step->q_bytes;
    if (const int code = check_attention(&turned, m)) return code;
    if (const int code = check_step(args, step, m)) return code;
    if (!args->n_tokens) return HETERO_OK;
    const int64_t q_floats = round_up(args->n_tokens * args->heads * args->d, 16);
    const int64_t k_floats = round_up(args->n_tokens * args->groups * args->d, 16);
    const Locked locked(pool);
    auto *scratch = reinterpret_cast<float *>(pool_scratch(pool, attention_scratch(args, pool, q_floats + k_floats)));
    if (!scratch) return m.fail(HETERO_NO_MEMORY, "attention: no memory for scratch");
    turned.q = scratch;
    turn_queries(&turned, step);
    store_new(args, step, scratch + q_floats);
    run_attention(pool, &turned, scratch + q_floats + k_floats);
    return HETERO_OK;
}

int hetero_kv_append(int32_t kv_format, const float *values, size_t values_bytes, int64_t n_tokens,
                                   int64_t width, int64_t first, const int32_t *pages, int64_t n_pages, int64_t page,
                                   uint8_t *store, size_t store_bytes, char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (kv_format < 0 || kv_format > HETERO_BF16 || !pages || !store || n_tokens < 0 || width < 1 || width > (1 << 26) ||
        n_tokens > kMaxRows || first < 0 || first > kMaxRows || page < 1 || page > kMaxPage)
        return m.fail(HETERO_BAD_ARGUMENT, "kv_append: arguments out of range");
    const int64_t row = width * (kv_format == HETERO_F32 ? 4 : 2), total = int64_t(store_bytes) / (row * page);
    if (const int code = check_buffer("values", values, values_bytes, 4 * n_tokens * width, m)) return code;
    if (const int code = check_aligned("pages", pages, m)) return code;
    if (n_pages < ceil_div(first + n_tokens, page))
        return m.fail(HETERO_BAD_ARGUMENT, "kv_append: %lld pages given for %lld positions", (long long)n_pages,
                      (long long)(first + n_tokens));
    for (int64_t t = 0; t < n_tokens; t++) {
        const int64_t at = first + t, number = pages[at / page];
        if (number < 0 || number >= total) return m.fail(HETERO_BAD_ARGUMENT, "kv_append: page %lld does not exist", (long long)number);
        narrow(kv_format, values + t * width, width, store + (number * page + at % page) * row);
    }
    return HETERO_OK;
}

int hetero_norm_rope(hetero_pool *pool, const hetero_rope_args *args, char *message,
                                   size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool) return m.fail(HETERO_BAD_ARGUMENT, "norm_rope: no pool");
    if (const int code = check_rope(args, m)) return code;
    NormRopeJob job = {pool, args};
    if (args->n_tokens * args->heads * args->d > kInlineElements) {
        const Locked locked(pool);
        pool_run(pool, NormRopeJob::run, &job);
    } else {
        for (int64_t t = 0; t < args->n_tokens; t++)
            for (int64_t head = 0; head < args->heads; head++) job.run_head(t, head);
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
