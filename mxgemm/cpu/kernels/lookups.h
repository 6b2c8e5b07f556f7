// Products that are looked up, beside those that are multiplied: an element of A has sixteen products with e2m1 codes, a
// permutation finds sixteen columns' of them, and they are added in fp32, by units that wait while bf16 dot products are
// computed. Of eight rows of A one is done so, and takes a third of the time that it would take otherwise.
//
// Sums of a block are exact products added in order; then they are multiplied by the scale and added. Nothing is lost
// here that bf16 products keep.
#pragma once
#include "bf16.h"

enum { TABLE_CODES = 16, TABLE = TILE_BLOCKS * BLOCK * TABLE_CODES };  // floats of a row's: [blocks, 32, codes]
#ifdef __clang__
enum { LOOKS_UP = 0 };  // clang 22 makes 325 cycles a block of what GCC 12 makes 233 of (Zen 4)
#else
enum { LOOKS_UP = 1 };
#endif

// Few rows have none, nor have the first eight of every TILE_M: what is decoded beside their products needs those units.
static inline int64_t tables_bytes(const struct mx_call *c, int64_t rows) {
    return LOOKS_UP && !c->alike && rows > FEW_ROWS ? rows / 8 * TABLE * (int64_t)sizeof(float) : 0;
}

// Fill the tables of the last row of each eight, for `blocks` blocks of `rows` rows, in tiles `a_step` elements apart.
static void fill_tables(const tile_element *a, int64_t a_step, int64_t rows, int64_t blocks, float *tables) {
    const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    for (int64_t m = 8; m + 8 <= rows; m += 8) {
        if (m % TILE_M == 0) continue;
        const tile_element *row = a + m / 16 * a_step + (m % 16 + 7) * BLOCK;
        float *to = tables + m / 8 * TABLE;
        for (int64_t b = 0; b < blocks; b++, row += 16 * BLOCK) {
            __builtin_prefetch(row + 4 * 16 * BLOCK);
            float in_pairs[BLOCK];
            for (int i = 0; i < BLOCK; i++) in_pairs[i] = from_bf16(row[i]);
            for (int k = 0; k < BLOCK; k++, to += TABLE_CODES) {
                float one = in_pairs[k / 8 * 8 + k % 4 * 2 + k % 8 / 4];
                _mm512_storeu_ps(to, _mm512_mul_ps(values, _mm512_set1_ps(one)));
            }
        }
    }
}

#ifdef __AVX512F__
// Keep the order that the source has: a compiler that looks up before there is time to add has too few registers.
#define MX_HERE(type, x)                   \
    do {                                   \
        type here = (x);                   \
        __asm__ volatile("" : "+v"(here)); \
        (x) = here;                        \
    } while (0)
#else
#define MX_HERE(type, x)
#endif

// Sums of eight rows of a tile of A, of whose last one products are looked up.
static __attribute__((noinline)) void tile_rows_and_lookups(const tile_element *a, const tile_element *w,
                                                            const float *table, int64_t blocks, int add, float *sums) {
    enum { ROWS_OF_DOTS = 7, VECTORS = TILE_N / 16, STEPS = 2 * (2 * VECTORS + 1) };
    __m512 total[ROWS_OF_DOTS + 1][VECTORS];
    for (int m = 0; m <= ROWS_OF_DOTS; m++)
        for (int v = 0; v < VECTORS; v++)
            total[m][v] = _mm512_maskz_mov_ps(add ? 0xFFFF : 0, _mm512_loadu_ps(sums + m * TILE_N + v * 16));
    do {
        __m512 of_block[VECTORS], products = _mm512_setzero_ps();
        __m512i codes[VECTORS];
        for (int v = 0; v < VECTORS; v++) of_block[v] = _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            __m512i weights[VECTORS];
            for (int v = 0; v < VECTORS; v++) weights[v] = _mm512_loadu_si512(w + v * 16 * BLOCK + pair * 32);
            int done = 0;
#pragma GCC unroll 8
            for (int m = 0; m < ROWS_OF_DOTS; m++) {
                int32_t two;
                memcpy(&two, a + m * BLOCK + 2 * pair, 4);
                for (int v = 0; v < VECTORS; v++) {
                    total[m][v] = _mm512_dpbf16_ps(total[m][v], (__m512bh)weights[v], (__m512bh)_mm512_set1_epi32(two));
                }
                // Two elements' products by the end of a pair's: codes, a table, products of each vector.
#pragma GCC unroll 8
                for (; done < STEPS * (m + 1) / ROWS_OF_DOTS; done++) {
                    int k = pair * 2 + done / (STEPS / 2), step = done % (STEPS / 2), v = step % VECTORS;
                    if (step < VECTORS) {
                        const tile_element *at = w + TILE_CODES + (k / 8 * VECTORS + v) * 32;
                        codes[v] = k % 8 ? _mm512_srli_epi32(codes[v], 4) : _mm512_loadu_si512(at);
                        MX_HERE(__m512i, codes[v]);
                    } else if (step == VECTORS) {
                        products = _mm512_loadu_ps(table + k * TABLE_CODES);
                    } else {
                        int u = step - VECTORS - 1;
                        of_block[u] = _mm512_add_ps(of_block[u], _mm512_permutexvar_ps(codes[u], products));
                        MX_HERE(__m512, of_block[u]);
                    }
                }
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            __m512 scale = _mm512_loadu_ps((const float *)(const void *)(w + TILE_SCALES + v * 32));
            total[ROWS_OF_DOTS][v] = _mm512_fmadd_ps(of_block[v], scale, total[ROWS_OF_DOTS][v]);
        }
        a += 16 * BLOCK, w += PANEL_BLOCK, table += BLOCK * TABLE_CODES;
    } while (--blocks);
    for (int m = 0; m <= ROWS_OF_DOTS; m++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_ps(sums + m * TILE_N + v * 16, total[m][v]);
}
