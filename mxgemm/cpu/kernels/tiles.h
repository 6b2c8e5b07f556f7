// Many rows of A in any format: panels of B are decoded to values with their scales in them, A is packed in tiles, and
// sums run over all of K. An engine multiplies them (amx.h, dots.h, fp32.h): it has the type of an element, TILE_N,
// TILE_M (rows of A at a time), TILE_BLOCKS (blocks of a panel) and PANEL_BLOCK (elements from one to the next),
// NARROW_BYTES (of A, that stay in a cache while all of a panel's blocks pass), tiles_begin, tiles_end, pack_block,
// decode_block_of_rows and multiply_tiles; and it may look products up in tables (lookups.h).
//
// bf16 engines take subnormals for zero and flush products to it. What that can lose is less than 2^-63 for |A| < 2^61,
// |B| < 2^43 and K < 2^20: sums of 2^-39 and more do not show it. Rows of A are moved into that range; the rest of what
// could go wrong (smaller sums of very small factors, larger scales of B) is computed again in double.
#pragma once
#include "exact.h"

enum { TILE_ROWS = 16, TILE_VECTORS_N = TILE_N / LANES };
#ifdef MX_LOOKS_UP
enum { TASK_TILE_ROWS = 64, TASK_PANELS = 33 };  // at most, of A and of B
#else
enum { TASK_TILE_ROWS = 512, TASK_PANELS = 16 };
static inline int64_t tables_bytes(const struct mx_call *c, int64_t rows) { return (void)c, (void)rows, 0; }
static inline void fill_tables(const tile_element *a, int64_t a_step, int64_t rows, int64_t blocks, float *tables) {
    (void)a, (void)a_step, (void)rows, (void)blocks, (void)tables;
}
#endif
enum { PANEL_BYTES = TILE_BLOCKS * PANEL_BLOCK * sizeof(tile_element) };
enum { WEIGHT_SMALL = 1, WEIGHT_EXACT = 2, WEIGHT_NAN = 4 };
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

// Widen the range of exponents by that of a block's elements, but for zeros, infinities and NaN, times 2^exponent.
static inline void widen_range(const float x[BLOCK], int exponent, int *top, int *bottom) {
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
    if (!most) return;
    int high = (most >> 23) - 127 + exponent, low = ((least + 1) >> 23) - 127 + exponent;
    *top = high > *top ? high : *top;
    *bottom = low < *bottom ? low : *bottom;
}

// Pack a row, moved by 2^-shift; return the exponent of its largest finite element, or one that is little larger, or 0
// if there is none but zeros.
static int pack_row_moved(const struct mx_call *c, const struct tiles *t, int64_t at, int shift) {
    int top = -1000, bottom = 1000;
    int most = largest_exponent(c->a_format), least = least_exponent(c->a_format);
    tile_element *to = t->values + (at / TILE_ROWS * t->blocks * TILE_ROWS + at % TILE_ROWS) * BLOCK;
#ifdef MX_PACKS_BF16
    int quick = shift == 0 && c->a_format == MX_E4M3 && c->a_dtype == MX_BF16 && c->a_column == 1 && !c->a_scales.bytes;
    const uint16_t *row = (const uint16_t *)c->a + (t->first + at) * c->a_row;
#endif
    for (int64_t b = 0; b < t->blocks; b++, to += TILE_ROWS * BLOCK) {
        float x[BLOCK];
#ifdef MX_PACKS_BF16
        int byte = quick ? pack_e4m3(row + b * BLOCK, c->addend, to) : 0;
        if (byte) {
            top = byte - 127 + most > top ? byte - 127 + most : top;
            bottom = byte - 127 + least < bottom ? byte - 127 + least : bottom;
            continue;
        }
#endif
        int scale = elements_of_block(c, t->first + at, b, x), exponent = scale - shift;
        if (c->a_format == MX_BF16_ELEMENTS || scale < -100) {  // zeros, perhaps, which have the least scale
            widen_range(x, exponent, &top, &bottom);
        } else {
            top = exponent + most > top ? exponent + most : top;
            bottom = exponent + least < bottom ? exponent + least : bottom;
        }
        scale_block(x, exponent);
        pack_block(x, to);
    }
    t->exponents[at] = shift;
    t->wide[at] = bottom < -60;
    return top == -1000 ? 0 : top;
}

#ifdef MX_PACKS_BF16
// Pack a row that is bf16 as it is; the same exponent.
static int pack_bf16_row(const struct mx_call *c, const struct tiles *t, int64_t at) {
    const uint16_t *row = (const uint16_t *)c->a + (t->first + at) * c->a_row;
    tile_element *to = t->values + (at / TILE_ROWS * t->blocks * TILE_ROWS + at % TILE_ROWS) * BLOCK;
    int most, least;
    pack_bf16(row, t->blocks, to, TILE_ROWS * BLOCK, &most, &least);
    t->exponents[at] = 0;
    t->wide[at] = most && ((least + 1) >> 7) - 127 < -60;
    return most ? (most >> 7) - 127 : 0;
}
#endif

// Pack a row of `rows`; after the last one come zeros up to the end of its tile.
static void pack_row(const struct mx_call *c, const struct tiles *t, int64_t at, int64_t rows) {
#ifdef MX_PACKS_BF16
    int as_it_is = c->a_format == MX_BF16_ELEMENTS && c->a_dtype == MX_BF16 && c->a_column == 1;
    int top = as_it_is ? pack_bf16_row(c, t, at) : pack_row_moved(c, t, at, 0);
#else
    int top = pack_row_moved(c, t, at, 0);
#endif
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
            if (exponent == 128) flags[r] |= WEIGHT_NAN;
            if ((exponent >= SMALL_EXPONENT && exponent <= LARGE_EXPONENT) || exponent == 128) continue;
            if (is_zero_block(c, smaller(n + r, c->n - 1), b)) continue;
            flags[r] |= exponent > LARGE_EXPONENT || exponent < -125 ? WEIGHT_EXACT : WEIGHT_SMALL;
        }
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
                is_exact[r] = (flags[r] & (WEIGHT_EXACT | WEIGHT_NAN)) || lost;
                if (flags[r] & WEIGHT_NAN)
                    exact[r] = not_a_number();
                else if (is_exact[r])
                    exact[r] = sum_exactly(c, t->first + m, n + r);
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
    if (tables_bytes(c, rows)) p.narrow = 0;  // tables of a few blocks for many panels
    int64_t tasks = threads * ((panels + threads * TASK_PANELS - 1) / (threads * TASK_PANELS));
    p.panels = (panels + tasks - 1) / tasks;
    if (p.narrow && threads > 1) p.panels = larger(1, smaller(p.panels, panels / (12 * threads)));
    p.across = (panels + p.panels - 1) / p.panels;
    p.down = p.across < threads ? larger(1, smaller(threads / p.across, rows / 64)) : 1;
    p.down = larger(p.down, (rows + TASK_TILE_ROWS - 1) / TASK_TILE_ROWS);
    p.rows = round_up((rows + p.down - 1) / p.down, TILE_M);
    return p;
}

static inline int64_t tiles_scratch(const struct mx_call *c, int64_t rows, int64_t threads) {
    struct tile_plan p = tile_plan_of(c, rows, threads);
    int64_t panels = p.narrow ? 1 : p.panels, copies = is_plain(c) ? 0 : TILE_N * TILE_BLOCKS * BLOCK_BYTES;
    int64_t tables = tables_bytes(c, p.rows);
    return PANEL_BYTES + round_up(panels * TILE_N, 64) + panels * p.rows * TILE_N * 4 + tables + copies;
}

// The blocks first.. of rows n.. of B, in panel `i` of those that are multiplied together.
struct tile_place {
    int64_t n, first, i;
};

// What follows, `step` blocks at a time, until n is `end`.
static struct tile_place place_after(struct tile_place p, int64_t together, int64_t step, int64_t blocks, int64_t end) {
    p.n += TILE_N, p.i++;
    if (p.i < together && p.n < end) return p;
    p.first += step;
    if (p.first < blocks) return (struct tile_place){p.n - p.i * TILE_N, p.first, 0};
    return (struct tile_place){smaller(p.n, end), 0, 0};
}

#ifdef MX_DECODES_AT_ONCE
#include "few_rows.h"
#endif

// Columns of `index` across, for rows m0..m1 of what is in `t`.
static void tiles_task(const struct mx_call *c, const struct tiles *t, const struct tile_plan *p, int64_t index,
                       int64_t m0, int64_t m1, uint8_t *scratch) {
    int64_t begin = index * p->panels * TILE_N, end = round_up(smaller(c->n, begin + p->panels * TILE_N), TILE_N);
    int64_t together = p->narrow ? 1 : p->panels, strip = p->rows * TILE_N, a_step = t->blocks * TILE_ROWS * BLOCK;
    tile_element *panel = (tile_element *)scratch;
    uint8_t *flags = scratch + PANEL_BYTES;
    float *sums = (float *)(flags + round_up(together * TILE_N, 64));
    int64_t bytes = tables_bytes(c, p->rows), of_row = bytes / (int64_t)sizeof(float) / p->rows;
    float *tables = bytes ? sums + together * strip : NULL;
    uint8_t *room = (uint8_t *)(sums + together * strip) + bytes;
#ifdef MX_DECODES_AT_ONCE
    if (m1 - m0 <= FEW_ROWS) {
        few_rows_task(c, t, begin, end, together, strip, m0, m1, flags, sums, room);
        return;
    }
#endif
    struct tile_source source = {.n = -1};
    struct tile_place at = {begin, 0, 0}, then = place_after(at, together, TILE_BLOCKS, t->blocks, end);
    tiles_begin();
    find_blocks(c, at.n, 0, smaller(TILE_BLOCKS, t->blocks), then.n, then.first, room, &source);
    decode_rest(&source, panel);
    while (at.n < end) {
        int64_t blocks = source.blocks, more = then.n < end, last = at.first + blocks == t->blocks;
        uint8_t *here = flags + at.i * TILE_N;
        float *to = sums + at.i * strip;
        if (at.first == 0) memset(here, 0, TILE_N);
        if (at.i == 0 && tables)
            fill_tables(t->values + m0 / TILE_ROWS * a_step + at.first * TILE_ROWS * BLOCK, a_step, m1 - m0, blocks,
                        tables);
        if (source.extreme) note_extremes(c, at.n, at.first, blocks, here);
        struct tile_place later = place_after(then, together, TILE_BLOCKS, t->blocks, end);
        if (more)
            find_blocks(c, then.n, then.first, smaller(TILE_BLOCKS, t->blocks - then.first), later.n, later.first,
                        room, &source);
        for (int64_t m = m0 + (m1 - m0 - 1) / TILE_M * TILE_M; m >= m0; m -= TILE_M) {
            const tile_element *a = t->values + m / TILE_ROWS * a_step + at.first * TILE_ROWS * BLOCK;
            multiply_tiles(a, a_step, smaller(TILE_M, m1 - m), panel, blocks, at.first != 0, to + (m - m0) * TILE_N,
                           m == m0 && more ? &source : NULL, tables ? tables + (m - m0) * of_row : NULL);
        }
        if (last) finish_tiles(c, t, m0, m1, at.n, here, to);
        if (more) decode_rest(&source, panel);
        at = then, then = later;
    }
    tiles_end();
}
