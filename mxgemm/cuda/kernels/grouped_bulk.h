// What grouped_layer.cu takes from a Hopper GPU besides sm90.h and warp.h: barriers in shared memory, copies in bulk, and
// counts in memory that workgroups add to and wait for. By the PTX ISA.
#pragma once
#include "sm90.h"

// Barriers in shared memory; `parity` is that of how often one has completed before.
INLINE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
INLINE void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
INLINE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
INLINE void barrier_expect(u32 barrier, u32 bytes) {  // an arrival, and bytes to come
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
INLINE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Bytes, a multiple of 16, to this workgroup's shared memory.
INLINE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Counts in memory. What its workgroup has written, and met since, others see who have waited for the count.
INLINE u32 take_number(u8* count) {
  u32 v;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(count) : "memory");
  return v;
}
INLINE void add_to_count(u8* count) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
INLINE void wait_for_count(const u8* count, u32 enough) {
  u32 v;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(count) : "memory");
  while (v < enough);
}
