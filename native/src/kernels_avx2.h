// AVX2 kernels of quantised tiles. Whatever the shape, a token's value is made by the same integer sums and the same
// float operations in the same order, so every shape gives the same bits. Per group of weights:
//   acc = fma(float(isum - zero * sum(a)), d_w * d_a, acc), then with a minimum acc = fma(m, d_a * sum(a), acc).
#pragma once
#include "decode_avx2.h"

namespace {

constexpr int kTokensAtOnce = 4;         // 8 integer accumulators, 2 code registers, 1 of activations: no spills
constexpr int64_t kPanelTokens = 12;     // from here on codes are decoded once into a panel

// How far ahead memory is asked for: 6 to 9 KiB, measured.
template <Kind K> constexpr int64_t prefetch_blocks() { return K == kS8 ? 16 : 24; }

HETERO_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

// The sum in place; the empty asm keeps gcc from regrouping a chain of sums, where it would first make all the
// products and spill them.
HETERO_INLINE void add16(__m256i &sum, __m256i v) {
    sum = _mm256_add_epi16(sum, v);
    asm("" : "+x"(sum));
}

HETERO_INLINE void add32(__m256i &sum, __m256i v) {
    sum = _mm256_add_epi32(sum, v);
    asm("" : "+x"(sum));
}

HETERO_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Lines whose products of pairs can be added in 16 bits: 2-, 3- and 4-bit codes 8 x 2 x 15 x 127 = 30480; 5-bit codes
// 4 x 2 x 31 x 127 = 31496, e2m1 with its zero point 4 x 2 x 24 x 127; 6-bit codes 2 x 2 x 63 x 127 = 32004; signed
// ones 1 x 2 x 128 x 127 = 32512. No more than share a scale.
template <Kind K> constexpr int lines_in_16_bits() {
    constexpr int group = 8 / kKindInfo[K].groups;
    constexpr int fit = is_signed<K>() ? 1 : K == kU6 ? 2 : K == kU5 || K == kU5M || kKindInfo[K].book ? 4 : 8;
    return fit < group ? fit : group;
}

// Products of 8 rows x 4 k, added in pairs. Signed codes go as |w| times (a with the sign of w), which is exact.
template <Kind K> HETERO_INLINE __m256i products(__m256i w, __m256i magnitude, __m256i a) {
    return is_signed<K>() ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
}

// Where a kernel takes its codes from: the block in memory, or a panel of decoded lines of 16 rows.
template <Kind K, bool Panel> HETERO_INLINE __m256i code_line(const uint8_t *block, int j, int half) {
    return Panel ? load(block + 64 * j + 32 * half) : decode_line<K>(block, j, half);
}

// The activations of T tokens of a call.
template <int T> struct TokenRows {
    const int8_t *q[T];
    const float *d[T];
    const float *ds[T];
    const int32_t *s8[T];
    const int32_t *half[T];

    TokenRows(const Acts &acts, int64_t first) {
        for (int t = 0; t < T; t++) {
            const int64_t row = acts.row(first + t);
            q[t] = acts.q + row * acts.q_stride;
            d[t] = acts.d + row * acts.group_stride;
            ds[t] = acts.ds + row * acts.group_stride;
            s8[t] = acts.s8 + row * acts.group_stride;
            half[t] = acts.half + row * acts.group_stride;
        }
    }
    // The sum of the codes that scale g of block b covers, for kinds with two scales.
    HETERO_INLINE int32_t half_sum(int t, int64_t b, int g) const {
        return g ? (s8[t][b] >> 3) - half[t][b] : half[t][b];
    }
};

// The zero point times the sum of the activations' codes.
template <Kind K, int T> HETERO_INLINE __m256i zero_sum(const TokenRows<T> &rows, int t, int64_t b, int g) {
    constexpr KindInfo kind = kKindInfo[K];
    if (kind.groups == 2) return _mm256_set1_epi32(kind.zero * rows.half_sum(t, b, g));
    const __m256i s8 = _mm256_set1_epi32(rows.s8[t][b]);
    return kind.zero == 8    ? s8
           : kind.zero == 16 ? _mm256_slli_epi32(s8, 1)
                             : _mm256_add_epi32(s8, _mm256_srai_epi32(s8, 1));  // 12
}

// Adds the integer sums of scale g of block b to the float accumulators of 16 rows.
template <Kind K, int T>
HETERO_INLINE void scale_sums(const __m256i (*sum)[2], const float *scale, const TokenRows<T> &rows, int64_t b, int g,
                              __m256 (*acc)[2]) {
    constexpr bool has_zero = kKindInfo[K].zero && !is_signed<K>();
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        const __m256 d = _mm256_set1_ps(rows.d[t][b]);
        const __m256i zero = has_zero ? zero_sum<K>(rows, t, b, g) : _mm256_setzero_si256();
        for (int h = 0; h < 2; h++) {
            const __m256i whole = has_zero ? _mm256_sub_epi32(sum[t][h], zero) : sum[t][h];
            acc[t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(_mm256_load_ps(scale + 8 * h), d),
                                        acc[t][h]);
        }
    }
}

// The sums of the products of lines [first, end) of a block, of 16 rows and T tokens.
template <Kind K, int T, bool Panel>
HETERO_INLINE void sum_lines(const uint8_t *block, int first, int end, const TokenRows<T> &rows, int64_t b,
                             __m256i (*sum)[2]) {
    constexpr int run = lines_in_16_bits<K>();
#pragma GCC unroll 8
    for (int from = first; from < end; from += run) {
        __m256i pairs[T][2];
#pragma GCC unroll 8
        for (int j = from; j < from + run; j++) {
            const __m256i w0 = code_line<K, Panel>(block, j, 0), w1 = code_line<K, Panel>(block, j, 1);
            const __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m256i a = broadcast4(rows.q[t] + b * kBlock + 4 * j);
                const __m256i p0 = products<K>(w0, abs0, a), p1 = products<K>(w1, abs1, a);
                if (j == from) {
                    pairs[t][0] = p0;
                    pairs[t][1] = p1;
                } else {
                    add16(pairs[t][0], p0);
                    add16(pairs[t][1], p1);
                }
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            for (int h = 0; h < 2; h++) {
                if (from == first) sum[t][h] = widen(pairs[t][h]);
                else add32(sum[t][h], widen(pairs[t][h]));
            }
    }
}

// Block i of a chunk, block b of a row: 32 k for 16 rows and T tokens. Each broadcast of activations serves 16 rows,
// each line T tokens.
template <Kind K, int T, bool Panel>
HETERO_INLINE void add_block(const uint8_t *block, const ScalePanel &scales, int64_t i, const TokenRows<T> &rows,
                             int64_t b, __m256 (*acc)[2]) {
    constexpr int groups = kKindInfo[K].groups, lines = 8 / groups;
    __m256i sum[T][2];
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        sum_lines<K, T, Panel>(block, g * lines, (g + 1) * lines, rows, b, sum);
        scale_sums<K>(sum, scales.d[g][i], rows, b, g, acc);
    }
    if (!kKindInfo[K].minimum) return;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
        for (int t = 0; t < T; t++) {
            const float ds = groups == 1 ? rows.ds[t][b] : rows.d[t][b] * float(rows.half_sum(t, b, g));
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm256_fmadd_ps(_mm256_load_ps(scales.m[g][i] + 8 * h), _mm256_set1_ps(ds), acc[t][h]);
        }
}

// What of a tile is fetched ahead as few tokens read it from memory to registers; no tile: nothing.
struct Ahead {
    const uint8_t *tile;
    int64_t blocks, size, scale_bytes;  // of the tile, of a block; scale bytes rounded down
};

template <int F> Ahead ahead_of(const uint8_t *tile, int64_t k) {
    constexpr FormatInfo f = kFormats[F];
    return {tile, ceil_div(k, kBlock), tile_bytes(F, k), f.scale_bytes * kBlock / f.scale_k};
}

HETERO_INLINE void fetch_near(const uint8_t *p) { _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T0); }

// Codes of this tile or the next, and the next tile's scales.
template <Kind K> HETERO_INLINE void prefetch(const Ahead &to, int64_t b) {
    constexpr int64_t bytes = kind_bytes(K);
    const int64_t block = b + prefetch_blocks<K>();
    const uint8_t *codes = to.tile + (block < to.blocks ? block * bytes : to.size + (block - to.blocks) * bytes);
    for (int64_t i = 0; i < bytes; i += 64) fetch_near(codes + i);
    const int64_t scale = b * to.scale_bytes;
    if (scale % 64 < to.scale_bytes) fetch_near(to.tile + to.size + to.blocks * bytes + scale);  // a line begins here
}

// Fetches into L2, while tokens pass over tiles, the tiles that are read after them: a few lines with each block, so
// that memory is asked evenly.
class Fetch {
  public:
    // `from` is null where nobody knows better than that what follows comes next.
    Fetch(const uint8_t *from, const uint8_t *follows, int64_t bytes, int64_t blocks)
        : at_(from ? from : follows), end_(at_ + bytes), step_(round_up(ceil_div(bytes, blocks), 64)) {}

    HETERO_INLINE void next_block() {
        if (at_ >= end_) return;
        for (int64_t i = 0; i < step_; i += 64) _mm_prefetch(reinterpret_cast<const char *>(at_ + i), _MM_HINT_T1);
        at_ += step_;
    }

  private:
    const uint8_t *at_, *end_;
    int64_t step_;
};

// A chunk of a tile: `count` blocks from first_block on. `codes` is where they lie, decoded or not.
struct Chunk {
    const uint8_t *codes;
    const ScalePanel *scales;
    int64_t first_block, count;
    Ahead ahead;   // for codes that are read from memory to registers
    Fetch *fetch;  // for the others
};

template <Kind K, int T, bool Panel>
__attribute__((noinline)) void add_chunk(const Chunk &chunk, const Acts &acts, int64_t first, float *out,
                                         int64_t out_stride) {
    constexpr int64_t bytes = Panel ? 512 : kind_bytes(K);
    const TokenRows<T> rows(acts, first);
    __m256 acc[T][2];
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++)
            acc[t][h] = chunk.first_block ? _mm256_loadu_ps(out + t * out_stride + 8 * h) : _mm256_setzero_ps();
    for (int64_t i = 0; i < chunk.count; i++) {
        if (Panel) chunk.fetch->next_block();
        else if (chunk.ahead.tile) prefetch<K>(chunk.ahead, chunk.first_block + i);
        add_block<K, T, Panel>(chunk.codes + i * bytes, *chunk.scales, i, rows, chunk.first_block + i, acc);
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[t][h]);
}

template <Kind K> void decode_panel(const uint8_t *codes, int64_t count, uint8_t *panel) {
    for (int64_t i = 0; i < count; i++, codes += kind_bytes(K), panel += 512)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            for (int h = 0; h < 2; h++)
                _mm256_store_si256(reinterpret_cast<__m256i *>(panel + 64 * j + 32 * h), decode_line<K>(codes, j, h));
}

template <Kind K, bool Panel>
void add_tokens(Chunk chunk, const Acts &acts, int64_t first, int64_t n, float *out, int64_t stride) {
    int64_t t = 0;
    for (; t + kTokensAtOnce <= n; t += kTokensAtOnce, chunk.ahead.tile = nullptr)  // the first pass fetches for all
        add_chunk<K, kTokensAtOnce, Panel>(chunk, acts, first + t, out + t * stride, stride);
    const int64_t rest = n - t;
    if (rest == 3) add_chunk<K, 3, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (rest == 2) add_chunk<K, 2, Panel>(chunk, acts, first + t, out + t * stride, stride);
    if (rest == 1) add_chunk<K, 1, Panel>(chunk, acts, first + t, out + t * stride, stride);
}

// One token asks for memory a whole tile ahead where that is short, so that codes and scales are asked for in the order in
// which they lie, else 24 blocks, and decodes the scales of 32 blocks at a time. All of it measured: this loop draws a
// tenth more from memory than add_chunk, as every line is asked for once and with few instructions.
constexpr int64_t kAheadBlocks = 24, kShortTile = 12 << 10, kScaleBlocks = 32;

// Asks for block `at` of the tile, or of the next one, and for the next one's scales of block b.
template <int F> HETERO_INLINE void fetch_one(const uint8_t *tile, int64_t blocks, int64_t size, int64_t at, int64_t b) {
    constexpr int bytes = code_bytes(F), scale_bytes = kFormats[F].scale_bytes * kBlock / kFormats[F].scale_k;
    const uint8_t *codes = at < blocks ? tile + at * bytes : tile + size + (at - blocks) * bytes;
    for (int i = 0; i < bytes; i += 64) fetch_near(codes + i);
    const int64_t scale = b * scale_bytes;
    if (scale % 64 < scale_bytes) fetch_near(tile + size + blocks * bytes + scale);  // a line begins here
}

template <int F>
__attribute__((noinline)) void one_token(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, float *out) {
    constexpr Kind kind = kind_of(F);
    const int64_t blocks = k / kBlock, size = tile_bytes(F, k);
    const int64_t distance = blocks * code_bytes(F) <= kShortTile ? blocks : kAheadBlocks;
    const TokenRows<1> rows(acts, first);
    __m256 acc[1][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
    ScalePanel scales;
    for (int64_t from = 0; from < blocks; from += kScaleBlocks) {
        const int64_t end = min64(blocks, from + kScaleBlocks);
        decode_scales<F>(tile + scale_offset(F, k), from, end - from, &scales);
        for (int64_t b = from; b < end; b++) {
            fetch_one<F>(tile, blocks, size, b + distance, b);
            add_block<kind, 1, false>(tile + b * code_bytes(F), scales, b - from, rows, b, acc);
        }
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + 8 * h, acc[0][h]);
}

// Decoded codes of Nl4 are those of S8, so both share the kernels that read a panel.
template <Kind K> constexpr Kind panel_kind() { return K == kNl4 ? kS8 : K; }

template <int F>
void tile_avx2(const uint8_t *tile, int64_t k, const Acts &acts, int64_t first, int64_t n, float *out,
               int64_t out_stride) {
    constexpr Kind kind = kind_of(F);
    if (n == 1) return one_token<F>(tile, k, acts, first, out);
    const int64_t blocks = k / kBlock;
    alignas(64) uint8_t panel[kChunkBlocks * 512];
    ScalePanel scales;
    Fetch fetch(acts.next, tile + tile_bytes(F, k), tile_bytes(F, k), blocks * max64(1, n / kTokensAtOnce));
    for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
        const int64_t count = min64(kChunkBlocks, blocks - b);
        Chunk chunk = {tile + b * code_bytes(F), &scales, b, count, ahead_of<F>(tile, k), &fetch};
        decode_scales<F>(tile + scale_offset(F, k), b, count, &scales);
        if (n < kPanelTokens) {
            add_tokens<kind, false>(chunk, acts, first, n, out, out_stride);
        } else {
            decode_panel<kind>(chunk.codes, count, panel);
            chunk.codes = panel;
            add_tokens<panel_kind<kind>(), true>(chunk, acts, first, n, out, out_stride);
        }
    }
}

}  // namespace
