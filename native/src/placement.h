// Where the memory of experts lies on a machine with several memory nodes. Pages are taken by a thread that prefers the
// node: to name it for the memory itself (mbind) would make a mapping of every part, and a process may have 65,530 of
// those, fewer than a large model has parts; it would also keep huge pages from parts that are no multiple of them.
#pragma once
#include <sys/mman.h>

#include "moe.h"

namespace {

// Whether the page at that address lies on another node: a node that is full passes its pages on without a word.
inline bool lies_elsewhere(uintptr_t page, int node) {
    auto *address = reinterpret_cast<void *>(page);
    int status = node;
    return !syscall(SYS_move_pages, 0, 1ul, &address, nullptr, &status, 0) && status >= 0 && status != node;
}

// Takes the pages from that of `from` to before that of `to`, as the calling thread prefers: the bytes that were taken
// on `node`, judged by the last page.
inline int64_t populate(const uint8_t *from, const uint8_t *to, int node) {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE: Linux has it since 5.14, headers later
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(from) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(to) / page * page;
    if (end <= begin || madvise(reinterpret_cast<void *>(begin), end - begin, kPopulateWrite)) return 0;
    return lies_elsewhere(end - page, node) ? 0 : int64_t(end - begin);
}

// One node's part of every expert's rows.
struct PlaceJob {
    const hetero_bank *bank;
    int part, parts;
    int32_t node;
    int64_t placed;

    void run() {
        constexpr int kPreferred = 1;
        const unsigned long mask = node < 0 || node >= kMaxNodes ? 0 : 1ul << node;
        if (!mask || syscall(SYS_set_mempolicy, kPreferred, &mask, kMaxNodes + 1ul)) return;
        const int64_t gate = tile_bytes(bank->gate_format, bank->hidden);
        const int64_t up = tile_bytes(bank->up_format, bank->hidden);
        const int64_t unit = 2 * (gate + up), down_tile = tile_bytes(bank->down_format, bank->inter);
        const NodePart units = node_part(ceil_div(bank->inter, kUnitRows), part, parts);
        const NodePart tiles = node_part(ceil_div(bank->hidden, kRows), part, parts);
        const int64_t units_end = min64((units.first + units.count) * unit, bank->down_offset);
        for (int64_t e = 0; e < bank->n_experts; e++) {
            const uint8_t *expert = bank->data + e * bank->stride, *down = expert + bank->down_offset;
            placed += populate(expert + units.first * unit, expert + units_end, node);
            placed += populate(down + tiles.first * down_tile, down + (tiles.first + tiles.count) * down_tile, node);
        }
    }

    static void *main(void *job) {
        static_cast<PlaceJob *>(job)->run();
        return nullptr;
    }
};

// Takes each node's part of every expert on the node of that number: the bytes that lie there now. A page that two
// parts share goes to the later one. Experts that do not start on pages are left alone. Each node has a thread of its
// own, with which what it prefers ends.
inline int64_t place_bank(const hetero_bank *bank, const int32_t *nodes, int n_nodes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    if (reinterpret_cast<uintptr_t>(bank->data) % uintptr_t(page) || bank->stride % page) return 0;
    PlaceJob jobs[kMaxNodes];
    pthread_t threads[kMaxNodes];
    bool began[kMaxNodes];
    for (int i = 0; i < n_nodes; i++) {
        jobs[i] = {bank, i, n_nodes, nodes[i], 0};
        began[i] = !pthread_create(&threads[i], nullptr, PlaceJob::main, &jobs[i]);
    }
    int64_t placed = 0;
    for (int i = 0; i < n_nodes; i++) {
        if (began[i]) pthread_join(threads[i], nullptr);
        placed += jobs[i].placed;
    }
    return placed;
}

}  // namespace
