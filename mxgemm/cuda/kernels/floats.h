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

// One, two or four neighbours, of which the first is aligned to all of them.
template <int COUNT>
INLINE void store_floats(u8* p, i64 at, int type, const float (&x)[COUNT]) {
  constexpr int LAST = COUNT - 1, SECOND = COUNT > 1 ? 1 : 0, THIRD = COUNT > 2 ? 2 : 0;
  if (COUNT == 1) {
    store_float(p, at, type, x[0]);
  } else if (type == OF_FP32) {
    if (COUNT == 4)
      store_16(p + 4 * at, make_uint4(bits_of(x[0]), bits_of(x[SECOND]), bits_of(x[THIRD]), bits_of(x[LAST])));
    else
      store_8(p + 4 * at, bits_of(x[0]), bits_of(x[SECOND]));
  } else {
    const u32 low = type == OF_FP16 ? f16x2_of(x[0], x[SECOND]) : bf16x2_of(x[0], x[SECOND]);
    const u32 high = type == OF_FP16 ? f16x2_of(x[THIRD], x[LAST]) : bf16x2_of(x[THIRD], x[LAST]);
    if (COUNT == 4)
      store_8(p + 2 * at, low, high);
    else
      store_u32(p + 2 * at, low);
  }
}
