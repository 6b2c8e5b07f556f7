// Vectors of 64-bit Arm with byte dot products: one block of a row, or a block of four rows.
#pragma once
#include <arm_neon.h>

#include "call.h"

enum { LANES = 4, GROUP = 1, PANEL_VECTORS = 2, PANEL_M = 6, ROWS = 4 };
enum { WEIGHT_OFFSET = 0 };  // weights are signed bytes, twice their value
#define MX_VARIANT "neon_dotprod"
typedef uint8x16_t vbytes;
typedef int32x4_t vint;
typedef float32x4_t vfloat;
typedef int32x4_t vpanel;

static inline vbytes v_load(const uint8_t *p) { return vld1q_u8(p); }

static inline vbytes v_load_part(const uint8_t *p, int count) {  // never asked for: a group is a block
    (void)count;
    return vld1q_u8(p);
}

static inline vbytes v_codes(const int8_t *p) { return vreinterpretq_u8_s8(vld1q_s8(p)); }

static inline vbytes v_values(uint8x16_t codes) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return vreinterpretq_u8_s8(vqtbl1q_s8(vld1q_s8(twice), codes));
}

// The weights in the low nibbles of bytes.
static inline vbytes v_low(vbytes w) { return v_values(vandq_u8(w, vdupq_n_u8(15))); }
static inline vbytes v_high(vbytes w) { return v_values(vshrq_n_u8(w, 4)); }

static inline vint v_dot(vint sum, vbytes w, vbytes a) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a));
}

static inline vint v_dot2(vint sum, vbytes low, vbytes a_low, vbytes high, vbytes a_high) {
    return v_dot(v_dot(sum, low, a_low), high, a_high);
}

static inline vfloat v_zero(void) { return vdupq_n_f32(0); }
static inline vfloat v_float(vint x) { return vcvtq_f32_s32(x); }
static inline vfloat v_multiply(vfloat x, vfloat y) { return vmulq_f32(x, y); }
static inline vfloat v_multiply_add(vfloat x, vfloat y, vfloat z) { return vfmaq_f32(z, x, y); }
static inline vfloat v_load_float(const float *p) { return vld1q_f32(p); }
static inline vfloat v_broadcast(float x) { return vdupq_n_f32(x); }
static inline void v_store(float *p, vfloat x) { vst1q_f32(p, x); }
static inline float v_sum(vfloat x) { return vaddvq_f32(x); }

static inline vfloat v_of_blocks(const float *p) { return vld1q_dup_f32(p); }
static inline vint v_load_int(const int32_t *p) { return vld1q_s32(p); }

// A block of four rows, 16 bytes each, as four vectors of 4 bytes a row.
static inline void v_transpose(const uint8_t *const rows[LANES], int64_t at, vbytes t[4]) {
    uint32x4_t z[4];
    for (int i = 0; i < 4; i++) z[i] = vreinterpretq_u32_u8(vld1q_u8(rows[i] + at));
    uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(z[0], z[1])), b = vreinterpretq_u64_u32(vtrn2q_u32(z[0], z[1]));
    uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(z[2], z[3])), d = vreinterpretq_u64_u32(vtrn2q_u32(z[2], z[3]));
    t[0] = vreinterpretq_u8_u64(vtrn1q_u64(a, c));
    t[1] = vreinterpretq_u8_u64(vtrn1q_u64(b, d));
    t[2] = vreinterpretq_u8_u64(vtrn2q_u64(a, c));
    t[3] = vreinterpretq_u8_u64(vtrn2q_u64(b, d));
}

// The scales of integers in byte i of each lane (see scale_of_integers).
static inline vfloat v_scales(vbytes four, int i) {
    uint32x4_t byte = vandq_u32(vshlq_u32(vreinterpretq_u32_u8(four), vdupq_n_s32(-8 * i)), vdupq_n_u32(255));
    uint32x4_t bits = vshlq_n_u32(vaddq_u32(byte, vdupq_n_u32(10)), 23);
    uint32x4_t nan = vandq_u32(vceqq_u32(byte, vdupq_n_u32(255)), vdupq_n_u32(0x7FC00000));
    return vreinterpretq_f32_u32(vorrq_u32(bits, nan));
}

// The larger of each byte so far and of the next one plus 1, NaN's becoming 0.
static inline vbytes v_largest(vbytes largest, vbytes next) {
    return vmaxq_u8(largest, vaddq_u8(next, vdupq_n_u8(1)));
}

static inline vbytes v_no_bytes(void) { return vdupq_n_u8(0); }
static inline void v_store_bytes(uint8_t *p, vbytes x) { vst1q_u8(p, x); }
static inline vbytes v_four_codes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_u8_s32(vdupq_n_s32(four));
}
static inline vpanel v_panel(int32_t offset) {
    (void)offset;
    return vdupq_n_s32(0);
}
static inline vpanel v_panel_dot(vpanel sum, vbytes w, vbytes a) { return v_dot(sum, w, a); }
static inline vfloat v_panel_float(vpanel sum) { return vcvtq_f32_s32(sum); }

// Codes of 8 bits as bytes.
static inline void v_narrow_codes(const uint16_t codes[BLOCK], uint8_t *out) {
    for (int i = 0; i < BLOCK; i++) out[i] = (uint8_t)codes[i];
}

// Codes of 4 bits as 16 bytes, the first one of two in the low half.
static inline void v_pack_codes(const uint16_t codes[BLOCK], uint8_t *out) {
    for (int i = 0; i < BLOCK_BYTES; i++) out[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

// Twice the e2m1 values of codes, those at even places and those at odd ones.
static inline void v_place_codes(const uint16_t codes[BLOCK], int8_t *even, int8_t *odd) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int i = 0; i < BLOCK_BYTES; i++) even[i] = twice[codes[2 * i]], odd[i] = twice[codes[2 * i + 1]];
}

// Whether a byte is below `low` or above `high`.
static inline int v_beyond(const vbytes x[4], int low, int high) {
    uint8x16_t least = vminq_u8(vminq_u8(x[0], x[1]), vminq_u8(x[2], x[3]));
    uint8x16_t most = vmaxq_u8(vmaxq_u8(x[0], x[1]), vmaxq_u8(x[2], x[3]));
    return vminvq_u8(least) < low || vmaxvq_u8(most) > high;
}

// The value of code i of each lane.
static inline vfloat v_value(vbytes codes, int i) {
    uint32x4_t code = vandq_u32(vshlq_u32(vreinterpretq_u32_u8(codes), vdupq_n_s32(-4 * i)), vdupq_n_u32(15));
    int32x4_t twice = vshlq_n_s32(vreinterpretq_s32_u8(v_values(vreinterpretq_u8_u32(code))), 24);
    return vcvtq_n_f32_s32(twice, 25);  // the byte is the highest one, and twice the value
}

// fp32 weights eight vectors a block: first the even elements, then the odd ones.
enum { FLOAT_STEPS = 8 };
typedef float float_element;
typedef float32x4_t vweights;
#define FLOAT_INDEX(i) ((i) % 2 * 16 + (i) / 2)

static inline float_element to_float_element(float x) { return x; }

static inline void v_weights(vbytes w, vweights out[FLOAT_STEPS]) {
    const vbytes halves[2] = {v_low(w), v_high(w)};
    for (int i = 0; i < 2; i++) {
        int16x8_t low = vmovl_s8(vget_low_s8(vreinterpretq_s8_u8(halves[i])));
        int16x8_t high = vmovl_s8(vget_high_s8(vreinterpretq_s8_u8(halves[i])));
        out[4 * i] = vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(low)), 1);  // halved
        out[4 * i + 1] = vcvtq_n_f32_s32(vmovl_s16(vget_high_s16(low)), 1);
        out[4 * i + 2] = vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(high)), 1);
        out[4 * i + 3] = vcvtq_n_f32_s32(vmovl_s16(vget_high_s16(high)), 1);
    }
}

static inline vfloat v_float_dot(vfloat sum, vweights w, const float_element *a) {
    return vfmaq_f32(sum, w, vld1q_f32(a));
}

enum { TILE_VECTORS = 4 };
#define MX_TILE_ROWS_AT_ONCE 4
#include "fp32.h"
#include "vector_tiles.h"
