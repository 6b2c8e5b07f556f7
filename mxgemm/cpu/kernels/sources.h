// Where the next blocks of a panel come from: some blocks of TILE_N rows of B. An engine of tiles decodes them beside the
// products of the blocks whose place they take, or they are decoded by themselves.
#pragma once
#include "weights.h"

#ifndef MX_DECODES_AT_ONCE
enum { SOURCE_BLOCKS = TILE_BLOCKS };
#endif
enum { SCALE_GROUPS = (SOURCE_BLOCKS + BLOCK_BYTES - 1) / BLOCK_BYTES };  // of sixteen blocks, of a source
enum { SMALL_EXPONENT = -40, LARGE_EXPONENT = 40 };  // of B's scales, within which engines of bf16 lose nothing

struct tile_source {
    const uint8_t *rows[TILE_N];  // block b lies at rows[r] + offset + b * step
    const uint8_t *scale_rows[TILE_N];  // where scales lie in rows, else NULL
    int64_t n;  // whose rows those are; less than 0: nobody's yet
    int64_t offset, step;
    int64_t ahead;  // bytes from a block to the one that is decoded a source later, or 0
    int64_t first;  // block of B that is block 0 here
    int64_t blocks, decoded;
    vbytes scales[TILE_N / LANES][4 * SCALE_GROUPS];  // of blocks from first / 16 * 16 on
    int extreme;  // whether a scale is beyond the exponents above, or NaN
};

// Find TILE_N rows from n on; beyond the last row of B it is read again. Their blocks may have to be copied.
static void find_rows(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, int copied, uint8_t *room,
                      struct tile_source *s) {
    int in_rows = c->b_scales.order == IN_ROWS && c->b_scales.column == 1;
    s->n = n;
    if (is_plain(c) && in_rows && n + TILE_N <= c->n) {
        for (int64_t r = 0; r < TILE_N; r++) s->rows[r] = c->b + (n + r) * c->b_row;
        for (int64_t r = 0; r < TILE_N; r++) s->scale_rows[r] = c->b_scales.bytes + (n + r) * c->b_scales.row;
        s->step = BLOCK_BYTES;
        return;
    }
    for (int64_t r = 0; r < TILE_N; r++) {
        int64_t row = smaller(n + r, c->n - 1);
        uint8_t *copy = room + r * TILE_BLOCKS * BLOCK_BYTES;
        struct weight_row w = copied ? plain_row(c, row, first, blocks, copy) : stored_row(c, row);
        s->rows[r] = w.bytes;
        s->scale_rows[r] = in_rows ? c->b_scales.bytes + row * c->b_scales.row : NULL;
        s->step = w.step;
    }
}

// Find the scales of some blocks, whole groups of sixteen.
static void find_scales(const struct mx_call *c, int64_t first, int64_t blocks, struct tile_source *s) {
    enum { VECTORS = TILE_N / LANES };
    int64_t begin = first / BLOCK_BYTES * BLOCK_BYTES;
    s->extreme = 0;
    for (int64_t i = 0; begin + i / VECTORS * BLOCK_BYTES < first + blocks; i++) {
        int64_t v = i % VECTORS, group = begin + i / VECTORS * BLOCK_BYTES;
        vbytes *four = s->scales[v] + i / VECTORS * 4;
        if (s->scale_rows[0] && group + BLOCK_BYTES <= c->k / BLOCK)
            v_transpose(s->scale_rows + v * LANES, group, four);
        else
            v_scale_bytes(c, s->n + v * LANES, group, four);
        s->extreme |= v_beyond(four, 127 + SMALL_EXPONENT, 127 + LARGE_EXPONENT);
    }
}

// Find blocks first..first + blocks of rows n..; what is decoded after them begins at row `then_n`, block `then_first`.
static void find_blocks(const struct mx_call *c, int64_t n, int64_t first, int64_t blocks, int64_t then_n,
                        int64_t then_first, uint8_t *room, struct tile_source *s) {
    int copied = c->b_column != 1 && !c->b_preshuffled, other_rows = s->n != n;
    if (other_rows || copied) find_rows(c, n, first, blocks, copied, room, s);
    s->offset = copied ? 0 : first * s->step;
    if (other_rows || s->first / BLOCK_BYTES != first / BLOCK_BYTES) find_scales(c, first, blocks, s);
    s->first = first;
    s->blocks = blocks;
    s->decoded = 0;
    s->ahead = 0;
    if (!is_plain(c) || then_n + TILE_N > c->n) return;
    s->ahead = (then_n - n) * c->b_row + (then_first - first) * BLOCK_BYTES;
    int64_t scales_ahead = (then_n - n) * c->b_scales.row + then_first;
    if (s->scale_rows[0] && then_first % BLOCK_BYTES == 0)
        for (int64_t r = 0; r < TILE_N; r++) __builtin_prefetch(s->scale_rows[r] + scales_ahead);
}

// Fetch what is decoded a source later than block b, for LANES rows; its line holds LINE_BLOCKS of them. No nearer
// than L2: of L1 it may be gone again before many rows are through.
static inline void fetch_ahead(const struct tile_source *s, int64_t b, int v) {
    int64_t at = s->offset + b * s->step + s->ahead;
    for (int64_t i = 0; i < LANES; i += LINE_BLOCKS)
        __builtin_prefetch(s->rows[v * LANES + b % LINE_BLOCKS + i] + at, 0, 2);
}

// The scales of four blocks of LANES rows, of which block b has byte *i of each lane.
static inline vbytes scales_of_next(const struct tile_source *s, int64_t b, int v, int *i) {
    b += s->first % BLOCK_BYTES;
    *i = (int)(b % 4);
    return s->scales[v][b / 4];
}

// Decode the next block to its place.
static inline void decode_next(struct tile_source *s, tile_element *panel) {
    for (int v = 0; v < TILE_N / LANES; v++) {
        int i;
        vbytes scales = scales_of_next(s, s->decoded, v, &i);
        fetch_ahead(s, s->decoded, v);
        decode_block_of_rows(s->rows + v * LANES, s->offset + s->decoded * s->step, scales, i, v,
                             panel + s->decoded * PANEL_BLOCK);
    }
    s->decoded++;
}

static inline void decode_rest(struct tile_source *s, tile_element *panel) {
    while (s->decoded < s->blocks) decode_next(s, panel);
}
