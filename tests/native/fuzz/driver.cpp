// Random calls of every function, right and wrong, from several threads that share pools: fuzz SECONDS SEED THREADS.
// Right calls must work, wrong ones must work or be refused with a sentence. Built with a tier's source and a
// sanitizer, or against a tier's library. Prints how many calls there were.
#include <pthread.h>
#include <time.h>

#include <atomic>

#include "calls_replay.h"

namespace {

struct Function {
    const char *name;
    int (ReplayCaller::*call)();
};

const Function kFunctions[] = {
    {"pack", &ReplayCaller::pack},
    {"convert", &ReplayCaller::convert},
    {"check_scales", &ReplayCaller::check_scales},
    {"join_rows", &ReplayCaller::join_rows},
    {"transpose", &ReplayCaller::transpose},
    {"awq", &ReplayCaller::awq},
    {"gather", &ReplayCaller::gather},
    {"tile", &ReplayCaller::tile},
    {"linear", &ReplayCaller::linear},
    {"heads", &ReplayCaller::heads},
    {"expert", &ReplayCaller::expert},
    {"moe", &ReplayCaller::moe},
    {"route", &ReplayCaller::route},
    {"attention", &ReplayCaller::attention},
    {"step", &ReplayCaller::step},
    {"append", &ReplayCaller::append},
    {"add", &ReplayCaller::add},
    {"gate", &ReplayCaller::gate},
    {"copy", &ReplayCaller::copy},
    {"replay", &ReplayCaller::replay},
    {"balance", &ReplayCaller::balance},
    {"place", &ReplayCaller::place},
    {"norm_rope", &ReplayCaller::norm_rope},
    {"measure_read", &ReplayCaller::measure_read},
    {"measure_fill", &ReplayCaller::measure_fill},
    {"measure_compute", &ReplayCaller::measure_compute},
    {"pools", &ReplayCaller::pools},
};
constexpr int kCount = sizeof kFunctions / sizeof *kFunctions;
constexpr int kPools = 3;  // of 1, 2 and 3 threads

hetero_pool *pools[kPools];
std::atomic<int64_t> calls{0}, refused{0};

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

[[noreturn]] void wrong(const char *name, uint64_t seed, int64_t index, int code, const char *text) {
    fprintf(stderr, "%s: code %d (%s) in call %lld of seed %llu\n", name, code, text ? text : "no text",
            (long long)index, (unsigned long long)seed);
    abort();
}

struct Thread {
    uint64_t seed;
    double until;
    int64_t limit;
    pthread_t handle;
};

// One call that depends on nothing but its seed and index.
void call_once(uint64_t seed, int64_t index) {
    Chance chance(seed * 1000003u + uint64_t(index));
    const bool spoil = chance.below(2);
    chance.begin(spoil);
    const int64_t size = chance.below(4) ? 512 : chance.below(40);
    char *const text = chance.below(8) ? reinterpret_cast<char *>(chance.room(size)) : nullptr;
    ReplayCaller caller(chance, pools[chance.below(kPools)], {text, size_t(size)});
    const Function &f = kFunctions[chance.below(kCount)];
    const int code = (caller.*f.call)();
    calls.fetch_add(1, std::memory_order_relaxed);
    const bool terminated = !text || !size || memchr(text, 0, size_t(size));
    if (code) refused.fetch_add(1, std::memory_order_relaxed);
    if (code < 0 || code > HETERO_NO_THREAD) wrong(f.name, seed, index, code, nullptr);
    if (code && !terminated) wrong(f.name, seed, index, code, "a message without end");
    if (code && !chance.changed() && !caller.refusable()) wrong(f.name, seed, index, code, size ? text : nullptr);
}

void *run(void *argument) {
    const Thread &thread = *static_cast<Thread *>(argument);
    for (int64_t i = 0; i < thread.limit && now() < thread.until; i++) call_once(thread.seed, i);
    return nullptr;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 4) return fprintf(stderr, "%s SECONDS SEED THREADS [CALLS]\n", arguments[0]), 2;
    const int n = atoi(arguments[3]);
    const int64_t limit = count > 4 ? atoll(arguments[4]) : INT64_MAX;
    const int32_t cpus[kPools] = {0, 1, 0}, nodes[kPools] = {0, 1, 3};
    for (int i = 0; i < kPools; i++)
        if (hetero_pool_create(cpus, nodes, i + 1, &pools[i], nullptr, 0)) return 1;
    std::vector<Thread> threads(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
        threads[size_t(i)] = {strtoull(arguments[2], nullptr, 10) + uint64_t(i), now() + atof(arguments[1]), limit, {}};
        pthread_create(&threads[size_t(i)].handle, nullptr, run, &threads[size_t(i)]);
    }
    for (Thread &thread : threads) pthread_join(thread.handle, nullptr);
    for (hetero_pool *pool : pools) hetero_pool_destroy(pool);
    printf("%lld calls, %lld refused\n", (long long)calls.load(), (long long)refused.load());
    return 0;
}
