// The engine of tiles on CPUs with bf16 dot products of vectors (AVX-512 BF16). Decoding takes other units than products
// and is done between them: of few rows of A in registers (few_dots.h), of more by the last rows that a block of B is
// multiplied with, since it leaves no place for the next one before.
#pragma once

#define MX_LOOKS_UP
#define MX_DECODES_AT_ONCE
enum { TILE_M = 64, TILE_BLOCKS = 16, SOURCE_BLOCKS = 64, TILE_VECTORS = 2, FEW_ROWS = 16 };
enum { NARROW_BYTES = 512 << 10 };
#include "bf16.h"
#include "lookups.h"

static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}

// Put down the codes of block b of `next` for LANES rows, and fetch what is decoded a source later; and to L1, a line at
// a time, what is decoded a few blocks later.
static inline void codes_of_next(const struct tile_source *next, int64_t b, int v, tile_element *block) {
    vbytes codes[4];
    fetch_ahead(next, b, v);
    for (int64_t r = v * LANES + b % LINE_BLOCKS; r < (v + 1) * LANES; r += LINE_BLOCKS)
        __builtin_prefetch(next->rows[r] + next->offset + (b + LINE_BLOCKS + 1) * next->step);
    v_transpose(next->rows + v * LANES, next->offset + b * next->step, codes);
    keep_codes(codes, v, block);
}

// Sums of `count` rows of a tile of A; if `beside`, the blocks of `next` take the places of those that are multiplied,
// their codes a block earlier. Constants after inlining.
MX_INLINE void multiply_tile_rows(const tile_element *a, const int count, tile_element *w, int64_t blocks, int add,
                                  float *sums, const int beside, struct tile_source *next) {
    const __m512i raised = v_raised_values();
    __m512 total[MX_TILE_ROWS_AT_ONCE][TILE_VECTORS];
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++)
            total[m][v] = _mm512_maskz_mov_ps(add ? 0xFFFF : 0, _mm512_loadu_ps(sums + m * TILE_N + v * 16));
    for (int v = 0; beside && v < TILE_VECTORS; v++) codes_of_next(next, 0, v, w);
    for (int64_t b = 0; b < blocks; b++, a += 16 * BLOCK, w += PANEL_BLOCK) {
        __m512i lowering[TILE_VECTORS];
        for (int v = 0; beside && v < TILE_VECTORS; v++) {
            int i;
            vbytes scales = scales_of_next(next, b, v, &i);
            __m512i bits = v_scale_bits(scales, i);
            lowering[v] = v_lowering(bits);
            keep_scales(bits, v, w);
        }
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            if (beside && pair % 8 == 4) {
                int64_t ahead = b + 1 < blocks;  // else the same once more
                codes_of_next(next, b + ahead, pair / 8, w + ahead * PANEL_BLOCK);
            }
            __m512i weights[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) {
                uint16_t *at = w + v * 16 * BLOCK + pair * 32;
                weights[v] = _mm512_loadu_si512(at);
                const __m512i codes = _mm512_loadu_si512(w + TILE_CODES + (pair / 4 * TILE_VECTORS + v) * 32);
                if (beside) _mm512_storeu_si512(at, v_bf16(codes, pair % 4, raised, lowering[v]));
            }
            for (int m = 0; m < count; m++) {
                int32_t two;
                memcpy(&two, a + m * BLOCK + 2 * pair, 4);
                for (int v = 0; v < TILE_VECTORS; v++)
                    total[m][v] = _mm512_dpbf16_ps(total[m][v], (__m512bh)weights[v], (__m512bh)_mm512_set1_epi32(two));
            }
        }
    }
    if (beside) next->decoded = blocks;
    for (int m = 0; m < count; m++)
        for (int v = 0; v < TILE_VECTORS; v++) _mm512_storeu_ps(sums + m * TILE_N + v * 16, total[m][v]);
}

#include "few_dots.h"
