// As calls.h, for what lies between products and for lists of calls.
#pragma once
#include "calls_attention.h"

struct ReplayCaller : AttentionCaller {
    using AttentionCaller::AttentionCaller;

    int add() {
        const int64_t n = values();
        const float *a = chance.at(chance.floats(n)), *b = chance.at(chance.floats(n));
        return hetero_add(chance.or_null(pool), a, b, chance.at(chance.floats(n)), chance.bytes(4 * n), chance.count(n),
                          message.text, message.bytes);
    }

    int gate() {
        const int64_t n = values();
        const float *a = chance.at(chance.floats(n)), *b = chance.at(chance.floats(n));
        return hetero_gate(chance.or_null(pool), chance.number(int32_t(chance.below(HETERO_ACTIVATIONS))), a, b,
                           chance.at(chance.floats(n)), chance.bytes(4 * n), chance.count(n), message.text,
                           message.bytes);
    }

    int copy() {
        const hetero_copy_args a = copy_args();
        return hetero_copy(chance.or_null(&a), message.text, message.bytes);
    }

    int replay() {
        constexpr int64_t kMost = 4;
        const int64_t count = chance.between(1, kMost);
        auto *calls = reinterpret_cast<hetero_call *>(chance.room(count * int64_t(sizeof(hetero_call))));
        hetero_copy_args copies[kMost];
        for (int64_t i = 0; i < count; i++) calls[i] = chance.below(2) ? sum() : moved(&(copies[i] = copy_args()));
        if (!chance.or_null(calls)) calls[chance.below(count)].function = chance.below(2) ? -1 : HETERO_CALLS;
        double *seconds = nullptr;
        if (chance.below(2)) seconds = chance.at(reinterpret_cast<double *>(chance.room(8 * count)));
        return hetero_replay(chance.or_null(pool), chance.at(calls), chance.length(count), seconds,
                             chance.bytes(8 * count), message.text, message.bytes);
    }

    int balance() {
        const int64_t count = chance.below(6), n = chance.between(1, 8);
        return hetero_balance(chance.at(chance.floats(count * n * n)), chance.bytes(4 * count * n * n),
                              chance.count(count), chance.count(n), int32_t(chance.between(1, 20)), 1e-6f,
                              message.text, message.bytes);
    }

    int place() {
        const int64_t experts = chance.between(1, 4), n = chance.between(1, 3);
        const hetero_bank b = bank(experts, true);
        auto *nodes = reinterpret_cast<int32_t *>(chance.room(4 * n));
        for (int64_t i = 0; i < n; i++) nodes[i] = chance.number(0);
        auto *placed = reinterpret_cast<int64_t *>(chance.room(8));
        return hetero_bank_place(chance.or_null(&b), chance.at(nodes), int32_t(chance.length(n)), chance.at(placed),
                                 message.text, message.bytes);
    }

  private:
    int64_t values() { return chance.below(8) ? chance.below(100) : chance.between(16000, 40000); }

    hetero_call sum() {
        const int64_t n = values();
        float *const parts[3] = {chance.floats(n), chance.floats(n), chance.floats(n)};
        hetero_call call = {HETERO_CALL_ADD, {}};
        for (int i = 0; i < 3; i++) call.arguments[i] = reinterpret_cast<uintptr_t>(chance.at(parts[i]));
        call.arguments[3] = chance.bytes(4 * n);
        call.arguments[4] = uint64_t(chance.count(n));
        return call;
    }

    hetero_call moved(const hetero_copy_args *args) {
        hetero_call call = {HETERO_CALL_COPY, {}};
        call.arguments[0] = reinterpret_cast<uintptr_t>(chance.or_null(args));
        return call;
    }

    hetero_copy_args copy_args() {
        const int64_t n = chance.between(1, 5), m = chance.between(1, 5), width = chance.between(1, 20);
        const int64_t from_m = width + chance.below(5), from_n = m * from_m + chance.below(5);
        const int64_t to_m = width + chance.below(5), to_n = m * to_m + chance.below(5);
        const int64_t from = (n - 1) * from_n + (m - 1) * from_m + width, to = (n - 1) * to_n + (m - 1) * to_m + width;
        hetero_copy_args a = {};
        a.from = chance.at(chance.floats(from)), a.from_bytes = chance.capacity(4 * from);
        a.to = chance.at(chance.floats(to)), a.to_bytes = chance.capacity(4 * to);
        a.n = chance.count(n), a.m = chance.count(m), a.width = chance.count(width);
        a.from_n = chance.count(from_n), a.from_m = chance.count(from_m);
        a.to_n = chance.count(to_n), a.to_m = chance.count(to_m);
        return a;
    }
};
