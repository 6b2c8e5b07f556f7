// A rounded to A_FORMAT for w4_wgmma.cu: bf16, 2^-DOWN_A of its values, as the tensor cores of a warpgroup read it.
//
// A tile of COLUMNS rows and a chunk of 128 values are 256 COLUMNS bytes: two halves of COLUMNS rows of 128 bytes, in
// each 16 bytes i of row m at i ^ (m & 7). K is permuted as in w4_mma.cu, so that a lane's codes are whole blocks: the
// words 4 i + j (see round_block.h) of blocks 0 to 3 are 16 bytes i 4 + j. Rows and values past the end are 0.
//
// Macros: those of round_block.h; COLUMNS; A_VECTOR, loads of 16 bytes are aligned and contiguous; OVERLAP, launched so
// that it may begin before earlier launches have ended.
#include "load_values.h"
#include "w4_wgmma.h"

constexpr int LANES = 128;  // of a workgroup

// Strides in elements.
struct RoundArguments {
  const u8* a;
  u8* out;
  i64 a_row, a_column;
  int m, k;
};

// All that bf16 holds of a block's values over 2^DOWN_A: everything of e2m1, and of e4m3 from 2^-132 on.
INLINE void round_down(float (&v)[8]) {
#if A_FORMAT != BF16
  u32 amax = largest(v);
  amax = max(amax, from_lane_xor(amax, 1));
  amax = max(amax, from_lane_xor(amax, 2));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(up > EMAX ? up - EMAX : 0, 253u);
  const float reciprocal = float_of((254 - e) << 23);
  const float scale = float_of(e > DOWN_A ? (e - DOWN_A) << 23 : 1u << (23 - DOWN_A - 1 + e));
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = amax >= 0x7F800000u ? float_of(0x7FC00000u) : rounded(v[i] * reciprocal) * scale;
#endif
}

extern "C" __global__ void __launch_bounds__(LANES) round_slabs(const RoundArguments p) {
#if OVERLAP
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();
  const int chunks = (p.k + 127) >> 7, eighth = static_cast<int>(blockIdx.x) * LANES + static_cast<int>(threadIdx.x);
  const int m = eighth / (16 * chunks), at = eighth % (16 * chunks);  // a row's eighths of values
  float v[8] = {};
  if (m < p.m && 8 * at < p.k) load_values(p.a + (m * p.a_row + 8 * at * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
  round_down(v);
  u32 x[4];
  pack(v, x);
  // Of 16 lanes with an eighth i each of blocks t, this one has words 4 i + j of block t and stores word 4 i + t of all
  // blocks: in two steps, each with half the lanes.
  const int i = at & 3, t = (at >> 2) & 3;
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (!(j & step)) {
        const u32 mine = t & step ? x[j] : x[j | step], theirs = from_lane_xor(mine, 4 * step);
        (t & step ? x[j] : x[j | step]) = theirs;
      }
  if (m < (p.m + COLUMNS - 1) / COLUMNS * COLUMNS) {
    const int row = m % COLUMNS, place = (i & 1) * 4 + t;
    const i64 slab = (static_cast<i64>(m / COLUMNS) * chunks + (at >> 4)) * 2 + (i >> 1);
    store_16(p.out + (slab * COLUMNS + row) * 128 + (place ^ (row & 7)) * 16, make_uint4(x[0], x[1], x[2], x[3]));
  }
}
