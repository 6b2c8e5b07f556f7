// Blocks of 32 values to MX elements: integer arithmetic on fp32 bits, the bytes of mxgemm/mx/codec.py.
#pragma once
#include "convert.h"

enum { FP32_INFINITY = 0x7F800000 };

static inline int largest_exponent(int64_t format) { return format == MX_E2M1 ? 2 : format == MX_E4M3 ? 8 : 15; }

// Of the least element that is not 0.
static inline int least_exponent(int64_t format) { return format == MX_E2M1 ? -1 : format == MX_E4M3 ? -9 : -16; }

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

// An element format: its mantissa's bits, the exponent of its least normal value as fp32 has it, its largest value.
struct element_format {
    int bits, least_exponent;
    float largest;
};

MX_INLINE struct element_format element_format_of(int64_t format) {
    if (format == MX_E2M1) return (struct element_format){1, 127, 6.0f};
    if (format == MX_E4M3) return (struct element_format){3, 127 - 6, 448.0f};
    return (struct element_format){2, 127 - 14, 57344.0f};
}

// Added to a magnitude, a power of two whose last place is where the format rounds: a magnitude's own exponent, or the
// least normal one, and as many more as fp32 has bits more.
MX_INLINE uint32_t rounder(float magnitude, struct element_format f) {
    uint32_t exponent = bits_of(magnitude) & 0x7F800000, least = (uint32_t)f.least_exponent << 23;
    return (exponent > least ? exponent : least) + ((uint32_t)(23 - f.bits) << 23);
}

MX_INLINE float clamped(float x, float reciprocal, struct element_format f) {
    float magnitude = float_of(bits_of(x) & 0x7FFFFFFF) * reciprocal;
    return magnitude < f.largest ? magnitude : f.largest;
}

// Round a block to elements' codes, to nearest even. A code counts steps: of its octave, and of the octaves below.
MX_INLINE void codes_of_block(const float x[BLOCK], float reciprocal, const struct element_format f, const int sign_bit,
                              uint16_t codes[BLOCK]) {
    for (int i = 0; i < BLOCK; i++) {
        float magnitude = clamped(x[i], reciprocal, f);
        uint32_t at = rounder(magnitude, f), steps = bits_of(magnitude + float_of(at)) - at;
        uint32_t octaves = (at >> 23) - (uint32_t)(f.least_exponent + 23 - f.bits);
        codes[i] = (uint16_t)((steps + (octaves << f.bits)) | bits_of(x[i]) >> 31 << sign_bit);
    }
}

// Round a block to elements' values of a scale that is left out.
MX_INLINE void values_of_elements(const float x[BLOCK], float reciprocal, const struct element_format f,
                                  float values[BLOCK]) {
    for (int i = 0; i < BLOCK; i++) {
        float magnitude = clamped(x[i], reciprocal, f), at = float_of(rounder(magnitude, f));
        float rounded = (magnitude + at) - at;
        values[i] = float_of(bits_of(rounded) | (bits_of(x[i]) & 0x80000000u));
    }
}

enum { AT_ONCE = 16, LEAST_BF16_BYTE = 16 };

// A block of bf16 values to e2m1 codes by 16-bit integers alone, twice as many in a vector as of fp32: a magnitude's
// bits less the scale's exponent are those of its quotient, rounded to one bit of mantissa from 1 on. Below come 0.5,
// from more than a quarter, and 1, from 0.75. With scale bytes from LEAST_BF16_BYTE to 254, where a quotient whose
// exponent bf16 does not hold is far below a quarter.
MX_INLINE void codes_of_bf16(const uint16_t *restrict h, int byte, uint16_t *restrict codes) {
    int16_t exponent = (int16_t)((byte - 127) * 128);
    for (int i = 0; i < BLOCK; i++) {
        int16_t quotient = (int16_t)((h[i] & 0x7FFF) - exponent);
        int16_t rounded = (int16_t)(quotient + 31 + (quotient >> 6 & 1)), steps = (int16_t)((rounded >> 6) - 252);
        int16_t small = quotient >= 0x3F40 ? 2 : quotient > 0x3E80 ? 1 : 0;
        steps = steps > small ? steps : small;
        codes[i] = (uint16_t)((steps < 7 ? steps : 7) | (h[i] >> 12 & 8));
    }
}

// Block b of a row of A to e2m1 codes and its scale byte, from fp32. Codes are 0 in a block of zeros or of NaN.
static int codes_of_floats(const struct mx_call *c, int64_t row, int64_t b, uint16_t codes[BLOCK]) {
    float x[BLOCK];
    load_block(c->a, row * c->a_row + b * BLOCK * c->a_column, c->a_column, c->a_dtype, x);
    int32_t largest = largest_magnitude(x);
    int byte = scale_byte(largest, c->addend, MX_E2M1);
    if (byte == 255 || largest == 0)
        memset(codes, 0, BLOCK * sizeof *codes);
    else
        codes_of_block(x, reciprocal_of(byte), element_format_of(MX_E2M1), 3, codes);
    return byte;
}

// Blocks b.. of a row of A, AT_ONCE at most, to e2m1 codes and scale bytes. All scales before any codes: a block's
// chain from its largest magnitude to its codes is longer than what a CPU looks ahead.
static void e2m1_codes(const struct mx_call *c, int64_t row, int64_t b, int64_t blocks, int bytes[AT_ONCE],
                       uint16_t codes[AT_ONCE][BLOCK]) {
    if (c->a_dtype != MX_BF16 || c->a_column != 1) {
        for (int64_t i = 0; i < blocks; i++) bytes[i] = codes_of_floats(c, row, b + i, codes[i]);
        return;
    }
    const uint16_t *h = (const uint16_t *)c->a + row * c->a_row + b * BLOCK;
    int32_t largest[AT_ONCE] = {0};
    for (int64_t i = 0; i < blocks; i++) {
        uint16_t most = 0;
        for (int j = 0; j < BLOCK; j++) {
            uint16_t magnitude = h[i * BLOCK + j] & 0x7FFF;
            most = magnitude > most ? magnitude : most;
        }
        largest[i] = (int32_t)most << 16;
    }
    int64_t addend = c->addend;
    for (int i = 0; i < AT_ONCE; i++) bytes[i] = scale_byte(largest[i], addend, MX_E2M1);
    for (int64_t i = 0; i < blocks; i++) codes_of_bf16(h + i * BLOCK, bytes[i], codes[i]);
    for (int64_t i = 0; i < blocks; i++)  // apart: in a loop with a call no constant would stay in a register
        if (bytes[i] < LEAST_BF16_BYTE || bytes[i] == 255) codes_of_floats(c, row, b + i, codes[i]);
}

// Quantise a block to values, whose scale is left out, and return the scale byte. With that of NaN they are no matter.
static inline int quantize_values(const float x[BLOCK], int64_t addend, int64_t format, float values[BLOCK]) {
    int byte = scale_byte(largest_magnitude(x), addend, format);
    if (format == MX_E2M1)
        values_of_elements(x, reciprocal_of(byte), element_format_of(MX_E2M1), values);
    else
        values_of_elements(x, reciprocal_of(byte), element_format_of(MX_E4M3), values);
    return byte;
}

// An e4m3 or e5m2 byte, NaN and infinity included: moved to the top of an fp16 it is short by a power of two.
static inline float decode_fp8(uint8_t code, int64_t format) {
    if (format == MX_E5M2) return from_fp16((uint16_t)(code << 8));
    if ((code & 0x7F) == 0x7F) return not_a_number();
    return from_fp16((uint16_t)((code & 0x80) << 8 | (code & 0x7F) << 7)) * 256.0f;
}
