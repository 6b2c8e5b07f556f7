// What grouped_layer.cu takes from a GPU besides sm90.h, warp.h and barriers.h: counts in memory that workgroups add to and
// wait for. By the PTX ISA.
#pragma once
#include "barriers.h"

INLINE u32 high_of_product(u32 a, u32 b) { return __umulhi(a, b); }

// A bulk copy of what is read once: in L2 it is the first to go.
INLINE u64 read_once() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

// Counts in memory. What its workgroup has written, and met since, others see who have waited for the count.
INLINE u32 take_number(u8* count) {  // of an addition ptxas makes one for a warp, and waits for it at once: not of this
  u32 v;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7FFFFFFF;" : "=r"(v) : "l"(count) : "memory");
  return v;
}
// What this lane has written is there for later launches, before they have waited.
INLINE void publish() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
INLINE void add_to_count(u8* count, u32 some) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(count), "r"(some) : "memory");
}
INLINE void wait_for_count(const u8* count, u32 enough) {
  u32 v;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(count) : "memory");
  while (v < enough);
}
