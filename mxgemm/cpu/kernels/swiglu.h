// gate * sigmoid(alpha * gate) * (up + offset), as mxgemm/experts/activation.py defines it, of fp32.
//
// Every operation is rounded where it stands, so that a value does not depend on where it lies or how it is compiled.
#pragma once
#include "call.h"

struct mx_swiglu {
    int64_t rows, columns;  // of the result
    const float *x;  // [rows, 2 * columns], contiguous
    float *out;  // [rows, columns], contiguous
    int64_t interleaved;  // gate and up in turn; else all of gate, then all of up
    double alpha, limit, offset;  // `limit`: 0 for none
    int64_t threads;
};

// e^x to 2^-22 of itself: x = n ln 2 + r, |r| <= ln 2 / 2, and Taylor's polynomial of degree 7 for e^r.
static inline float exponential(float x) {
    x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;  // beyond them infinity and zero; a NaN stays
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // to the nearest integer: the constant is 1.5 * 2^23
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first with nine bits
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t exponent = n == n ? (int32_t)n : 0, half = exponent / 2;  // in two steps, for 2^128 is no float
    return p * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(exponent - half + 127) << 23);
}

static void swiglu_row(const struct mx_swiglu *c, int64_t row) {
    const float *x = c->x + row * 2 * c->columns;
    float *out = c->out + row * c->columns;
    int64_t step = c->interleaved ? 2 : 1;
    const float *up = x + (c->interleaved ? 1 : c->columns);
    float alpha = (float)c->alpha, offset = (float)c->offset, limit = c->limit > 0 ? (float)c->limit : float_of(0x7F800000u);
    for (int64_t i = 0; i < c->columns; i++) {
        float g = x[i * step], u = up[i * step];
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        out[i] = g * (1.0f / (1.0f + exponential(-(g * alpha)))) * (u + offset);
    }
}
