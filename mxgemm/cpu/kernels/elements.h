// Whole matrices: a weight decoded, activations rounded to their format, floats quantised to bytes.
#pragma once
#include "exact.h"

// A block of B as bf16 or fp32 values.
static void decode_block(const uint8_t *bytes, int byte, int64_t dtype, void *out) {
#ifdef MX_DECODES_BLOCKS
    if (dtype == MX_BF16 && v_decode_block(bytes, byte, out)) return;
#endif
    static const float twice_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
    float half = byte == 255 ? not_a_number() : power_of_two(byte - 128), values[BLOCK];
    for (int i = 0; i < BLOCK_BYTES; i++) {
        values[2 * i] = half * twice_values[bytes[i] & 15];
        values[2 * i + 1] = half * twice_values[bytes[i] >> 4];
    }
    if (dtype == MX_FP32)
        memcpy(out, values, sizeof values);
    else
        for (int i = 0; i < BLOCK; i++) ((uint16_t *)out)[i] = (uint16_t)(bits_of(values[i]) >> 16);
}

// Row n of B as bf16 or fp32 values in out[n].
static void decode_row(const struct mx_call *c, int64_t n, uint8_t *room) {
    int64_t blocks = c->k / BLOCK, width = c->out_dtype == MX_FP32 ? 4 : 2;
    const uint8_t *bytes = plain_row(c, n, 0, blocks, room).bytes;
    uint8_t *out = (uint8_t *)c->out + n * c->out_row * width;
    for (int64_t b = 0; b < blocks; b++)
        decode_block(bytes + b * BLOCK_BYTES, scale_at(&c->b_scales, n, b), c->out_dtype, out + b * BLOCK * width);
}

// Row m of A rounded to its format, as bf16 or fp32 values in out[m].
static void round_row(const struct mx_call *c, int64_t m) {
    for (int64_t b = 0; b < c->k / BLOCK; b++) {
        float values[BLOCK], scale = power_of_two(elements_of_block(c, m, b, values));
        int64_t at = m * c->out_row + b * BLOCK;
        for (int i = 0; i < BLOCK; i++) values[i] *= scale;
        if (c->out_dtype == MX_FP32)
            memcpy((float *)c->out + at, values, sizeof values);
        else
            for (int i = 0; i < BLOCK; i++) ((uint16_t *)c->out)[at + i] = (uint16_t)(bits_of(values[i]) >> 16);
    }
}

// A block as fp8 bytes, and its scale byte. A zero keeps its sign, but in a block of zeros. Constants after inlining.
MX_INLINE uint8_t encode_fp8(const float x[BLOCK], int64_t addend, const int64_t format, uint8_t *out) {
    int32_t largest = largest_magnitude(x);
    int byte = scale_byte(largest, addend, format);
    if (byte == 255 || largest == 0) {
        memset(out, 0, BLOCK);
    } else {
        uint16_t codes[BLOCK];
        codes_of_block(x, reciprocal_of(byte), element_format_of(format), 7, codes);
        v_narrow_codes(codes, out);
    }
    return (uint8_t)byte;
}

// Row m of A as bytes in out[m] and out_scales[m]: mxgemm.quantize.
static void encode_row(const struct mx_call *c, int64_t m) {
    uint8_t *out = (uint8_t *)c->out + m * c->out_row, *scales = c->out_scales + m * c->out_scales_row;
    int64_t blocks = c->k / BLOCK;
    for (int64_t b = 0; c->a_format == MX_E2M1 && b < blocks; b += AT_ONCE) {
        int64_t here = smaller(AT_ONCE, blocks - b);
        uint16_t codes[AT_ONCE][BLOCK];
        int bytes[AT_ONCE];
        e2m1_codes(c, m, b, here, bytes, codes);
        for (int64_t i = 0; i < here; i++) {
            v_pack_codes(codes[i], out + (b + i) * BLOCK_BYTES);
            scales[b + i] = (uint8_t)bytes[i];
        }
    }
    for (int64_t b = 0; c->a_format != MX_E2M1 && b < blocks; b++) {
        float x[BLOCK];
        load_block(c->a, m * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, x);
        if (c->a_format == MX_E4M3)
            scales[b] = encode_fp8(x, c->addend, MX_E4M3, out + b * BLOCK);
        else
            scales[b] = encode_fp8(x, c->addend, MX_E5M2, out + b * BLOCK);
    }
}
