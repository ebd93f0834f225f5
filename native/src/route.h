// The router: from a token's scores to its experts and their weights.
#pragma once
#include "api.h"
#include "lanes.h"

namespace {

// Whether `a` comes before `b` in a choice; NaN comes first, as in torch.
inline bool before(float a, float b) { return a > b || (a != a && b == b); }

// Indices of the k first of n values into ids, in order; of equal ones the earlier.
inline void choose(const float *values, int64_t n, int64_t k, int32_t *ids) {
    int64_t held = 0;
    for (int64_t i = 0; i < n; i++) {
        if (held == k && !before(values[i], values[ids[k - 1]])) continue;
        int64_t at = held < k ? held++ : k - 1;
        for (; at > 0 && before(values[i], values[ids[at - 1]]); at--) ids[at] = ids[at - 1];
        ids[at] = int32_t(i);
    }
}

// out[i] = 1 / (1 + e^-x[i]); e^-|x| is used, which cannot overflow.
inline void sigmoid(const float *x, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += kLanes) {
        float v[kLanes] = {};
        const int64_t count = min64(kLanes, n - i);
        for (int64_t j = 0; j < count; j++) v[j] = -fabsf(x[i + j]);
        store(v, exp_of(load(v)));
        for (int64_t j = 0; j < count; j++) out[i + j] = (x[i + j] < 0 ? v[j] : 1.f) / (1.f + v[j]);
    }
}

inline void softmax(const float *x, int64_t n, float *out) {
    float top = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i += kLanes) {
        float v[kLanes] = {};
        const int64_t count = min64(kLanes, n - i);
        for (int64_t j = 0; j < count; j++) v[j] = x[i + j] - top;
        store(v, exp_of(load(v)));
        for (int64_t j = 0; j < count; j++) sum += out[i + j] = v[j];
    }
    for (int64_t i = 0; i < n; i++) out[i] /= sum;
}

struct RouteJob {
    Pool *pool;
    const hetero_router *r;
    const float *logits;
    int64_t n_tokens;
    int32_t *ids;
    float *weights, *memory;  // memory: 4 n_experts floats per worker

    // Minus infinity for all experts outside of the best groups; a group's score is its best, or its best two's sum.
    void close_groups(float *choice, float *scores, int32_t *chosen) const {
        const int64_t size = r->n_experts / r->n_group;
        for (int64_t g = 0; g < r->n_group; g++) {
            int32_t best[2];
            choose(choice + g * size, size, r->group_top2 ? 2 : 1, best);
            scores[g] = choice[g * size + best[0]] + (r->group_top2 ? choice[g * size + best[1]] : 0.f);
        }
        choose(scores, r->n_group, r->topk_group, chosen);
        for (int64_t g = 0; g < r->n_group; g++) {
            bool open = false;
            for (int64_t i = 0; i < r->topk_group; i++) open |= chosen[i] == g;
            for (int64_t i = 0; i < size && !open; i++) choice[g * size + i] = -INFINITY;
        }
    }

    void run_token(int64_t t, float *scores) const {
        const int64_t n = r->n_experts, k = r->top_k;
        const float *x = logits + t * n;
        float *choice = scores + n, *out = weights + t * k;
        int32_t *chosen = ids + t * k;
        if (!r->sigmoid && r->norm_topk && r->n_group == 1 && !r->bias) {  // a softmax over the best is the same
            choose(x, n, k, chosen);
            for (int64_t i = 0; i < k; i++) scores[i] = x[chosen[i]];
            softmax(scores, k, out);
        } else {
            r->sigmoid ? sigmoid(x, n, scores) : softmax(x, n, scores);
            // scores grow with the logits, but large ones are all 1 in float32
            const float *of = r->bias || r->n_group > 1 ? scores : x;
            for (int64_t i = 0; i < n; i++) choice[i] = r->bias ? of[i] + r->bias[i] : of[i];
            if (r->n_group > 1) close_groups(choice, scores + 2 * n, reinterpret_cast<int32_t *>(scores + 3 * n));
            choose(choice, n, k, chosen);
            float sum = 1e-20f;
            for (int64_t i = 0; i < k; i++) sum += out[i] = scores[chosen[i]];
            for (int64_t i = 0; i < k && r->norm_topk; i++) out[i] /= sum;
        }
        for (int64_t i = 0; i < k; i++) out[i] *= r->scaling;
    }

    static void run(void *context, int worker) {
        auto *job = static_cast<RouteJob *>(context);
        constexpr int64_t step = 16;
        for (int64_t first; (first = step * next_task(job->pool)) < job->n_tokens;)
            for (int64_t t = first; t < min64(first + step, job->n_tokens); t++)
                job->run_token(t, job->memory + worker * 4 * job->r->n_experts);
    }
};

inline int check_router(const hetero_router *r, Message message) {
    if (!r) return message.fail(HETERO_BAD_ARGUMENT, "router: null pointer");
    const int64_t e = r->n_experts;
    const bool counts = e >= 1 && e <= kMaxExperts && r->top_k >= 1 && r->top_k <= min64(e, kMaxTopK);
    if (!counts || r->n_group < 1 || r->n_group > e || e % r->n_group || r->topk_group < 1 ||
        r->topk_group > r->n_group || (r->group_top2 && r->n_group > 1 && e / r->n_group < 2))
        return message.fail(HETERO_BAD_ARGUMENT, "router: %lld of %lld experts in %lld of %lld groups",
                            (long long)r->top_k, (long long)e, (long long)r->topk_group, (long long)r->n_group);
    return check_optional("router bias", r->bias, r->bias_bytes, 4 * e, message);
}

}  // namespace

extern "C" {

int hetero_route(hetero_pool *pool, const hetero_router *router, const float *logits, size_t logits_bytes,
                 int64_t n_tokens, int32_t *ids, size_t ids_bytes, float *weights, size_t weights_bytes, char *text,
                 size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || n_tokens < 0 || n_tokens > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "route needs a pool and tokens");
    if (const int code = check_router(router, message)) return code;
    const int64_t slots = 4 * n_tokens * router->top_k, scores = 4 * n_tokens * router->n_experts;
    if (const int code = check_buffer("logits", logits, logits_bytes, scores, message)) return code;
    if (const int code = check_buffer("ids", ids, ids_bytes, slots, message)) return code;
    if (const int code = check_buffer("weights", weights, weights_bytes, slots, message)) return code;
    const Locked locked(pool);
    auto *memory = reinterpret_cast<float *>(pool_scratch(pool, size_t(16 * router->n_experts * pool->n)));
    if (!memory) return message.fail(HETERO_NO_MEMORY, "route: no memory for scratch");
    RouteJob job = {pool, router, logits, n_tokens, ids, weights, memory};
    if (n_tokens * router->n_experts > kInlineElements) {
        pool_run(pool, RouteJob::run, &job);
    } else {
        for (int64_t t = 0; t < n_tokens; t++) job.run_token(t, memory);
    }
    return HETERO_OK;
}

}  // extern "C"
