// One call: shapes, memory, formats. mxgemm/cpu/abi.py has the same struct, field for field; all fields have 8 bytes.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// For loops whose bounds are constants where they are used.
#define MX_INLINE static inline __attribute__((always_inline))

enum { BLOCK = 32, BLOCK_BYTES = 16 };  // elements that share a scale, and their bytes in e2m1
enum { LINE_BLOCKS = 4 };  // such blocks in a line of a cache

enum mx_dtype { MX_BF16, MX_FP16, MX_FP32 };
enum mx_format { MX_E2M1, MX_E4M3, MX_E5M2, MX_BF16_ELEMENTS };
enum mx_method { MX_ROWS, MX_PANELS, MX_TILES };

// Orders of scales, as mxgemm/mx/layouts.py counts them.
enum { IN_ROWS, SHUFFLED, SWIZZLED };

// Where the scale of (row, block) lies. Strides in bytes; `order`: by them, AITER's shuffled order, or the
// swizzled one of 32 x 4 x 4; `columns`: bytes of a padded row there.
struct mx_scales {
    const uint8_t *bytes;
    int64_t row, column, order, columns;
};

// Strides in elements. B is [n, k / 2] e2m1 bytes.
struct mx_call {
    int64_t m, n, k;
    const void *a;  // [m, k] floats of `a_dtype`; or bytes of `a_format`, where a_scales.bytes is set
    int64_t a_row, a_column, a_dtype, a_format, addend;  // `addend`: the rule that chooses scales (mx/formats.py)
    struct mx_scales a_scales;
    const uint8_t *b;
    int64_t b_row, b_column, b_preshuffled;
    struct mx_scales b_scales;
    const void *bias;  // or NULL
    int64_t bias_stride, bias_dtype;
    void *out;
    int64_t out_row, out_column, out_dtype;
    uint8_t *out_scales;  // of mx_encode, with contiguous rows
    int64_t out_scales_row;
    int64_t method, threads;
    int64_t alike;  // whether sums of a row of A are to have the same bits wherever it stands, among however many
    uint8_t *scratch;  // aligned to 64 bytes, of mx_scratch_bytes()
};

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// 2^exponent for -149 <= exponent <= 127.
static inline float power_of_two(int exponent) {
    return float_of(exponent >= -126 ? (uint32_t)(exponent + 127) << 23 : 1u << (exponent + 149));
}

static inline float not_a_number(void) { return float_of(0x7FC00000u); }

static inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

static inline uint8_t scale_at(const struct mx_scales *s, int64_t row, int64_t block) {
    switch (s->order) {
    case IN_ROWS:
        return s->bytes[row * s->row + block * s->column];
    case SHUFFLED:
        return s->bytes[row / 32 * s->columns * 32 + block / 8 * 256 + block % 4 * 64 + row % 16 * 4 +
                        block % 8 / 4 * 2 + row % 32 / 16];
    default:  // SWIZZLED
        return s->bytes[row / 128 * s->columns * 32 + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4];
    }
}
