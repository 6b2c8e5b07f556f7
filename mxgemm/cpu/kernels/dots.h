// The engine of tiles on CPUs with bf16 dot products of vectors (AVX-512 BF16). Decoding takes other units than products
// and is done between them, by the last rows that a block of B is multiplied with: it leaves no place for the next one
// before.
#pragma once
#include "bf16.h"

enum { TILE_VECTORS = 2 };

static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}

// Sums of `count` rows of a tile of A; if `beside`, the blocks of `next` take the places of those that are multiplied.
// Constants after inlining.
MX_INLINE void multiply_tile_rows(const tile_element *a, const int count, tile_element *w, int64_t blocks, int add,
                                  float *sums, const int beside, struct tile_source *next) {
    const __m512i raised = v_raised_values();
    __m512 total[MX_TILE_ROWS_AT_ONCE][TILE_VECTORS];
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++)
            total[m][v] = add ? _mm512_loadu_ps(sums + m * TILE_N + v * 16) : _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, a += 16 * BLOCK, w += BLOCK * TILE_N) {
        vbytes codes[TILE_VECTORS][4];
        __m512i lowering[TILE_VECTORS];
        for (int v = 0; beside && v < TILE_VECTORS; v++) {
            int i;
            vbytes scales = scales_of_next(next, v, &i);
            lowering[v] = v_lowering(scales, i);
            fetch_ahead(next, v);
            v_transpose(next->rows + v * LANES, next->offset + next->decoded * next->step, codes[v]);
        }
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            __m512i weights[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) {
                uint16_t *at = w + v * 16 * BLOCK + pair * 32;
                weights[v] = _mm512_loadu_si512(at);
                if (beside) _mm512_storeu_si512(at, v_bf16(codes[v][pair / 4], pair % 4, raised, lowering[v]));
            }
            for (int m = 0; m < count; m++) {
                int32_t two;
                memcpy(&two, a + m * BLOCK + 2 * pair, 4);
                for (int v = 0; v < TILE_VECTORS; v++)
                    total[m][v] = _mm512_dpbf16_ps(total[m][v], (__m512bh)weights[v], (__m512bh)_mm512_set1_epi32(two));
            }
        }
        if (beside) next->decoded++;
    }
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++) _mm512_storeu_ps(sums + m * TILE_N + v * 16, total[m][v]);
}
