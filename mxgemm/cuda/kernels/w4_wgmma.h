// Of both launches of w4_wgmma: what bf16 holds of weights and of rounded A.
// Macros: those of w4_operands.h.
#pragma once
#include "w4_operands.h"

// bf16 holds e2m1 values times every scale byte's power if they are 2 binades down: 0.5 2^-129 and 6 2^125 are in its
// range. e4m3's range is three binades wider than bf16's: what is lost lies below 2^-132.
constexpr u32 DOWN_W = 2, DOWN_A = A_FORMAT == BF16 ? 0 : A_FORMAT == E4M3 ? 1 : 2;
constexpr float UP = 1 << (DOWN_W + DOWN_A);  // what sums are too small by

// The code's bits are those of a bf16 126 binades down. One factor does for scale bytes to 130.
constexpr u32 MOST_OF_ONE = 130;
INLINE u32 factor_down(u32 scale) { return scale * 0x00800080u + twice((126 - DOWN_W) << 7); }
INLINE u32 second_factor(u32 scale) {
  return scale == 255 ? 0x7FFF7FFFu : twice((127 + max(scale, MOST_OF_ONE) - MOST_OF_ONE) << 7);
}
