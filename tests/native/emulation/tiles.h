// AMX tiles in software, by the pseudo-code of Intel's manual: palette 1 with eight tiles of 16 rows x 64 bytes,
// TDPBSSD, and TDPBF16PS with its separate sums of even and odd k, denormals read and written as zero. `fault` says why
// a CPU would raise an exception.
#pragma once
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

typedef struct {
    tile_config config;
    uint8_t tile[8][16][64];
    const char *fault;
} tile_state;

static __thread tile_state tiles;

static inline int tile_fault(const char *why) {
    tiles.fault = why;
    return 0;
}

static inline int tile_load_config(const void *from) {
    tile_config c;
    memcpy(&c, from, sizeof c);
    if (c.palette > 1) return tile_fault("palette");
    for (int i = 0; i < 14; i++)
        if (c.reserved[i]) return tile_fault("reserved bytes of the configuration");
    for (int i = 0; i < 16; i++) {
        if (i >= 8 && (c.row_bytes[i] || c.rows[i])) return tile_fault("configuration of a tile above 7");
        if (c.row_bytes[i] > 64 || c.rows[i] > 16 || !c.row_bytes[i] != !c.rows[i])
            return tile_fault("shape of a tile");
    }
    memset(&tiles, 0, sizeof tiles);
    tiles.config = c;
    return 1;
}

static inline void tile_release(void) { memset(&tiles, 0, sizeof tiles); }

static inline int tile_known(int t) {
    return tiles.config.palette && tiles.config.rows[t] ? 1 : tile_fault("a tile that is not configured");
}

static inline int tile_zero(int t) {
    if (!tile_known(t)) return 0;
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
    return 1;
}

static inline int tile_load(int t, const uint8_t *from, int64_t stride) {
    if (!tile_zero(t)) return 0;
    for (int r = 0; r < tiles.config.rows[t]; r++)
        memcpy(tiles.tile[t][r], from + r * stride, tiles.config.row_bytes[t]);
    return 1;
}

static inline int tile_store(int t, uint8_t *to, int64_t stride) {
    if (!tile_known(t)) return 0;
    for (int r = 0; r < tiles.config.rows[t]; r++) memcpy(to + r * stride, tiles.tile[t][r], tiles.config.row_bytes[t]);
    return 1;
}

static inline float tile_float(uint32_t bits) {
    if (!(bits & 0x7f800000)) bits &= 0x80000000;  // a denormal
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float tile_flush(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return tile_float(bits);
}

// Whether d can hold the product of a and b.
static inline int tile_factors(int d, int a, int b) {
    if (!tile_known(d) || !tile_known(a) || !tile_known(b)) return 0;
    const tile_config *c = &tiles.config;
    if (d == a || d == b || a == b) return tile_fault("one tile twice");
    if (c->rows[d] != c->rows[a] || c->row_bytes[d] != c->row_bytes[b] || c->row_bytes[a] != 4 * c->rows[b])
        return tile_fault("shapes that do not match");
    return 1;
}

static inline int tile_dpbssd(int d, int a, int b) {
    if (!tile_factors(d, a, b)) return 0;
    const tile_config *c = &tiles.config;
    for (int m = 0; m < c->rows[d]; m++)
        for (int n = 0; n < c->row_bytes[d]; n += 4) {
            int32_t sum;
            memcpy(&sum, &tiles.tile[d][m][n], 4);
            for (int k = 0; k < c->row_bytes[a]; k++)
                sum += (int8_t)tiles.tile[a][m][k] * (int8_t)tiles.tile[b][k / 4][n + k % 4];
            memcpy(&tiles.tile[d][m][n], &sum, 4);
        }
    return 1;
}

static inline int tile_dpbf16(int d, int a, int b) {
    if (!tile_factors(d, a, b)) return 0;
    const tile_config *c = &tiles.config;
    const int columns = c->row_bytes[d] / 4;
    for (int m = 0; m < c->rows[d]; m++) {
        float even[16] = {0}, odd[16] = {0}, sum[16];
        memcpy(sum, tiles.tile[d][m], sizeof sum);
        for (int k = 0; k < c->rows[b]; k++) {
            uint32_t x, y[16];
            memcpy(&x, &tiles.tile[a][m][4 * k], 4);
            memcpy(y, tiles.tile[b][k], sizeof y);
            for (int n = 0; n < columns; n++) {
                even[n] = tile_flush(__builtin_fmaf(tile_float(x << 16), tile_float(y[n] << 16), even[n]));
                odd[n] = tile_flush(
                    __builtin_fmaf(tile_float(x & 0xffff0000), tile_float(y[n] & 0xffff0000), odd[n]));
            }
        }
        for (int n = 0; n < columns; n++) sum[n] = tile_flush(tile_flush(sum[n]) + tile_flush(even[n] + odd[n]));
        memcpy(tiles.tile[d][m], sum, sizeof sum);
    }
    return 1;
}
