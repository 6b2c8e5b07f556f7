// What all variants of x86-64 do with vectors of 32 bytes: the codes of a block.
#pragma once
#include <immintrin.h>

#include "call.h"

static inline __m256i bytes_of_codes(const uint16_t codes[BLOCK]) {
    const __m256i *p = (const __m256i *)codes;
    __m256i eights = _mm256_packus_epi16(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1));  // of each by turns
    return _mm256_permute4x64_epi64(eights, 0xD8);
}

// Codes of 8 bits as bytes.
static inline void v_narrow_codes(const uint16_t codes[BLOCK], uint8_t *out) {
    _mm256_storeu_si256((__m256i *)out, bytes_of_codes(codes));
}

// Codes of 4 bits as 16 bytes, the first one of two in the low half.
static inline void v_pack_codes(const uint16_t codes[BLOCK], uint8_t *out) {
    __m256i pairs = _mm256_maddubs_epi16(bytes_of_codes(codes), _mm256_set1_epi16(0x1001));
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 8);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(bytes));
}

// Twice the e2m1 values of codes, those at even places and those at odd ones.
static inline void v_place_codes(const uint16_t codes[BLOCK], int8_t *even, int8_t *odd) {
    const __m256i twice = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i split = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    __m256i values = _mm256_shuffle_epi8(twice, bytes_of_codes(codes));
    values = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(values, split), 0xD8);
    _mm_storeu_si128((__m128i *)even, _mm256_castsi256_si128(values));
    _mm_storeu_si128((__m128i *)odd, _mm256_extracti128_si256(values, 1));
}
