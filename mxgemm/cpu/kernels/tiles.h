// Many rows of A in any format: panels of B are decoded to values with their scales in them, A is packed in tiles, and
// sums run over all of K. An engine multiplies them (amx.h, dots.h, fp32.h): it has the type of an element, TILE_N and
// TILE_BLOCKS, tiles_begin, tiles_end, decode_block_of_rows and multiply_tiles.
//
// bf16 engines take subnormals for zero and flush products to it. What that can lose is less than 2^-63 for |A| < 2^61,
// |B| < 2^43 and K < 2^20: sums of 2^-39 and more do not show it. Rows of A are moved into that range; the rest of what
// could go wrong (smaller sums of very small factors, larger scales of B) is computed again in double.
#pragma once
#include "exact.h"

enum { TILE_ROWS = 16, TILE_M = 2 * TILE_ROWS, TILE_VECTORS_N = TILE_N / LANES };
enum { TASK_TILE_ROWS = 512, TASK_PANELS = 16 };  // at most, of A and of B
enum { NARROW_BYTES = 512 << 10 };  // of A that stay in a cache while all of a panel's blocks pass
enum { PANEL_BYTES = TILE_BLOCKS * BLOCK * TILE_N * sizeof(tile_element) };
enum { SMALL_EXPONENT = -40, LARGE_EXPONENT = 40 };  // of B's scales, within which nothing is lost
enum { WEIGHT_SMALL = 1, WEIGHT_EXACT = 2 };
static const float LEAST_SUM = 0x1p-39f;

struct tiles {
    tile_element *values;  // [row tiles, blocks, TILE_ROWS, 32]
    int32_t *exponents;  // [rows]: a row's sums are to be multiplied by 2^this
    uint8_t *wide;  // [rows]: whether an element is so small that a product with it could be lost
    int64_t blocks;
    int64_t first;  // row of A that is row 0 here
};

static inline int64_t tiled_a_bytes(const struct mx_call *c, int64_t rows) {
    return round_up(rows, TILE_ROWS) * c->k * (int64_t)sizeof(tile_element) + round_up(rows * 5, 64);
}

static struct tiles tiles_in(const struct mx_call *c, int64_t rows, uint8_t *scratch) {
    struct tiles t = {.values = (tile_element *)scratch, .blocks = c->k / BLOCK};
    t.exponents = (int32_t *)(t.values + round_up(rows, TILE_ROWS) * c->k);
    t.wide = (uint8_t *)(t.exponents + rows);
    return t;
}

// Multiply by 2^exponent, which may be no fp32 value itself.
static inline void scale_block(float x[BLOCK], int exponent) {
    if (exponent == 0) return;
    int part = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
    for (int i = 0; i < BLOCK; i++) x[i] *= power_of_two(part);
    int rest = exponent - part < -149 ? -149 : exponent - part > 127 ? 127 : exponent - part;
    if (rest)
        for (int i = 0; i < BLOCK; i++) x[i] *= power_of_two(rest);
}

// Pack a row, moved by 2^-shift; return the exponent of its largest finite element, or 0 if there is none but zeros.
static int pack_row_moved(const struct mx_call *c, const struct tiles *t, int64_t at, int shift) {
    int top = -1000, bottom = 1000;
    tile_element *to = t->values + (at / TILE_ROWS * t->blocks * TILE_ROWS + at % TILE_ROWS) * BLOCK;
    for (int64_t b = 0; b < t->blocks; b++, to += TILE_ROWS * BLOCK) {
        float x[BLOCK];
        int exponent = elements_of_block(c, t->first + at, b, x) - shift;
        int32_t most = largest_magnitude(x), least = INT32_MAX;  // the latter of those that are not 0, less 1
        for (int i = 0; i < BLOCK; i++) {
            int32_t magnitude = (int32_t)((bits_of(x[i]) - 1) & 0x7FFFFFFF);
            least = magnitude < least ? magnitude : least;
        }
        if (most >= FP32_INFINITY) {
            most = 0;
            for (int i = 0; i < BLOCK; i++) {
                int32_t magnitude = (int32_t)(bits_of(x[i]) & 0x7FFFFFFF);
                if (magnitude > most && magnitude < FP32_INFINITY) most = magnitude;
            }
        }
        if (most) {
            int high = (most >> 23) - 127 + exponent, low = ((least + 1) >> 23) - 127 + exponent;
            top = high > top ? high : top;
            bottom = low < bottom ? low : bottom;
        }
        scale_block(x, exponent);
        for (int i = 0; i < BLOCK; i++) to[i] = to_tile_element(x[i]);
    }
    t->exponents[at] = shift;
    t->wide[at] = bottom < -60;
    return top == -1000 ? 0 : top;
}

// Pack a row of `rows`; after the last one come zeros up to the end of its tile.
static void pack_row(const struct mx_call *c, const struct tiles *t, int64_t at, int64_t rows) {
    int top = pack_row_moved(c, t, at, 0);
    if (top < -20 || top > 60) pack_row_moved(c, t, at, top);
    tile_element *next = t->values + (at / TILE_ROWS * t->blocks * TILE_ROWS + at % TILE_ROWS + 1) * BLOCK;
    int64_t rest = at == rows - 1 ? TILE_ROWS - 1 - at % TILE_ROWS : 0;
    for (int64_t b = 0; rest && b < t->blocks; b++, next += TILE_ROWS * BLOCK)
        memset(next, 0, (size_t)(rest * BLOCK) * sizeof *next);
}

// Note which of TILE_N rows of B have blocks whose scale is beyond what an engine takes; blocks of zeros are no matter.
static void note_extremes(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, uint8_t flags[TILE_N]) {
    for (int64_t r = 0; r < TILE_N; r++)
        for (int64_t b = first; b < first + blocks; b++) {
            int exponent = scale_at(&c->b_scales, smaller(n + r, c->n - 1), b) - 127;
            if ((exponent >= SMALL_EXPONENT && exponent <= LARGE_EXPONENT) || exponent == 128) continue;
            if (is_zero_block(c, smaller(n + r, c->n - 1), b)) continue;
            flags[r] |= exponent > LARGE_EXPONENT || exponent < -125 ? WEIGHT_EXACT : WEIGHT_SMALL;
        }
}

// Decode blocks first..first + blocks of rows n.. of B, and fetch the same blocks of the rows after them.
static void fill_tiles(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, tile_element *panel,
                       uint8_t *room, uint8_t flags[TILE_N]) {
    const uint8_t *rows[TILE_N];
    int64_t step = BLOCK_BYTES;
    for (int64_t r = 0; r < TILE_N; r++) {  // beyond the last row of B it is read again
        struct weight_row w = row_from(c, smaller(n + r, c->n - 1), first, blocks, room + r * blocks * BLOCK_BYTES);
        rows[r] = w.bytes;
        step = w.step;
    }
    const uint8_t *ahead = is_plain(c) && n + 2 * TILE_N <= c->n ? rows[0] + TILE_N * c->b_row : NULL;
    int extreme = 0;
    for (int v = 0; v < TILE_VECTORS_N; v++)
        for (int64_t sixteen = 0; sixteen < blocks; sixteen += BLOCK_BYTES) {
            vbytes scales[4];
            v_scale_bytes(c, n + v * LANES, first + sixteen, scales);
            extreme |= v_beyond(scales, 127 + SMALL_EXPONENT, 127 + LARGE_EXPONENT);
            for (int64_t i = 0; i < smaller(BLOCK_BYTES, blocks - sixteen); i++) {
                int64_t b = sixteen + i;
                if (ahead)
                    for (int64_t r = v * LANES + b % LINE_BLOCKS; r < (v + 1) * LANES; r += LINE_BLOCKS)
                        __builtin_prefetch(ahead + r * c->b_row + b * BLOCK_BYTES, 0, 2);
                decode_block_of_rows(rows + v * LANES, b * step, scales[i / 4], (int)(i % 4), v,
                                     panel + b * BLOCK * TILE_N);
            }
        }
    if (extreme) note_extremes(c, n, first, blocks, flags);
}

// Finish sums of a panel: what was lost, exponents, bias, stores.
static void finish_tiles(const struct mx_call *c, const struct tiles *t, int64_t m0, int64_t m1, int64_t n,
                         const uint8_t flags[TILE_N], float *sums) {
    int64_t here = smaller(TILE_N, c->n - n);
    int any = 0;
    for (int64_t r = 0; r < here; r++) any |= flags[r];
    for (int64_t m = m0; m < m1; m++, sums += TILE_N) {
        int exponent = t->exponents[m];
        float exact[TILE_N];
        uint8_t is_exact[TILE_N] = {0};
        if (any | t->wide[m])
            for (int64_t r = 0; r < here; r++) {
                int lost = (flags[r] | t->wide[m]) && float_of(bits_of(sums[r]) & 0x7FFFFFFF) < LEAST_SUM;
                is_exact[r] = (flags[r] & WEIGHT_EXACT) || lost;
                if (is_exact[r]) exact[r] = sum_exactly(c, t->first + m, n + r);
            }
        if (exponent) {
            float half = power_of_two(exponent / 2), rest = power_of_two(exponent - exponent / 2);
            for (int64_t r = 0; r < TILE_N; r++) sums[r] = sums[r] * half * rest;
        }
        if (any | t->wide[m])
            for (int64_t r = 0; r < here; r++) sums[r] = is_exact[r] ? exact[r] : sums[r];
        store_row(c, t->first + m, n, here, sums);
    }
}

// How a call's result is shared out: `across` tasks of `panels` panels each, with `down` tasks of rows of A.
struct tile_plan {
    int64_t panels, across, down, rows;
    int narrow;  // all blocks of a panel, then the next panel; else all panels, then the next blocks
};

static struct tile_plan tile_plan_of(const struct mx_call *c, int64_t rows, int64_t threads) {
    int64_t panels = (c->n + TILE_N - 1) / TILE_N;
    struct tile_plan p = {.narrow = round_up(rows, TILE_ROWS) * c->k * (int64_t)sizeof(tile_element) <= NARROW_BYTES};
    int64_t tasks = threads * ((panels + threads * TASK_PANELS - 1) / (threads * TASK_PANELS));
    if (p.narrow && threads > 1) tasks *= 4;
    p.panels = (panels + tasks - 1) / tasks;
    p.across = (panels + p.panels - 1) / p.panels;
    p.down = p.across < threads ? larger(1, smaller(threads / p.across, rows / 64)) : 1;
    p.down = larger(p.down, (rows + TASK_TILE_ROWS - 1) / TASK_TILE_ROWS);
    p.rows = round_up((rows + p.down - 1) / p.down, TILE_M);
    return p;
}

static inline int64_t tiles_scratch(const struct mx_call *c, int64_t rows, int64_t threads) {
    struct tile_plan p = tile_plan_of(c, rows, threads);
    int64_t panels = p.narrow ? 1 : p.panels, copies = is_plain(c) ? 0 : TILE_N * TILE_BLOCKS * BLOCK_BYTES;
    return PANEL_BYTES + round_up(panels * TILE_N, 64) + panels * p.rows * TILE_N * 4 + copies;
}

// Columns of `index` across, for rows m0..m1 of what is in `t`.
static void tiles_task(const struct mx_call *c, const struct tiles *t, const struct tile_plan *p, int64_t index,
                       int64_t m0, int64_t m1, uint8_t *scratch) {
    int64_t first_column = index * p->panels * TILE_N, last_column = smaller(c->n, first_column + p->panels * TILE_N);
    int64_t together = p->narrow ? 1 : p->panels, strip = p->rows * TILE_N, a_step = t->blocks * TILE_ROWS * BLOCK;
    tile_element *panel = (tile_element *)scratch;
    uint8_t *flags = scratch + PANEL_BYTES;
    float *sums = (float *)(flags + round_up(together * TILE_N, 64));
    uint8_t *room = (uint8_t *)(sums + together * strip);
    tiles_begin();
    for (int64_t n0 = first_column; n0 < last_column; n0 += together * TILE_N) {
        memset(flags, 0, (size_t)(together * TILE_N));
        for (int64_t first = 0; first < t->blocks; first += TILE_BLOCKS) {
            int64_t blocks = smaller(TILE_BLOCKS, t->blocks - first);
            int last = first + blocks == t->blocks;
            for (int64_t i = 0; i < together && n0 + i * TILE_N < last_column; i++) {
                int64_t n = n0 + i * TILE_N;
                fill_tiles(c, n, first, blocks, panel, room, flags + i * TILE_N);
                for (int64_t m = m0; m < m1; m += TILE_M) {
                    const tile_element *a = t->values + m / TILE_ROWS * a_step + first * TILE_ROWS * BLOCK;
                    multiply_tiles(a, a_step, smaller(TILE_M, m1 - m), panel, blocks, first != 0,
                                   sums + i * strip + (m - m0) * TILE_N);
                }
                if (last) finish_tiles(c, t, m0, m1, n, flags + i * TILE_N, sums + i * strip);
            }
        }
    }
    tiles_end();
}
