// What becomes of the sums of grouped products: which rows of the weight they are of, the activation, rounding.
//
// Macros: those of round_block.h. GATED: 0 for plain results; 1 where gate and up are rows in turn, 2 where they are the
// two halves of N. Gated results have half as many columns: of 64 rows of a workgroup 32, one block, so that a warp with a
// row of it quantises it alone. QUANTISES: they are bytes of A_FORMAT with scales, by SCALE_ADDEND.
#pragma once
#include "mx_codes.h"
#include "warp.h"

// The row of the weight that row `local` of a workgroup is, whose rows are those of 64-row places from `place` on.
INLINE int row_of_weight(int n, int place, int local) {
#if GATED == 2
  return (place + (local >> 6)) * 32 + (local & 31) + (local >> 5 & 1) * (n >> 1);
#else
  return place * 64 + local;
#endif
}

#if GATED
struct Gate {
  float alpha, limit, offset;
};
INLINE float gated(const Gate& p, float gate, float up) {  // a NaN stays one
  gate = gate > p.limit ? p.limit : gate;
  up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  const float sigmoid = 1.f / (1.f + power_of_two(gate * (p.alpha * -1.44269504f)));
  return gate * sigmoid * (up + p.offset);
}

#if QUANTISES
// The lanes of a warp have a block of a row: its codes and its scale are stored.
INLINE void quantise_and_store(u8* row, u8* scales, int block, float value) {
  const int lane = threadIdx.x & 31;
  u32 amax = bits_of(value) & 0x7FFFFFFFu;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) amax = max(amax, from_lane_xor(amax, d));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = up > EMAX ? up - EMAX : 0;
  const bool finite = amax < 0x7F800000u;
  u32 code = code_of(finite ? rounded(value * float_of((254 - e) << 23)) : 0.f);
#if A_FORMAT == E2M1
  code <<= lane % 8 * 4;
#pragma unroll
  for (int d = 1; d < 8; d *= 2) code |= from_lane_xor(code, d);
  if (lane % 8 == 0) store_u32(row + block * 16 + lane / 2, code);
#else
  store_u8(row + block * 32 + lane, code);
#endif
  if (lane == 0) store_u8(scales + block, finite ? e : 255);
}
#endif
#endif
