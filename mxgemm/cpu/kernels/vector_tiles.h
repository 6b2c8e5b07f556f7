// multiply_tiles() of an engine that has vectors: some rows of a tile at a time.
#pragma once

#define MX_TILE_KERNEL(name, count, beside)                                                                     \
    static __attribute__((noinline)) void name(const tile_element *a, tile_element *w, int64_t blocks, int add, \
                                               float *sums, struct tile_source *next) {                         \
        multiply_tile_rows(a, count, w, blocks, add, sums, beside, next);                                       \
    }

MX_TILE_KERNEL(tile_rows_1, 1, 0)
MX_TILE_KERNEL(tile_rows_2, 2, 0)
MX_TILE_KERNEL(tile_rows_3, 3, 0)
MX_TILE_KERNEL(tile_rows_4, 4, 0)

typedef void tile_kernel(const tile_element *, tile_element *, int64_t, int, float *, struct tile_source *);

enum { MX_TILE_FEW = 4 };
static tile_kernel *const TILE_KERNELS[MX_TILE_FEW] = {tile_rows_1, tile_rows_2, tile_rows_3, tile_rows_4};

#if MX_TILE_ROWS_AT_ONCE > 4
MX_TILE_KERNEL(tile_rows_8, 8, 0)
#endif
#ifdef MX_DECODES_BESIDE
MX_TILE_KERNEL(tile_rows_8_and_decode, 8, 1)
#endif

// Add the products of `rows` rows of A, in tiles `a_step` elements apart, with a panel's blocks to `sums`, or put them
// there. With `next` no other rows will read the panel: as many of those blocks may be decoded to their places.
static void multiply_tiles(const tile_element *a, int64_t a_step, int64_t rows, tile_element *w, int64_t blocks,
                           int add, float *sums, struct tile_source *next, const float *tables) {
    (void)tables;
    int64_t last = 0;  // rows that are multiplied last
#ifdef MX_DECODES_BESIDE
    if (next) last = 8;
#endif
    for (int64_t m = last; m < rows;) {
        const tile_element *at = a + m / 16 * a_step + m % 16 * BLOCK;
        int64_t count = smaller(MX_TILE_FEW, rows - m);
#ifdef MX_LOOKS_UP
        if (tables && m && rows - m >= 8) {
            tile_rows_and_lookups(at, w, tables + m / 8 * TABLE, blocks, add, sums + m * TILE_N);
            m += 8;
            continue;
        }
#endif
#if MX_TILE_ROWS_AT_ONCE > 4
        if (rows - m > 4 && m % 16 <= 8) {  // rows beyond the last one are in the tile, whatever they hold
            tile_rows_8(at, w, blocks, add, sums + m * TILE_N, NULL);
            m += 8;
            continue;
        }
#endif
        TILE_KERNELS[count - 1](at, w, blocks, add, sums + m * TILE_N, NULL);
        m += count;
    }
#ifdef MX_DECODES_BESIDE
    if (!last) return;
    int64_t both = smaller(blocks, next->blocks);
    tile_rows_8_and_decode(a, w, both, add, sums, next);
    if (both < blocks)
        tile_rows_8(a + both * 16 * BLOCK, w + both * PANEL_BLOCK, blocks - both, 1, sums, NULL);
#else
    (void)next;
#endif
}
