// Stands in for mxgemm/cuda/kernels/grouped_bulk.h on a CPU, with the copies of barriers.h: counts. lanes_grouped_layer.cpp
// runs the lanes.
#pragma once
#include "barriers.h"

static Barriers* barriers;
static Barriers& barriers_here() { return *barriers; }

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
  bytes_arrive(barrier_at(copy.barrier), copy.bytes);
  return true;
}
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  check(readable, from, bytes, 16);
  if (to % 16 || bytes % 16 || to + bytes > 4 * SHARED_WORDS) wrong("a copy that is not to shared memory");
  under_way->push_back({to, bytes, barrier, from});
}

INLINE u32 high_of_product(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
INLINE u64 read_once() { return 1; }
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  if (policy != 1) wrong("another policy");
  copy_bulk(to, from, bytes, barrier);
}

INLINE u32 take_number(u8* count) {
  const u32 v = load<u32>(count);
  store(count, v + 1);
  return v;
}
INLINE void publish() {}
INLINE void add_to_count(u8* count, u32 some) { store(count, load<u32>(count) + some), changed = true; }
INLINE void wait_for_count(const u8* count, u32 enough) {
  while (load<u32>(count) < enough) stop(WAIT);
}
