// The engine of tiles on CPUs with bf16 dot products of vectors (AVX-512 BF16).
#pragma once
#include "bf16.h"

enum { TILE_VECTORS = 2 };

static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}

// Sums of `count` rows of a tile of A. Constants after inlining.
MX_INLINE void multiply_tile_rows(const tile_element *a, const int count, const tile_element *w, int64_t blocks,
                                  int add, float *sums) {
    __m512 total[MX_TILE_ROWS_AT_ONCE][TILE_VECTORS];
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++)
            total[m][v] = add ? _mm512_loadu_ps(sums + m * TILE_N + v * 16) : _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, a += 16 * BLOCK, w += BLOCK * TILE_N)
#pragma GCC unroll 4
        for (int pair = 0; pair < 16; pair++) {
            __m512i weights[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) weights[v] = _mm512_loadu_si512(w + v * 16 * BLOCK + pair * 32);
            for (int m = 0; m < count; m++) {
                int32_t two;
                memcpy(&two, a + m * BLOCK + 2 * pair, 4);
                for (int v = 0; v < TILE_VECTORS; v++)
                    total[m][v] = _mm512_dpbf16_ps(total[m][v], (__m512bh)weights[v], (__m512bh)_mm512_set1_epi32(two));
            }
        }
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++) _mm512_storeu_ps(sums + m * TILE_N + v * 16, total[m][v]);
}
