// Stands in for mxgemm/cuda/kernels/warp.h on a CPU.
#pragma once
#include "sm90.h"

#define COLD static
#define __grid_constant__

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
INLINE u32 load_shared_2(u32 at) {
  u16 v;
  std::memcpy(&v, in_shared(at, 2), 2);
  return v;
}
INLINE void store_shared_4(u32 at, u32 v) { std::memcpy(in_shared(at, 4), &v, 4); }
INLINE void copy_4(u32 to, const void* from) {
  std::vector<std::vector<Copy>>& copies = lanes[running].copies;
  if (copies.empty()) copies.emplace_back();
  copies.back().push_back({to, {load<u32>(from), 0, 0, 0}, 4});
}
