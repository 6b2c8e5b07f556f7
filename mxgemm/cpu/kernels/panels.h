// Many rows of A: a panel of rows of B is decoded once, interleaved so that a vector holds four elements of each row.
#pragma once
#include "weights.h"

enum { PANEL_N = LANES * PANEL_VECTORS, PANEL_BLOCKS = 128, PANEL_STEPS = 8 };
enum { PANEL_BLOCK_BYTES = PANEL_STEPS * PANEL_N * 4 };

struct panel {
    uint8_t *bytes;  // [blocks, 8 steps, PANEL_N, 4]
    float *scales;  // [blocks, PANEL_N]
    float *sums;  // [rows of A, PANEL_N], kept from one run of blocks to the next
    uint8_t *room;  // for rows that do not lie in a row
    const uint8_t *ahead;  // what the next panel is made of: PANEL_N rows of B, or NULL
    int64_t ahead_row;
};

static inline int64_t panel_scratch(const struct mx_call *c, int64_t rows) {
    int64_t blocks = smaller(c->k / BLOCK, PANEL_BLOCKS);
    int64_t sums = c->k / BLOCK > PANEL_BLOCKS ? rows * PANEL_N * 4 : 0;
    int64_t copies = c->b_column != 1 ? PANEL_N * blocks * BLOCK_BYTES : 0;
    return blocks * PANEL_BLOCK_BYTES + blocks * PANEL_N * 4 + sums + copies;
}

static struct panel panel_in(const struct mx_call *c, int64_t rows, uint8_t *scratch) {
    int64_t blocks = smaller(c->k / BLOCK, PANEL_BLOCKS);
    struct panel p = {.bytes = scratch, .scales = (float *)(scratch + blocks * PANEL_BLOCK_BYTES)};
    p.sums = p.scales + blocks * PANEL_N;
    p.ahead_row = c->b_row;
    p.room = (uint8_t *)(p.sums + (c->k / BLOCK > PANEL_BLOCKS ? rows * PANEL_N : 0));
    return p;
}

// Decode the scales of blocks first..first + blocks of rows n.. of B, sixteen blocks of LANES rows at a time, and note
// which rows have one without a value in fp32.
static void fill_scales(const struct mx_call *c, const struct panel *p, int64_t n, int64_t first, int64_t blocks,
                        int too_large[PANEL_N]) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
        vbytes largest = v_no_bytes();
        for (int64_t b = 0; b < blocks; b += BLOCK_BYTES) {
            int64_t here = smaller(BLOCK_BYTES, blocks - b);
            vbytes four[4];
            v_scale_bytes(c, n + v * LANES, first + b, four);
            for (int64_t i = 0; i < here; i++)
                v_store(p->scales + (b + i) * PANEL_N + v * LANES, v_scales(four[i / 4], i % 4));
            for (int i = 0; i < 4; i++) largest = v_largest(largest, four[i]);
        }
        uint8_t of_rows[LANES][4];
        v_store_bytes(of_rows[0], largest);
        for (int r = 0; r < LANES; r++)
            for (int i = 0; i < 4; i++) too_large[v * LANES + r] |= of_rows[r][i] > FIRST_TOO_LARGE;
    }
}

// Decode blocks first..first + blocks of rows n.. of B.
static void fill_panel(const struct mx_call *c, const struct panel *p, int64_t n, int64_t first, int64_t blocks) {
    const uint8_t *rows[PANEL_N];
    int64_t step = BLOCK_BYTES;
    for (int64_t r = 0; r < PANEL_N; r++) {  // beyond the last row of B it is read again
        struct weight_row w = row_from(c, smaller(n + r, c->n - 1), first, blocks, p->room + r * blocks * BLOCK_BYTES);
        rows[r] = w.bytes;
        step = w.step;
    }
    for (int64_t b = 0; b < blocks; b++)
        for (int v = 0; v < PANEL_VECTORS; v++) {
            uint8_t *to = p->bytes + b * PANEL_BLOCK_BYTES + v * LANES * 4;
            vbytes four[4];
            v_transpose(rows + v * LANES, b * step, four);
            for (int i = 0; i < 4; i++) {
                v_store_bytes(to + 2 * i * PANEL_N * 4, v_low(four[i]));
                v_store_bytes(to + (2 * i + 1) * PANEL_N * 4, v_high(four[i]));
            }
        }
}

// Add the products of `count` rows of A with a panel's blocks to `sums`, or put them there. Constants after inlining.
MX_INLINE void multiply_panel(const struct activations *a, int64_t at, const int count, const struct panel *p,
                              int64_t first, int64_t blocks, float *sums) {
    vfloat total[PANEL_M][PANEL_VECTORS];
    for (int m = 0; m < count; m++)
        for (int v = 0; v < PANEL_VECTORS; v++)
            total[m][v] = first ? v_load_float(sums + m * PANEL_N + v * LANES) : v_zero();
    int64_t padded = a->groups * GROUP, a_row = padded * BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t block = first + b;
        if (p->ahead)
            for (int r = (int)(b % LINE_BLOCKS); r < PANEL_N; r += LINE_BLOCKS)
                __builtin_prefetch(p->ahead + r * p->ahead_row + b * BLOCK_BYTES);
        const int8_t *codes = a->codes + at * a_row + block / GROUP * GROUP * BLOCK + block % GROUP * BLOCK_BYTES;
        const uint8_t *w = p->bytes + b * PANEL_BLOCK_BYTES;
        vpanel dots[PANEL_M][PANEL_VECTORS];
        for (int m = 0; m < count; m++)
            for (int v = 0; v < PANEL_VECTORS; v++) dots[m][v] = v_panel(a->offsets[(at + m) * padded + block]);
#pragma GCC unroll 8
        for (int s = 0; s < PANEL_STEPS; s++) {
            vbytes weights[PANEL_VECTORS];
            for (int v = 0; v < PANEL_VECTORS; v++) weights[v] = v_load(w + s * PANEL_N * 4 + v * LANES * 4);
            for (int m = 0; m < count; m++) {
                vbytes four = v_four_codes(codes + m * a_row + s / 2 * 4 + s % 2 * GROUP * BLOCK_BYTES);
                for (int v = 0; v < PANEL_VECTORS; v++) dots[m][v] = v_panel_dot(dots[m][v], weights[v], four);
            }
        }
        for (int m = 0; m < count; m++) {
            vfloat a_scale = v_broadcast(a->scales[(at + m) * padded + block]);
            for (int v = 0; v < PANEL_VECTORS; v++) {
                vfloat dot = v_multiply(v_panel_float(dots[m][v]), a_scale);
                total[m][v] = v_multiply_add(dot, v_load_float(p->scales + b * PANEL_N + v * LANES), total[m][v]);
            }
        }
    }
    for (int m = 0; m < count; m++)
        for (int v = 0; v < PANEL_VECTORS; v++) v_store(sums + m * PANEL_N + v * LANES, total[m][v]);
}

#define MX_PANEL_KERNEL(count)                                                                                   \
    static __attribute__((noinline)) void panel_##count(                                                         \
        const struct activations *a, int64_t at, const struct panel *p, int64_t first, int64_t blocks, float *sums) { \
        multiply_panel(a, at, count, p, first, blocks, sums);                                                    \
    }

MX_PANEL_KERNEL(1)
MX_PANEL_KERNEL(2)
MX_PANEL_KERNEL(3)
MX_PANEL_KERNEL(4)
MX_PANEL_KERNEL(5)
MX_PANEL_KERNEL(6)

typedef void panel_kernel(const struct activations *, int64_t, const struct panel *, int64_t, int64_t, float *);

static panel_kernel *const PANEL_KERNELS[PANEL_M] = {panel_1, panel_2, panel_3, panel_4, panel_5, panel_6};

// Where the panel after this one begins in memory, if it lies in rows there.
static const uint8_t *panel_ahead(const struct mx_call *c, int64_t n, int64_t block) {
    return is_plain(c) && n + PANEL_N <= c->n ? c->b + n * c->b_row + block * BLOCK_BYTES : NULL;
}

// Columns n..n + PANEL_N of the result for rows m0..m1 of what is in `a`.
static void panels_task(const struct mx_call *c, const struct activations *a, int64_t m0, int64_t m1, int64_t n,
                        uint8_t *scratch) {
    struct panel p = panel_in(c, m1 - m0, scratch);
    int64_t blocks = c->k / BLOCK, here = smaller(PANEL_N, c->n - n);
    int too_large[PANEL_N] = {0};
    for (int64_t first = 0; first < blocks; first += PANEL_BLOCKS) {
        int64_t count = smaller(PANEL_BLOCKS, blocks - first);
        int last = first + count == blocks;
        fill_panel(c, &p, n, first, count);
        fill_scales(c, &p, n, first, count, too_large);
        p.ahead = panel_ahead(c, last ? n + PANEL_N : n, last ? 0 : first + count);
        for (int64_t m = m0; m < m1; m += PANEL_M, p.ahead = NULL) {
            int64_t rows = smaller(PANEL_M, m1 - m);
            float of_these[PANEL_M * PANEL_N];
            float *sums = blocks > PANEL_BLOCKS ? p.sums + (m - m0) * PANEL_N : of_these;
            PANEL_KERNELS[rows - 1](a, m, &p, first, count, sums);
            for (int64_t i = 0; last && i < rows; i++) {
                for (int64_t r = 0; r < here; r++)
                    if (too_large[r]) sums[i * PANEL_N + r] = sum_in_double(c, a, m + i, n + r);
                store_row(c, a->first + m + i, n, here, sums + i * PANEL_N);
            }
        }
    }
}
