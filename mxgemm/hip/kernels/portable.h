// What every kernel source starts with, so that one text builds in three ways: by clang for AMD GPUs with no HIP header
// at all (device only), by hiprtc, and as CUDA by nvcc or nvrtc. There is no include of any system header in a kernel.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MX_CUDA 1
#else
#define MX_CUDA 0
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if MX_CUDA

// MX_KERNEL(threads) void name(...) { ... }
#define MX_KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
#define MX_DEVICE static __device__ __forceinline__
#define MX_SHARED __shared__

struct alignas(8) u32x2 {
  u32 word[2];
  __device__ u32& operator[](int i) { return word[i]; }
  __device__ u32 operator[](int i) const { return word[i]; }
};
struct alignas(16) u32x4 {
  u32 word[4];
  __device__ u32& operator[](int i) { return word[i]; }
  __device__ u32 operator[](int i) const { return word[i]; }
};

MX_DEVICE u32 thread_x() { return threadIdx.x; }
MX_DEVICE u32 block_x() { return blockIdx.x; }
MX_DEVICE u32 block_y() { return blockIdx.y; }
MX_DEVICE u32 block_z() { return blockIdx.z; }
MX_DEVICE void barrier() { __syncthreads(); }

#else

#define MX_KERNEL(threads) \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define MX_DEVICE static inline __attribute__((device)) __attribute__((always_inline))
#define MX_SHARED static __attribute__((shared))

typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

MX_DEVICE u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
MX_DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
MX_DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
MX_DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
// The fences say that LDS written before the barrier is read after it; s_barrier alone orders waves, not memory.
MX_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#endif

// The word whose byte i is byte Bi of the eight bytes (low, high).
template <u32 B0, u32 B1, u32 B2, u32 B3>
MX_DEVICE u32 pick_bytes(u32 low, u32 high) {
#if MX_CUDA
  return __byte_perm(low, high, B0 | B1 << 4 | B2 << 8 | B3 << 12);
#else
  return __builtin_amdgcn_perm(high, low, B0 | B1 << 8 | B2 << 16 | B3 << 24);
#endif
}
