// Few rows of A: rows of B are read once, as they lie in memory, a vector holds blocks of one row.
#pragma once
#include "weights.h"

enum { ROWS_M = 4 };  // rows of A at a time

// Sums of `rows` rows of B and `count` rows of A, integers. Constants after inlining.
MX_INLINE void multiply_codes(const struct activations *a, int64_t at, const int count, const struct weight_row w[ROWS],
                              const int rows, const float *scales, int64_t blocks, float sums[ROWS_M][ROWS]) {
    vfloat total[ROWS_M][ROWS];
    for (int m = 0; m < count; m++)
        for (int r = 0; r < rows; r++) total[m][r] = v_zero();
    int64_t padded = a->groups * GROUP;
    for (int64_t g = 0; g < a->groups; g++) {
        int whole = (g + 1) * GROUP <= blocks;
        vbytes low[ROWS], high[ROWS];
        vfloat scale[ROWS];
        for (int r = 0; r < rows; r++) {
            const uint8_t *p = w[r].bytes + g * GROUP * BLOCK_BYTES;
            __builtin_prefetch(p + w[r].ahead);
            vbytes pairs = whole ? v_load(p) : v_load_part(p, (int)(blocks - g * GROUP) * BLOCK_BYTES);
            low[r] = v_low(pairs);
            high[r] = v_high(pairs);
            scale[r] = v_of_blocks(scales + r * padded + g * GROUP);
        }
        for (int m = 0; m < count; m++) {
            const int8_t *codes = a->codes + ((at + m) * a->groups + g) * GROUP * BLOCK;
            vbytes even = v_codes(codes), odd = v_codes(codes + GROUP * BLOCK_BYTES);
            vint offset = v_load_int(a->offsets + ((at + m) * padded + g * GROUP) * LANE_OFFSETS);
            vfloat a_scale = v_of_blocks(a->scales + (at + m) * padded + g * GROUP);
            for (int r = 0; r < rows; r++) {
                vfloat dot = v_float(v_dot2(offset, low[r], even, high[r], odd));
                total[m][r] = v_multiply_add(v_multiply(dot, a_scale), scale[r], total[m][r]);
            }
        }
    }
    for (int m = 0; m < count; m++)
        for (int r = 0; r < rows; r++) sums[m][r] = v_sum(total[m][r]);
}

// The same for values of A that are no small integers.
MX_INLINE void multiply_values(const struct activations *a, int64_t at, const int count,
                               const struct weight_row w[ROWS], const int rows, const float *scales, int64_t blocks,
                               float sums[ROWS_M][ROWS]) {
    enum { STEP = GROUP * BLOCK / FLOAT_STEPS };
    vfloat total[ROWS_M][ROWS];
    for (int m = 0; m < count; m++)
        for (int r = 0; r < rows; r++) total[m][r] = v_zero();
    int64_t padded = a->groups * GROUP;
    for (int64_t g = 0; g < a->groups; g++) {
        int whole = (g + 1) * GROUP <= blocks;
        for (int r = 0; r < rows; r++) {
            const uint8_t *p = w[r].bytes + g * GROUP * BLOCK_BYTES;
            __builtin_prefetch(p + w[r].ahead);
            vweights weights[FLOAT_STEPS];
            v_weights(whole ? v_load(p) : v_load_part(p, (int)(blocks - g * GROUP) * BLOCK_BYTES), weights);
            vfloat scale = v_of_blocks(scales + r * padded + g * GROUP);
            for (int m = 0; m < count; m++) {
                const float_element *values = a->values + ((at + m) * a->groups + g) * GROUP * BLOCK;
                vfloat dot = v_zero();
                for (int i = 0; i < FLOAT_STEPS; i++) dot = v_float_dot(dot, weights[i], values + i * STEP);
                vfloat factor = v_of_blocks(a->scales + (at + m) * padded + g * GROUP);
                total[m][r] = v_multiply_add(v_multiply(dot, scale), factor, total[m][r]);
            }
        }
    }
    for (int m = 0; m < count; m++)
        for (int r = 0; r < rows; r++) sums[m][r] = v_sum(total[m][r]);
}

#define MX_ROWS_KERNEL(name, inner, count, rows)                                                                       \
    static __attribute__((noinline)) void name##_##count##_##rows(                                                     \
        const struct activations *a, int64_t at, const struct weight_row w[ROWS], const float *scales, int64_t blocks, \
        float sums[ROWS_M][ROWS]) {                                                                                    \
        inner(a, at, count, w, rows, scales, blocks, sums);                                                            \
    }

MX_ROWS_KERNEL(codes, multiply_codes, 1, 4)
MX_ROWS_KERNEL(codes, multiply_codes, 2, 4)
MX_ROWS_KERNEL(codes, multiply_codes, 3, 4)
MX_ROWS_KERNEL(codes, multiply_codes, 4, 4)
MX_ROWS_KERNEL(values, multiply_values, 1, 4)
MX_ROWS_KERNEL(values, multiply_values, 2, 4)
MX_ROWS_KERNEL(values, multiply_values, 3, 4)
MX_ROWS_KERNEL(values, multiply_values, 4, 4)

typedef void rows_kernel(const struct activations *, int64_t, const struct weight_row *, const float *, int64_t,
                         float (*)[ROWS]);

static rows_kernel *const ROWS_KERNELS[2][ROWS_M] = {{codes_1_4, codes_2_4, codes_3_4, codes_4_4},
                                                     {values_1_4, values_2_4, values_3_4, values_4_4}};

static inline int64_t rows_scratch(const struct mx_call *c) {
    int64_t blocks = round_up(c->k / BLOCK, GROUP);
    int64_t copies = is_plain(c) ? 0 : ROWS * round_up(c->k / 2, 64);
    return round_up(ROWS * blocks * 4, 64) + copies;
}

// Columns n0..n1 of the result for the `count` rows of A that are in `a`.
static void rows_task(const struct mx_call *c, const struct activations *a, int64_t count, int64_t n0, int64_t n1,
                      uint8_t *scratch, int is_float) {
    int64_t blocks = c->k / BLOCK, padded = a->groups * GROUP;
    float *scales = (float *)scratch;
    uint8_t *room = scratch + round_up(ROWS * padded * 4, 64);
    for (int64_t n = n0; n < n1; n += ROWS) {
        int64_t here = smaller(ROWS, n1 - n);
        struct weight_row w[ROWS];
        int too_large[ROWS];
        for (int64_t r = 0; r < ROWS; r++) {  // beyond the last row of B it is read again
            int64_t row = n + smaller(r, here - 1);
            w[r] = plain_row(c, row, 0, blocks, room + r * round_up(c->k / 2, 64));
            w[r].ahead = is_plain(c) ? ROWS * c->b_row : 0;
            too_large[r] = decode_scales(c, row, padded, is_float, scales + r * padded);
        }
        for (int64_t m = 0; m < count; m += ROWS_M) {
            int64_t rows = smaller(ROWS_M, count - m);
            float sums[ROWS_M][ROWS];
            ROWS_KERNELS[is_float][rows - 1](a, m, w, scales, blocks, sums);
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t r = 0; r < here; r++)
                    if (too_large[r]) sums[i][r] = sum_in_double(c, a, m + i, n + r);
                store_row(c, a->first + m + i, n, here, sums[i]);
            }
        }
    }
}
