// Stands in for mxgemm/cuda/kernels/warp.h on a CPU.
#pragma once
#include "sm90.h"

INLINE u32 lanes_where(bool x) {
  u32 all = 0;
  for (int lane = 0; lane < 32; lane++) all |= from_lane(x, lane) << lane;
  return all;
}
INLINE u32 lanes_with(u32 x) {
  u32 all = 0;
  for (int lane = 0; lane < 32; lane++) all |= static_cast<u32>(from_lane(x, lane) == x) << lane;
  return all;
}
INLINE int count_bits(u32 x) { return __builtin_popcount(x); }
INLINE float power_of_two(float x) { return std::exp2(x); }
