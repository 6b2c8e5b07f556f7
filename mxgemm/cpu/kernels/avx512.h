// Vectors of x86-64 with AVX-512 and its byte dot products (VNNI): four blocks of a row, or a block of sixteen rows.
#pragma once
#include "x86.h"

enum { LANES = 16, GROUP = 4, PANEL_VECTORS = 2, PANEL_M = 6, ROWS = 4 };
enum { WEIGHT_OFFSET = 12 };  // weights are unsigned bytes, twice their value plus this
#define MX_VARIANT "avx512_vnni"
typedef __m512i vbytes;
typedef __m512i vint;
typedef __m512 vfloat;
typedef __m512i vpanel;

static inline vbytes v_load(const uint8_t *p) { return _mm512_loadu_si512(p); }

static inline vbytes v_load_part(const uint8_t *p, int count) {
    return _mm512_maskz_loadu_epi8(((uint64_t)1 << count) - 1, p);
}

static inline vbytes v_codes(const int8_t *p) { return _mm512_loadu_si512(p); }

// The weights in the low nibbles of bytes.
static inline vbytes v_low(vbytes w) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
#ifdef __AVX512VBMI__
    return _mm512_permutexvar_epi8(w, table);  // reads six bits of each byte, and the table repeats every four
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(w, _mm512_set1_epi8(15)));
#endif
}

static inline vbytes v_high(vbytes w) { return v_low(_mm512_srli_epi16(w, 4)); }

static inline vint v_dot2(vint sum, vbytes low, vbytes a_low, vbytes high, vbytes a_high) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, low, a_low), high, a_high);
}

static inline vfloat v_zero(void) { return _mm512_setzero_ps(); }
static inline vfloat v_float(vint x) { return _mm512_cvtepi32_ps(x); }
static inline vfloat v_multiply(vfloat x, vfloat y) { return _mm512_mul_ps(x, y); }
static inline vfloat v_multiply_add(vfloat x, vfloat y, vfloat z) { return _mm512_fmadd_ps(x, y, z); }
static inline vfloat v_load_float(const float *p) { return _mm512_loadu_ps(p); }
static inline vfloat v_broadcast(float x) { return _mm512_set1_ps(x); }
static inline void v_store(float *p, vfloat x) { _mm512_storeu_ps(p, x); }
static inline float v_sum(vfloat x) { return _mm512_reduce_add_ps(x); }

// A number for each block of a group, in the four lanes of that block.
static inline vfloat v_of_blocks(const float *p) {
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_loadu_ps(p)));
}

static inline vint v_load_int(const int32_t *p) { return _mm512_loadu_si512(p); }

// A block of sixteen rows, 16 bytes each, as four vectors of 4 bytes a row. Loads that keep the other quarters are no
// permutations, as insertions are.
static inline void v_transpose(const uint8_t *const rows[LANES], int64_t at, vbytes t[4]) {
    __m512i z[4];
    for (int i = 0; i < 4; i++) {
        z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
        for (int q = 1; q < 4; q++) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)(rows[4 * q + i] + at));
            z[i] = _mm512_mask_broadcast_i32x4(z[i], (__mmask16)(15 << 4 * q), bytes);
        }
    }
    __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    t[0] = _mm512_unpacklo_epi64(a, c);
    t[1] = _mm512_unpackhi_epi64(a, c);
    t[2] = _mm512_unpacklo_epi64(b, d);
    t[3] = _mm512_unpackhi_epi64(b, d);
}

// The scales of integers in byte i of each lane (see scale_of_integers).
static inline vfloat v_scales(vbytes four, int i) {
    __m512i byte = _mm512_and_si512(_mm512_srli_epi32(four, 8 * i), _mm512_set1_epi32(255));
    __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(byte, _mm512_set1_epi32(10)), 23);
    __mmask16 nan = _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, nan, 0x7FC00000));
}

// The larger of each byte so far and of the next one plus 1, NaN's becoming 0.
static inline vbytes v_largest(vbytes largest, vbytes next) {
    return _mm512_max_epu8(largest, _mm512_add_epi8(next, _mm512_set1_epi8(1)));
}

static inline vbytes v_no_bytes(void) { return _mm512_setzero_si512(); }
static inline void v_store_bytes(uint8_t *p, vbytes x) { _mm512_storeu_si512(p, x); }
static inline vbytes v_four_codes(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
static inline vpanel v_panel(int32_t offset) { return _mm512_set1_epi32(offset); }
static inline vpanel v_panel_dot(vpanel sum, vbytes w, vbytes a) { return _mm512_dpbusd_epi32(sum, w, a); }
static inline vfloat v_panel_float(vpanel sum) { return _mm512_cvtepi32_ps(sum); }

// Whether a byte is below `low` or above `high`.
static inline int v_beyond(const vbytes x[4], int low, int high) {
    __m512i least = _mm512_min_epu8(_mm512_min_epu8(x[0], x[1]), _mm512_min_epu8(x[2], x[3]));
    __m512i most = _mm512_max_epu8(_mm512_max_epu8(x[0], x[1]), _mm512_max_epu8(x[2], x[3]));
    return (_mm512_cmplt_epu8_mask(least, _mm512_set1_epi8((char)low)) |
            _mm512_cmpgt_epu8_mask(most, _mm512_set1_epi8((char)high))) != 0;
}

// The value of code i of each lane.
static inline vfloat v_value(vbytes codes, int i) {
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * i), table);
}

// The value of each code in bf16, twice.
static inline __m512i v_bf16_of_codes(void) {
    return _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  // 0 0.5 1 1.5 2 3 4 6
        (short)0x8000, (short)0xBF00, (short)0xBF80, (short)0xBFC0, (short)0xC000, (short)0xC040, (short)0xC080,
        (short)0xC0C0));
}

// A block as bf16 values in order of k, or 0 where its scale is so extreme that an exponent would not fit.
#define MX_DECODES_BLOCKS
static inline int v_decode_block(const uint8_t *bytes, int scale, uint16_t *out) {
    if (scale < 2 || scale > 252) return 0;
    const __m512i four_times = _mm512_cvtepi8_epi16(_mm256_setr_epi8(
        0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7));
    __m512i block = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)bytes));
    __m512i shifts = _mm512_set1_epi64(0x000C000800040000);
    __m512i codes = _mm512_srlv_epi16(_mm512_permutexvar_epi16(four_times, block), shifts);
    __m512i values = _mm512_permutexvar_epi16(codes, v_bf16_of_codes());
    __mmask32 nonzero = _mm512_test_epi16_mask(values, _mm512_set1_epi16(0x7FFF));
    __m512i exponent = _mm512_set1_epi16((short)((scale - 127) * 128));
    _mm512_storeu_si512(out, _mm512_mask_add_epi16(values, nonzero, values, exponent));
    return 1;
}

#ifdef __AVX512BF16__
// bf16 weights four vectors a group: of each 16 bits of four codes one code a vector.
enum { FLOAT_STEPS = 4 };
typedef uint16_t float_element;
typedef __m512i vweights;
#define FLOAT_INDEX(i) ((i) % 4 * 32 + (i) / 4)

static inline float_element to_float_element(float x) { return (uint16_t)(bits_of(x) >> 16); }  // exact: a bf16 value

static inline void v_weights(vbytes w, vweights out[FLOAT_STEPS]) {
    for (int i = 0; i < FLOAT_STEPS; i++)
        out[i] = _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 4 * i), v_bf16_of_codes());
}

static inline vfloat v_float_dot(vfloat sum, vweights w, const float_element *a) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_loadu_si512(a));
}
#else
// fp32 weights eight vectors a group: of each 32 bits of eight codes one code a vector.
enum { FLOAT_STEPS = 8 };
typedef float float_element;
typedef __m512 vweights;
#define FLOAT_INDEX(i) ((i) % 8 * 16 + (i) / 8)

static inline float_element to_float_element(float x) { return x; }

static inline void v_weights(vbytes w, vweights out[FLOAT_STEPS]) {
    for (int i = 0; i < FLOAT_STEPS; i++) out[i] = v_value(w, i);
}

static inline vfloat v_float_dot(vfloat sum, vweights w, const float_element *a) {
    return _mm512_fmadd_ps(w, _mm512_loadu_ps(a), sum);
}
#endif

#if defined(__AMX_BF16__) || defined(MX_EMULATED_AMX)
#include "amx.h"
#elif defined(__AVX512BF16__)
#define MX_TILE_ROWS_AT_ONCE 8
#define MX_DECODES_BESIDE
#include "dots.h"
#include "vector_tiles.h"
#else
enum { TILE_VECTORS = 2 };
#define MX_TILE_ROWS_AT_ONCE 8
#include "fp32.h"
#include "vector_tiles.h"
#endif
