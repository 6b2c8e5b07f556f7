// Two small whole kernels: the scale shuffle of docs/design.md, and a sum through LDS and atomics.
#include "common.h"

// E8M0 [rows, cols] -> rows padded to 32, columns to 8, one thread for each dword of the result.
KERNEL shuffle_scales(const u8* s, u32* o, int rows, int cols, int padded_cols, int dwords) {
  int t = GROUP * 256 + THREAD;
  if (t >= dwords) return;
  int r16 = t & 15, c4 = (t >> 4) & 3, rest = t >> 6;
  int blocks = padded_cols >> 3;
  int c8 = rest % blocks, r32 = rest / blocks;
  u32 v = 0;
  for (int b = 0; b < 4; b++) {
    int r = r32 * 32 + (b & 1) * 16 + r16, c = c8 * 8 + (b >> 1) * 4 + c4;
    u32 x = (r < rows && c < cols) ? s[r * cols + c] : 0u;
    v |= x << (8 * b);
  }
  o[t] = v;
}

KERNEL sum_bytes(const u8* s, u32* out, int n) {
  SHARED u32 acc[4];
  int t = THREAD;
  u32 v = 0;
  for (int i = GROUP * 256 + t; i < n; i += 1024) v += s[i];
  for (int m = 32; m; m >>= 1) v += (u32)__builtin_amdgcn_ds_bpermute(((t ^ m) & 63) << 2, (int)v);
  if ((t & 63) == 0) acc[t >> 6] = v;
  SYNC();
  if (t == 0) __atomic_fetch_add(out, acc[0] + acc[1] + acc[2] + acc[3], __ATOMIC_RELAXED);
}
