// Of both launches of w4_fp8: what a slab of A is, and where an e2m1 value times 2^d is an e4m3 value.
//
// A slab is COLUMNS rows of A by a step of 256 values, two chunks. First the chunks: rows of 128 e4m3 bytes, in each 16
// bytes i of row m at i ^ (m & 7). Then, of both chunks, a word for each row: a power of two in fp32, that its values are
// too small by beside those of the row, and in the word's last bits the exponent that its values are too small by in all
// (UNIT) and whether the chunk folds and how far from the row's it is (APART, FAR). Words lie so that the lanes of a
// product have theirs side by side. Then, of both chunks, for each of the four blocks of a row a byte: how many binades
// more the block is too large by, 0 where the chunk folds. As mostly, and then mostly with the row's power of two, so
// that the word is ALIKE but for the exponent. Behind the last slab, for each row, its power of two, as two powers in fp32:
// chosen by its first chunk. K is permuted within a block, so that a lane's codes of weights are whole blocks: of a word's eight codes
// the even ones are four bytes, and the odd ones four others, 16 further.
//
// Macros: COLUMNS.
#pragma once
#include "sm90.h"

constexpr int CHUNK = 128 * COLUMNS, SCALES = 4 * COLUMNS, REST = 4 * COLUMNS;  // bytes of a chunk
constexpr int SLAB_SCALES = 2 * CHUNK, SLAB_REST = SLAB_SCALES + 2 * SCALES, SLAB = SLAB_REST + 2 * REST;
constexpr u32 FOLD_UP = 6, FOLD_DOWN = 8;  // an e2m1 value times 2^-8 to 2^6 is an e4m3 value
constexpr u32 ROOM_UP = 2;                    // the row's power of two is for 2^4 above its first chunk, and 2^10 below
constexpr u32 ALIKE = 127u << 23, UNIT = 255, APART = 1 << 8, FAR = 1 << 9;
// How far from its row's a power of two is at most with which fp32 holds every sum of products whatever the rest of it is:
// others are FAR, and go the long way round.
constexpr int MOST_APART = 64;

INLINE constexpr int place_of_scale(int m) { return (m & ~15) + (m >> 1 & 3) * 4 + (m >> 3 & 1) * 2 + (m & 1); }

// Two powers of two whose product is 2^(exponent - 127), with exponents half as large: so is the product of any two of them.
struct TwoPowers {
  float x, y;
};
INLINE TwoPowers two_powers(u32 exponent) {
  const u32 half = exponent >> 1;
  return {float_of((half + 63) << 23), float_of((exponent - half + 64) << 23)};
}
// x times 2^e, rounded once where fp32 holds it.
INLINE float times_power(float x, int e) {
  e = max(min(e, 252), -252);
  const int half = e >> 1;
  return x * float_of(static_cast<u32>(127 + half) << 23) * float_of(static_cast<u32>(127 + e - half) << 23);
}
