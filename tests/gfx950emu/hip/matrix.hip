// Matrix instructions, one a kernel: lane t loads its registers of A, B and C from row t of the arrays.
#include "common.h"

// Scaled, formats A and B (0 e4m3, 1 e5m2, 2 e2m3, 3 e3m2, 4 e2m1), bytes SA and SB of the scale registers.
#define SCALED(A, B, SA, SB)                                                                                           \
  KERNEL scaled16_##A##_##B##_##SA##_##SB(const v8i* a, const v8i* b, v4f* c, const int* s) {                          \
    int t = THREAD;                                                                                                    \
    c[t] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a[t], b[t], c[t], A, B, SA, s[t], SB, s[t + 64]);          \
  }                                                                                                                    \
  KERNEL scaled32_##A##_##B##_##SA##_##SB(const v8i* a, const v8i* b, v16f* c, const int* s) {                         \
    int t = THREAD;                                                                                                    \
    c[t] = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a[t], b[t], c[t], A, B, SA, s[t], SB, s[t + 64]);           \
  }
SCALED(0, 0, 0, 0)
SCALED(1, 0, 1, 2)
SCALED(2, 2, 3, 0)
SCALED(3, 3, 2, 1)
SCALED(4, 4, 0, 3)
SCALED(4, 4, 1, 2)
SCALED(2, 4, 3, 3)
SCALED(4, 3, 0, 1)
SCALED(0, 4, 2, 2)
SCALED(1, 1, 3, 1)

#define PLAIN(NAME, IN, OUT, BUILTIN)                 \
  KERNEL NAME(const IN* a, const IN* b, OUT* c) {     \
    int t = THREAD;                                   \
    c[t] = BUILTIN(a[t], b[t], c[t], 0, 0, 0);        \
  }
PLAIN(bf16_16, v8b, v4f, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
PLAIN(bf16_32, v8b, v16f, __builtin_amdgcn_mfma_f32_32x32x16_bf16)
PLAIN(f16_16, v8h, v4f, __builtin_amdgcn_mfma_f32_16x16x32_f16)
PLAIN(f16_32, v8h, v16f, __builtin_amdgcn_mfma_f32_32x32x16_f16)
PLAIN(i8_16, v4i, v4i, __builtin_amdgcn_mfma_i32_16x16x64_i8)

KERNEL unscaled16_4_4(const v8i* a, const v8i* b, v4f* c) {
  int t = THREAD;
  c[t] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a[t], b[t], c[t], 4, 4, 0, 0, 0, 0);
}
