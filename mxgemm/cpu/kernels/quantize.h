// Blocks of 32 values to MX elements: integer arithmetic on fp32 bits, the bytes of mxgemm/mx/codec.py.
#pragma once
#include "convert.h"

enum { FP32_INFINITY = 0x7F800000 };

static inline int largest_exponent(int64_t format) { return format == MX_E2M1 ? 2 : format == MX_E4M3 ? 8 : 15; }

static inline int32_t largest_magnitude(const float x[BLOCK]) {
    int32_t largest = 0;  // as integers NaN is above infinity, and no comparison flushes a subnormal
    for (int i = 0; i < BLOCK; i++) {
        int32_t magnitude = (int32_t)(bits_of(x[i]) & 0x7FFFFFFF);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// The scale byte of a block; 255 where it holds a NaN or an infinity.
static inline int scale_byte(int32_t largest, int64_t addend, int64_t format) {
    int exponent = (int)((largest + addend) >> 23) - largest_exponent(format);
    return largest >= FP32_INFINITY ? 255 : exponent < 0 || largest == 0 ? 0 : exponent;
}

// 2^(127 - byte): what a block of that scale is multiplied by; 0 for the NaN block, whose codes are 0.
static inline float reciprocal_of(int byte) { return byte == 255 ? 0.0f : float_of((uint32_t)(254 - byte) << 23); }

// To the nearest integer, ties to even, for 0 <= x < 2^22: the sum has no fraction bits.
static inline float nearest(float x) { return (x + 8388608.0f) - 8388608.0f; }

// Round 2 * value * reciprocal to twice an e2m1 value: an integer of 0 1 2 3 4 6 8 12, and its sign.
static inline int32_t twice_e2m1(float x, float reciprocal) {
    float scaled = x * reciprocal, magnitude = 2.0f * float_of(bits_of(scaled) & 0x7FFFFFFF);
    magnitude = magnitude < 12.0f ? magnitude : 12.0f;
    float fine = nearest(magnitude), middle = 2.0f * nearest(0.5f * magnitude);
    float coarse = 4.0f * nearest(0.25f * magnitude);
    int32_t rounded = (int32_t)(magnitude < 4.0f ? fine : magnitude < 8.0f ? middle : coarse);
    return (int32_t)bits_of(scaled) < 0 ? -rounded : rounded;
}

// Quantise a block to twice its e2m1 values, in order of k, and return the scale byte.
static inline int quantize_e2m1(const float x[BLOCK], int64_t addend, int32_t twice[BLOCK]) {
    int byte = scale_byte(largest_magnitude(x), addend, MX_E2M1);
    float reciprocal = reciprocal_of(byte);
    if (byte == 255)
        memset(twice, 0, BLOCK * sizeof *twice);
    else
        for (int i = 0; i < BLOCK; i++) twice[i] = twice_e2m1(x[i], reciprocal);
    return byte;
}

// Quantise a block to e2m1 values of a scale that is left out, and return the scale byte.
static inline int quantize_e2m1_values(const float x[BLOCK], int64_t addend, float values[BLOCK]) {
    int32_t twice[BLOCK];
    int byte = quantize_e2m1(x, addend, twice);
    for (int i = 0; i < BLOCK; i++) values[i] = 0.5f * (float)twice[i];
    return byte;
}

// Round a magnitude to an e4m3 or e5m2 value: `bits` mantissa bits, `least` the least subnormal.
static inline float nearest_fp8(float magnitude, int bits, float least, float largest) {
    uint32_t u = bits_of(magnitude < largest ? magnitude : largest);
    int cut = 23 - bits;
    uint32_t normal = (u + (1u << (cut - 1)) - 1 + ((u >> cut) & 1)) >> cut << cut;
    float subnormal = nearest(magnitude / least) * least;  // a division by a power of two: exact
    return magnitude < least * (float)(1 << bits) ? subnormal : float_of(normal);
}

// Round a block to e4m3 values of a scale that is left out, and return the scale byte.
static inline int quantize_e4m3(const float x[BLOCK], int64_t addend, float values[BLOCK]) {
    int byte = scale_byte(largest_magnitude(x), addend, MX_E4M3);
    float reciprocal = reciprocal_of(byte);
    for (int i = 0; i < BLOCK; i++) {
        float scaled = byte == 255 ? 0.0f : x[i] * reciprocal;
        float rounded = nearest_fp8(float_of(bits_of(scaled) & 0x7FFFFFFF), 3, 1.0f / 512, 448.0f);
        values[i] = float_of(bits_of(rounded) | (bits_of(scaled) & 0x80000000u));
    }
    return byte;
}

// An e4m3 or e5m2 byte, NaN and infinity included: moved to the top of an fp16 it is short by a power of two.
static inline float decode_fp8(uint8_t code, int64_t format) {
    if (format == MX_E5M2) return from_fp16((uint16_t)(code << 8));
    if ((code & 0x7F) == 0x7F) return not_a_number();
    return from_fp16((uint16_t)((code & 0x80) << 8 | (code & 0x7F) << 7)) * 256.0f;
}
