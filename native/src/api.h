// The exported functions: each checks its arguments and lengths, then hands over to the part that works.
#pragma once
#include "checks.h"
#include "placement.h"

namespace {

inline void pack_tiles(int format, int64_t n, int64_t k, const uint8_t *rows, uint8_t *tiles, int64_t tile_stride) {
    const int64_t row_size = raw_row_bytes(format, k);
    for (int64_t r = 0; r < n; r++) {
        uint8_t *tile = tiles + r / kRows * tile_stride;
        if (r % kRows == 0) memset(tile, 0, size_t(tile_bytes(format, k)));
        kRowFunctions[format].pack(rows + r * row_size, tile, int(r % kRows), k);
    }
}

inline void unpack_tiles(int format, int64_t n, int64_t k, const uint8_t *tiles, int64_t tile_stride, uint8_t *rows) {
    const int64_t row_size = raw_row_bytes(format, k);
    for (int64_t r = 0; r < n; r++)
        kRowFunctions[format].unpack(rows + r * row_size, tiles + r / kRows * tile_stride, int(r % kRows), k);
}

// The three parts of an expert: shape, offset and distance between tiles.
struct ExpertPart {
    int format;
    int64_t n, k, offset, tile_stride;
};

inline void expert_parts(const hetero_bank &b, ExpertPart *parts) {
    const int64_t gate = tile_bytes(b.gate_format, b.hidden), up = tile_bytes(b.up_format, b.hidden);
    parts[0] = {b.gate_format, b.inter, b.hidden, 0, gate + up};
    parts[1] = {b.up_format, b.inter, b.hidden, gate, gate + up};
    parts[2] = {b.down_format, b.hidden, b.inter, b.down_offset, tile_bytes(b.down_format, b.inter)};
}

inline int check_expert(const hetero_bank *bank, size_t expert_bytes, const uint8_t *expert, const uint8_t *const *rows,
                        const size_t *row_bytes, ExpertPart *parts, Message message) {
    if (const int code = check_bank_shape(bank, message)) return code;
    if (const int code = check_buffer("expert", expert, expert_bytes, bank->stride, message)) return code;
    expert_parts(*bank, parts);
    static const char *const names[3] = {"gate rows", "up rows", "down rows"};
    for (int i = 0; i < 3; i++) {
        const int64_t expected = parts[i].n * raw_row_bytes(parts[i].format, parts[i].k);
        if (const int code = check_buffer(names[i], rows[i], row_bytes[i], expected, message)) return code;
    }
    return HETERO_OK;
}

struct Locked {
    pthread_mutex_t *mutex;
    explicit Locked(Pool *pool) : mutex(&pool->mutex) { pthread_mutex_lock(mutex); }
    ~Locked() { pthread_mutex_unlock(mutex); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;
};

}  // namespace

extern "C" {

int hetero_abi_version(void) { return HETERO_ABI_VERSION; }

const char *hetero_tier(void) { return kTierName; }

void hetero_cpu_read(hetero_cpu *cpu) {
    if (!cpu) return;
    memset(cpu, 0, sizeof *cpu);
    read_cpu(cpu);
}

int hetero_pool_create(const int32_t *cpus, const int32_t *nodes, int32_t n, hetero_pool **pool, char *text,
                       size_t text_bytes) {
    return pool_create(cpus, nodes, n, pool, Message{text, text_bytes});
}

void hetero_pool_destroy(hetero_pool *pool) {
    if (pool) pool_destroy(pool);
}

void hetero_pool_pin_kernels(hetero_pool *pool) {
    if (pool) pool->deterministic = true;
}

int hetero_pack(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes, uint8_t *tiles,
                size_t tiles_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, n, k, message)) return code;
    if (const int code = check_buffer("rows", rows, rows_bytes, n * raw_row_bytes(format, k), message)) return code;
    if (const int code = check_buffer("tiles", tiles, tiles_bytes, packed_bytes(format, n, k), message)) return code;
    pack_tiles(format, n, k, rows, tiles, tile_bytes(format, k));
    return HETERO_OK;
}

int hetero_unpack(int32_t format, int64_t n, int64_t k, const uint8_t *tiles, size_t tiles_bytes, uint8_t *rows,
                  size_t rows_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, n, k, message)) return code;
    if (const int code = check_buffer("rows", rows, rows_bytes, n * raw_row_bytes(format, k), message)) return code;
    if (const int code = check_buffer("tiles", tiles, tiles_bytes, packed_bytes(format, n, k), message)) return code;
    unpack_tiles(format, n, k, tiles, tile_bytes(format, k), rows);
    return HETERO_OK;
}

int hetero_pack_expert(const hetero_bank *bank, const uint8_t *gate, size_t gate_bytes, const uint8_t *up,
                       size_t up_bytes, const uint8_t *down, size_t down_bytes, uint8_t *expert, size_t expert_bytes,
                       char *text, size_t text_bytes) {
    const uint8_t *const rows[3] = {gate, up, down};
    const size_t row_bytes[3] = {gate_bytes, up_bytes, down_bytes};
    ExpertPart parts[3];
    if (const int code = check_expert(bank, expert_bytes, expert, rows, row_bytes, parts, Message{text, text_bytes}))
        return code;
    for (int i = 0; i < 3; i++)
        pack_tiles(parts[i].format, parts[i].n, parts[i].k, rows[i], expert + parts[i].offset, parts[i].tile_stride);
    const int64_t used = parts[2].offset + packed_bytes(parts[2].format, parts[2].n, parts[2].k);
    memset(expert + used, 0, expert_bytes - size_t(used));
    return HETERO_OK;
}

int hetero_unpack_expert(const hetero_bank *bank, const uint8_t *expert, size_t expert_bytes, uint8_t *gate,
                         size_t gate_bytes, uint8_t *up, size_t up_bytes, uint8_t *down, size_t down_bytes,
                         char *text, size_t text_bytes) {
    uint8_t *const rows[3] = {gate, up, down};
    const size_t row_bytes[3] = {gate_bytes, up_bytes, down_bytes};
    ExpertPart parts[3];
    if (const int code = check_expert(bank, expert_bytes, expert, rows, row_bytes, parts, Message{text, text_bytes}))
        return code;
    for (int i = 0; i < 3; i++)
        unpack_tiles(parts[i].format, parts[i].n, parts[i].k, expert + parts[i].offset, parts[i].tile_stride, rows[i]);
    return HETERO_OK;
}

int hetero_quantize(int32_t format, int64_t n, int64_t k, const float *x, size_t x_bytes, const float *importance,
                    size_t importance_bytes, uint8_t *rows, size_t rows_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, n, k, message)) return code;
    if (!can_quantize(format))
        return message.fail(HETERO_BAD_ARGUMENT, "nothing is quantised to %s here", kFormats[format].name);
    if (const int code = check_buffer("x", x, x_bytes, 4 * n * k, message)) return code;
    if (const int code = check_optional("importance", importance, importance_bytes, 4 * k, message)) return code;
    for (int64_t i = 0; importance && i < k; i++)
        if (!(importance[i] > 0) || !is_finite(importance[i]))
            return message.fail(HETERO_BAD_ARGUMENT, "importance %lld is not a positive number", (long long)i);
    if (const int code = check_buffer("rows", rows, rows_bytes, n * raw_row_bytes(format, k), message)) return code;
    quantize_rows(format, x, importance, rows, n * k, k);
    return HETERO_OK;
}

int hetero_dequantize(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes, float *out,
                      size_t out_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, n, k, message)) return code;
    const int64_t row_size = raw_row_bytes(format, k);
    if (const int code = check_buffer("rows", rows, rows_bytes, n * row_size, message)) return code;
    if (const int code = check_buffer("out", out, out_bytes, 4 * n * k, message)) return code;
    for (int64_t r = 0; r < n; r++) kRowFunctions[format].dequantize(rows + r * row_size, out + r * k, k);
    return HETERO_OK;
}

int hetero_check_scales(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes,
                        int64_t *block, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_target("block", block, message)) return code;
    if (const int code = check_shape(format, n, k, message)) return code;
    const int64_t row_size = raw_row_bytes(format, k);
    if (const int code = check_buffer("rows", rows, rows_bytes, n * row_size, message)) return code;
    *block = -1;
    for (int64_t r = 0; r < n && *block < 0; r++) {
        const int64_t bad = kRowFunctions[format].bad_block(rows + r * row_size, k);
        if (bad >= 0) *block = r * ceil_div(k, kFormats[format].block_k) + bad;
    }
    return HETERO_OK;
}

int hetero_gather_rows(const hetero_matrix *matrix, const int64_t *ids, int64_t n_ids, float *out, size_t out_bytes,
                       char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_matrix(matrix, message)) return code;
    if (n_ids < 0 || n_ids > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "%lld rows asked for", (long long)n_ids);
    if (const int code = check_buffer("ids", ids, size_t(8 * n_ids), 8 * n_ids, message)) return code;
    if (const int code = check_buffer("out", out, out_bytes, 4 * n_ids * matrix->k, message)) return code;
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= matrix->n)
            return message.fail(HETERO_BAD_ARGUMENT, "row %lld of a matrix of %lld rows", (long long)ids[i],
                                (long long)matrix->n);
    auto *row = static_cast<uint8_t *>(calloc(1, size_t(raw_row_bytes(matrix->format, matrix->k))));
    if (!row) return message.fail(HETERO_NO_MEMORY, "no memory for a row");
    for (int64_t i = 0; i < n_ids; i++) {
        const uint8_t *tile = matrix->data + ids[i] / kRows * tile_bytes(matrix->format, matrix->k);
        kRowFunctions[matrix->format].unpack(row, tile, int(ids[i] % kRows), matrix->k);
        kRowFunctions[matrix->format].dequantize(row, out + i * matrix->k, matrix->k);
    }
    free(row);
    return HETERO_OK;
}

int hetero_tile(int32_t format, int64_t k, const uint8_t *tile, size_t size, const float *x, size_t x_bytes,
                int64_t n_tokens, uint8_t *scratch, size_t scratch_bytes, float *out, size_t out_bytes, char *text,
                size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_shape(format, kRows, k, message)) return code;
    if (n_tokens < 1 || n_tokens > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "a tile for %lld tokens", (long long)n_tokens);
    if (const int code = check_buffer("tile", tile, size, tile_bytes(format, k), message)) return code;
    if (const int code = check_buffer("x", x, x_bytes, 4 * n_tokens * k, message)) return code;
    if (const int code = check_buffer("out", out, out_bytes, 4 * n_tokens * kRows, message)) return code;
    Acts acts;
    acts.x = x;
    acts.x_stride = k;
    if (needs_buffers(format)) {
        if (const int code = check_aligned("scratch", reinterpret_cast<float *>(scratch), message)) return code;
        const bool wide = has_int8_tiles(format);
        const size_t needed = ActBuffers::bytes(n_tokens, k, wide);
        if (!scratch || scratch_bytes < needed)
            return message.fail(HETERO_BAD_ARGUMENT, "scratch: %zu bytes given, %zu needed", scratch_bytes, needed);
        ActBuffers to;
        to.place(scratch, n_tokens, k, wide);
        for (int64_t i = 0; i < n_tokens; i++) quantize_row(x + i * k, k, to, i);
        to.fill(&acts);
    }
    kTileKernels.one[format](tile, k, acts, 0, n_tokens, out, kRows);
    return HETERO_OK;
}

int hetero_linear(hetero_pool *pool, const hetero_matrix *const *matrices, int32_t n_matrices, const float *x,
                  size_t x_bytes, int64_t n_tokens, const float *const *biases, const size_t *bias_bytes,
                  float *const *outs, const size_t *out_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || !matrices || !outs || !out_bytes || (biases && !bias_bytes))
        return message.fail(HETERO_BAD_ARGUMENT, "linear needs a pool, matrices, outputs and their lengths");
    if (n_matrices < 1 || n_matrices > kMaxMatrices || n_tokens < 0 || n_tokens > kMaxRows)
        return message.fail(HETERO_BAD_ARGUMENT, "linear: %d matrices for %lld tokens", n_matrices,
                            (long long)n_tokens);
    for (int m = 0; m < n_matrices; m++) {
        if (const int code = check_matrix(matrices[m], message)) return code;
        if (matrices[m]->k != matrices[0]->k)
            return message.fail(HETERO_BAD_ARGUMENT, "matrices of %lld and %lld inputs share one x",
                                (long long)matrices[0]->k, (long long)matrices[m]->k);
        const int64_t expected = 4 * n_tokens * matrices[m]->n;
        if (const int code = check_buffer("out", outs[m], out_bytes[m], expected, message)) return code;
        if (!biases) continue;
        if (const int code = check_optional("bias", biases[m], bias_bytes[m], 4 * matrices[m]->n, message)) return code;
    }
    if (const int code = check_buffer("x", x, x_bytes, 4 * n_tokens * matrices[0]->k, message)) return code;
    if (!n_tokens) return HETERO_OK;
    const Locked locked(pool);
    return linear(pool, matrices, n_matrices, x, n_tokens, biases, outs, message);
}

int hetero_bank_place(const hetero_bank *bank, const int32_t *nodes, int32_t n_nodes, int64_t *placed, char *text,
                      size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (const int code = check_bank_shape(bank, message)) return code;
    if (const int code = check_bank_values(bank, message)) return code;
    if (const int code = check_target("placed", placed, message)) return code;
    if (!nodes || n_nodes < 1 || n_nodes > kMaxNodes)
        return message.fail(HETERO_BAD_ARGUMENT, "an expert bank on %d nodes: expected 1 to %d", n_nodes, kMaxNodes);
    if (const int code = check_aligned("nodes", nodes, message)) return code;
    *placed = place_bank(bank, nodes, n_nodes);
    return HETERO_OK;
}

int hetero_moe(hetero_pool *pool, const hetero_bank *bank, const float *x, size_t x_bytes, int64_t n_tokens,
               const int32_t *ids, size_t ids_bytes, const float *weights, size_t weights_bytes, int64_t top_k,
               float *out, size_t out_bytes, char *text, size_t text_bytes) {
    const Message message = {text, text_bytes};
    if (!pool || n_tokens < 0 || n_tokens > kMaxRows || top_k < 1 || top_k > kMaxTopK)
        return message.fail(HETERO_BAD_ARGUMENT, "moe needs a pool, tokens and 1 to %lld experts a token, not %lld",
                            (long long)kMaxTopK, (long long)top_k);
    if (const int code = check_bank_shape(bank, message)) return code;
    if (const int code = check_bank_values(bank, message)) return code;
    if (const int code = check_buffer("x", x, x_bytes, 4 * n_tokens * bank->hidden, message)) return code;
    if (const int code = check_buffer("out", out, out_bytes, 4 * n_tokens * bank->hidden, message)) return code;
    const int64_t slots = n_tokens * top_k;
    if (const int code = check_buffer("ids", ids, ids_bytes, 4 * slots, message)) return code;
    if (const int code = check_buffer("weights", weights, weights_bytes, 4 * slots, message)) return code;
    if (!n_tokens) return HETERO_OK;
    if (const int code = check_ids(ids, slots, bank->n_experts, message)) return code;
    const Locked locked(pool);
    return moe(pool, bank, x, n_tokens, ids, weights, top_k, out, message);
}

}  // extern "C"
