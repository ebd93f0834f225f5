// Measures what memory and the arithmetic units give, in the way that the kernels use them, and tries AMX. No model
// needs any of this: it feeds the estimates.
#pragma once
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "api.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kStripBytes = 1 << 20;  // read by one worker at a stretch
constexpr int64_t kAhead = 4096;         // bytes ahead that memory is asked for, as in the kernels

// A value that depends on all of `bytes` (a multiple of 128), so that no load can be left out.
inline uint64_t read_all(const uint8_t *p, int64_t bytes) {
    typedef uint64_t Vector __attribute__((vector_size(32)));
    // Loaded in place: gcc copies an array of vectors through the stack, at half of memory's speed.
    typedef uint64_t Loose __attribute__((vector_size(32), aligned(1), may_alias));
    Vector sum[4] = {};
    for (int64_t i = 0; i < bytes; i += sizeof sum) {
        __builtin_prefetch(p + i + kAhead);
        __builtin_prefetch(p + i + kAhead + 64);
        const Loose *v = reinterpret_cast<const Loose *>(p + i);
        for (int j = 0; j < 4; j++) sum[j] ^= v[j];
    }
    const Vector all = (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]);
    return (all[0] ^ all[1]) ^ (all[2] ^ all[3]);
}

struct ReadJob {
    Pool *pool;
    const uint8_t *data;
    const int64_t *offsets;
    int64_t pieces, piece;
    std::atomic<uint64_t> sink;

    static void run(void *context, int) {
        auto *job = static_cast<ReadJob *>(context);
        const int64_t strips = ceil_div(job->piece, kStripBytes), all = job->pieces * strips;
        uint64_t sum = 0;
        for (int64_t begin, end; next_run(job->pool, all, all, &begin, &end);)
            for (int64_t i = begin; i < end; i++) {
                const int64_t from = i % strips * kStripBytes;
                sum ^= read_all(job->data + job->offsets[i / strips] + from, min64(kStripBytes, job->piece - from));
            }
        job->sink.fetch_xor(sum);
    }
};

struct FillJob {
    Pool *pool;
    uint8_t *data;
    size_t bytes;

    static void run(void *context, int worker) {
        const auto *job = static_cast<FillJob *>(context);
        const size_t n = size_t(job->pool->n), from = job->bytes / n * size_t(worker);
        memset(job->data + from, 0x5a, size_t(worker) + 1 == n ? job->bytes - from : job->bytes / n);
    }
};

// Multiply-adds of integers in registers, in the ways that kernels make them: INT8 adds up products of int8 in int32,
// MADDUBS in int16 (the most that the unit gives; sums need widening), MADD products of int16 in int32.
#if defined(__AVX2__)
#if defined(__AVX512BW__)
typedef __m512i Ints;
#define HETERO_WIDE(name) _mm512_##name
#else
typedef __m256i Ints;
#define HETERO_WIDE(name) _mm256_##name
#endif

template <int Kind> inline Ints multiply_add(Ints sum, Ints w, Ints a) {
    if (Kind == HETERO_MEASURE_MADD) return HETERO_WIDE(add_epi32)(sum, HETERO_WIDE(madd_epi16)(w, a));
    if (Kind == HETERO_MEASURE_MADDUBS) return HETERO_WIDE(add_epi16)(sum, HETERO_WIDE(maddubs_epi16)(w, a));
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return _mm512_dpbusd_epi32(sum, w, a);
#else
    const Ints ones = HETERO_WIDE(set1_epi16)(1);
    return HETERO_WIDE(add_epi32)(sum, HETERO_WIDE(madd_epi16)(HETERO_WIDE(maddubs_epi16)(w, a), ones));
#endif
}

constexpr int kIntChains = 8;  // sums that do not wait for one another; more would spill

template <int Kind> int64_t integer_rounds(int64_t rounds) {
    Ints sum[kIntChains], w = HETERO_WIDE(set1_epi8)(7);
    const Ints a = HETERO_WIDE(set1_epi8)(3);
    for (int j = 0; j < kIntChains; j++) sum[j] = HETERO_WIDE(set1_epi32)(j);
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < kIntChains; j++) {
            asm("" : "+v"(w));  // else the product would be computed once
            sum[j] = multiply_add<Kind>(sum[j], w, a);
        }
    for (int j = 1; j < kIntChains; j++) sum[0] = HETERO_WIDE(add_epi32)(sum[0], sum[j]);
    int64_t out;
    memcpy(&out, &sum[0], sizeof out);
    return out;
}

constexpr int64_t integers_per_round(int32_t kind) {
    return kIntChains * int64_t(sizeof(Ints)) / (kind == HETERO_MEASURE_MADD ? 2 : 1);
}
#else
constexpr int64_t kInt8PerRound = 256;

template <int Kind> int64_t integer_rounds(int64_t rounds) {
    int8_t w[kInt8PerRound], a[kInt8PerRound];
    memset(w, 7, sizeof w);
    memset(a, 3, sizeof a);
    int32_t sum = 0;
    for (int64_t i = 0; i < rounds; i++) {
        asm("" : : "r"(w), "r"(a) : "memory");
        for (int j = 0; j < kInt8PerRound; j++) sum += int32_t(w[j]) * int32_t(a[j]);
    }
    return sum;
}

constexpr int64_t integers_per_round(int32_t) { return kInt8PerRound; }
#endif

// Each round multiplies and adds kFloatsPerRound float32 in registers.
#if defined(__AVX2__)
#if defined(__AVX512BW__)
typedef __m512 Singles;
#else
typedef __m256 Singles;
#endif
constexpr int kFloatChains = 12;
constexpr int64_t kFloatsPerRound = kFloatChains * int64_t(sizeof(Singles)) / 4;

inline float float_rounds(int64_t rounds) {
    Singles sum[kFloatChains];
    for (int j = 0; j < kFloatChains; j++) sum[j] = HETERO_WIDE(set1_ps)(float(j));
    const Singles w = HETERO_WIDE(set1_ps)(0.999f), a = HETERO_WIDE(set1_ps)(0.001f);
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < kFloatChains; j++) sum[j] = HETERO_WIDE(fmadd_ps)(sum[j], w, a);
    for (int j = 1; j < kFloatChains; j++) sum[0] = HETERO_WIDE(add_ps)(sum[0], sum[j]);
    float out;
    memcpy(&out, &sum[0], sizeof out);
    return out;
}
#else
constexpr int64_t kFloatsPerRound = 8 * 4;

inline float float_rounds(int64_t rounds) {
    typedef float Quad4 __attribute__((vector_size(16)));
    Quad4 sum[8];
    for (int j = 0; j < 8; j++) sum[j] = Quad4{} + float(j);
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < 8; j++) sum[j] = sum[j] * 0.999f + 0.001f;
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    return sum[0][0];
}
#endif

struct ComputeJob {
    int32_t kind;
    int64_t rounds;
    std::atomic<int64_t> sink;

    static void run(void *context, int) {
        auto *job = static_cast<ComputeJob *>(context);
        job->sink.fetch_add(rounds_of(job->kind, job->rounds));
    }

    static int64_t rounds_of(int32_t kind, int64_t rounds) {
        if (kind == HETERO_MEASURE_INT8) return integer_rounds<HETERO_MEASURE_INT8>(rounds);
        if (kind == HETERO_MEASURE_MADDUBS) return integer_rounds<HETERO_MEASURE_MADDUBS>(rounds);
        if (kind == HETERO_MEASURE_MADD) return integer_rounds<HETERO_MEASURE_MADD>(rounds);
        return int64_t(float_rounds(rounds));
    }
};

#if defined(__x86_64__)
// The first use of tiles: loads a configuration of palette 1, clears a tile and releases them. By bytes, so that no
// assembler needs to know them.
inline void touch_tiles() {
    alignas(64) uint8_t config[64] = {1};
    config[16] = 64;  // tile 0: bytes of a row
    config[48] = 16;  // and rows
    asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00\n\t"  // ldtilecfg [rax]
                 ".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0\n\t"  // tilezero tmm0
                 ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0"      // tilerelease
                 :
                 : "a"(config)
                 : "memory");
}
#endif

}  // namespace

extern "C" {

int hetero_measure_fill(hetero_pool *pool, uint8_t *data, size_t data_bytes, char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool || !data) return m.fail(HETERO_BAD_ARGUMENT, "measure_fill needs a pool and memory");
    const Locked locked(pool);
    FillJob job = {pool, data, data_bytes};
    pool_run(pool, FillJob::run, &job);
    return HETERO_OK;
}

int hetero_measure_read(hetero_pool *pool, const uint8_t *data, size_t data_bytes, const int64_t *offsets,
                        int64_t n_offsets, int64_t piece_bytes, double *seconds, char *message,
                        size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool || !data) return m.fail(HETERO_BAD_ARGUMENT, "measure_read needs a pool and memory");
    if (const int code = check_target("offsets", offsets, m)) return code;
    if (const int code = check_target("seconds", seconds, m)) return code;
    if (piece_bytes < 128 || piece_bytes % 128 || piece_bytes > int64_t(data_bytes) || n_offsets < 1 ||
        n_offsets > (int64_t(1) << 30) / ceil_div(piece_bytes, kStripBytes))
        return m.fail(HETERO_BAD_ARGUMENT, "measure_read: %lld pieces of %lld bytes are out of range",
                      (long long)n_offsets, (long long)piece_bytes);
    for (int64_t i = 0; i < n_offsets; i++)
        if (offsets[i] < 0 || offsets[i] > int64_t(data_bytes) - piece_bytes)
            return m.fail(HETERO_BAD_ARGUMENT, "measure_read: offset %lld is outside of the %zu bytes",
                          (long long)offsets[i], data_bytes);
    const Locked locked(pool);
    ReadJob job = {pool, data, offsets, n_offsets, piece_bytes, {0}};
    const int64_t began = now_ns();
    pool_run(pool, ReadJob::run, &job);
    *seconds = double(max64(1, now_ns() - began)) * 1e-9;
    return HETERO_OK;
}

int hetero_measure_compute(hetero_pool *pool, int32_t kind, int64_t rounds, double *operations, double *seconds,
                           char *message, size_t message_bytes) {
    const Message m = {message, message_bytes};
    if (!pool) return m.fail(HETERO_BAD_ARGUMENT, "measure_compute needs a pool");
    if (const int code = check_target("operations", operations, m)) return code;
    if (const int code = check_target("seconds", seconds, m)) return code;
    if (kind < HETERO_MEASURE_INT8 || kind > HETERO_MEASURE_MADD || rounds < 1 || rounds > int64_t(1) << 40)
        return m.fail(HETERO_BAD_ARGUMENT, "measure_compute: kind %d, %lld rounds", kind, (long long)rounds);
    const Locked locked(pool);
    ComputeJob job = {kind, rounds, {0}};
    const int64_t began = now_ns();
    pool_run(pool, ComputeJob::run, &job);
    *seconds = double(max64(1, now_ns() - began)) * 1e-9;
    const int64_t each = kind == HETERO_MEASURE_F32 ? kFloatsPerRound : integers_per_round(kind);
    *operations = 2.0 * double(each) * double(rounds) * double(pool->n);
    return HETERO_OK;
}

// In a child, because the first tile instruction ends the process with SIGILL where a hypervisor lies about AMX.
int hetero_amx_runs(void) {
#if defined(__x86_64__)
    const pid_t child = fork();
    if (child < 0) return 0;
    if (child == 0) {
        const rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGILL, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        touch_tiles();
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
#else
    return 0;
#endif
}

}  // extern "C"
