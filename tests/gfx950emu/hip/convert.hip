// gfx950's converts with a scale: which byte they write, what they round to.
#include "common.h"

KERNEL fp4_from_f32(const v2f* x, const float* s, u32* o) {
  int t = THREAD;
  u32 r = 0x12345678u;
  r = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(r, x[t].x, x[t].y, s[t], 0);
  r = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(r, x[t].y, x[t].x, s[t], 2);
  o[t] = r;
}

KERNEL fp4_from_bf16(const v2b* x, const float* s, u32* o) {
  int t = THREAD;
  u32 r = 0x12345678u;
  r = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(r, x[t], s[t], 1);
  r = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(r, x[t], s[t], 3);
  o[t] = r;
}

KERNEL f32_from_fp4(const u32* x, const float* s, v2f* o) {
  int t = THREAD;
  o[t] = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x[t], s[t], 2);
}

KERNEL bf16_from_fp4(const u32* x, const float* s, v2b* o) {
  int t = THREAD;
  o[t] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(x[t], s[t], 1);
}

KERNEL fp8_from_f32(const v2f* x, u32* o) {
  int t = THREAD;
  u32 r = __builtin_amdgcn_cvt_pk_fp8_f32(x[t].x, x[t].y, 0x12345678, 0);
  o[t] = r;
  o[t + 64] = __builtin_amdgcn_cvt_pk_bf8_f32(x[t].x, x[t].y, 0x12345678, 1);
}
