// A rounded to e2m1 for w4_fp8.cu, as e4m3 with a power of two for each row, or for a chunk of its own where it lies
// elsewhere: slabs, as w4_fp8.h says. A block that is more than 14 binades below the largest of its chunk keeps its values
// and has the difference in a byte of its own. Rows and values past the end are 0.
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

struct Block {
  u32 e;  // of its scale
  bool nan, counts;
};
INLINE Block block_of(const float (&v)[8]) {
  const u32 amax = largest_of_four(largest(v), 1), up = (amax + SCALE_ADDEND) >> 23;
  const bool nan = amax >= 0x7F800000u;
  return {min(up > EMAX ? up - EMAX : 0, 253u), nan, amax != 0 && !nan};
}

extern "C" __global__ void __launch_bounds__(LANES) fold_slabs(const FoldArguments p) {
  wait_for_earlier_launches();
  let_later_launches_begin();
  const int chunks = (p.k + 255) >> 8 << 1, eighth = static_cast<int>(blockIdx.x) * LANES + static_cast<int>(threadIdx.x);
  const int m = eighth / (16 * chunks), at = eighth % (16 * chunks);  // a row's eighths of values
  const int padded = (p.m + COLUMNS - 1) / COLUMNS * COLUMNS;
  auto load = [&](int eighth, float(&to)[8]) {
    if (m < p.m && 8 * eighth < p.k)
      load_values(p.a + (m * p.a_row + 8 * eighth * p.a_column) * A_BYTES, p.a_column * A_BYTES, to);
  };
  float v[8] = {}, row[8] = {};
  load(at, v);
  load(at & 15, row);
  const Block block = block_of(v), first = block_of(row);
  const u32 e = block.e, top_of_row = largest_of_four(first.counts ? first.e + 1 : 0, 4);
  const u32 unit_of_row = top_of_row == 0 ? 127 : top_of_row > ROOM_UP + 1 ? top_of_row - 1 - ROOM_UP : 1;
  const bool fits = !block.counts || (e <= unit_of_row + FOLD_UP && e + FOLD_DOWN >= unit_of_row);
  const u32 top = largest_of_four(block.counts ? e + 1 : 0, 4);
  u32 unit = top == 0 ? 127 : top > FOLD_UP + 1 ? top - 1 - FOLD_UP : 1;
  if (largest_of_four(!fits, 4) == 0) unit = unit_of_row;
  u32 rest = block.counts && e + FOLD_DOWN < unit ? unit - FOLD_DOWN - e : 0;
  const int apart = static_cast<int>(unit) - static_cast<int>(unit_of_row);
  const u32 far = largest_of_four(
      block.counts && (apart > MOST_APART || apart - static_cast<int>(rest) < -MOST_APART), 4);
  const u32 folds = largest_of_four(rest, 4) == 0;
  const float reciprocal = float_of((254 - e) << 23);
  const float to = block.counts ? float_of((127 + e + rest - unit) << 23) : 0.f;
  u32 byte[2];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = rounded(v[i] * reciprocal) * to;
#pragma unroll
  for (int h = 0; h < 2; h++)
    byte[h] = block.nan ? 0x7F7F7F7F : e4m3x2_of(v[h], v[2 + h]) | e4m3x2_of(v[4 + h], v[6 + h]) << 16;
  const int i = at & 3, t = (at >> 2) & 3;
  u32 rests = rest << (8 * t);
  rests |= from_lane_xor(rests, 4);
  rests |= from_lane_xor(rests, 8);
  if (m < padded) {
    const int row_of_tile = m % COLUMNS, chunk = at >> 4;
    u8* const slab = p.out + (static_cast<i64>(m / COLUMNS) * (chunks / 2) + chunk / 2) * SLAB;
    u8* const to = slab + chunk % 2 * CHUNK + row_of_tile * 128 + 4 * t;
#pragma unroll
    for (int h = 0; h < 2; h++) store_u32(to + ((2 * i + h) ^ (row_of_tile & 7)) * 16, byte[h]);
    if ((at & 15) == 0) {
      const u32 power = static_cast<u32>(127 + max(min(apart, MOST_APART), -MOST_APART)) << 23;
      store_u32(slab + SLAB_SCALES + chunk % 2 * SCALES + 4 * place_of_scale(row_of_tile),
                power | unit | (folds ? 0 : APART) | (far ? APART | FAR : 0));
      store_u32(slab + SLAB_REST + chunk % 2 * REST + 4 * row_of_tile, rests);
      if (at == 0) {
        const TwoPowers powers = two_powers(unit_of_row);
        u8* const units = p.out + static_cast<i64>(padded / COLUMNS) * (chunks / 2) * SLAB + 8 * m;
        store_u32(units, bits_of(powers.x)), store_u32(units + 4, bits_of(powers.y));
      }
    }
  }
}
