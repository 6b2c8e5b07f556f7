// The engine of tiles on CPUs without bf16 products: fp32 elements, multiplied and added vector by vector.
#pragma once
#include "weights.h"

enum { TILE_N = LANES * TILE_VECTORS, TILE_M = 32, TILE_BLOCKS = 8, PANEL_BLOCK = BLOCK * TILE_N };
enum { NARROW_BYTES = 512 << 10 };
typedef float tile_element;

static inline void pack_block(const float x[BLOCK], tile_element *to) { memcpy(to, x, BLOCK * sizeof *to); }
static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}

// A block of LANES rows of B, the v-th LANES columns of a panel, whose block is [32, TILE_N].
static inline void decode_block_of_rows(const uint8_t *const rows[LANES], int64_t at, vbytes scales, int i, int v,
                                        tile_element *block) {
    vfloat scale = v_multiply(v_scales(scales, i), v_broadcast(0x1p-10f));  // which are 2^10 too large
    vbytes four[4];
    v_transpose(rows, at, four);
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 8; k++)
            v_store(block + (8 * j + k) * TILE_N + v * LANES, v_multiply(v_value(four[j], k), scale));
}

#include "sources.h"

// Sums of `count` rows of a tile of A. Constants after inlining.
MX_INLINE void multiply_tile_rows(const tile_element *a, const int count, tile_element *w, int64_t blocks, int add,
                                  float *sums, const int beside, struct tile_source *next) {
    (void)beside;
    (void)next;
    vfloat total[MX_TILE_ROWS_AT_ONCE][TILE_VECTORS];
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++)
            total[m][v] = add ? v_load_float(sums + m * TILE_N + v * LANES) : v_zero();
    for (int64_t b = 0; b < blocks; b++, a += 16 * BLOCK)
#pragma GCC unroll 4
        for (int k = 0; k < BLOCK; k++, w += TILE_N) {
            vfloat weights[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) weights[v] = v_load_float(w + v * LANES);
            for (int m = 0; m < count; m++) {
                vfloat one = v_broadcast(a[m * BLOCK + k]);
                for (int v = 0; v < TILE_VECTORS; v++) total[m][v] = v_multiply_add(weights[v], one, total[m][v]);
            }
        }
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++) v_store(sums + m * TILE_N + v * LANES, total[m][v]);
}
