// Codes of rounded values. Macros: those of round_block.h.
#pragma once
#include "round_block.h"

constexpr int BITS = A_FORMAT == E2M1 ? 4 : 8;  // of a code

// The code of a value that the format has: its bits are those of the float so many binades down.
INLINE u32 code_of(float q) {
  constexpr u32 AT = 23 - MANTISSA, AWAY = A_FORMAT == E2M1 ? 1 : 7;
  const u32 bits = bits_of(q * float_of(AWAY << 23));
  return (bits >> AT & ((1u << (BITS - 1)) - 1)) | bits >> 31 << (BITS - 1);
}
