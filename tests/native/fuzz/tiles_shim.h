// Included before everything else: tile intrinsics become functions on tiles in software, whose loads and stores
// sanitizers see. A tile instruction that a CPU would refuse ends the process.
#pragma once
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>

#include "../emulation/tiles.h"

static inline void tile_done(int done) {
    if (done) return;
    fprintf(stderr, "AMX fault: %s\n", tiles.fault);
    abort();
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(from) tile_done(tile_load_config(from))
#define _tile_release() tile_release()
#define _tile_zero(t) tile_done(tile_zero(t))
#define _tile_loadd(t, from, stride) tile_done(tile_load(t, reinterpret_cast<const uint8_t *>(from), stride))
#define _tile_stored(t, to, stride) tile_done(tile_store(t, reinterpret_cast<uint8_t *>(to), stride))
#define _tile_dpbf16ps(d, a, b) tile_done(tile_dpbf16(d, a, b))
#define _tile_dpbssd(d, a, b) tile_done(tile_dpbssd(d, a, b))
