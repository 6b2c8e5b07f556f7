// What the kernels here take from a Hopper GPU: types, and each instruction that C++ has no operator for.
// No header of CUDA's is needed, so a run-time compiler needs no include path. Ampere and Ada have all of it too, but for
// what overlaps launches and what one instruction does here; there the text compiles, and no route takes it.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if __CUDA_ARCH__ >= 900
#define HOPPER 1
#else
#define HOPPER 0
#endif

#define INLINE __device__ __forceinline__
#define MEMBER INLINE  // of a struct

// Weights pass once: they are kept out of L1.
INLINE uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
INLINE uint4 load_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
INLINE u32 load_u8(const void* p) {
  u32 v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
INLINE u32 load_u16(const void* p) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
INLINE u32 load_u32(const void* p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
INLINE void store_16(void* p, const uint4& v) { *static_cast<uint4*>(p) = v; }
INLINE void store_8(void* p, u32 low, u32 high) { *static_cast<uint2*>(p) = make_uint2(low, high); }
INLINE void store_u8(void* p, u32 v) { *static_cast<u8*>(p) = static_cast<u8>(v); }
INLINE void store_u32(void* p, u32 v) { *static_cast<u32*>(p) = v; }
INLINE void store_u16(void* p, u32 v) { *static_cast<u16*>(p) = static_cast<u16>(v); }
INLINE void store_f32(void* p, float v) { *static_cast<float*>(p) = v; }

// A value that loops add to stays one: no compiler makes pointers of it that it adds to instead.
INLINE void keep_as_it_is(u32& x) { asm volatile("" : "+r"(x)); }
INLINE void keep_as_it_is(i64& x) { asm volatile("" : "+l"(x)); }
INLINE void keep_as_it_is(const u8*& p) { asm volatile("" : "+l"(p)); }

INLINE u32 permute(u32 a, u32 b, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
INLINE u32 and_or(u32 a, u32 mask, u32 c) {  // a & mask | c, one instruction
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(c));
  return r;
}

// Two bf16 at once. PTX ISA: all of these keep subnormals; each result is rounded once, to nearest even.
INLINE u32 mul_bf16x2(u32 a, u32 b) {
  u32 r;
#if HOPPER
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));  // less 0, which changes nothing
#endif
  return r;
}
INLINE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
INLINE u32 abs_bf16x2(u32 a) {
  u32 r;
  asm("abs.bf16x2 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}
INLINE u32 max_bf16x2(u32 a, u32 b) {  // NaN wins
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
INLINE u32 min_magnitude_bf16x2(u32 a, u32 b) {  // the smaller magnitude with the product's sign
  u32 r;
#if HOPPER
  asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a & 0x7FFF7FFFu), "r"(b & 0x7FFF7FFFu));
  r |= (a ^ b) & 0x80008000u;
#endif
  return r;
}

INLINE float float_of(u32 bits) { return __int_as_float(static_cast<int>(bits)); }
INLINE u32 bits_of(float x) { return static_cast<u32>(__float_as_int(x)); }
INLINE u32 bf16x2_of(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
INLINE u32 f16_of(float x) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
INLINE u32 f16x2_of(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
INLINE float float_of_f16(u32 bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(static_cast<u16>(bits)));
  return r;
}

// d += a b of a warp: a is 16 x 16, b 16 x 8, both bf16. With g = lane / 4, t = lane % 4 a lane holds of a
// (g, 2t and 2t+1), (g+8, the same), (g, 2t+8 and 2t+9), (g+8, the same), of b (2t and 2t+1, g), (2t+8 and 2t+9, g),
// of d (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). PTX ISA, "Matrix fragments for mma.m16n8k16".
INLINE void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
INLINE bool any_lane(bool x) { return __any_sync(0xFFFFFFFFu, x); }
INLINE u32 from_lane(u32 x, int lane) { return __shfl_sync(0xFFFFFFFFu, x, lane); }
INLINE u32 from_lane_xor(u32 x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
INLINE void workgroup_barrier() { __syncthreads(); }
INLINE void warp_barrier() { __syncwarp(); }
// Of some warps of a workgroup, by so many lanes; a number from 1 to 15 belongs to them.
INLINE void warps_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
INLINE void arrive_at_barrier(int number, int threads) {  // without waiting for the others
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
INLINE bool any_of_warps(int number, int threads, bool x) {  // a barrier too
  u32 any;
  asm volatile(
      "{\n.reg .pred one, any;\nsetp.ne.u32 one, %3, 0;\nbar.red.or.pred any, %1, %2, one;\n"
      "selp.u32 %0, 1, 0, any;\n}"
      : "=r"(any) : "r"(number), "r"(threads), "r"(static_cast<u32>(x)) : "memory");
  return any != 0;
}
INLINE int lowest_bit(u64 x) { return __ffsll(static_cast<i64>(x)) - 1; }

// Shared memory is addressed by 32 bits. Copies to it pass L1 by and are waited for by the lane that began them, group by
// group; the last `bytes` of 16 that a copy does not read become 0.
INLINE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
INLINE uint4 load_shared_16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
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
INLINE void store_shared_16(u32 at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE void copy_16(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
INLINE void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int NEWER>
INLINE void wait_for_copies() {  // of all groups but so many
  asm volatile("cp.async.wait_group %0;" ::"n"(NEWER) : "memory");
}

// Begins to bring memory to L2, where all writers and readers meet: it may be written afterwards. Multiples of 16 bytes.
INLINE void prefetch_to_l2(const void* p, u32 bytes) {
#if HOPPER
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// Until the launches before this one, which may still run where it was launched to overlap, have written their results.
INLINE void wait_for_earlier_launches() {
#if HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

INLINE void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A later launch that overlaps may begin from here on: it still waits, before it reads what this one writes.
INLINE void let_later_launches_begin() {
#if HOPPER
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
