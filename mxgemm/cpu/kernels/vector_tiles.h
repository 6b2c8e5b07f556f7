// multiply_tiles() of an engine that has vectors: some rows of a tile at a time.
#pragma once

#define MX_TILE_KERNEL(count)                                                                            \
    static __attribute__((noinline)) void tile_rows_##count(const tile_element *a, const tile_element *w, \
                                                            int64_t blocks, int add, float *sums) {      \
        multiply_tile_rows(a, count, w, blocks, add, sums);                                              \
    }

MX_TILE_KERNEL(1)
MX_TILE_KERNEL(2)
MX_TILE_KERNEL(3)
MX_TILE_KERNEL(4)

typedef void tile_kernel(const tile_element *, const tile_element *, int64_t, int, float *);

enum { MX_TILE_FEW = 4 };
static tile_kernel *const TILE_KERNELS[MX_TILE_FEW] = {tile_rows_1, tile_rows_2, tile_rows_3, tile_rows_4};

#if MX_TILE_ROWS_AT_ONCE > 4
MX_TILE_KERNEL(8)
#endif

// Add the products of `rows` rows of A, in tiles `a_step` elements apart, with a panel's blocks to `sums`, or put them
// there.
static void multiply_tiles(const tile_element *a, int64_t a_step, int64_t rows, const tile_element *w, int64_t blocks,
                           int add, float *sums) {
    for (int64_t m = 0; m < rows;) {
        const tile_element *at = a + m / 16 * a_step + m % 16 * BLOCK;
        int64_t count = smaller(MX_TILE_FEW, rows - m);
#if MX_TILE_ROWS_AT_ONCE > 4
        if (rows - m > 4 && m % 16 <= 8) {  // rows beyond the last one are in the tile, whatever they hold
            tile_rows_8(at, w, blocks, add, sums + m * TILE_N);
            m += 8;
            continue;
        }
#endif
        TILE_KERNELS[count - 1](at, w, blocks, add, sums + m * TILE_N);
        m += count;
    }
}
