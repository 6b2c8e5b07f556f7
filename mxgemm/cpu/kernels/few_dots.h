// Few rows of A by bf16 dot products: a tile's rows and sixteen rows of B, whose blocks are decoded in registers
// between the products and are never stored, for a store costs as much as a product. Each product reads two elements of
// A by a broadcast of its own, of which a Zen 4 loads two a cycle.
#pragma once

// Sums of `count` rows of a tile of A with the v-th sixteen rows of B in `s`. A constant after inlining.
MX_INLINE void decode_and_multiply(const tile_element *a, const int count, const struct tile_source *s, int v, int add,
                                   float *sums) {
    const __m512i raised = v_raised_values();
    const uint8_t *const *rows = s->rows + v * LANES;
    int64_t b = 0, blocks = s->blocks;
    __m512 total[FEW_ROWS];
    vbytes codes[4], next[4];
    for (int m = 0; m < count; m++)
        total[m] = _mm512_maskz_mov_ps(add ? 0xFFFF : 0, _mm512_loadu_ps(sums + m * TILE_N + v * 16));
    v_transpose(rows, s->offset, next);
    do {  // not `for`: GCC would leave the sums in memory
        int i;
        vbytes scales = scales_of_next(s, b, v, &i);
        const __m512i lowering = v_lowering(v_scale_bits(scales, i));
        for (int j = 0; j < 4; j++) codes[j] = next[j];
        fetch_ahead(s, b, v);
        for (int64_t r = b % LINE_BLOCKS; r < LANES; r += LINE_BLOCKS)  // to L1
            __builtin_prefetch(rows[r] + s->offset + (b + LINE_BLOCKS + 1) * s->step);
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; pair++) {
            __m512i weights = v_bf16(codes[pair / 4], pair % 4, raised, lowering);
            if (pair == 12) v_transpose(rows, s->offset + smaller(b + 1, blocks - 1) * s->step, next);
            for (int m = 0; m < count; m++) {
                int32_t two;
                memcpy(&two, a + m * BLOCK + 2 * pair, 4);
                total[m] = _mm512_dpbf16_ps(total[m], (__m512bh)weights, (__m512bh)_mm512_set1_epi32(two));
            }
        }
        a += 16 * BLOCK;
    } while (++b < blocks);
    for (int m = 0; m < count; m++) _mm512_storeu_ps(sums + m * TILE_N + v * 16, total[m]);
}

#define MX_FEW_KERNEL(name, count)                                                                                 \
    static __attribute__((noinline)) void name(const tile_element *a, const struct tile_source *s, int v, int add, \
                                               float *sums) {                                                      \
        decode_and_multiply(a, count, s, v, add, sums);                                                            \
    }

MX_FEW_KERNEL(few_rows_8, 8)
MX_FEW_KERNEL(few_rows_12, 12)
MX_FEW_KERNEL(few_rows_16, FEW_ROWS)

// Add the products of `rows` rows of a tile of A, FEW_ROWS at most, with the blocks of `s` to `sums`, or put them there.
static inline void multiply_few_rows(const tile_element *a, int64_t rows, const struct tile_source *s, int add,
                                     float *sums) {
    for (int v = 0; v < TILE_VECTORS; v++)
        (rows > 12 ? few_rows_16 : rows > 8 ? few_rows_12 : few_rows_8)(a, s, v, add, sums);
}
