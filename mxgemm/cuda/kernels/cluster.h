// Workgroups of a cluster, which run at the same time and write to each other's shared memory.
#pragma once
#include "sm90.h"

// Says that this workgroup has begun; one of its lanes makes a barrier at `barrier` for what others will send it, so many
// bytes. Nothing else that a lane has written need be seen by others, so that no fence is waited for.
INLINE void cluster_begins(u32 barrier, u32 bytes, bool one) {
#if HOPPER
  if (one)
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
// Until all have begun, and may be sent to.
INLINE void wait_for_cluster() {
#if HOPPER
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// A barrier of all workgroups of a cluster; of a workgroup's own warps where it has no cluster.
INLINE void meet_as_cluster() {
#if HOPPER
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// To an address of this workgroup's shared memory, but of another workgroup's; its barrier counts the bytes.
INLINE void send(u32 at, u32 barrier, int workgroup, const float (&x)[1]) {
#if HOPPER
  asm volatile(
      "{\n.reg .b32 there, counting;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 counting, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [counting];\n}" ::"r"(at),
      "r"(barrier), "r"(workgroup), "f"(x[0]) : "memory");
#endif
}
INLINE void send(u32 at, u32 barrier, int workgroup, const float (&x)[2]) {
#if HOPPER
  asm volatile(
      "{\n.reg .b32 there, counting;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 counting, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [counting];\n}" ::"r"(at),
      "r"(barrier), "r"(workgroup), "f"(x[0]), "f"(x[1]) : "memory");
#endif
}
INLINE void send(u32 at, u32 barrier, int workgroup, const float (&x)[4]) {
#if HOPPER
  asm volatile(
      "{\n.reg .b32 there, counting;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 counting, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counting];\n}" ::"r"(at),
      "r"(barrier), "r"(workgroup), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#endif
}
// Until all that others send has come.
INLINE void wait_for_sent(u32 barrier) {
#if HOPPER
  asm volatile(
      "{\n.reg .pred done;\nwaiting:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@!done bra waiting;\n}" ::"r"(barrier)
      : "memory");
#endif
}
