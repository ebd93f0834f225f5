// Checks of what callers hand in: whatever the numbers, a call with memory of the lengths that it names is refused with
// a sentence or works within that memory.
#pragma once
#include <initializer_list>

#include "common.h"

namespace {

// Within these every product of two or three sizes below fits in 63 bits.
constexpr int64_t kMaxRows = int64_t(1) << 31, kMaxInputs = int64_t(1) << 24;
constexpr int64_t kMaxExperts = 65536, kMaxStride = int64_t(1) << 46, kMaxTopK = 4096;
constexpr int32_t kMaxMatrices = 65536;
constexpr int64_t kMaxReach = int64_t(1) << 40;  // floats of one array

inline int check_shape(int format, int64_t n, int64_t k, Message message) {
    if (format < 0 || format >= HETERO_FORMATS) return message.fail(HETERO_BAD_ARGUMENT, "unknown format %d", format);
    if (n < 1 || k < 1 || n > kMaxRows || k > kMaxInputs)
        return message.fail(HETERO_BAD_ARGUMENT, "a matrix of %lld x %lld is out of range", (long long)n, (long long)k);
    const FormatInfo &f = kFormats[format];
    if (f.kind != kFp8 && k % f.block_k)  // FP8's last block may be padded
        return message.fail(HETERO_BAD_ARGUMENT, "%s rows come in blocks of %d, and %lld is no multiple of that",
                            f.name, f.block_k, (long long)k);
    return HETERO_OK;
}

// The product of counts, or more than any memory holds where it would not fit.
inline int64_t product(std::initializer_list<int64_t> counts) {
    int64_t all = 1;
    for (const int64_t count : counts)
        if (__builtin_mul_overflow(all, count, &all)) return INT64_MAX;
    return all;
}

template <class T> int check_aligned(const char *what, const T *data, Message message) {
    if (reinterpret_cast<uintptr_t>(data) % alignof(T))
        return message.fail(HETERO_BAD_ARGUMENT, "%s: the address is no multiple of %zu", what, alignof(T));
    return HETERO_OK;
}

// `expected` bytes at `data`: that many, not null unless there are none, and aligned for their type.
template <class T> int check_buffer(const char *what, const T *data, size_t bytes, int64_t expected, Message message) {
    if (bytes != size_t(expected))
        return message.fail(HETERO_BAD_ARGUMENT, "%s: %zu bytes given, %lld expected", what, bytes,
                            (long long)expected);
    if (!data && expected) return message.fail(HETERO_BAD_ARGUMENT, "%s: null pointer", what);
    return check_aligned(what, data, message);
}

template <class T>
int check_optional(const char *what, const T *data, size_t bytes, int64_t expected, Message message) {
    return data ? check_buffer(what, data, bytes, expected, message) : HETERO_OK;
}

template <class T> int check_target(const char *what, const T *data, Message message) {
    return check_buffer(what, data, sizeof(T), sizeof(T), message);
}

inline int check_matrix(const hetero_matrix *m, Message message) {
    if (!m) return message.fail(HETERO_BAD_ARGUMENT, "matrix: null pointer");
    if (const int code = check_shape(m->format, m->n, m->k, message)) return code;
    return check_buffer("matrix", m->data, m->bytes, packed_bytes(m->format, m->n, m->k), message);
}

inline int check_bank_shape(const hetero_bank *b, Message message) {
    if (!b) return message.fail(HETERO_BAD_ARGUMENT, "expert bank: null pointer");
    if (const int code = check_shape(b->gate_format, b->inter, b->hidden, message)) return code;
    if (const int code = check_shape(b->up_format, b->inter, b->hidden, message)) return code;
    if (const int code = check_shape(b->down_format, b->hidden, b->inter, message)) return code;
    const int64_t down_offset =
        packed_bytes(b->gate_format, b->inter, b->hidden) + packed_bytes(b->up_format, b->inter, b->hidden);
    const int64_t used = down_offset + packed_bytes(b->down_format, b->hidden, b->inter);
    if (b->down_offset != down_offset || b->stride < used || b->stride > kMaxStride || b->n_experts < 1 ||
        b->n_experts > kMaxExperts)
        return message.fail(HETERO_BAD_ARGUMENT,
                            "expert bank: %lld experts of stride %lld, down at %lld; expected >= %lld, at %lld",
                            (long long)b->n_experts, (long long)b->stride, (long long)b->down_offset, (long long)used,
                            (long long)down_offset);
    return HETERO_OK;
}

// The parts of a bank that only products read; its shape has been checked.
inline int check_bank_values(const hetero_bank *b, Message message) {
    if (b->activation < 0 || b->activation >= HETERO_ACTIVATIONS)
        return message.fail(HETERO_BAD_ARGUMENT, "expert bank: unknown activation %d", b->activation);
    const int64_t inter = 4 * b->n_experts * b->inter, hidden = 4 * b->n_experts * b->hidden;
    if (const int code = check_optional("gate bias", b->gate_bias, b->gate_bias_bytes, inter, message)) return code;
    if (const int code = check_optional("up bias", b->up_bias, b->up_bias_bytes, inter, message)) return code;
    if (const int code = check_optional("down bias", b->down_bias, b->down_bias_bytes, hidden, message)) return code;
    return check_buffer("experts", b->data, b->bytes, b->n_experts * b->stride, message);
}

inline int check_ids(const int32_t *ids, int64_t count, int64_t n_experts, Message message) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < -1 || ids[i] >= n_experts)
            return message.fail(HETERO_BAD_ARGUMENT, "expert id %d at %lld: expected -1 to %lld", ids[i], (long long)i,
                                (long long)n_experts - 1);
    return HETERO_OK;
}

}  // namespace
