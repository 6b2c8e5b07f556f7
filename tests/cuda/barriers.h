// Stands in for mxgemm/cuda/kernels/barriers.h on a CPU: barriers, without copies, which differ. Whoever includes it says
// behind it what barriers the workgroup has whose turn it is.
#pragma once
#include <map>

#include "sm90.h"

static const Operation WAIT = static_cast<Operation>(67);

static bool changed;  // something, so that a lane that waits may go on
struct Barrier {
  int arrivals, left;
  i64 bytes;
  u32 phase;
  void check() {
    changed = true;
    if (left < 0) wrong("a barrier has more arrivals than it was made for");
    if (left == 0 && bytes == 0) left = arrivals, phase ^= 1;
  }
};
typedef std::map<u32, Barrier> Barriers;
static Barriers& barriers_here();

static Barrier& barrier_at(u32 at, Barriers& barriers = barriers_here()) {
  const auto found = barriers.find(at);
  if (found == barriers.end()) wrong("a barrier that was not made");
  return found->second;
}
INLINE void barrier_init(u32 barrier, u32 arrivals) {
  in_shared(barrier, 8);
  const int count = static_cast<int>(arrivals);
  barriers_here()[barrier] = {count, count, 0, 0};
}
INLINE void barriers_are_ready() {}
INLINE void barrier_wait(u32 barrier, u32 parity) {
  while (barrier_at(barrier).phase == parity) stop(WAIT);
}
INLINE void barrier_arrive(u32 barrier) {
  barrier_at(barrier).left--;
  barrier_at(barrier).check();
}
INLINE void barrier_expect(u32 barrier, u32 bytes) {
  barrier_at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
// Bytes of a copy have come.
static void bytes_arrive(Barrier& barrier, u32 bytes) {
  barrier.bytes -= bytes;
  barrier.check();
}
