#pragma once
#include "vectors.h"

// Memory with an end: loads behind it give 0, stores behind it do nothing. Offsets are bytes, 32 bits.

using Buffer = __amdgpu_buffer_rsrc_t;

constexpr int THROUGH = 16;  // sc1: to and from where every XCD finds it, past the caches that are not coherent

DEVICE Buffer buffer_of(const void *start, u32 bytes) {
  return __builtin_amdgcn_make_buffer_rsrc((void *)start, 0, (int)bytes, 0x27000);
}

template <int CACHE = 0> DEVICE u32x4 load_16(Buffer from, u32 lane_offset, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b128(from, (int)lane_offset, (int)offset, CACHE);
}

DEVICE u32 load_4(Buffer from, u32 lane_offset, u32 offset) {
  return __builtin_amdgcn_raw_buffer_load_b32(from, (int)lane_offset, (int)offset, 0);
}

template <int CACHE = 0> DEVICE void store_16(Buffer to, u32x4 value, u32 lane_offset, u32 offset) {
  __builtin_amdgcn_raw_buffer_store_b128(value, to, (int)lane_offset, (int)offset, CACHE);
}

template <class Vector> DEVICE void store_vector(Buffer to, Vector value, u32 lane_offset, u32 offset) {
  static_assert(sizeof(Vector) == 8 || sizeof(Vector) == 16);
  if constexpr (sizeof(Vector) == 16)
    store_16(to, bits_as<u32x4>(value), lane_offset, offset);
  else
    __builtin_amdgcn_raw_buffer_store_b64(bits_as<u32x2>(value), to, (int)lane_offset, (int)offset, 0);
}

// 16 bytes a lane to LDS: 1 KB from `lds` on, which is the same for all lanes, in their order. Past the registers, where
// the compiler has a builtin for it.
DEVICE void copy_16(Buffer from, u8 *lds, [[maybe_unused]] u32 lane, u32 lane_offset, u32 offset) {
#if __has_builtin(__builtin_amdgcn_raw_ptr_buffer_load_lds) && !defined(COPY_THROUGH_REGISTERS)
  __builtin_amdgcn_raw_ptr_buffer_load_lds(from, (LDS void *)lds, 16, (int)lane_offset, (int)offset, 0, 0);
#else
  *(u32x4 *)(lds + lane * 16) = load_16(from, lane_offset, offset);
#endif
}
