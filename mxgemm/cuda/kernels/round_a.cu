// A rounded to A_FORMAT once, for all workgroups of w4_mma.cu: bf16 in its lanes' order, by eight values a lane.
//
// Row 8 r + g, chunk c of 128 values, word 4 i + j of block t (see round_block.h) lies at byte
// (((r chunks + c) 4 + i) 32 + 4 g + t) 16 + 4 j, so that a warp reads 512 bytes at once. Blocks past the end are 0;
// rows past it are nobody's.
//
// With A_CODES it is e2m1 codes: word i of block t is at byte ((r chunks + c) 32 + 4 g + t) 16 + 4 i, and the scale
// byte of the block, behind all of these, at (r chunks + c) 32 + 4 g + t.
//
// Macros: those of load_values.h; OVERLAP, launched so that it
// may begin before earlier launches have ended.
#include "load_values.h"

constexpr int LANES = 128;  // of a workgroup

// Strides in elements.
struct RoundArguments {
  const u8* a;
  u8* out;
  i64 a_row, a_column;
  int m, k;
};

// A code of e2m1 is in the bits of the float 126 binades down.
INLINE u32 code_of(float q) { return bits_of(q * float_of(1u << 23)) >> 22; }

// Pairs are those that pack() makes; their bits: see mxgemm.mx.fragments.
INLINE u32 places_of(const float (&q)[8]) {
  constexpr int SIGN[8] = {15, 18, 3, 21, 31, 2, 19, 5}, MAGNITUDE[8] = {6, 9, 0, 12, 22, 25, 16, 28};
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const u32 code = code_of(q[OF_PAIRS * (i % 4) + BESIDE * (i / 4)]);
    const u32 magnitude = i % 4 == 2 ? (code >> 1 & 3) | (code & 1) << 4 : code & 7;
    word |= magnitude << MAGNITUDE[i] | (code >> 9 & 1) << SIGN[i];
  }
  return word;
}

extern "C" __global__ void __launch_bounds__(LANES) round_a(const RoundArguments p) {
#if OVERLAP
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();
  const int chunks = (p.k + 127) >> 7, eighth = static_cast<int>(blockIdx.x) * LANES + static_cast<int>(threadIdx.x);
  const int m = eighth / (16 * chunks), at = eighth % (16 * chunks);  // a row's eighths of values
  const bool real = m < p.m;
  float v[8] = {};
  if (real && 8 * at < p.k) load_values(p.a + (m * p.a_row + 8 * at * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
  const int chunk = at >> 4, t = (at >> 2) & 3, i = at & 3;
  const i64 tile = static_cast<i64>(m >> 3) * chunks + chunk;  // of 8 rows
  const int lane = (m & 7) * 4 + t;
#if A_CODES
  u32 amax = largest(v);
  amax = max(amax, from_lane_xor(amax, 1));
  amax = max(amax, from_lane_xor(amax, 2));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(max(up, LEAST_FAST + EMAX) - EMAX, MOST_FAST);
  const bool held = amax == 0 || e + EMAX == up;
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = held ? rounded(v[j] * float_of((254 - e) << 23)) : 0.f;
  if (real) {
    store_u32(p.out + (tile * 32 + lane) * 16 + 4 * i, places_of(v));
    if (i == 0) store_u8(p.out + (((p.m + 7) >> 3) * static_cast<i64>(16) * chunks + tile) * 32 + lane, held ? e : NO_SCALE);
  }
#else
  u32 x[4];
#if A_FORMAT == BF16
  pack(v, x);
#else
  u32 amax = largest(v);
  amax = max(amax, from_lane_xor(amax, 1));
  amax = max(amax, from_lane_xor(amax, 2));
  const bool held = round_floats(v, amax);
  pack(v, x);
  if (!held) x[0] = x[1] = x[2] = x[3] = NOT_HELD;
#endif
  if (real) store_16(p.out + ((tile * 4 + i) * 32 + lane) * 16, make_uint4(x[0], x[1], x[2], x[3]));
#endif
}
