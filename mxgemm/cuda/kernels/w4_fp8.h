// Of both launches of w4_fp8: what a slab of A is, and where an e2m1 value times 2^d is an e4m3 value.
//
// A slab is COLUMNS rows of A by a step of 256 values, two chunks. First the chunks: rows of 128 e4m3 bytes, in each 16
// bytes i of row m at i ^ (m & 7). Then, of both chunks, a power of two for each row, that its values are too small by, in
// fp32; then, of both, for each of the four blocks of a row a byte: how many binades more than that the block is too
// large by. It is 0 where the chunk folds, as mostly. Powers of two lie so that the lanes of a product have theirs side by
// side. K is permuted within a block, so that a lane's codes of weights are whole blocks: of a word's eight codes the
// even ones are four bytes, and the odd ones four others, 16 further.
//
// Macros: COLUMNS.
#pragma once
#include "sm90.h"

constexpr int CHUNK = 128 * COLUMNS, SCALES = 4 * COLUMNS, REST = 4 * COLUMNS;  // bytes of a chunk
constexpr int SLAB_SCALES = 2 * CHUNK, SLAB_REST = SLAB_SCALES + 2 * SCALES, SLAB = SLAB_REST + 2 * REST;
constexpr u32 FOLD_UP = 6, FOLD_DOWN = 8;  // an e2m1 value times 2^-8 to 2^6 is an e4m3 value
// Exponents of powers of two with which fp32 holds every sum of products whatever the rest of it is: others are for the
// long way round.
constexpr u32 LEAST_UNIT = 63, MOST_UNIT = 191;

INLINE constexpr int place_of_scale(int m) { return (m & ~15) + (m >> 1 & 3) * 4 + (m >> 3 & 1) * 2 + (m & 1); }

// x times 2^e, rounded once where fp32 holds it.
INLINE float times_power(float x, int e) {
  e = max(min(e, 252), -252);
  const int half = e >> 1;
  return x * float_of(static_cast<u32>(127 + half) << 23) * float_of(static_cast<u32>(127 + e - half) << 23);
}
