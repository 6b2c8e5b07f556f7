// A as the kernels read it: quantised once, in groups of GROUP blocks, padded to whole groups by zeros.
//
// Integers (a4w4): twice the e2m1 values as int8, of a group first the even elements of every block, then the odd ones,
// as a packed weight unpacks. With them offsets, and a block's scale times 2^-12. An offset makes up for WEIGHT_OFFSET in
// each number that is rounded: rows add eight products of a block in a lane, so that a block has LANE_OFFSETS of them;
// one for the whole block would leave lanes that cancel each other, larger than any product. Panels have a block's sum.
// Floats (a8w4, a16w4): FLOAT_INDEX has the order of a group. A block's power of two is in the values between 2^-60 and
// 2^60; the rest of it is the block's factor, so that nothing passes fp32's range before the weight's scale is there.
#pragma once
#include "quantize.h"

enum { LANE_OFFSETS = 4 };

struct activations {
    int8_t *codes;  // [rows, groups, GROUP * 32]
    int32_t *offsets;  // [rows, groups * GROUP, block_offsets]
    float *scales;  // [rows, groups * GROUP]
    float_element *values;  // [rows, groups, GROUP * 32]
    int64_t groups;
    int64_t block_offsets;  // LANE_OFFSETS, or 1
    int64_t first;  // row of A that is row 0 here
};

static inline int64_t a_row_bytes(int64_t groups, int is_float, int64_t block_offsets) {
    int64_t a_block = is_float ? BLOCK * (int64_t)sizeof(float_element) + 4 : BLOCK + 4 + block_offsets * 4;
    return groups * GROUP * a_block;
}

// 2^(byte - 139): a scale of A, 12 powers of two too small, so that a block's sum times it stays in range.
static inline float scale_of_codes(int byte) {
    return byte == 255 ? not_a_number() : power_of_two(byte - 139);
}

// Codes and scale byte of a block that was quantised before.
static int stored_codes(const struct mx_call *c, int64_t row, int64_t b, uint16_t codes[BLOCK]) {
    for (int i = 0; i < BLOCK_BYTES; i++) {
        uint8_t pair = ((const uint8_t *)c->a)[row * c->a_row + (b * BLOCK_BYTES + i) * c->a_column];
        codes[2 * i] = pair & 15;
        codes[2 * i + 1] = pair >> 4;
    }
    return scale_at(&c->a_scales, row, b);
}

static void codes_of_row(const struct mx_call *c, const struct activations *a, int64_t row) {
    int64_t at = row - a->first, blocks = a->groups * GROUP, have = c->k / BLOCK;
    uint16_t some[AT_ONCE][BLOCK];
    int bytes[AT_ONCE];
    for (int64_t b = 0; b < blocks; b++) {
        int64_t i = b % AT_ONCE;
        int beyond = b >= have;
        uint16_t *codes = some[i];
        if (beyond)
            memset(codes, 0, sizeof *some);
        else if (c->a_scales.bytes)
            bytes[i] = stored_codes(c, row, b, codes);
        else if (i == 0)
            e2m1_codes(c, row, b, smaller(AT_ONCE, have - b), bytes, some);
        int8_t *even = a->codes + (at * a->groups + b / GROUP) * GROUP * BLOCK + b % GROUP * BLOCK_BYTES;
        int8_t *odd = even + GROUP * BLOCK_BYTES;
        v_place_codes(codes, even, odd);
        int32_t *offsets = a->offsets + (at * blocks + b) * a->block_offsets, sums[LANE_OFFSETS] = {0};
        for (int i = 0; i < BLOCK_BYTES; i++) sums[i / 4] -= WEIGHT_OFFSET * (even[i] + odd[i]);
        if (a->block_offsets == 1)
            offsets[0] = sums[0] + sums[1] + sums[2] + sums[3];
        else
            memcpy(offsets, sums, sizeof sums);
        a->scales[at * blocks + b] = beyond ? 0.0f : scale_of_codes(bytes[i]);
    }
}

// Multiply a block's values by 2^exponent as far as that keeps them within fp32's range, and return the rest.
static inline int scaled_by(float x[BLOCK], int exponent) {
    int inside = exponent < -60 ? -60 : exponent > 60 ? 60 : exponent;
    for (int i = 0; i < BLOCK; i++) x[i] *= power_of_two(inside);
    return exponent - inside;
}

// Fill a block's values of bf16 or fp8 elements and return the exponent of its factor.
static int values_of_block(const struct mx_call *c, int64_t row, int64_t b, float x[BLOCK]) {
    int byte = 0;
    if (c->a_scales.bytes) {
        for (int i = 0; i < BLOCK; i++) {
            uint8_t code = ((const uint8_t *)c->a)[row * c->a_row + (b * BLOCK + i) * c->a_column];
            x[i] = decode_fp8(code, c->a_format);
        }
        byte = scale_at(&c->a_scales, row, b);
    } else {
        float loaded[BLOCK];
        load_block(c->a, row * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, loaded);
        if (c->a_format == MX_BF16_ELEMENTS) {  // has no scale: only the ends of fp32's range are moved inwards
            for (int i = 0; i < BLOCK; i++) x[i] = from_bf16(to_bf16(loaded[i]));
            int exponent = (largest_magnitude(x) >> 23) - 127;
            int moved = exponent == 128 ? 0 : exponent > 96 ? 60 : exponent < -66 ? -60 : 0;
            return scaled_by(x, -moved) + moved;
        }
        byte = quantize_values(loaded, c->addend, MX_E4M3, x);
    }
    if (byte != 255) return scaled_by(x, byte - 127);
    for (int i = 0; i < BLOCK; i++) x[i] = not_a_number();
    return 0;
}

static void values_of_row(const struct mx_call *c, const struct activations *a, int64_t row) {
    int64_t at = row - a->first, blocks = a->groups * GROUP;
    for (int64_t b = 0; b < blocks; b++) {
        float x[BLOCK] = {0};
        int exponent = b < c->k / BLOCK ? values_of_block(c, row, b, x) : 0;
        float_element *group = a->values + (at * a->groups + b / GROUP) * GROUP * BLOCK;
        for (int i = 0; i < BLOCK; i++) group[FLOAT_INDEX(b % GROUP * BLOCK + i)] = to_float_element(x[i]);
        a->scales[at * blocks + b] = power_of_two(exponent);
    }
}
