// bf16 elements for the engines of tiles: a panel's block is [TILE_N / 16, 16 pairs, 16 columns, 2].
#pragma once
#include "weights.h"

enum { TILE_N = 32, TILE_BLOCKS = 16 };
typedef uint16_t tile_element;

static inline tile_element to_tile_element(float x) { return (uint16_t)(bits_of(x) >> 16); }  // exact, but subnormals

#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
// A block of sixteen rows of B. A scale beyond bf16's exponents leaves what is computed again anyway.
static inline void decode_block_of_rows(const uint8_t *const rows[LANES], int64_t at, vbytes scales, int i, int v,
                                        tile_element *block) {
    // Of each 32 bits the eight that begin with code 2q to its first byte, with code 2q + 1 to its third one.
    const __m512i first = _mm512_set1_epi64(0x0024002000040000);
    const __m512i table = v_bf16_of_codes(), magnitude = _mm512_set1_epi16(7);
    __m512i byte = _mm512_and_si512(_mm512_srli_epi32(scales, 8 * i), _mm512_set1_epi32(255));
    __m512i exponent = _mm512_slli_epi32(byte, 7);
    exponent = _mm512_or_si512(exponent, _mm512_slli_epi32(exponent, 16));
    exponent = _mm512_sub_epi16(exponent, _mm512_set1_epi16(127 << 7));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255));
    uint16_t *to = block + v * 16 * BLOCK;
    vbytes four[4];
    v_transpose(rows, at, four);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            __m512i control = _mm512_add_epi8(first, _mm512_set1_epi8((char)(8 * q)));
            __m512i codes = _mm512_multishift_epi64_epi8(control, four[j]);  // the permutation reads five bits of them
            __mmask32 nonzero = _mm512_test_epi16_mask(codes, magnitude);
            __m512i values = _mm512_permutexvar_epi16(codes, table);
            values = _mm512_maskz_add_epi16(nonzero, values, exponent);
            _mm512_storeu_si512(to + (4 * j + q) * 32, values);
        }
    if (nan)
        for (int pair = 0; pair < 16; pair++)
            _mm512_mask_storeu_epi32(to + pair * 32, nan, _mm512_set1_epi32(0x7FC07FC0));
}
#else
// The same value by value, where an emulated engine has no such vectors.
static inline void decode_block_of_rows(const uint8_t *const rows[LANES], int64_t at, vbytes scales, int i, int v,
                                        tile_element *block) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t bytes[LANES * 4];
    v_store_bytes(bytes, scales);
    for (int r = 0; r < LANES; r++) {
        int byte = bytes[4 * r + i], column = v * LANES + r;
        float scale = byte == 255 ? not_a_number() : power_of_two(byte - 127);
        uint16_t *to = block + column / 16 * 16 * BLOCK + column % 16 * 2;
        for (int pair = 0; pair < BLOCK_BYTES; pair++) {
            uint8_t codes = rows[r][at + pair];
            to[pair * 32] = to_tile_element(values[codes & 15] * scale);
            to[pair * 32 + 1] = to_tile_element(values[codes >> 4] * scale);
        }
    }
}
#endif
