// Vectors of x86-64 with AVX2 and FMA: two blocks of a row, or a block of eight rows.
#pragma once
#include "x86.h"

enum { LANES = 8, GROUP = 2, PANEL_VECTORS = 1, PANEL_M = 6, ROWS = 4 };
enum { WEIGHT_OFFSET = 12 };  // weights are unsigned bytes, twice their value plus this
#define MX_VARIANT "avx2"
typedef __m256i vbytes;
typedef __m256i vint;
typedef __m256 vfloat;
typedef __m256i vpanel;  // of 16 bits: a block's sums stay below 2^14

static inline vbytes v_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

static inline vbytes v_load_part(const uint8_t *p, int count) {
    uint8_t whole[32] = {0};
    memcpy(whole, p, (size_t)count);
    return v_load(whole);
}

static inline vbytes v_codes(const int8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

// The weights in the low nibbles of bytes.
static inline vbytes v_low(vbytes w) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(w, _mm256_set1_epi8(15)));
}

static inline vbytes v_high(vbytes w) { return v_low(_mm256_srli_epi16(w, 4)); }

static inline vint v_dot2(vint sum, vbytes low, vbytes a_low, vbytes high, vbytes a_high) {
    __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, a_low), _mm256_maddubs_epi16(high, a_high));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline vfloat v_zero(void) { return _mm256_setzero_ps(); }
static inline vfloat v_float(vint x) { return _mm256_cvtepi32_ps(x); }
static inline vfloat v_multiply(vfloat x, vfloat y) { return _mm256_mul_ps(x, y); }
static inline vfloat v_multiply_add(vfloat x, vfloat y, vfloat z) { return _mm256_fmadd_ps(x, y, z); }
static inline vfloat v_load_float(const float *p) { return _mm256_loadu_ps(p); }
static inline vfloat v_broadcast(float x) { return _mm256_set1_ps(x); }
static inline void v_store(float *p, vfloat x) { _mm256_storeu_ps(p, x); }

static inline float v_sum(vfloat x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// A number for each block of a group, in the four lanes of that block.
static inline vfloat v_of_blocks(const float *p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_set1_ps(p[0])), _mm_set1_ps(p[1]), 1);
}

static inline vint v_load_int(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

// A block of eight rows, 16 bytes each, as four vectors of 4 bytes a row.
static inline void v_transpose(const uint8_t *const rows[LANES], int64_t at, vbytes t[4]) {
    __m256i z[4];
    for (int i = 0; i < 4; i++) {
        z[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
        z[i] = _mm256_inserti128_si256(z[i], _mm_loadu_si128((const __m128i *)(rows[4 + i] + at)), 1);
    }
    __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[0], z[1]);
    __m256i c = _mm256_unpacklo_epi32(z[2], z[3]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    t[0] = _mm256_unpacklo_epi64(a, c);
    t[1] = _mm256_unpackhi_epi64(a, c);
    t[2] = _mm256_unpacklo_epi64(b, d);
    t[3] = _mm256_unpackhi_epi64(b, d);
}

// The scales of integers in byte i of each lane (see scale_of_integers).
static inline vfloat v_scales(vbytes four, int i) {
    __m256i byte = _mm256_and_si256(_mm256_srli_epi32(four, 8 * i), _mm256_set1_epi32(255));
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(byte, _mm256_set1_epi32(10)), 23);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(byte, _mm256_set1_epi32(255)), _mm256_set1_epi32(0x7FC00000));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
}

// The larger of each byte so far and of the next one plus 1, NaN's becoming 0.
static inline vbytes v_largest(vbytes largest, vbytes next) {
    return _mm256_max_epu8(largest, _mm256_add_epi8(next, _mm256_set1_epi8(1)));
}

static inline vbytes v_no_bytes(void) { return _mm256_setzero_si256(); }
static inline void v_store_bytes(uint8_t *p, vbytes x) { _mm256_storeu_si256((__m256i *)p, x); }
static inline vbytes v_four_codes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
static inline vpanel v_panel(int32_t offset) { return _mm256_set1_epi32(offset & 0xFFFF); }
static inline vpanel v_panel_dot(vpanel sum, vbytes w, vbytes a) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a));
}
static inline vfloat v_panel_float(vpanel sum) {
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

// Whether a byte is below `low` or above `high`.
static inline int v_beyond(const vbytes x[4], int low, int high) {
    __m256i least = _mm256_min_epu8(_mm256_min_epu8(x[0], x[1]), _mm256_min_epu8(x[2], x[3]));
    __m256i most = _mm256_max_epu8(_mm256_max_epu8(x[0], x[1]), _mm256_max_epu8(x[2], x[3]));
    __m256i floor = _mm256_set1_epi8((char)low), top = _mm256_set1_epi8((char)high);
    __m256i inside = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(least, floor), least),
                                      _mm256_cmpeq_epi8(_mm256_min_epu8(most, top), most));
    return _mm256_movemask_epi8(inside) != -1;
}

// The value of code i of each lane.
static inline vfloat v_value(vbytes codes, int i) {
    const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);  // of a code's lower three bits
    __m256i code = _mm256_srli_epi32(codes, 4 * i);
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}

// A block as bf16 values in order of k, or 0 where its scale is so extreme that an exponent would not fit.
#define MX_DECODES_BLOCKS
static inline int v_decode_block(const uint8_t *bytes, int scale, uint16_t *out) {
    if (scale < 2 || scale > 252) return 0;
    const __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xBF, (char)0xBF, (char)0xBF, (char)0xC0,
        (char)0xC0, (char)0xC0, (char)0xC0));
    const __m256i low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0, (char)0x80, (char)0xC0, 0, 0x40, (char)0x80, (char)0xC0, 0, 0, (char)0x80, (char)0xC0, 0, 0x40,
        (char)0x80, (char)0xC0));
    __m128i pairs = _mm_loadu_si128((const __m128i *)bytes), mask = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(pairs, mask), odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), mask);
    __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    __m256i tops = _mm256_shuffle_epi8(high, codes), rests = _mm256_shuffle_epi8(low, codes);
    __m256i parts[2] = {_mm256_unpacklo_epi8(rests, tops), _mm256_unpackhi_epi8(rests, tops)};  // of each 16, halves
    __m256i exponent = _mm256_set1_epi16((short)((scale - 127) * 128));
    for (int i = 0; i < 2; i++) {
        __m256i zero = _mm256_cmpeq_epi16(_mm256_slli_epi16(parts[i], 1), _mm256_setzero_si256());
        parts[i] = _mm256_add_epi16(parts[i], _mm256_andnot_si256(zero, exponent));
    }
    _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(parts[0], parts[1], 0x20));
    _mm256_storeu_si256((__m256i *)out + 1, _mm256_permute2x128_si256(parts[0], parts[1], 0x31));
    return 1;
}

// fp32 weights eight vectors a group: of each 32 bits of eight codes one code a vector.
enum { FLOAT_STEPS = 8 };
typedef float float_element;
typedef __m256 vweights;
#define FLOAT_INDEX(i) ((i) % 8 * 8 + (i) / 8)

static inline float_element to_float_element(float x) { return x; }

static inline void v_weights(vbytes w, vweights out[FLOAT_STEPS]) {
    for (int i = 0; i < FLOAT_STEPS; i++) out[i] = v_value(w, i);
}

static inline vfloat v_float_dot(vfloat sum, vweights w, const float_element *a) {
    return _mm256_fmadd_ps(w, _mm256_loadu_ps(a), sum);
}

#ifdef MX_EMULATED_AMX
#include "amx.h"
#else
enum { TILE_VECTORS = 3 };
#define MX_TILE_ROWS_AT_ONCE 4
#include "fp32.h"
#include "vector_tiles.h"
#endif
