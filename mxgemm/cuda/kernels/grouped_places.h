// What grouped_sort.cu and grouped_route.cu are given, and what their one workgroup does alike.
#pragma once
#include "routing.h"
#include "warp.h"

struct PlacesArguments {
  u8* places;  // int32 [pairs]
  u8* tiles;   // int32 [1 + most, 3]
  Routing routing;
};

extern __shared__ __align__(128) float sums[];

// Of one value a thread: the sum of those of all threads before.
INLINE int sum_before(int x, int* of_warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int past = x;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = static_cast<int>(from_lane(static_cast<u32>(past), lane < d ? 0 : lane - d));
    if (lane >= d) past += other;
  }
  if (lane == 31) of_warps[warp] = past;
  workgroup_barrier();
  int before = past - x;
#pragma unroll 1
  for (int w = 0; w < warp; w++) before += of_warps[w];
  return before;
}
