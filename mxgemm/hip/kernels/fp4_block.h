#pragma once
#include "vectors.h"

// A block of 32 e2m1 and its scale, as a lane feeds it to the matrix unit.
struct Fp4Block {
  u32x4 codes;  // element k in bits 4 * (k % 8) of dword k / 8
  u32 scale;    // E8M0, one of its bytes
};
