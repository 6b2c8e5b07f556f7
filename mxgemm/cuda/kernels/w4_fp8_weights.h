// What a lane of w4_fp8.cu holds of a chunk of the weight, and how it becomes e4m3.
// Macros: FRAGMENTS.
#pragma once
#include "fp8.h"

// The e4m3 bytes of 0, 0.5, 1, 1.5 and of 2, 3, 4, 6 times 2^(place - 8), NaN at place 15. For all lanes: sixteen of
// 8 bytes are in all banks once.
constexpr u32 TABLE_BYTES = 128, TABLE_NAN = 15;
INLINE void make_table(u32 table, u32 place) {
  const float one = float_of((119 + min(place, TABLE_NAN - 1)) << 23);
  const u32 low = e4m3x2_of(0.f, 0.5f * one) | e4m3x2_of(one, 1.5f * one) << 16;
  const u32 high = e4m3x2_of(2.f * one, 3.f * one) | e4m3x2_of(4.f * one, 6.f * one) << 16;
  store_shared_8(table + 8 * place, place == TABLE_NAN ? 0x7F7F7F7Fu : low, place == TABLE_NAN ? 0x7F7F7F7Fu : high);
}
// What a scale byte makes of codes whose row has this base. Only blocks of zeros are outside of the table.
INLINE uint2 magnitudes(u32 table, u32 scale, u32 base) {
  const u32 place = scale == 255 ? TABLE_NAN : min(scale + 8 - base, TABLE_NAN - 1);
  return load_shared_8(table + 8 * place);
}

// Eight codes as two words of four bytes. A permutation takes three bits of each four.
INLINE void decode_e4m3(u32 q, const uint2& magnitude, u32& x, u32& y) {
#if FRAGMENTS
  // In each half the signs are 1, 3, 2, 0 from bit 12 on and magnitudes, of three bits, 2, 1, 0, 3; so are the bytes.
  const u32 apart = (q & 0x0FFF0FFFu) + (q & 0x0FC00FC0u) * 3, at = apart + (apart & 0x38383838u);
  const u32 signs = q & 0xF000F000u;
  x = and_or(permute(signs, 0, 0x4441) * 0x04010802u, 0x80808080u, permute(magnitude.x, magnitude.y, at));
  y = and_or((signs >> 24) * 0x04010802u, 0x80808080u, permute(magnitude.x, magnitude.y, at >> 16));
#else
  // The even codes and the odd ones: so their signs are at the tops of bytes.
  const u32 at = q & 0x77777777u;
  const u32 low = permute(magnitude.x, magnitude.y, at), high = permute(magnitude.x, magnitude.y, at >> 16);
  x = and_or(q << 4, 0x80808080u, permute(low, high, 0x6420));
  y = and_or(q, 0x80808080u, permute(low, high, 0x7531));
#endif
}
