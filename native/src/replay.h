// A list of calls, made one after another without leaving C: a decode step is some hundred of them, and between them Python
// would take as long as reading a megabyte.
#pragma once
#include "attention.h"
#include "elementwise.h"
#include "route.h"

namespace {

// An argument of a recorded call, which is an integer or an address.
struct Argument {
    uint64_t value;

    template <class T> operator T *() const { return reinterpret_cast<T *>(uintptr_t(value)); }
    operator int32_t() const { return int32_t(value); }
    operator int64_t() const { return int64_t(value); }
    operator size_t() const { return size_t(value); }
};

inline int call_again(hetero_pool *pool, const hetero_call &call, const Message &m) {
    Argument a[HETERO_CALL_ARGUMENTS];
    for (int i = 0; i < HETERO_CALL_ARGUMENTS; i++) a[i].value = call.arguments[i];
    char *text = m.text;
    const size_t bytes = m.bytes;
    switch (call.function) {
    case HETERO_CALL_LINEAR: return hetero_linear(pool, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], text, bytes);
    case HETERO_CALL_LINEAR_HEADS: return hetero_linear_heads(pool, a[0], a[1], a[2], a[3], a[4], a[5], a[6], text, bytes);
    case HETERO_CALL_NORM_ROPE: return hetero_norm_rope(pool, a[0], text, bytes);
    case HETERO_CALL_ATTENTION: return hetero_attention(pool, a[0], text, bytes);
    case HETERO_CALL_ATTENTION_STEP: return hetero_attention_step(pool, a[0], a[1], text, bytes);
    case HETERO_CALL_KV_APPEND:
        return hetero_kv_append(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], text, bytes);
    case HETERO_CALL_ROUTE: return hetero_route(pool, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], text, bytes);
    case HETERO_CALL_MOE:
        return hetero_moe(pool, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], text, bytes);
    case HETERO_CALL_GATHER_ROWS: return hetero_gather_rows(a[0], a[1], a[2], a[3], a[4], text, bytes);
    case HETERO_CALL_ADD: return hetero_add(pool, a[0], a[1], a[2], a[3], a[4], text, bytes);
    case HETERO_CALL_GATE: return hetero_gate(pool, a[0], a[1], a[2], a[3], a[4], a[5], text, bytes);
    case HETERO_CALL_COPY: return hetero_copy(a[0], text, bytes);
    default: return m.fail(HETERO_BAD_ARGUMENT, "replay: no function %d", call.function);
    }
}

}  // namespace

extern "C" {

int hetero_replay(hetero_pool *pool, const hetero_call *calls, int64_t n_calls, double *seconds, size_t seconds_bytes,
                  char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || !calls || n_calls < 0) return message.fail(HETERO_BAD_ARGUMENT, "replay needs a pool and calls");
    if (const int code = check_aligned("calls", calls, message)) return code;
    if (const int code = check_optional("seconds", seconds, seconds_bytes, product({8, n_calls}), message)) return code;
    for (int64_t i = 0; i < n_calls; i++) {
        const int64_t began = seconds ? now_ns() : 0;
        if (const int code = call_again(pool, calls[i], message)) return code;
        if (seconds) seconds[i] += 1e-9 * double(now_ns() - began);
    }
    return HETERO_OK;
}

}  // extern "C"
