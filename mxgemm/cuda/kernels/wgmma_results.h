// Results of the kernels of warpgroups, four side by side.
#pragma once
#include "floats.h"
#include "wgmma.h"

INLINE void store_four(u8* p, i64 at, int type, const float4& v) {
  if (type == OF_FP32)
    store_16(p + 4 * at, make_uint4(bits_of(v.x), bits_of(v.y), bits_of(v.z), bits_of(v.w)));
  else if (type == OF_FP16)
    store_8(p + 2 * at, f16_of(v.x) | f16_of(v.y) << 16, f16_of(v.z) | f16_of(v.w) << 16);
  else
    store_8(p + 2 * at, bf16x2_of(v.x, v.y), bf16x2_of(v.z, v.w));
}
INLINE float4 added(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
