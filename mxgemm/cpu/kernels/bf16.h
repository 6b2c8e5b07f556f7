// bf16 elements for the engines of tiles: a panel's block is [TILE_N / 16, 16 pairs, 16 columns, 2]. An engine that looks
// products up too (lookups.h) has a block's codes and scales behind them.
//
// Elements k and k + 4 of eight are a pair, in A as in B: shifted by q codes, a vector of eight codes a lane has the pair
// of element q in its halves, where the permutation that looks their values up reads them.
#pragma once
#include "weights.h"

enum { TILE_N = 32, TILE_VALUES = BLOCK * TILE_N };
typedef uint16_t tile_element;
#ifdef MX_LOOKS_UP
enum { TILE_CODES = TILE_VALUES, TILE_SCALES = TILE_CODES + TILE_N * 8, PANEL_BLOCK = TILE_SCALES + TILE_N * 2 };
#else
enum { PANEL_BLOCK = TILE_VALUES };
#endif

static inline int element_at(int place) { return place / 8 * 8 + place % 8 / 2 + place % 2 * 4; }

#if defined(__AVX512BW__)
#define MX_PACKS_BF16
// element_at() of 32 places.
static inline __m512i v_order(void) {
    return _mm512_setr_epi32(0x00040000, 0x00050001, 0x00060002, 0x00070003, 0x000C0008, 0x000D0009, 0x000E000A,
                             0x000F000B, 0x00140010, 0x00150011, 0x00160012, 0x00170013, 0x001C0018, 0x001D0019,
                             0x001E001A, 0x001F001B);
}

// A block of A whose values are exact in bf16, but for subnormals: the upper halves of fp32.
static inline void pack_block(const float x[BLOCK], tile_element *to) {
    const __m512i halves = _mm512_add_epi16(_mm512_slli_epi16(v_order(), 1), _mm512_set1_epi16(1));
    __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(x + 16);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, halves, second));
}

// The blocks of a row of A that is bf16, `step` apart; the magnitudes, as bits, of its largest finite element and of its
// least one that is not 0, less 1.
static inline void pack_bf16(const uint16_t *x, int64_t blocks, tile_element *to, int64_t step, int *most, int *least) {
    enum { ABOVE = 0x80 };  // added to infinity's bits and NaN's, makes them negative
    const __m512i order = v_order(), above = _mm512_set1_epi16(ABOVE), one = _mm512_set1_epi16(1);
    __m512i high = above, low = _mm512_set1_epi16(-1);
    for (int64_t b = 0; b < blocks; b++, x += BLOCK, to += step) {
        __m512i values = _mm512_loadu_si512(x), magnitude = _mm512_and_si512(values, _mm512_set1_epi16(0x7FFF));
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, values));
        low = _mm512_min_epu16(low, _mm512_sub_epi16(magnitude, one));
        high = _mm512_max_epi16(high, _mm512_add_epi16(magnitude, above));
    }
    uint16_t highs[BLOCK], lows[BLOCK];
    _mm512_storeu_si512(highs, _mm512_sub_epi16(high, above));
    _mm512_storeu_si512(lows, low);
    *most = 0, *least = 0xFFFF;
    for (int i = 0; i < BLOCK; i++) {
        *most = highs[i] > *most ? highs[i] : *most;
        *least = lows[i] < *least ? lows[i] : *least;
    }
}

static inline int largest_of(__m512i x) {
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return 0xFFFF - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1))), 0);
}

// A block of A that is bf16, rounded to e4m3 values: by 16-bit integers, to three bits of mantissa, whatever the scale.
// Returns the scale's byte; or 0, and leaves it, where values have no normal e4m3 quotient or are near an end of bf16.
static inline int pack_e4m3(const uint16_t *x, int64_t addend, tile_element *to) {
    enum { LEAST_BYTE = 27, LARGEST_BYTE = 200, LARGEST_VALUE = 0x43E0 };  // 448
    __m512i values = _mm512_loadu_si512(x), magnitude = _mm512_and_si512(values, _mm512_set1_epi16(0x7FFF));
    int byte = scale_byte((int32_t)largest_of(magnitude) << 16, addend, MX_E4M3);
    if (byte < LEAST_BYTE || byte > LARGEST_BYTE) return 0;
    __m512i below = _mm512_set1_epi16((short)(((byte - 6) << 7) - 1)), one = _mm512_set1_epi16(1);
    if (_mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, one), below)) return 0;  // but zeros
    __m512i odd = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), one);
    __m512i up = _mm512_add_epi16(magnitude, _mm512_add_epi16(odd, _mm512_set1_epi16(7)));
    __m512i rounded = _mm512_and_si512(up, _mm512_set1_epi16((short)0xFFF0));
    rounded = _mm512_min_epu16(rounded, _mm512_set1_epi16((short)(LARGEST_VALUE + (byte - 127) * 128)));
    __m512i sign = _mm512_andnot_si512(_mm512_set1_epi16(0x7FFF), values);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(v_order(), _mm512_or_si512(rounded, sign)));
    return byte;
}

// The bits of each code's value in bf16, twice, raised by RAISED: then the part of a scale is subtracted, down to 0 at
// most, and a zero stays one under every scale. Minus zero is zero.
enum { RAISED = 0x3F00 };

static inline __m512i v_raised_values(void) {
    return _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x7E00, 0x7E80, 0x7EC0, 0x7F00, 0x7F40, 0x7F80, 0x7FC0,  // 0 0.5 1 1.5 2 3 4 6
        0, (short)0xFE00, (short)0xFE80, (short)0xFEC0, (short)0xFF00, (short)0xFF40, (short)0xFF80, (short)0xFFC0));
}

// The scale in byte i of each lane in fp32, NaN's as infinity. The least one becomes zero: what has it is computed again.
static inline __m512i v_scale_bits(vbytes scales, int i) {
    const __m512i top = _mm512_broadcast_i32x4(  // of each lane; the others become 0
        _mm_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0C808080));
    return _mm512_srli_epi32(_mm512_shuffle_epi8(scales, _mm512_add_epi32(top, _mm512_set1_epi32(i << 24))), 1);
}

// What is to be subtracted for it in both halves.
static inline __m512i v_lowering(__m512i scale_bits) {
    __m512i twice = _mm512_or_si512(scale_bits, _mm512_srli_epi32(scale_bits, 16));
    return _mm512_sub_epi16(_mm512_set1_epi16(RAISED + (127 << 7)), twice);
}

// Pair q of eight codes a lane. A scale beyond bf16's exponents leaves what is computed again anyway. A subtraction with
// saturation would do for the last two, but Zen 4 does it where it multiplies.
static inline __m512i v_bf16(vbytes codes, int q, __m512i raised, __m512i lowering) {
    __m512i pair = q ? _mm512_srli_epi16(codes, 4 * q) : codes;  // the permutation reads five bits, its table repeats
    return _mm512_sub_epi16(_mm512_max_epu16(_mm512_permutexvar_epi16(pair, raised), lowering), lowering);
}

#ifdef MX_LOOKS_UP
// Put down the codes of a block of sixteen rows of B, [4, TILE_N / 16, 16] lanes of eight.
static inline void keep_codes(const vbytes codes[4], int v, tile_element *block) {
    for (int j = 0; j < 4; j++) _mm512_storeu_si512(block + TILE_CODES + (j * (TILE_N / 16) + v) * 32, codes[j]);
}

static inline void keep_scales(__m512i scale_bits, int v, tile_element *block) {
    _mm512_storeu_si512(block + TILE_SCALES + v * 32, scale_bits);
}
#endif

// A block of sixteen rows of B.
static inline void decode_block_of_rows(const uint8_t *const rows[LANES], int64_t at, vbytes scales, int i, int v,
                                        tile_element *block) {
    const __m512i raised = v_raised_values(), scale = v_scale_bits(scales, i), lowering = v_lowering(scale);
    uint16_t *to = block + v * 16 * BLOCK;
    vbytes codes[4];
    v_transpose(rows, at, codes);
#ifdef MX_LOOKS_UP
    keep_codes(codes, v, block);
    keep_scales(scale, v, block);
#endif
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; pair++)
        _mm512_storeu_si512(to + pair * 32, v_bf16(codes[pair / 4], pair % 4, raised, lowering));
}
#else
// The same value by value, where an emulated engine has no such vectors.
static inline void pack_block(const float x[BLOCK], tile_element *to) {
    for (int i = 0; i < BLOCK; i++) to[i] = (uint16_t)(bits_of(x[element_at(i)]) >> 16);
}

static inline void decode_block_of_rows(const uint8_t *const rows[LANES], int64_t at, vbytes scales, int i, int v,
                                        tile_element *block) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t bytes[LANES * 4];
    v_store_bytes(bytes, scales);
    for (int r = 0; r < LANES; r++) {
        int byte = bytes[4 * r + i], column = v * LANES + r;
        float scale = byte == 255 ? not_a_number() : power_of_two(byte - 127);
        uint16_t *to = block + column / 16 * 16 * BLOCK + column % 16 * 2;
        for (int place = 0; place < BLOCK; place++) {
            int k = element_at(place), code = rows[r][at + k / 2] >> k % 2 * 4 & 15;
            to[place / 2 * 32 + place % 2] = (uint16_t)(bits_of(values[code] * scale) >> 16);
        }
    }
}
#endif

#include "sources.h"
