#pragma once
#include "fp4_block.h"

// One scaled matrix instruction: C[16 n, 16 m] += W[16 n, 128 k] * A[16 m, 128 k], both e2m1, on one wave.
//
// Lane l holds of either operand row l % 16, elements 32 * (l / 16) to 32 * (l / 16) + 31: one block and its scale. The
// weight comes first, so that lane l ends up with n = 4 * (l / 16) to 4 * (l / 16) + 3 of row m = l % 16: neighbours.

constexpr int E2M1 = 4;  // code of the format in the instruction

// SCALE_BYTE, A_BYTE: which byte of `scales` belongs to the weight's block, and of `a.scale` to A's.
template <u32 SCALE_BYTE, u32 A_BYTE = 0>
DEVICE f32x4 multiply_add(u32x4 weight, u32 scales, Fp4Block a, f32x4 sum) {
  const i32x8 w8 = {(int)weight[0], (int)weight[1], (int)weight[2], (int)weight[3]};  // e2m1 takes half the registers
  const i32x8 a8 = {(int)a.codes[0], (int)a.codes[1], (int)a.codes[2], (int)a.codes[3]};
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(w8, a8, sum, E2M1, E2M1, SCALE_BYTE, scales, A_BYTE,
                                                       a.scale);
}
