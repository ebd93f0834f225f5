// Reads what the CPU and the operating system say about instruction sets; the choice is made by the caller.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

#if defined(__x86_64__)
inline uint64_t read_xcr0() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

// Asks Linux for the right to use AMX tiles (it grants them per process, since 5.16).
inline bool request_amx() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline void read_cpu(hetero_cpu *cpu) {
    uint32_t a, b, c, d;
    cpu->is_x86 = 1;
    if (__get_cpuid(1, &a, &b, &c, &d)) cpu->leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        cpu->leaf7_ebx = b;
        cpu->leaf7_ecx = c;
        cpu->leaf7_edx = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) cpu->leaf7_1_eax = a;
    }
    if (__get_cpuid_count(0x1d, 0, &a, &b, &c, &d)) cpu->max_palette = a;
    if (cpu->leaf1_ecx >> 27 & 1) cpu->xcr0 = read_xcr0();  // OSXSAVE
    const bool tiles = (cpu->leaf7_edx >> 24 & 1) && (cpu->xcr0 >> 17 & 3) == 3 && cpu->max_palette >= 1;
    cpu->amx_permitted = tiles && request_amx();
}
#else
inline void read_cpu(hetero_cpu *) {}
#endif

}  // namespace
