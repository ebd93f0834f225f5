// What bochscpu 0.4.0 lacks on glibc before 2.38, and a CPU model with AVX-512 VNNI and BF16: the package asks its
// built-in Bochs for a Cannon Lake through the PLT, so that this definition, loaded first, can give Sapphire Rapids.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
long long __isoc23_strtoll(const char *s, char **end, int base) { return strtoll(s, end, base); }
unsigned long __isoc23_strtoul(const char *s, char **end, int base) { return strtoul(s, end, base); }
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }

int __isoc23_sscanf(const char *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int count = vsscanf(s, format, args);
    va_end(args);
    return count;
}

static const char *package;
void set_package(const char *path) { package = path; }

void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu) {
    void *const library = dlopen(package, RTLD_NOLOAD | RTLD_NOW);
    void *(*const create)(void *) = dlsym(library, "_Z28create_sapphire_rapids_cpuidP8BX_CPU_C");
    return create(cpu);
}
