// What kernels of warpgroups take from a Hopper GPU besides sm90.h and barriers.h: shared memory, registers, clusters, and
// the products of a warpgroup, by the PTX ISA.
#pragma once
#include "barriers.h"


INLINE u8* shared_memory() {
  extern __shared__ __align__(1024) u8 memory[];
  return memory;
}
INLINE u32 address_in_shared(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

INLINE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
INLINE void warp_meets() { __syncwarp(); }
INLINE void threads_barrier(int id, int threads) {  // of so many threads of the workgroup
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of a lane from here on, of all lanes of a warpgroup.
template <int COUNT>
INLINE void have_fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
INLINE void have_more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Sums in this workgroup's shared memory, or at the same place of another one's of the cluster.
INLINE float4 load_sums(u32 at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
  return v;
}
INLINE float4 load_sums_of(u32 at, u32 workgroup) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at), "r"(workgroup) : "memory");
  return v;
}

// Products of a warpgroup: d += a b, d 64 x N in fp32. A lane holds of a what multiply() says, of the 16 rows of its
// warp, and of d for each 8 columns what multiply() says. b is in shared memory, k fastest: rows of 128 bytes, of which
// the 16 bytes i of row m lie at i ^ (m & 7), as all of them in a tile begin at a multiple of 1024 bytes.
INLINE u64 matrix_at(u32 shared) {
  constexpr u64 SWIZZLE_128 = 1ull << 62, GROUP_OF_ROWS = 1024 >> 4;
  return SWIZZLE_128 | GROUP_OF_ROWS << 32 | 1ull << 16 | ((shared & 0x3FFFFu) >> 4);
}
INLINE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
INLINE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D32(i) D16(i), D16(i + 16)
#define S32_0                                                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24," \
  "%25, %26, %27, %28, %29, %30, %31"
#define S32_1                                                                                                          \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54," \
  "%55, %56, %57, %58, %59, %60, %61, %62, %63"
#define S32_2                                                                                                          \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86," \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95"
#define S32_3                                                                                                         \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114,"     \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {"

INLINE void multiply_group(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile(WGMMA(64) S32_0 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
               : D32(0) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
INLINE void multiply_group(float (&d)[64], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile(WGMMA(128) S32_0 "," S32_1 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
               : D32(0), D32(32) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
INLINE void multiply_group(float (&d)[96], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile(WGMMA(192) S32_0 "," S32_1 "," S32_2 "}, {%96, %97, %98, %99}, %100, 1, 1, 1, 0;"
               : D32(0), D32(32), D32(64) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
INLINE void multiply_group(float (&d)[128], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
  asm volatile(WGMMA(256) S32_0 "," S32_1 "," S32_2 "," S32_3 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
               : D32(0), D32(32), D32(64), D32(96) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
