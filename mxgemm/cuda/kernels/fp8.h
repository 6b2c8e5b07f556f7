// e4m3 on a Hopper GPU, besides wgmma.h: conversion, products of a warpgroup, small loads of shared memory.
#pragma once
#include "warp.h"
#include "wgmma.h"

// Two values, which e4m3 has, as two bytes.
INLINE u32 e4m3x2_of(float low, float high) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}

// Two bf16 in a word to two e4m3 in half a word: times `reciprocal` (exact), in fp16 (exact where it matters: what fp16 drops
// is far below half a step), at most 6, to whole steps of 0.5, 1 or 2 by adding and subtracting 1536 of them, times `unit`, a
// power of two in both halves.
INLINE u32 fold_pair(u32 x, float reciprocal, u32 unit) {
  u16 r;
  asm("{\n.reg .b32 low, high, y, m, above2, above4, magic, most, least, two, four, halves, wholes;\n.reg .f32 a, b;\n"
      "mov.b32 most, 0x46004600;\nmov.b32 least, 0xC600C600;\nmov.b32 two, 0x40004000;\nmov.b32 four, 0x44004400;\n"
      "mov.b32 halves, 0x62006200;\nmov.b32 wholes, 0x66006600;\n"
      "shl.b32 low, %1, 16;\nand.b32 high, %1, 0xffff0000;\nmov.b32 a, low;\nmov.b32 b, high;\n"
      "mul.f32 a, a, %2;\nmul.f32 b, b, %2;\ncvt.rn.f16x2.f32 y, b, a;\nmin.f16x2 y, y, most;\nmax.f16x2 y, y, least;\n"
      "abs.f16x2 m, y;\nset.ge.f16x2.f16x2 above2, m, two;\nset.ge.f16x2.f16x2 above4, m, four;\n"
      "fma.rn.f16x2 magic, above2, halves, halves;\nfma.rn.f16x2 magic, above4, wholes, magic;\n"
      "add.rn.f16x2 y, y, magic;\nsub.rn.f16x2 y, y, magic;\nmul.rn.f16x2 y, y, %3;\ncvt.rn.satfinite.e4m3x2.f16x2 %0, y;\n}"
      : "=h"(r) : "r"(x), "f"(reciprocal), "r"(unit));
  return r;
}
INLINE u32 most_of_warp(u32 x) {
  u32 r;
  asm("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(r) : "r"(x));
  return r;
}

INLINE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
INLINE u32 load_shared_1(u32 at) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
INLINE void store_shared_1(u32 at, u32 v) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
INLINE void store_shared_8(u32 at, u32 low, u32 high) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(low), "r"(high) : "memory");
}
// 16 bytes, and L2 takes the 256 around them: a lane comes back for the others.
INLINE void copy_16_of_256(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Sums that products write behind the compiler's back: nothing that reads them goes ahead of this.
INLINE void come_to_rest(float& x) { asm volatile("" : "+f"(x)::"memory"); }

// d = a b of a warpgroup for 128 along K, in fp32 as exact as the units are: a is 64 rows of e4m3, b 64 columns. Of each 32
// along K a lane's four words are of rows g and g + 8 the bytes 4 t to 4 t + 3, and of both rows those 16 further.
#define WGMMA8(a, b, add)                                                                                             \
  "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" S32_0 "}, {" a "}, " b ", " add ", 1, 1;\n"
#define IN4(i) "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3])
INLINE void multiply_fp8(float (&d)[32], const u32 (&x)[4][4], u64 b) {
  // 32 bytes further are 2 in a matrix's description: added here, they are added where descriptions are kept.
  asm volatile(
      "{\n.reg .b64 b1, b2, b3;\nadd.s64 b1, %48, 2;\nadd.s64 b2, %48, 4;\nadd.s64 b3, %48, 6;\n" WGMMA8(
          "%32, %33, %34, %35", "%48", "0") WGMMA8("%36, %37, %38, %39", "b1", "1")
          WGMMA8("%40, %41, %42, %43", "b2", "1") WGMMA8("%44, %45, %46, %47", "b3", "1") "}"
      : D32(0)
      : IN4(0), IN4(1), IN4(2), IN4(3), "l"(b));
}
// The same for 32 along K, added to d but for the first.
INLINE void multiply_fp8(float (&d)[32], const u32 (&x)[4], u64 b, bool first) {
  if (first)
    asm volatile(WGMMA8("%32, %33, %34, %35", "%36", "0") : D32(0) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(b));
  else
    asm volatile(WGMMA8("%32, %33, %34, %35", "%36", "1") : D32(0) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(b));
}
