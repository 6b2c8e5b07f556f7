// A rounded to e2m1 for w4_fp8.cu, as e4m3 with a power of two for each chunk of a row: slabs, as w4_fp8.h says. A block
// that is more than 14 binades below the largest of its chunk keeps its values and has the difference in a byte of its own.
// Rows and values past the end are 0.
//
// Macros: those of round_block.h and w4_fp8.h; A_VECTOR, loads of 16 bytes are aligned and contiguous.
#include "load_values.h"
#include "fp8.h"
#include "w4_fp8.h"

constexpr int LANES = 128;  // of a workgroup

// Strides in elements.
struct FoldArguments {
  const u8* a;
  u8* out;
  i64 a_row, a_column;
  int m, k;
};

INLINE u32 largest_of_four(u32 x, int step) {  // lanes `step` apart
  x = max(x, from_lane_xor(x, step));
  return max(x, from_lane_xor(x, 2 * step));
}

extern "C" __global__ void __launch_bounds__(LANES) fold_slabs(const FoldArguments p) {
  wait_for_earlier_launches();
  let_later_launches_begin();
  const int chunks = (p.k + 255) >> 8 << 1, eighth = static_cast<int>(blockIdx.x) * LANES + static_cast<int>(threadIdx.x);
  const int m = eighth / (16 * chunks), at = eighth % (16 * chunks);  // a row's eighths of values
  float v[8] = {};
  if (m < p.m && 8 * at < p.k) load_values(p.a + (m * p.a_row + 8 * at * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
  const u32 amax = largest_of_four(largest(v), 1);
  const bool nan = amax >= 0x7F800000u, counts = amax != 0 && !nan;
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(up > EMAX ? up - EMAX : 0, 253u);
  const u32 top = largest_of_four(counts ? e + 1 : 0, 4);
  u32 base = top == 0 ? 127 : top > FOLD_UP + 1 ? top - 1 - FOLD_UP : 1;
  u32 rest = counts && e + FOLD_DOWN < base ? base - FOLD_DOWN - e : 0;
  // Where fp32 might not hold what is summed, every block's rest is one more, and the power of two too.
  const u32 far = largest_of_four(counts && (base - rest < LEAST_UNIT || rest > base || base > MOST_UNIT), 4);
  const float reciprocal = float_of((254 - e) << 23), to = counts ? float_of((127 + e + rest - base) << 23) : 0.f;
  base += far, rest += far;
  u32 byte[2];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = rounded(v[i] * reciprocal) * to;
#pragma unroll
  for (int h = 0; h < 2; h++)
    byte[h] = nan ? 0x7F7F7F7F : e4m3x2_of(v[h], v[2 + h]) | e4m3x2_of(v[4 + h], v[6 + h]) << 16;
  const int i = at & 3, t = (at >> 2) & 3;
  u32 rests = rest << (8 * t);
  rests |= from_lane_xor(rests, 4);
  rests |= from_lane_xor(rests, 8);
  if (m < (p.m + COLUMNS - 1) / COLUMNS * COLUMNS) {
    const int row = m % COLUMNS, chunk = at >> 4;
    u8* const slab = p.out + (static_cast<i64>(m / COLUMNS) * (chunks / 2) + chunk / 2) * SLAB;
    u8* const to = slab + chunk % 2 * CHUNK + row * 128 + 4 * t;
#pragma unroll
    for (int h = 0; h < 2; h++) store_u32(to + ((2 * i + h) ^ (row & 7)) * 16, byte[h]);
    if ((at & 15) == 0) {
      store_u32(slab + SLAB_SCALES + chunk % 2 * SCALES + 4 * place_of_scale(row), base << 23);
      store_u32(slab + SLAB_REST + chunk % 2 * REST + 4 * row, rests);
    }
  }
}
