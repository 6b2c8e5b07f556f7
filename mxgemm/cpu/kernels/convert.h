// Floats of memory to fp32 and back: exact one way, one rounding to nearest even the other way.
#pragma once
#include "call.h"

static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static inline float from_fp16(uint16_t h) {
    // Shifted into fp32's place the exponent is short by 112; a subnormal is normalised by a subtraction that is exact.
    uint32_t magnitude = (uint32_t)(h & 0x7FFF) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = magnitude + (112u << 23) + (magnitude >= 0x0F800000u ? 112u << 23 : 0);
    uint32_t subnormal = bits_of(float_of(magnitude + (113u << 23)) - float_of(113u << 23));
    return float_of(sign | (magnitude < 0x00800000u ? subnormal : normal));
}

static inline uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    uint32_t rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
    return (u & 0x7FFFFFFF) > 0x7F800000u ? 0x7FC0 : rounded;
}

static inline uint16_t to_fp16(float x) {
    uint32_t u = bits_of(x), magnitude = u & 0x7FFFFFFF, sign = (u >> 16) & 0x8000;
    uint32_t normal = (magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14: added to 0.5, whose last place is fp16's least subnormal, the sum is rounded where fp16 rounds.
    uint32_t subnormal = bits_of(float_of(magnitude < 0x38800000u ? magnitude : 0) + 0.5f) - bits_of(0.5f);
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477FF000u ? 0x7C00 : half;  // 65520 and above round to infinity
    return sign | (magnitude > 0x7F800000u ? 0x7E00 : half);
}

static inline float load_float(const void *p, int64_t index, int64_t dtype) {
    if (dtype == MX_FP32) return ((const float *)p)[index];
    uint16_t h = ((const uint16_t *)p)[index];
    return dtype == MX_BF16 ? from_bf16(h) : from_fp16(h);
}

static inline void store_float(void *p, int64_t index, int64_t dtype, float x) {
    if (dtype == MX_FP32)
        ((float *)p)[index] = x;
    else
        ((uint16_t *)p)[index] = dtype == MX_BF16 ? to_bf16(x) : to_fp16(x);
}

// A block of 32 values of one row, `step` elements apart.
static inline void load_block(const void *p, int64_t index, int64_t step, int64_t dtype, float x[BLOCK]) {
    if (step == 1 && dtype == MX_BF16) {
        const uint16_t *h = (const uint16_t *)p + index;
        for (int i = 0; i < BLOCK; i++) x[i] = from_bf16(h[i]);
    } else if (step == 1 && dtype == MX_FP32) {
        memcpy(x, (const float *)p + index, BLOCK * sizeof(float));
    } else if (step == 1) {
        const uint16_t *h = (const uint16_t *)p + index;
        for (int i = 0; i < BLOCK; i++) x[i] = from_fp16(h[i]);
    } else {
        for (int i = 0; i < BLOCK; i++) x[i] = load_float(p, index + i * step, dtype);
    }
}

// Results of a row: fp32 sums plus a bias, rounded once.
static inline void store_row(const struct mx_call *c, int64_t m, int64_t n, int64_t count, float *sums) {
    if (c->bias)
        for (int64_t i = 0; i < count; i++)
            sums[i] += load_float(c->bias, (n + i) * c->bias_stride, c->bias_dtype);
    int64_t at = m * c->out_row + n * c->out_column;
    if (c->out_column == 1 && c->out_dtype == MX_BF16) {
        uint16_t *out = (uint16_t *)c->out + at;
        for (int64_t i = 0; i < count; i++) out[i] = to_bf16(sums[i]);
    } else {
        for (int64_t i = 0; i < count; i++) store_float(c->out, at + i * c->out_column, c->out_dtype, sums[i]);
    }
}
