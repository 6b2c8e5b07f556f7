// A rounded to A_FORMAT once, for all workgroups of w4_mma.cu: bf16 in its lanes' order, by eight values a lane.
//
// Row m, chunk c of 128 values, word 4 i + j of block t (see round_block.h) lies at byte
// ((m chunks + c) 16 + 4 i + t) 16 + 4 j, so that a quad of lanes reads 64 bytes at once. Blocks past the end are 0.
//
// Macros: those of round_block.h; A_VECTOR, loads of 16 bytes are aligned and contiguous; OVERLAP, launched so that it
// may begin before earlier launches have ended.
#include "round_block.h"

constexpr int LANES = 128;  // of a workgroup

// Strides in elements.
struct RoundArguments {
  const u8* a;
  u8* out;
  i64 a_row, a_column;
  int m, k;
};

INLINE void load_values(const u8* p, i64 stride, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < A_BYTES / 2; i++) {
    u32 w[4];
#if A_VECTOR
    words_of(load_16(p + 16 * i), w);
#else
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u8* at = p + (i * 16 / A_BYTES + j * (4 / A_BYTES)) * stride;
      w[j] = A_BYTES == 4 ? load_u32(at) : load_u16(at) | load_u16(at + stride) << 16;
    }
#endif
    floats_of_words(w, v, i);
  }
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
  const int chunk = at >> 4, t = (at >> 2) & 3, i = at & 3;
  if (real)
    store_16(p.out + (((static_cast<i64>(m) * chunks + chunk) << 4) + 4 * i + t) * 16, make_uint4(x[0], x[1], x[2], x[3]));
}
