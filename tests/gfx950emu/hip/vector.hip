// Integer and float vector instructions, moves across lanes, division as LLVM expands it, scratch.
#include "common.h"

KERNEL swaps(const u32* x, v2u* o, v2u* o2) {
  int t = THREAD;
  v2u r = __builtin_amdgcn_permlane16_swap(x[t], x[t + 64], 0, 0);
  o[t] = r;
  v2u q = __builtin_amdgcn_permlane32_swap(x[t], x[t + 64], 0, 0);
  o2[t] = q;
}

KERNEL across(const u32* x, u32* o) {
  int t = THREAD;
  u32 a = x[t], b = x[t + 64];
  o[t] = __builtin_amdgcn_mov_dpp(a, 0x111, 0xf, 0xf, 1);
  o[t + 64] = __builtin_amdgcn_update_dpp(b, a, 0x142, 0xa, 0xf, 0);
  o[t + 128] = __builtin_amdgcn_mov_dpp(a, 0xB1, 0xf, 0xf, 1);
  o[t + 192] = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  o[t + 256] = __builtin_amdgcn_ds_swizzle(a, 0x041F);
  o[t + 320] = __builtin_amdgcn_readlane(a, 17);
  o[t + 384] = __builtin_amdgcn_ds_bpermute(((t * 5 + 3) & 63) << 2, a);
}

KERNEL integers(const u32* x, u32* o) {
  int t = THREAD;
  u32 a = x[t], b = x[t + 64];
  o[t] = __builtin_popcount(a) + __builtin_clz(b | 1);
  o[t + 64] = __builtin_amdgcn_perm(a, b, 0x01060503);
  o[t + 128] = a / ((b >> 20) | 1);
  o[t + 192] = (int)a % ((int)(b >> 24) | 1);
  o[t + 256] = (u32)(((u64)a * b) >> 13);
  o[t + 320] = (int)a >> (b & 31);
  o[t + 384] = __builtin_bitreverse32(a) ^ __builtin_ctz(b | 0x10000);
  o[t + 448] = a > b ? (int)a < (int)b ? 3 : 2 : (int)a < (int)b ? 1 : 0;
}

KERNEL floats(const u32* x, float* f) {
  int t = THREAD;
  u32 a = x[t], b = x[t + 64];
  f[t] = (float)a / (float)(b | 1);
  f[t + 64] = __builtin_sqrtf((float)a);
  f[t + 128] = __builtin_amdgcn_exp2f((float)(a >> 28));
  f[t + 192] = (float)((double)a * 1.5 / (double)(b | 3));
  f[t + 256] = __builtin_fmaf((float)(a >> 8), 3.0f, -(float)(b >> 9));
  f[t + 320] = __builtin_rintf((float)(a >> 20) * 0.5f);
}

// An array that the compiler cannot keep in registers.
KERNEL scratch(const u32* x, u32* o, int n) {
  int t = THREAD;
  u32 buf[33];
  for (int i = 0; i < 33; i++) buf[i] = x[t] * i;
  for (int i = 0; i < n; i++) {
    u32 k = (x[t + 64] >> i) % 33;
    buf[k] += i;
    buf[(k * 7) % 33] ^= buf[k];
  }
  u32 r = 0;
  for (int i = 0; i < 33; i++) r = r * 31 + buf[i];
  o[t] = r;
}

// Lanes of a wave, and waves of a workgroup, leave the loop at different times.
KERNEL collatz(const u32* x, u32* o) {
  int t = THREAD + 256 * GROUP;
  u32 v = x[t] | 1, n = 0;
  while (v != 1 && n < 200) {
    v = v & 1 ? v * 3 + 1 : v / 2;
    n++;
  }
  o[t] = n;
}
