// Runs code with AMX instructions on a CPU without them: each raises SIGILL, and the handler decodes it, does its work
// on tiles in software and steps over it. Anything else is a real SIGILL.
#define _GNU_SOURCE
#include "tiles.h"

#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>

static struct sigaction previous;
unsigned long emulated_instructions;

typedef int64_t (*read_register)(void *context, int number);

// The address of a memory operand and whether it has an index register, whose value is the stride of a tile's rows.
typedef struct {
    int64_t base, index;
    int has_index;
} operand;

// Reads ModRM's memory operand at *p (ModRM included) and moves *p behind it.
static operand read_operand(const uint8_t **p, int x, int b, read_register reg, void *context) {
    operand o = {0, 0, 0};
    const uint8_t modrm = *(*p)++;
    int number = modrm & 7, mod = modrm >> 6;
    if (number == 4) {
        const uint8_t sib = *(*p)++;
        const int index = (sib >> 3 & 7) | x << 3;
        number = sib & 7;
        o.has_index = 1;
        if (index != 4) o.index = reg(context, index) << (sib >> 6);
    }
    int32_t far = 0;
    if (mod == 2 || (mod == 0 && number == 5)) {
        memcpy(&far, *p, 4);
        *p += 4;
    }
    const int8_t near = mod == 1 ? (int8_t)*(*p)++ : 0;
    o.base = far + near;
    if (mod != 0 || number != 5) o.base += reg(context, number | b << 3);
    else if (!o.has_index) o.base += (int64_t)*p;  // relative to the next instruction
    return o;
}

static int run_memory(int op, int pp, int tile, operand o) {
    if (op == 0x49) return pp == 0 && tile == 0 ? tile_load_config((const void *)(o.base + o.index)) : -1;
    if (op != 0x4b || !o.has_index || tile > 7) return -1;
    if (pp == 3 || pp == 1) return tile_load(tile, (const uint8_t *)o.base, o.index);
    return pp == 2 ? tile_store(tile, (uint8_t *)o.base, o.index) : -1;
}

static int run_registers(int op, int pp, int r, int rm, int v) {
    if (op == 0x5c && pp == 2 && r < 8 && rm < 8 && v < 8) return tile_dpbf16(r, rm, v);
    if (op == 0x5e && pp == 3 && r < 8 && rm < 8 && v < 8) return tile_dpbssd(r, rm, v);
    if (op == 0x49 && pp == 3 && rm == 0 && r < 8) return tile_zero(r);
    if (op != 0x49 || pp != 0 || rm || r) return -1;
    tile_release();
    return 1;
}

// Runs the AMX instruction at `start`: its length, 0 if it is none, -1 if a CPU would fault.
int amx_step(const uint8_t *start, read_register reg, void *context) {
    const uint8_t *p = start;
    if (p[0] != 0xc4 || (p[1] & 31) != 2 || p[2] & 0x84) return 0;  // VEX of three bytes, map 2, W = L = 0
    const int r_high = !(p[1] & 0x80), x = !(p[1] & 0x40), b = !(p[1] & 0x20), v = (~p[2] >> 3) & 15, pp = p[2] & 3;
    const int op = p[3], modrm = p[4], r = (modrm >> 3 & 7) | r_high << 3;
    p += 4;
    int done;
    if (modrm >> 6 == 3) {
        done = run_registers(op, pp, r, (modrm & 7) | b << 3, v);
        p++;
    } else {
        if (op != 0x49 && op != 0x4b) return 0;
        const operand o = read_operand(&p, x, b, reg, context);
        done = run_memory(op, pp, r, o);
    }
    if (done < 0) return 0;
    emulated_instructions++;
    return done ? (int)(p - start) : -1;
}

static int64_t saved_register(void *context, int number) {
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return ((ucontext_t *)context)->uc_mcontext.gregs[at[number]];
}

static void on_illegal(int signal, siginfo_t *info, void *context) {
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    int length, any = 0;
    (void)signal, (void)info;
    while ((length = amx_step((const uint8_t *)*rip, saved_register, context)) > 0) {  // most follow each other
        *rip += length;
        any = 1;
    }
    if (any && length == 0) return;
    if (length < 0) {
        char text[128];
        const int n = snprintf(text, sizeof text, "AMX fault: %s\n", tiles.fault);
        if (write(2, text, (size_t)n) < 0) _exit(1);
    }
    sigaction(SIGILL, &previous, 0);  // not ours: on return the instruction meets what was there before
}

int trap_amx(void) {
    struct sigaction action = {0};
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGILL, &action, &previous);
}

int untrap_amx(void) { return sigaction(SIGILL, &previous, 0); }
