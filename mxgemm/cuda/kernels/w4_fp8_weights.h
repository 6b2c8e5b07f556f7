// How a lane of w4_fp8.cu makes e4m3 of codes.
#pragma once
#include "fp8.h"

// The e4m3 bytes of 0, 0.5, 1, 1.5 and of 2, 3, 4, 6 times 2^(place - 9), for blocks whose scale is place - 9 above the
// base of its row; zeros, and one more for NaN. Sixteen of 8 bytes are in all banks once.
constexpr u32 TABLE_BYTES = 512, PLACES = 16, OF_BASE = 9, OF_ZEROS = 0, OF_NAN = 16;
INLINE void make_table(u32 table, u32 place) {
  const float one = float_of((127 - OF_BASE + max(min(place, PLACES - 1), 1u)) << 23);
  const u32 low = e4m3x2_of(0.f, 0.5f * one) | e4m3x2_of(one, 1.5f * one) << 16;
  const u32 high = e4m3x2_of(2.f * one, 3.f * one) | e4m3x2_of(4.f * one, 6.f * one) << 16;
  const u32 other = place == OF_NAN ? 0x7F7F7F7Fu : 0;
  const bool folds = place != OF_ZEROS && place != OF_NAN;
  store_shared_8(table + 8 * place, folds ? low : other, folds ? high : other);
}
// Where it would have what a scale byte of 0 makes of codes of a row with this base; others are 8 bytes further each.
INLINE u32 beginning_in(u32 table, u32 base) { return table + 8 * OF_BASE - 8 * base; }
INLINE u32 base_from(u32 table, u32 beginning) { return (table + 8 * OF_BASE - beginning) >> 3; }
// Only blocks of zeros and NaN's are outside: then this is their place.
INLINE bool outside(u32 table, u32 a, u32 b) { return ((a ^ table) | (b ^ table)) >= 8 * PLACES; }
INLINE u32 place_after_all(u32 table, u32 at, u32 scale) {
  return scale == 255 ? table + 8 * OF_NAN : at - table >= 8 * PLACES ? table + 8 * OF_ZEROS : at;
}

// Eight codes as two words of four bytes, the even codes and the odd ones: so their signs are at the tops of bytes. A
// permutation takes three bits of each four. `half` is 2^16, which the compiler does not know: to multiply by it does not
// take the pipe of shifts and permutations, which is the busier one.
INLINE void decode_e4m3(u32 q, const uint2& magnitude, u32 half, u32& even, u32& odd) {
  const u32 at = q & 0x77777777u;
  const u32 low = permute(magnitude.x, magnitude.y, at), high = permute(magnitude.x, magnitude.y, multiply_high(at, half));
  even = and_or(q << 4, 0x80808080u, permute(low, high, 0x6420));
  odd = and_or(q, 0x80808080u, permute(low, high, 0x7531));
}
