// One element of the product from the operands as they are given, in double: for what other arithmetic would lose.
#pragma once
#include "weights.h"

// A block of A as values of its format without their scale; returns the scale's exponent. All are NaN if it is.
static int elements_of_block(const struct mx_call *c, int64_t row, int64_t b, float x[BLOCK]) {
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    int byte = 127;
    if (c->a_scales.bytes) {
        const uint8_t *bytes = (const uint8_t *)c->a + row * c->a_row;
        byte = scale_at(&c->a_scales, row, b);
        if (c->a_format == MX_E2M1)
            for (int i = 0; i < BLOCK_BYTES; i++) {
                uint8_t pair = bytes[(b * BLOCK_BYTES + i) * c->a_column];
                x[2 * i] = e2m1[pair & 15];
                x[2 * i + 1] = e2m1[pair >> 4];
            }
        else
            for (int i = 0; i < BLOCK; i++) x[i] = decode_fp8(bytes[(b * BLOCK + i) * c->a_column], c->a_format);
    } else {
        float loaded[BLOCK];
        load_block(c->a, row * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, loaded);
        if (c->a_format == MX_BF16_ELEMENTS) {
            for (int i = 0; i < BLOCK; i++) x[i] = from_bf16(to_bf16(loaded[i]));
            return 0;
        }
        byte = quantize_values(loaded, c->addend, c->a_format, x);
    }
    if (byte != 255) return byte - 127;
    for (int i = 0; i < BLOCK; i++) x[i] = not_a_number();
    return 0;
}

static inline uint8_t weight_pair(const struct mx_call *c, const struct weight_row *row, int64_t b, int64_t i) {
    return row->bytes[c->b_preshuffled ? b * row->step + i : (b * BLOCK_BYTES + i) * c->b_column];
}

static int is_zero_block(const struct mx_call *c, int64_t n, int64_t b) {
    struct weight_row row = stored_row(c, n);
    int any = 0;
    for (int64_t i = 0; i < BLOCK_BYTES; i++) any |= weight_pair(c, &row, b, i) & 0x77;
    return !any;
}

// 2^exponent in double, for scales.
static inline double power_in_double(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

static float sum_exactly(const struct mx_call *c, int64_t row_of_a, int64_t n) {
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    struct weight_row row = stored_row(c, n);
    double sum = 0;
    for (int64_t b = 0; b < c->k / BLOCK; b++) {
        float x[BLOCK];
        double dot = 0;
        int exponent = elements_of_block(c, row_of_a, b, x), byte = scale_at(&c->b_scales, n, b);
        for (int64_t i = 0; i < BLOCK_BYTES; i++) {
            uint8_t pair = weight_pair(c, &row, b, i);
            dot += (double)x[2 * i] * (double)e2m1[pair & 15] + (double)x[2 * i + 1] * (double)e2m1[pair >> 4];
        }
        sum += dot * power_in_double(exponent) * (byte == 255 ? (double)not_a_number() : power_in_double(byte - 127));
    }
    return (float)sum;
}
