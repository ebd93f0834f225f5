// A fork-join pool: persistent workers bound to given CPUs, the caller as worker 0. Between jobs workers watch
// the epoch word for 300 microseconds and then sleep on it in the kernel, so an idle pool costs no CPU time.
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "common.h"

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxNodes = 64;
constexpr int64_t kSpinNanoseconds = 300000;  // longer than the pauses within a decode step; 3 % of its time, measured

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

inline void futex_wait(std::atomic<uint32_t> *word, uint32_t seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t> *word, int count) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Waits until *word differs from `seen`: spinning first (for `spin_ns`), then asleep.
inline void wait_change(std::atomic<uint32_t> *word, uint32_t seen, std::atomic<uint32_t> *sleepers, int64_t spin_ns) {
    if (spin_ns > 0) {
        const int64_t limit = now_ns() + spin_ns;
        do {
            for (int i = 0; i < 32; i++) {
                if (word->load(std::memory_order_acquire) != seen) return;
                cpu_relax();
            }
        } while (now_ns() < limit);
    }
    sleepers->fetch_add(1);
    while (word->load() == seen) futex_wait(word, seen);
    sleepers->fetch_sub(1);
}

using Task = void (*)(void *context, int worker);

}  // namespace

struct hetero_pool {
    struct alignas(128) Line {
        std::atomic<uint32_t> value{0};
    };
    struct alignas(128) Counter {
        std::atomic<int64_t> value{0};
    };
    Line epoch, sleeping_workers, finished, sleeping_caller;
    Counter counters[kMaxNodes];  // of tasks begun; the first where tasks belong to no node
    Task task = nullptr;
    void *context = nullptr;
    bool stop = false;
    int n = 1;
    int64_t spin_ns = 0;
    bool deterministic = false;  // one kernel per format, whatever the number of tokens
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // one caller at a time
    pthread_t threads[kMaxThreads];
    int32_t cpus[kMaxThreads];
    int32_t nodes[kMaxThreads] = {};  // of each worker
    int32_t n_nodes = 1;
    uint8_t *scratch = nullptr;
    size_t scratch_bytes = 0;
};

namespace {

using Pool = hetero_pool;

struct WorkerStart {
    Pool *pool;
    int worker;
};

inline void *worker_main(void *argument) {
    const WorkerStart start = *static_cast<WorkerStart *>(argument);
    delete static_cast<WorkerStart *>(argument);
    Pool *pool = start.pool;
    uint32_t seen = 0;
    for (;;) {
        wait_change(&pool->epoch.value, seen, &pool->sleeping_workers.value, pool->spin_ns);
        seen++;
        if (pool->stop) return nullptr;
        pool->task(pool->context, start.worker);
        if (pool->finished.value.fetch_add(1) + 1 == uint32_t(pool->n - 1) && pool->sleeping_caller.value.load())
            futex_wake(&pool->finished.value, 1);
    }
}

// Moves the calling thread to its CPU if it sits on a worker's, and leaves it free to move again: the worker
// could not run there before the scheduler noticed, which takes milliseconds.
inline void leave_workers_cpu(const Pool *pool) {
    const int here = sched_getcpu();
    if (here < 0 || here == pool->cpus[0]) return;
    for (int i = 1; i < pool->n; i++) {
        if (pool->cpus[i] != here) continue;
        cpu_set_t old, one;
        if (pool->cpus[0] < 0 || pool->cpus[0] >= CPU_SETSIZE || sched_getaffinity(0, sizeof old, &old)) return;
        CPU_ZERO(&one);
        CPU_SET(pool->cpus[0], &one);
        if (!sched_setaffinity(0, sizeof one, &one)) sched_setaffinity(0, sizeof old, &old);
        return;
    }
}

inline void wait_finished(Pool *pool) {
    const uint32_t all = uint32_t(pool->n - 1);
    const int64_t limit = pool->spin_ns ? now_ns() + pool->spin_ns : 0;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (pool->finished.value.load(std::memory_order_acquire) == all) return;
            cpu_relax();
        }
        if (now_ns() < limit) continue;
        pool->sleeping_caller.value.store(1);
        const uint32_t done = pool->finished.value.load();
        if (done != all) futex_wait(&pool->finished.value, done);
        pool->sleeping_caller.value.store(0);
    }
}

// Runs task(context, worker) on every worker and returns when all are done.
inline void pool_run(Pool *pool, Task task, void *context) {
    for (int i = 0; i < pool->n_nodes; i++) pool->counters[i].value.store(0, std::memory_order_relaxed);
    if (pool->n > 1) {
        leave_workers_cpu(pool);
        pool->task = task;
        pool->context = context;
        pool->finished.value.store(0, std::memory_order_relaxed);
        pool->epoch.value.fetch_add(1);
        if (pool->sleeping_workers.value.load()) futex_wake(&pool->epoch.value, pool->n);
    }
    task(context, 0);
    if (pool->n > 1) wait_finished(pool);
}

// The next one of the tasks; beyond the last one when none is left.
inline int64_t next_task(Pool *pool) { return pool->counters[0].value.fetch_add(1, std::memory_order_relaxed); }

// The next run [begin, end) of `all` equal tasks of a node: long ones first, then shorter ones, so that neighbours in
// memory stay together and yet a worker that woke late or was held up leaves its share to the others.
inline bool next_run(Pool *pool, int64_t all, int64_t longest, int64_t *begin, int64_t *end, int node = 0) {
    const int64_t workers = ceil_div(pool->n, pool->n_nodes), smallest = 1 + all / (32 * workers);
    std::atomic<int64_t> &counter = pool->counters[node].value;
    int64_t at = counter.load(std::memory_order_relaxed), size;
    do {
        if (at >= all) return false;
        size = min64(min64(longest, all - at), max64(smallest, (all - at) * 3 / (4 * workers)));
    } while (!counter.compare_exchange_weak(at, at + size, std::memory_order_relaxed));
    *begin = at;
    *end = at + size;
    return true;
}

// A node's part of `all` rows or tiles: those whose memory lies there.
struct NodePart {
    int64_t first, count;
};

inline NodePart node_part(int64_t all, int node, int n_nodes) {
    const int64_t first = all * node / n_nodes;
    return {first, all * (node + 1) / n_nodes - first};
}

// Calls body(part, node) for a worker's own node, then for the others, whose workers may be late.
template <class Body> void each_node(const Pool *pool, int64_t all, int worker, const Body &body) {
    for (int i = 0; i < pool->n_nodes; i++) {
        const int node = (pool->nodes[worker] + i) % pool->n_nodes;
        const NodePart part = node_part(all, node, pool->n_nodes);
        if (part.count) body(part, node);
    }
}

inline void pool_destroy(Pool *pool) {
    pool->stop = true;
    pool->epoch.value.fetch_add(1);
    futex_wake(&pool->epoch.value, pool->n);
    for (int i = 1; i < pool->n; i++) pthread_join(pool->threads[i], nullptr);
    free(pool->scratch);
    pool->~Pool();
    free(pool);
}

inline int start_worker(Pool *pool, int worker) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    const int cpu = pool->cpus[worker];
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
    }
    auto *start = new (std::nothrow) WorkerStart{pool, worker};
    int failed = start ? pthread_create(&pool->threads[worker], &attributes, worker_main, start) : ENOMEM;
    if (failed == EINVAL) {  // the CPU is outside of what this process may use: run unbound
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        failed = pthread_create(&pool->threads[worker], &attributes, worker_main, start);
    }
    pthread_attr_destroy(&attributes);
    if (failed) delete start;
    return failed;
}

inline int pool_create(const int32_t *cpus, const int32_t *nodes, int32_t n, Pool **out, Message message) {
    if (!cpus || !out || n < 1 || n > kMaxThreads || reinterpret_cast<uintptr_t>(cpus) % alignof(int32_t))
        return message.fail(HETERO_BAD_ARGUMENT, "a pool needs 1 to %d CPUs, not %d", kMaxThreads, n);
    if (reinterpret_cast<uintptr_t>(nodes) % alignof(int32_t))
        return message.fail(HETERO_BAD_ARGUMENT, "nodes: the address is no multiple of %zu", alignof(int32_t));
    for (int32_t i = 0; nodes && i < n; i++)
        if (nodes[i] < 0 || nodes[i] >= kMaxNodes)
            return message.fail(HETERO_BAD_ARGUMENT, "node %d of worker %d: expected 0 to %d", nodes[i], i,
                                kMaxNodes - 1);
    void *memory = nullptr;
    if (posix_memalign(&memory, alignof(Pool), sizeof(Pool)))
        return message.fail(HETERO_NO_MEMORY, "no memory for a thread pool");
    Pool *pool = new (memory) Pool;
    memcpy(pool->cpus, cpus, size_t(n) * sizeof(int32_t));
    for (int32_t i = 0; nodes && i < n; i++) {
        pool->nodes[i] = nodes[i];
        if (nodes[i] >= pool->n_nodes) pool->n_nodes = nodes[i] + 1;
    }
    const char *pinned = getenv("HETERO_DETERMINISTIC");
    pool->deterministic = pinned && *pinned && strcmp(pinned, "0");
    cpu_set_t allowed;
    const bool roomy = !sched_getaffinity(0, sizeof allowed, &allowed) && n <= CPU_COUNT(&allowed);
    pool->spin_ns = roomy ? kSpinNanoseconds : 0;  // with more threads than CPUs, spinning takes time from the work
    for (int i = 1; i < n; i++) {
        pool->n = i;
        if (const int failed = start_worker(pool, i)) {
            pool_destroy(pool);
            return message.fail(HETERO_NO_THREAD, "cannot start worker thread %d of %d: %s", i, n, strerror(failed));
        }
    }
    pool->n = n;
    *out = pool;
    return HETERO_OK;
}

// The pool's scratch memory, at least `bytes` long and 64-byte aligned; null when there is no memory. It grows only.
inline uint8_t *pool_scratch(Pool *pool, size_t bytes) {
    if (bytes <= pool->scratch_bytes) return pool->scratch;
    free(pool->scratch);
    pool->scratch_bytes = 0;
    void *memory = nullptr;
    pool->scratch = posix_memalign(&memory, 4096, bytes) ? nullptr : static_cast<uint8_t *>(memory);
    if (pool->scratch) pool->scratch_bytes = bytes;
    return pool->scratch;
}

}  // namespace
