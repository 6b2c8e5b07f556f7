// e4m3 on a Hopper GPU, besides wgmma.h: conversion, products of a warpgroup, small loads of shared memory.
#pragma once
#include "wgmma.h"

// Two values, which e4m3 has, as two bytes.
INLINE u32 e4m3x2_of(float low, float high) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}

INLINE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
INLINE u32 load_shared_1(u32 at) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
INLINE void store_shared_1(u32 at, u32 v) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
INLINE u32 load_shared_4(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
INLINE uint2 load_shared_8(u32 at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
INLINE void store_shared_8(u32 at, u32 low, u32 high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(low), "r"(high) : "memory");
}
// 16 bytes, and L2 takes the 256 around them: a lane comes back for the others.
INLINE void copy_16_of_256(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Sums that products write behind the compiler's back: nothing that reads them goes ahead of this.
INLINE void come_to_rest(float& x) { asm volatile("" : "+f"(x)::"memory"); }

// As multiply_group(), of e4m3: a lane's four words are rows g and g + 8 of 4 t to 4 t + 3 and of 16 more, of 32 along K.
// Without ADD, d is what the product is.
#define WGMMA8(n) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {"
template <bool ADD>
INLINE void multiply_fp8(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile(WGMMA8(64) S32_0 "}, {%32, %33, %34, %35}, %36, %37, 1, 1;"
               : D32(0) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD));
}
