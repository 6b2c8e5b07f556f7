// Names that every snippet uses: no HIP headers are needed (-nogpuinc).
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef int v2i __attribute__((ext_vector_type(2)));
typedef int v3i __attribute__((ext_vector_type(3)));
typedef int v4i __attribute__((ext_vector_type(4)));
typedef int v8i __attribute__((ext_vector_type(8)));
typedef u32 v2u __attribute__((ext_vector_type(2)));
typedef u32 v3u __attribute__((ext_vector_type(3)));
typedef u32 v4u __attribute__((ext_vector_type(4)));
typedef float v2f __attribute__((ext_vector_type(2)));
typedef float v4f __attribute__((ext_vector_type(4)));
typedef float v16f __attribute__((ext_vector_type(16)));
typedef __bf16 v2b __attribute__((ext_vector_type(2)));
typedef __bf16 v8b __attribute__((ext_vector_type(8)));
typedef _Float16 v8h __attribute__((ext_vector_type(8)));
#define KERNEL extern "C" __attribute__((global)) void
#define SHARED __attribute__((shared)) static
#define LDS __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))
#define THREAD ((int)__builtin_amdgcn_workitem_id_x())
#define GROUP ((int)__builtin_amdgcn_workgroup_id_x())
#define SYNC()                                              \
  do {                                                      \
    __builtin_amdgcn_s_waitcnt(0);                          \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");  \
    __builtin_amdgcn_s_barrier();                           \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");  \
  } while (0)
