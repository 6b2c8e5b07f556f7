#pragma once
#include "buffer.h"

// 16 bytes a lane to LDS: 1 KB from `lds` on, which is the same for all lanes, in their order. Past the registers, where
// the compiler has a builtin for it.
DEVICE void copy_16(Buffer from, u8 *lds, [[maybe_unused]] u32 lane, u32 lane_offset, u32 offset) {
#if __has_builtin(__builtin_amdgcn_raw_ptr_buffer_load_lds) && !defined(COPY_THROUGH_REGISTERS)
  __builtin_amdgcn_raw_ptr_buffer_load_lds(from, (LDS void *)lds, 16, (int)lane_offset, (int)offset, 0, 0);
#else
  *(u32x4 *)(lds + lane * 16) = load_16(from, lane_offset, offset);
#endif
}
