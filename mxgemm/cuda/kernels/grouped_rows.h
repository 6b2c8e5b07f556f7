// A lane's part of a chunk and of eight rows of A, as grouped products have it: bytes of e2m1 or e4m3 with a scale a
// block, rounded before by whoever made them; floats, which count as bf16; or with ROUNDS bf16 that is rounded here, to the
// bits that bytes would have given.
//
// Decoded blocks are pairs of bf16 in the order of the weights' (round_block.h), 2^-DOWN of what they are worth.
// Macros: A_FORMAT, A_TYPE (of floats), A_VECTOR (floats of a block are aligned and contiguous).
#pragma once
#include "w4_operands.h"

#if A_FORMAT == BF16
struct Rows {
  Raw raw;
};
struct OpenRows {
  u32 words[16];
};
INLINE bool is_held(const Rows&) { return true; }
INLINE bool open_rows(const Rows& rows, OpenRows& open) { return round_block(rows.raw, open.words); }
INLINE void open_held_rows(const Rows& rows, bool, OpenRows& open) { round_block(rows.raw, open.words); }
INLINE void words_of_rows(const OpenRows& open, int i, u32 (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = open.words[4 * i + j];
}
// The values over their scale, and the scale byte.
INLINE u32 unscaled_rows(const Rows& rows, u32 (&x)[16]) { return round_unscaled(rows.raw, x); }

#elif ROUNDS
static_assert(A_TYPE == BF16, "pairs are rounded as they come");
struct Rows {
  Raw raw;
};
struct OpenRows {
  u32 words[16];
};
// False where a byte's scale is none that decoding is right for.
INLINE bool open_rows(const Rows& rows, OpenRows& open) {
  u32(&x)[16] = open.words;
  pairs_of(rows.raw, x);
  u32 m[4] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) m[i % 4] = max_bf16x2(m[i % 4], abs_bf16x2(x[i]));
  const u32 both = max_bf16x2(max_bf16x2(m[0], m[1]), max_bf16x2(m[2], m[3]));
  Rounding r;
  rounding_of(both, r);
  const u32 amax = max(both << 16, both & 0xFFFF0000u), e = ((amax + SCALE_ADDEND) >> 23) - EMAX;
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = mul_bf16x2(rounded_pair(x[i], r), twice((127 - DOWN) << 7));
  return amax == 0 || e - LEAST_FAST <= MOST_FAST - LEAST_FAST;
}
INLINE bool is_held(const Rows& rows) {
  OpenRows open;
  return open_rows(rows, open);
}
INLINE void open_held_rows(const Rows& rows, bool held, OpenRows& open) {
  open_rows(rows, open);
#pragma unroll
  for (int i = 0; i < 16; i++) open.words[i] = held ? open.words[i] : 0;
}
INLINE void words_of_rows(const OpenRows& open, int i, u32 (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = open.words[4 * i + j];
}
INLINE u32 unscaled_rows(const Rows& rows, u32 (&x)[16]) { return round_unscaled(rows.raw, x); }

#else
constexpr int CODES = A_FORMAT == E2M1 ? 1 : 2;  // pieces of 16 bytes in a block
struct Rows {
  uint4 codes[CODES];
  u32 scale;
};
struct OpenRows {
  u32 words[4 * CODES], factor;
};

// Eight values times 2^-126 (e2m1) or 2^-120 (e4m3), times a factor.
INLINE void decode_rows(const u32 (&words)[4 * CODES], int i, u32 factor, u32 (&x)[4]) {
#if A_FORMAT == E2M1
  const u32 q = words[i];
  x[0] = and_or(q << 12, 0x80008000u, (q << 6) & 0x01C001C0u);
  x[1] = and_or(q << 8, 0x80008000u, (q << 2) & 0x01C001C0u);
  x[2] = and_or(q << 4, 0x80008000u, (q >> 2) & 0x01C001C0u);
  x[3] = and_or(q, 0x80008000u, (q >> 6) & 0x01C001C0u);
#else
  const u32 low = words[2 * i], high = words[2 * i + 1];
#pragma unroll
  for (int j = 0; j < 4; j++) {  // bytes j and j + 4 to the upper bytes of both halves
    const u32 pair = permute(low, high, static_cast<u32>(j << 4 | (4 + j) << 12)) & 0xFF00FF00u;
    x[j] = and_or(pair, 0x80008000u, (pair >> 4) & 0x07F007F0u);
  }
#endif
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = mul_bf16x2(x[j], factor);
}
constexpr u32 DECODED = A_FORMAT == E2M1 ? 126 : 120;

// Whether decoding is right for a block whatever its codes are: most are.
INLINE bool in_range(const Rows& rows) {
  bool held = rows.scale - LEAST_FAST <= MOST_FAST - LEAST_FAST;
#if A_FORMAT == E4M3  // and no code is NaN
#pragma unroll
  for (int i = 0; i < CODES; i++) {
    u32 w[4];
    words_of(rows.codes[i], w);
#pragma unroll
    for (int j = 0; j < 4; j++) held &= (((w[j] & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) == 0;
  }
#endif
  return held;
}
// Whether it is right for this one: zeros are zeros however small their scale.
INLINE bool is_held(const Rows& rows) {
  constexpr u32 BITS = A_FORMAT == E2M1 ? 0x77777777u : 0x7F7F7F7Fu;
  u32 any = 0;
#pragma unroll
  for (int i = 0; i < CODES; i++) any |= (rows.codes[i].x | rows.codes[i].y | rows.codes[i].z | rows.codes[i].w) & BITS;
  return in_range(rows) || (rows.scale < LEAST_FAST && any == 0);
}
INLINE void codes_of_rows(const Rows& rows, u32 (&words)[4 * CODES]) {
#pragma unroll
  for (int i = 0; i < CODES; i++) {
    u32 w[4];
    words_of(rows.codes[i], w);
#pragma unroll
    for (int j = 0; j < 4; j++) words[4 * i + j] = w[j];
  }
}
INLINE void open_held_rows(const Rows& rows, bool held, OpenRows& open) {
  codes_of_rows(rows, open.words);
  open.factor = held ? rows.scale * 0x00800080u + twice((DECODED - DOWN) << 7) : 0;
}
INLINE bool open_rows(const Rows& rows, OpenRows& open) {  // false where that was not right
  open_held_rows(rows, true, open);
  return in_range(rows);
}
INLINE void words_of_rows(const OpenRows& open, int i, u32 (&x)[4]) { decode_rows(open.words, i, open.factor, x); }
INLINE u32 unscaled_rows(const Rows& rows, u32 (&x)[16]) {
  u32 words[4 * CODES];
  codes_of_rows(rows, words);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 four[4];
    decode_rows(words, i, twice((127 + DECODED) << 7), four);
#pragma unroll
    for (int j = 0; j < 4; j++) x[4 * i + j] = four[j];
  }
#if A_FORMAT == E4M3
  Rows plain = rows;
  plain.scale = 127;
  if (!in_range(plain)) return 255;  // a code is NaN
#endif
  return rows.scale;
}
#endif
