// Stands in for mxgemm/cuda/kernels/grouped_bulk.h on a CPU: barriers of the workgroup whose turn it is, and counts.
// lanes_grouped_layer.cpp runs the lanes.
#pragma once
#include <map>

#include "sm90.h"

static const Operation WAIT = static_cast<Operation>(64);

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
static std::map<u32, Barrier>* barriers;

static Barrier& barrier_at(u32 at) {
  const auto found = barriers->find(at);
  if (found == barriers->end()) wrong("a barrier that was not made");
  return found->second;
}
INLINE void barrier_init(u32 barrier, u32 arrivals) {
  in_shared(barrier, 8);
  const int count = static_cast<int>(arrivals);
  (*barriers)[barrier] = {count, count, 0, 0};
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

// A copy comes some turns of all lanes later, those of a workgroup in their order.
struct Bulk {
  u32 to, bytes, barrier;
  const void* from;
};
static std::vector<Bulk>* under_way;
static bool copies_go_on() {
  if (under_way->empty()) return false;
  const Bulk copy = under_way->front();
  under_way->erase(under_way->begin());
  std::memcpy(reinterpret_cast<u8*>(sums) + copy.to, copy.from, copy.bytes);
  barrier_at(copy.barrier).bytes -= copy.bytes;
  barrier_at(copy.barrier).check();
  return true;
}
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  check(readable, from, bytes, 16);
  if (to % 16 || bytes % 16 || to + bytes > 4 * SHARED_WORDS) wrong("a copy that is not to shared memory");
  under_way->push_back({to, bytes, barrier, from});
}

INLINE u32 take_number(u8* count) {
  const u32 v = load<u32>(count);
  store(count, v + 1);
  return v;
}
INLINE void add_to_count(u8* count) { take_number(count), changed = true; }
INLINE void wait_for_count(const u8* count, u32 enough) {
  while (load<u32>(count) < enough) stop(WAIT);
}
