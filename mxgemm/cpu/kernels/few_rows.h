// A task of tiles with so few rows of A that an engine decodes and multiplies at once (few_dots.h).
#pragma once

// Rows begin..end of B, `together` panels at a time, and rows m0..m1 of what is in `t`; `strip`: sums of a panel.
static void few_rows_task(const struct mx_call *c, const struct tiles *t, int64_t begin, int64_t end, int64_t together,
                          int64_t strip, int64_t m0, int64_t m1, uint8_t *flags, float *sums, uint8_t *room) {
    int64_t step = is_plain(c) ? SOURCE_BLOCKS : TILE_BLOCKS;  // for which there is room
    struct tile_source source = {.n = -1};
    for (struct tile_place at = {begin, 0, 0}, then; at.n < end; at = then) {
        then = place_after(at, together, step, t->blocks, end);
        find_blocks(c, at.n, at.first, smaller(step, t->blocks - at.first), then.n, then.first, room, &source);
        for (int64_t r = 0; r < TILE_N; r++) __builtin_prefetch(source.rows[r] + source.offset);
        const tile_element *a = t->values + (m0 / TILE_ROWS * t->blocks + at.first) * TILE_ROWS * BLOCK;
        uint8_t *here = flags + at.i * TILE_N;
        float *to = sums + at.i * strip;
        if (at.first == 0) memset(here, 0, TILE_N);
        if (source.extreme) note_extremes(c, at.n, at.first, source.blocks, here);
        multiply_few_rows(a, m1 - m0, &source, at.first != 0, to);
        if (at.first + source.blocks == t->blocks) finish_tiles(c, t, m0, m1, at.n, here, to);
    }
}
