/* The C ABI of hetero's CPU kernels: plain pointers, sizes and enums. One shared library per ISA tier exports
 * exactly these names. The binding hands the text between the two markers below to cffi as it stands.
 *
 * Every function that can fail returns a HETERO_* code and writes one sentence into `message` (never more than
 * `message_bytes`, always terminated). Every buffer travels with its length in bytes (or of its elements, where a count
 * is there anyway), which is checked, as is that buffers of more than bytes are aligned for their type.
 */
#ifndef HETERO_H
#define HETERO_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)
/* cdef begin */
enum { HETERO_ABI_VERSION = 4 };
enum { HETERO_OK = 0, HETERO_BAD_ARGUMENT = 1, HETERO_NO_MEMORY = 2, HETERO_NO_THREAD = 3 };
enum {
    HETERO_F32, HETERO_F16, HETERO_BF16, HETERO_Q8_0, HETERO_Q4_0, HETERO_Q4_1, HETERO_Q5_0, HETERO_Q5_1,
    HETERO_Q4_K, HETERO_Q5_K, HETERO_Q6_K, HETERO_Q2_K, HETERO_Q3_K, HETERO_IQ4_NL, HETERO_IQ4_XS, HETERO_MXFP4,
    HETERO_NVFP4, HETERO_FP8_E4M3, HETERO_I4_32, HETERO_I4_64, HETERO_I4_128, HETERO_I4_32_F16, HETERO_I4_64_F16,
    HETERO_I4_128_F16, HETERO_U4_32, HETERO_U4_64, HETERO_U4_128, HETERO_U4_32_F16, HETERO_U4_64_F16,
    HETERO_U4_128_F16, HETERO_NVFP4_F32_64, HETERO_NVFP4_F32_128, HETERO_NVFP4_F32_256, HETERO_I8_32, HETERO_I8_64,
    HETERO_I8_128, HETERO_I8_32_F16, HETERO_I8_64_F16, HETERO_I8_128_F16, HETERO_I8_32_F32, HETERO_I8_64_F32,
    HETERO_I8_128_F32, HETERO_FORMATS
};

/* A matrix of n output rows and k inputs, packed into tiles of 16 rows. */
typedef struct {
    int32_t format;
    int64_t n;
    int64_t k;
    const uint8_t *data;
    size_t bytes;
} hetero_matrix;

/* How an expert joins g = gate(x) and u = up(x): silu(g) u; gelu(g) u by its tanh formula; gpt-oss's
 * g sigmoid(1.702 g) (u + 1), with g at most 7 and u within -7..7; and DeepSeek-V4's silu(g) u, with g at most 10 and u
 * within -10..10. */
enum { HETERO_SILU, HETERO_GELU_TANH, HETERO_GPT_OSS, HETERO_CLAMPED_SILU, HETERO_ACTIVATIONS };

/* The experts of one layer. Expert e starts at data + e * stride with its gate and up tiles in turn; its down
 * tiles start at down_offset. gate and up are [inter, hidden], down is [hidden, inter]. Biases (null: none) are
 * [n_experts, inter] of gate and of up and [n_experts, hidden] of down. */
typedef struct {
    int32_t gate_format;
    int32_t up_format;
    int32_t down_format;
    int64_t n_experts;
    int64_t hidden;
    int64_t inter;
    int64_t stride;
    int64_t down_offset;
    const uint8_t *data;
    size_t bytes;
    int32_t activation;
    const float *gate_bias;
    size_t gate_bias_bytes;
    const float *up_bias;
    size_t up_bias_bytes;
    const float *down_bias;
    size_t down_bias_bytes;
} hetero_bank;

/* What CPUID, XGETBV and the kernel say; zero where the CPU has no such leaf. */
typedef struct {
    uint32_t is_x86;
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint32_t leaf7_ecx;
    uint32_t leaf7_edx;
    uint32_t leaf7_1_eax;
    uint32_t max_palette;
    uint32_t amx_permitted;
    uint64_t xcr0;
} hetero_cpu;

typedef struct hetero_pool hetero_pool;

int hetero_abi_version(void);
const char *hetero_tier(void);
void hetero_cpu_read(hetero_cpu *cpu);

/* Worker 0 is the calling thread; worker i > 0 is a thread bound to cpus[i]. nodes[i], from 0 to 63, is the memory node
 * of worker i (null: all 0). Each node owns an equal part of every expert's rows, which its workers take first. */
int hetero_pool_create(const int32_t *cpus, const int32_t *nodes, int32_t n, hetero_pool **pool, char *message,
                       size_t message_bytes);
void hetero_pool_destroy(hetero_pool *pool);
/* From now on one kernel per format, whatever the number of tokens, as with HETERO_DETERMINISTIC=1 for every pool. */
void hetero_pool_pin_kernels(hetero_pool *pool);

/* Raw rows (ggml's layout of the format, row after row) to tiles and back; both without loss. */
int hetero_pack(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes, uint8_t *tiles,
                size_t tiles_bytes, char *message, size_t message_bytes);
int hetero_unpack(int32_t format, int64_t n, int64_t k, const uint8_t *tiles, size_t tiles_bytes, uint8_t *rows,
                  size_t rows_bytes, char *message, size_t message_bytes);
/* One expert of `bank` (whose data may be null here) to or from `expert`, which holds bank->stride bytes. */
int hetero_pack_expert(const hetero_bank *bank, const uint8_t *gate, size_t gate_bytes, const uint8_t *up,
                       size_t up_bytes, const uint8_t *down, size_t down_bytes, uint8_t *expert, size_t expert_bytes,
                       char *message, size_t message_bytes);
int hetero_unpack_expert(const hetero_bank *bank, const uint8_t *expert, size_t expert_bytes, uint8_t *gate,
                         size_t gate_bytes, uint8_t *up, size_t up_bytes, uint8_t *down, size_t down_bytes,
                         char *message, size_t message_bytes);

/* With the least squared error, to which input i counts importance[i] times (null: all alike). */
int hetero_quantize(int32_t format, int64_t n, int64_t k, const float *x, size_t x_bytes, const float *importance,
                    size_t importance_bytes, uint8_t *rows, size_t rows_bytes, char *message, size_t message_bytes);
int hetero_dequantize(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes, float *out,
                      size_t out_bytes, char *message, size_t message_bytes);
/* *block = index of the first block (row-major) whose scale or value is not finite, or -1. */
int hetero_check_scales(int32_t format, int64_t n, int64_t k, const uint8_t *rows, size_t rows_bytes,
                        int64_t *block, char *message, size_t message_bytes);
/* Raw rows from what checkpoints store apart: codes [n, k] of 4 or 8 bits in reading order (the low nibble first), scales
 * [n, k / group] in the format's own type (FP8's last group may be short), and `extra`: a byte of zero point per group, or
 * of NVFP4_F32, whose scales are per 16, a float32 for each row; else nothing. */
int hetero_join_rows(int32_t format, int64_t n, int64_t k, int64_t group, const uint8_t *codes, size_t codes_bytes,
                     const uint8_t *scales, size_t scales_bytes, const uint8_t *extra, size_t extra_bytes,
                     uint8_t *rows, size_t rows_bytes, char *message, size_t message_bytes);
/* out[c, l] = item l * stride + c * step of `in`, for items of 2 or 4 bytes; in_bytes reach to the last of them. */
int hetero_transpose(int32_t item, int64_t lines, int64_t columns, int64_t stride, int64_t step, const uint8_t *in,
                     size_t in_bytes, uint8_t *out, size_t out_bytes, char *message, size_t message_bytes);
/* AWQ's words [k, n / 8] of eight outputs each to codes [n, k] of 4 bits in reading order. */
int hetero_awq_codes(int64_t n, int64_t k, const uint32_t *words, size_t words_bytes, uint8_t *codes,
                     size_t codes_bytes, char *message, size_t message_bytes);
/* out[i, :] = row ids[i] of the matrix, as float32. */
int hetero_gather_rows(const hetero_matrix *matrix, const int64_t *ids, int64_t n_ids, float *out, size_t out_bytes,
                       char *message, size_t message_bytes);

/* out[m][t, :] = matrices[m] x[t, :] (+ biases[m], where not null), for n_matrices matrices of the same k. */
int hetero_linear(hetero_pool *pool, const hetero_matrix *const *matrices, int32_t n_matrices, const float *x,
                  size_t x_bytes, int64_t n_tokens, const float *const *biases, const size_t *bias_bytes,
                  float *const *outs, const size_t *out_bytes, char *message, size_t message_bytes);
/* out[t, :] = one tile of 16 rows times x[t, :]: what all products are made of, without a thread, a lock or memory of its
 * own, so that it also runs on an emulated CPU. scratch is left as it is where the format is plain. */
int hetero_tile(int32_t format, int64_t k, const uint8_t *tile, size_t tile_bytes, const float *x, size_t x_bytes,
                int64_t n_tokens, uint8_t *scratch, size_t scratch_bytes, float *out, size_t out_bytes, char *message,
                size_t message_bytes);
/* Before a bank's memory is written: takes the pages of part i of each expert's rows on the memory node nodes[i]. *placed
 * = the bytes that lie there (Linux 5.14 or newer does it), which differ from all by what shares a page. */
int hetero_bank_place(const hetero_bank *bank, const int32_t *nodes, int32_t n_nodes, int64_t *placed, char *message,
                      size_t message_bytes);
/* out[t, :] = sum over slots s of weights[t, s] * down(activation(gate(x[t]), up(x[t]))) of expert ids[t, s]; -1: none. */
int hetero_moe(hetero_pool *pool, const hetero_bank *bank, const float *x, size_t x_bytes, int64_t n_tokens,
               const int32_t *ids, size_t ids_bytes, const float *weights, size_t weights_bytes, int64_t top_k,
               float *out, size_t out_bytes, char *message, size_t message_bytes);
/* Causal attention of q [n_tokens, heads, d] at positions first.. over a paged KV cache in F32, F16, BF16 or Q8_0, whose
 * rows are whole blocks of 32 values, the last filled up with zeros. The stores are [n_slots, groups, d] and [n_slots,
 * groups, e]; position p lies in slot pages[p / page] * page + p % page.
 * A null v reads the values as the first e of each key (MLA's latent). out is [n_tokens, heads, e]. A query sees the last
 * `window` positions with its own, and of these only the ones in its own run of `chunk` (0: no such limit). sinks
 * [heads] (null: none) are scores that join each softmax without a value. */
typedef struct {
    int32_t kv_format;
    int64_t n_tokens, heads, groups, d, e, first, page, n_slots, n_pages, window, chunk;
    float scale;
    const float *q;
    size_t q_bytes;
    const uint8_t *k;
    size_t k_bytes;
    const uint8_t *v;
    size_t v_bytes;
    const int32_t *pages;
    const float *sinks;
    size_t sinks_bytes;
    float *out;
    size_t out_bytes;
} hetero_attention_args;

/* RMS norm of each head of x by weight [d] (null: none), then rotation of its first 2 * half values by cos and sin
 * [n_tokens, half]; interleaved pairs come out as halves. Rows of x are x_stride floats apart; out [n_tokens, heads, d]. */
typedef struct {
    int64_t n_tokens, heads, d, half, x_stride;
    int32_t interleaved;
    float eps;
    const float *x;
    size_t x_bytes;
    const float *weight;
    size_t weight_bytes;
    const float *cos;
    const float *sin;
    size_t table_bytes;
    float *out;
    size_t out_bytes;
} hetero_rope_args;

/* What a step adds before it attends: raw q [n_tokens, heads, d], k and v of the new tokens. q and k are normed per
 * head (null: not) and turned by cos and sin [n_tokens, half]; then k and v are stored at positions first.. . */
typedef struct {
    const float *q;
    const float *k;
    const float *v;
    const float *q_norm;
    const float *k_norm;
    const float *cos;
    const float *sin;
    size_t q_bytes, k_bytes, v_bytes, q_norm_bytes, k_norm_bytes, table_bytes;
    int64_t half;
    int32_t interleaved;
    float eps;
} hetero_step_args;

int hetero_attention_step(hetero_pool *pool, const hetero_attention_args *args, const hetero_step_args *step,
                          char *message, size_t message_bytes);
int hetero_attention(hetero_pool *pool, const hetero_attention_args *args, char *message, size_t message_bytes);
/* Either of them on the calling thread, without a lock or memory of its own, so that it also runs on an emulated CPU. A null
 * step: q is ready. */
int hetero_attention_alone(const hetero_attention_args *args, const hetero_step_args *step, uint8_t *scratch,
                           size_t scratch_bytes, char *message, size_t message_bytes);
/* Stores values [n_tokens, groups, width] at positions first.. of a store [slots, groups, width]. */
int hetero_kv_append(int32_t kv_format, const float *values, size_t values_bytes, int64_t n_tokens, int64_t groups,
                     int64_t width, int64_t first, const int32_t *pages, int64_t n_pages, int64_t page, uint8_t *store,
                     size_t store_bytes, char *message, size_t message_bytes);
/* A matrix of `heads` equal parts, each with its own input: out[h, t, :] = part h of matrix times x[h, t, :]. A part
 * must be whole tiles (n / heads a multiple of 16). */
int hetero_linear_heads(hetero_pool *pool, const hetero_matrix *matrix, int64_t heads, const float *x, size_t x_bytes,
                        int64_t n_tokens, float *out, size_t out_bytes, char *message, size_t message_bytes);
int hetero_norm_rope(hetero_pool *pool, const hetero_rope_args *args, char *message, size_t message_bytes);

/* ids and weights [n_tokens, top_k] of the experts that logits [n_tokens, n_experts] choose, best first. Scores are a
 * softmax, or sigmoids; bias [n_experts] (null: none) is added for the choice alone, which is made among the topk_group
 * best of n_group groups, judged by their best expert or the sum of their best two. norm_topk: weights add up to scaling. */
typedef struct {
    int64_t n_experts, top_k, n_group, topk_group;
    int32_t sigmoid, norm_topk, group_top2;
    float scaling;
    const float *bias;
    size_t bias_bytes;
} hetero_router;

int hetero_route(hetero_pool *pool, const hetero_router *router, const float *logits, size_t logits_bytes,
                 int64_t n_tokens, int32_t *ids, size_t ids_bytes, float *weights, size_t weights_bytes, char *message,
                 size_t message_bytes);

/* out = a + b; out = activation(gate, up), as an expert joins them; `count` values each, of `bytes` bytes. out may be a. */
int hetero_add(hetero_pool *pool, const float *a, const float *b, float *out, size_t bytes, int64_t count, char *message,
               size_t message_bytes);
int hetero_gate(hetero_pool *pool, int32_t activation, const float *gate, const float *up, float *out, size_t bytes,
                int64_t count, char *message, size_t message_bytes);
/* Each of n_matrices matrices [n, n] made nearly doubly stochastic in place (Sinkhorn and Knopp): a softmax over each row
 * plus eps, then columns over their sum plus eps, and rows and columns again `iterations` - 1 times. */
int hetero_balance(float *x, size_t bytes, int64_t n_matrices, int64_t n, int32_t iterations, float eps, char *message,
                   size_t message_bytes);
/* n times m rows of `width` floats, from_n and from_m (to_n and to_m) floats apart. */
typedef struct {
    const float *from;
    float *to;
    size_t from_bytes, to_bytes;
    int64_t n, m, width, from_n, from_m, to_n, to_m;
} hetero_copy_args;
int hetero_copy(const hetero_copy_args *args, char *message, size_t message_bytes);

/* Calls of the functions above that are made one after another until one fails. `arguments` are those of the function
 * between its pool (where it has one) and its message: integers, and addresses whose memory must still be what it was. seconds
 * [n_calls] (null: not asked for) grow by what each call took. */
enum {
    HETERO_CALL_LINEAR, HETERO_CALL_LINEAR_HEADS, HETERO_CALL_NORM_ROPE, HETERO_CALL_ATTENTION,
    HETERO_CALL_ATTENTION_STEP, HETERO_CALL_KV_APPEND, HETERO_CALL_ROUTE, HETERO_CALL_MOE, HETERO_CALL_GATHER_ROWS,
    HETERO_CALL_ADD, HETERO_CALL_GATE, HETERO_CALL_COPY, HETERO_CALLS
};
enum { HETERO_CALL_ARGUMENTS = 12 };
typedef struct {
    int32_t function;
    uint64_t arguments[12];
} hetero_call;
int hetero_replay(hetero_pool *pool, const hetero_call *calls, int64_t n_calls, double *seconds, size_t seconds_bytes,
                  char *message, size_t message_bytes);

/* Measurements for estimates. fill writes `data`, each worker its own share, so that pages lie where workers do. read
 * reads pieces of piece_bytes (a multiple of 128) at `offsets`, in that order, shared out among the workers. compute
 * repeats multiply-adds in registers on every worker and tells how many multiplications plus additions that were: of int8
 * added up in int32, of float32, of int8 added up in int16, and of int16 added up in int32. */
enum { HETERO_MEASURE_INT8, HETERO_MEASURE_F32, HETERO_MEASURE_MADDUBS, HETERO_MEASURE_MADD };
int hetero_measure_fill(hetero_pool *pool, uint8_t *data, size_t data_bytes, char *message, size_t message_bytes);
int hetero_measure_read(hetero_pool *pool, const uint8_t *data, size_t data_bytes, const int64_t *offsets,
                        int64_t n_offsets, int64_t piece_bytes, double *seconds, char *message, size_t message_bytes);
int hetero_measure_compute(hetero_pool *pool, int32_t kind, int64_t rounds, double *operations, double *seconds,
                           char *message, size_t message_bytes);
/* Whether a child process survives its first AMX instructions; only to be asked where CPUID and Linux allow them. */
int hetero_amx_runs(void);
/* cdef end */
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
