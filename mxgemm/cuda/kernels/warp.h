// What grouped products take from a GPU beyond sm90.h.
#pragma once
#include "sm90.h"

#define COLD __device__ __noinline__  // a function that is called

INLINE u32 lanes_where(bool x) { return __ballot_sync(0xFFFFFFFFu, x); }
INLINE u32 lanes_with(u32 x) { return __match_any_sync(0xFFFFFFFFu, x); }  // those whose value is this lane's
INLINE int count_bits(u32 x) { return __popc(x); }
INLINE float power_of_two(float x) {  // relative error below 2^-22
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Shared memory, by words: see sm90.h.
INLINE u32 load_shared_2(u32 at) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}
INLINE void store_shared_4(u32 at, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
INLINE void copy_4(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
