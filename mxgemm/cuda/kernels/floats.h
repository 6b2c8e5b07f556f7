// Floats of a dtype that the launch says.
#pragma once
#include "sm90.h"

constexpr int OF_FP16 = 1, OF_FP32 = 2;  // a dtype's number, as in mxgemm.cuda.operands; others are bf16

INLINE float load_float(const u8* p, i64 at, int type) {
  return type == OF_FP32 ? float_of(load_u32(p + 4 * at)) : type == OF_FP16 ? float_of_f16(load_u16(p + 2 * at))
                                                                      : float_of(load_u16(p + 2 * at) << 16);
}

INLINE void store_float(u8* p, i64 at, int type, float x) {
  if (type == OF_FP32)
    store_f32(p + 4 * at, x);
  else
    store_u16(p + 2 * at, type == OF_FP16 ? f16_of(x) : bf16x2_of(x, 0.f) & 0xFFFFu);
}
