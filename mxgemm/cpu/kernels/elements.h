// Whole matrices: a weight decoded, activations rounded to their format, floats quantised to bytes.
#pragma once
#include "weights.h"

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
        float loaded[BLOCK], values[BLOCK], scale = 1.0f;
        load_block(c->a, m * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, loaded);
        if (c->a_format == MX_BF16_ELEMENTS) {
            for (int i = 0; i < BLOCK; i++) values[i] = from_bf16(to_bf16(loaded[i]));
        } else {
            int32_t twice[BLOCK];
            int byte = c->a_format == MX_E2M1 ? quantize_e2m1(loaded, c->addend, twice)
                                              : quantize_e4m3(loaded, c->addend, values);
            if (c->a_format == MX_E2M1)
                for (int i = 0; i < BLOCK; i++) values[i] = 0.5f * (float)twice[i];
            scale = byte == 255 ? not_a_number() : power_of_two(byte - 127);
        }
        int64_t at = m * c->out_row + b * BLOCK;
        for (int i = 0; i < BLOCK; i++) values[i] *= scale;
        if (c->out_dtype == MX_FP32)
            memcpy((float *)c->out + at, values, sizeof values);
        else
            for (int i = 0; i < BLOCK; i++) ((uint16_t *)c->out)[at + i] = (uint16_t)(bits_of(values[i]) >> 16);
    }
}

// The code of an e4m3 or e5m2 magnitude that is one: fp32's exponent and mantissa, moved; subnormals counted.
static inline uint32_t fp8_code(float magnitude, int bits, float least, int bias) {
    uint32_t normal = (bits_of(magnitude) >> (23 - bits)) - ((uint32_t)(127 - bias) << bits);
    return (magnitude < least * (float)(1 << bits) ? (uint32_t)(magnitude / least) : normal);
}

// Row m of A as bytes in out[m] and out_scales[m]: mxgemm.quantize. A zero keeps its sign, but in a block of zeros.
static void encode_row(const struct mx_call *c, int64_t m) {
    int bits = c->a_format == MX_E4M3 ? 3 : 2, exponent_bias = c->a_format == MX_E4M3 ? 7 : 15;
    float least = c->a_format == MX_E4M3 ? 1.0f / 512 : 1.0f / 65536;
    float most = c->a_format == MX_E4M3 ? 448.0f : 57344.0f;
    for (int64_t b = 0; b < c->k / BLOCK; b++) {
        float x[BLOCK];
        int32_t codes[BLOCK];
        load_block(c->a, m * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, x);
        int32_t largest = largest_magnitude(x);
        int byte = scale_byte(largest, c->addend, c->a_format), none = byte == 255 || largest == 0;
        float reciprocal = reciprocal_of(byte);
        c->out_scales[m * c->out_scales_row + b] = (uint8_t)byte;
        if (none) {
            memset(codes, 0, sizeof codes);
        } else if (c->a_format == MX_E2M1) {
            for (int i = 0; i < BLOCK; i++) {
                int32_t twice = twice_e2m1(x[i], reciprocal), sign = (int32_t)(bits_of(x[i]) >> 28) & 8;
                twice = twice < 0 ? -twice : twice;
                int32_t code = twice < 5 ? twice : twice == 6 ? 5 : twice == 8 ? 6 : 7;
                codes[i] = code | sign;
            }
        } else {
            for (int i = 0; i < BLOCK; i++) {
                float magnitude = float_of(bits_of(x[i] * reciprocal) & 0x7FFFFFFF);
                uint32_t code = fp8_code(nearest_fp8(magnitude, bits, least, most), bits, least, exponent_bias);
                codes[i] = (int32_t)(code | (bits_of(x[i]) >> 24 & 0x80));
            }
        }
        uint8_t *out = (uint8_t *)c->out + m * c->out_row;
        if (c->a_format == MX_E2M1)
            for (int i = 0; i < BLOCK_BYTES; i++)
                out[b * BLOCK_BYTES + i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
        else
            for (int i = 0; i < BLOCK; i++) out[b * BLOCK + i] = (uint8_t)codes[i];
    }
}
