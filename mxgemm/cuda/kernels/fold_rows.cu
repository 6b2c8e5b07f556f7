// Rows of A rounded to e2m1 and folded to e4m3 with a base a row: what mxgemm/triton/kernels/fold.py makes, with the same
// bytes, sooner where A is small. A workgroup has a row, VALUES of it a lane.
//
// Macros: those of load_values.h; LANES of a workgroup; VALUES, 16 or 32.
#include "fold_pairs.h"

// Strides in elements.
struct Arguments {
  const u8* a;
  u8* folded;
  u8* base;      // fp32
  u8* unfolded;  // 1 where a row does not fold
  i64 a_row, a_column;
  int k, unused;
};

extern "C" __global__ void __launch_bounds__(LANES) fold_rows(const Arguments p) {
  const u32 ranges = address_in_shared(shared_memory()), row = blockIdx.x;  // of each warp, the exponents
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k = threadIdx.x * VALUES;
  const bool inside = k < static_cast<u32>(p.k);
  wait_for_earlier_launches();
  Values v = {};
  if (inside) load(v, p.a + (row * p.a_row + k * p.a_column) * A_BYTES, p.a_column);
  u32 amax = largest_of(v);
  if (VALUES == 16) amax = max(amax, from_lane_xor(amax, 1));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(up > EMAX ? up - EMAX : 0, 253u);
  const bool bad = amax >= 0x7F800000u, live = amax != 0 && !bad;
  // Of all blocks that are not zero: one more than the highest exponent, or BAD, and 1023 less the lowest.
  constexpr u32 BAD = 1023;
  u32 high = most_of_warp(bad ? BAD : live ? e + 1 : 0), low = most_of_warp(live ? 1023 - e : 0);
  if (LANES > 32) {
    if (lane == 0) store_shared_4(ranges + 4 * warp, high << 16 | low);
    workgroup_barrier();
    const u32 of_warp = lane < LANES / 32 ? load_shared_4(ranges + 4 * lane) : 0;
    high = most_of_warp(of_warp >> 16), low = most_of_warp(of_warp & 0xFFFFu);
  }
  // At least 1, so that the base itself is a normal fp32.
  const int byte = high == 0 ? 127 : min(max(static_cast<int>(high) - 1 - 6, 1), 250);
  if (inside) {
    const int shift = min(max(static_cast<int>(e) - byte, -8), 6);  // more only where nothing folds
    u32 made[VALUES / 4];
    fold_values(v, (254 - e) << 23, shift, made);
#pragma unroll
    for (int i = 0; i < VALUES / 16; i++)
      store_16(p.folded + (static_cast<i64>(row) * p.k + k + 16 * i),
               make_uint4(made[4 * i], made[4 * i + 1], made[4 * i + 2], made[4 * i + 3]));
  }
  if (threadIdx.x == 0) {
    store_u32(p.base + 4 * row, high == BAD ? 0x7FC00000u : static_cast<u32>(byte) << 23);
    store_u32(p.unfolded + 4 * row, high != BAD && low != 0 && 1023 - static_cast<int>(low) < byte - 8);
  }
}
