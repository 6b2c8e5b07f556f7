#pragma once
#include "buffer.h"

// Sums of workgroups that share a block of C, each with a part of K: every one stores its own, the last to arrive adds
// all of them, in the order of the parts, so that runs agree to the bit.
//
// Waves of the same number hand over to each other, with a counter for each: no barrier. Partial sums are stored and
// loaded at device scope (sc1), so they pass wherever the hardware puts the workgroups, and neither an L2 is written
// back nor a cache invalidated; a wave counts itself in when its stores have arrived (s_waitcnt).

// Counts this wave in, once its stores have arrived; says whether it is the last of `waves`, for which the counter is
// zero again.
DEVICE bool last_to_arrive(u32 *counter, u32 lane, u32 waves) {
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  u32 before = 0;
  if (lane == 0) before = __scoped_atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  const bool last = (u32)__builtin_amdgcn_readfirstlane((int)before) == waves - 1;
  asm volatile("" ::: "memory");
  if (last && lane == 0) *counter = 0;
  return last;
}
