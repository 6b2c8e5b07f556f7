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
