// Eight values of A. Macros: those of round_block.h; A_VECTOR, loads of 16 bytes are aligned and contiguous.
#pragma once
#include "round_block.h"

INLINE void load_values(const u8* p, i64 stride, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < A_BYTES / 2; i++) {
    u32 w[4];
#if A_VECTOR
    words_of(load_16(p + 16 * i), w);
#else
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u8* at = p + (i * 16 / A_BYTES + j * (4 / A_BYTES)) * stride;
      w[j] = A_BYTES == 4 ? load_u32(at) : load_u16(at) | load_u16(at + stride) << 16;
    }
#endif
    floats_of_words(w, v, i);
  }
}
