// Loads and stores of whole words in the widest accesses that an address allows.
#pragma once
#include "portable.h"

// Reads 4 * WORDS bytes at p, a multiple of WIDTH (16, 8, 4, 2 or 1; at most 4 * WORDS), in accesses of WIDTH bytes.
template <int WIDTH, int WORDS>
MX_DEVICE void load_words(const u8* p, u32 (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i < 4 * WORDS; i += WIDTH) {
    if constexpr (WIDTH == 16) {
      const u32x4 four = *(const u32x4*)(p + i);
#pragma unroll
      for (int j = 0; j < 4; j++) words[i / 4 + j] = four[j];
    } else if constexpr (WIDTH == 8) {
      const u32x2 two = *(const u32x2*)(p + i);
      words[i / 4] = two[0];
      words[i / 4 + 1] = two[1];
    } else if constexpr (WIDTH == 4) {
      words[i / 4] = *(const u32*)(p + i);
    } else {
      const u32 part = WIDTH == 2 ? (u32) * (const u16*)(p + i) : (u32)p[i];
      words[i / 4] = i % 4 ? words[i / 4] | part << (i % 4 * 8) : part;
    }
  }
}

// The same for stores.
template <int WIDTH, int WORDS>
MX_DEVICE void store_words(u8* p, const u32 (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i < 4 * WORDS; i += WIDTH) {
    if constexpr (WIDTH == 16) {
      *(u32x4*)(p + i) = u32x4{words[i / 4], words[i / 4 + 1], words[i / 4 + 2], words[i / 4 + 3]};
    } else if constexpr (WIDTH == 8) {
      *(u32x2*)(p + i) = u32x2{words[i / 4], words[i / 4 + 1]};
    } else if constexpr (WIDTH == 4) {
      *(u32*)(p + i) = words[i / 4];
    } else if constexpr (WIDTH == 2) {
      *(u16*)(p + i) = (u16)(words[i / 4] >> (i % 4 * 8));
    } else {
      p[i] = (u8)(words[i / 4] >> (i % 4 * 8));
    }
  }
}
