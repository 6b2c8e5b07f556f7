// Tokens to MX bytes, row-major, before grouped products: 32 values of a row are a block of four lanes, eight values each.
//
// Macros: those of load_values.h.
#pragma once
#include "load_values.h"
#include "mx_codes.h"

// Strides in elements.
struct QuantiseArguments {
  const u8* a;
  u8* out;     // [m][k / 2] or [m][k]
  u8* scales;  // [m][k / 32]
  i64 a_row, a_column;
  int m, k;
};

// The eighth-th eight values of all.
INLINE void quantise_eight(const QuantiseArguments& p, int eighth) {
  const int eighths = p.k >> 3;
  const bool real = eighth < p.m * eighths;
  const int m = real ? eighth / eighths : 0, at = real ? eighth % eighths : 0;
  float v[8];
  load_values(p.a + (m * p.a_row + 8 * at * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
  u32 amax = largest(v);
  amax = max(amax, from_lane_xor(amax, 1));
  amax = max(amax, from_lane_xor(amax, 2));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = up > EMAX ? up - EMAX : 0;
  const bool finite = amax < 0x7F800000u;
  u32 words[BITS / 4] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const u32 code = code_of(finite ? rounded(v[i] * float_of((254 - e) << 23)) : 0.f);
    words[i * BITS / 32] |= code << (i * BITS % 32);
  }
  if (!real) return;
#pragma unroll
  for (int i = 0; i < BITS / 4; i++) store_u32(p.out + m * static_cast<i64>(eighths) * BITS + at * BITS + 4 * i, words[i]);
  if (at % 4 == 0) store_u8(p.scales + m * static_cast<i64>(p.k >> 5) + (at >> 2), finite ? e : 255);
}
