// What a lane of w4_mma.cu holds of a chunk: of the weight, which it decodes, and of A, rounded by it or before.
// Macros: those of w4_mma.cu.
#pragma once
#include "round_block.h"

// A lane's part of a chunk of the weight. In fragment order a word has the scales of both halves of a tile, or of two.
constexpr int TOGETHER = TILES % 2 ? 1 : 2;  // tiles in such a word
constexpr int PLACES = TILES / TOGETHER;
struct Weights {
  uint4 codes[TILES][2];
  u32 scales[FRAGMENTS ? PLACES : 2 * TILES];
};

INLINE u32 scale_of(const Weights& w, int tile, int half) {
  return FRAGMENTS ? permute(w.scales[tile / TOGETHER], 0, 0x4440 + 2 * (tile % TOGETHER) + half)
                   : w.scales[2 * tile + half];
}

// Whether scales are not all LEAST_FAST to MOST_FAST. As bytes: 48 more and they begin with the bits 10; a byte that
// carries into the next has itself begun with others.
INLINE bool slow_scales(const Weights& w) {
  bool slow = false;
#if FRAGMENTS
  constexpr u32 BYTES = TOGETHER == 1 ? 0x0101u : 0x01010101u;
#pragma unroll
  for (int i = 0; i < PLACES; i++) slow |= ((w.scales[i] + 48 * BYTES) & 0xC0 * BYTES) != 0x80 * BYTES;
#else
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) slow |= w.scales[i] - LEAST_FAST > MOST_FAST - LEAST_FAST;
#endif
  return slow;
}

// As decode_places(), whose places are those of the fragment order.
INLINE void decode(u32 q, u32 factor, u32 (&d)[4]) {
#if FRAGMENTS
  decode_places(q, factor, d);
#else
  d[0] = and_or(q << 12, 0x80008000u, (q << 6) & 0x01C001C0u);
  d[1] = and_or(q << 8, 0x80008000u, (q << 2) & 0x01C001C0u);
  d[2] = and_or(q << 4, 0x80008000u, (q >> 2) & 0x01C001C0u);
  d[3] = and_or(q, 0x80008000u, (q >> 6) & 0x01C001C0u);
#pragma unroll
  for (int j = 0; j < 4; j++) d[j] = mul_bf16x2(d[j], factor);
#endif
}
constexpr u32 MAGNITUDES = FRAGMENTS ? 0x7FD37FD3u : 0x77777777u;  // the bits of a word that are no code's sign

INLINE uint4 load_weights(const u8* p, i64 stride) {
#if W_VECTOR || FRAGMENTS
  return WARPS_M == 1 ? load_streamed(p) : load_16(p);  // from L1 for all warps but the first
#else
  u32 w[4] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) w[i / 4] |= load_u8(p + i * stride) << (8 * (i % 4));
  return make_uint4(w[0], w[1], w[2], w[3]);
#endif
}

INLINE Raw load_block(const u8* p, i64 stride) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < A_VECTORS; i++) {
#if A_VECTOR
    raw.v[i] = load_16(p + 16 * i);
#else
    u32 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u8* at = p + (i * 16 / A_BYTES + j * (4 / A_BYTES)) * stride;
      w[j] = A_BYTES == 4 ? load_u32(at) : load_u16(at) | load_u16(at + stride) << 16;
    }
    raw.v[i] = make_uint4(w[0], w[1], w[2], w[3]);
#endif
  }
  return raw;
}

// A lane's part of a chunk and a tile of A. open() makes it ready and says whether bf16 holds it; four_words() are the
// i-th four words of it.
#if A_SLOTS
// A tile in shared memory: 8 rows of 16 pieces of 16 bytes, pieces in such places that the lanes of a load, which read
// the same piece of 8 blocks of two rows at a time, meet different banks.
constexpr int TILE_BYTES = 8 * 256;
INLINE u32 place_of(u32 row, u32 piece) { return row * 256 + (piece ^ (piece >> 3 & 1) ^ (row & 1) << 1) * 16; }

// Rounds a block where it lies, its pieces at at[] + offset; false where bf16 does not hold the result.
INLINE bool round_in_place(const u32 (&at)[4], u32 offset) {
  Raw raw;
  u32 x[16];
#pragma unroll
  for (int i = 0; i < 4; i++) raw.v[i] = load_shared_16(at[i] + offset);
  const bool held = round_block(raw, x);
#pragma unroll
  for (int i = 0; i < 4; i++)
    store_shared_16(at[i] + offset, make_uint4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
  return held;
}
struct Part {
  u32 at[4];
};
// What a warp has for itself stays in registers once it is rounded, where there are enough.
#define ROUNDED_ALONE (A_FORMAT != BF16 && WARPS_N == 1 && (MT == 1 || (MT == 2 && !ONCE)))
#if ROUNDED_ALONE
struct Opened {
  u32 words[16];
};
INLINE bool open(const Part& part, Opened& opened) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < 4; i++) raw.v[i] = load_shared_16(part.at[i]);
  return round_block(raw, opened.words);
}
#else
typedef Part Opened;
INLINE bool open(const Part& part, Opened& opened) {
#pragma unroll
  for (int i = 0; i < 4; i++) opened.at[i] = part.at[i];
  return true;
}
#endif
INLINE void four_words(const Opened& opened, int i, u32 (&x)[4]) {
#if ROUNDED_ALONE
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = opened.words[4 * i + j];
#else
  const uint4 v = load_shared_16(opened.at[i]);
#if A_FORMAT == BF16
  pairs_of(v, x);
#else
  words_of(v, x);
#endif
#endif
}
#elif A_CODES
struct Part {
  uint4 codes;
  u32 scale;
};
struct Opened {
  u32 q[4], factor;
};
INLINE bool open(const Part& part, Opened& opened) {
  words_of(part.codes, opened.q);
  opened.factor = factor_of(part.scale);
  return part.scale != NO_SCALE;
}
INLINE void four_words(const Opened& opened, int i, u32 (&x)[4]) {  // decoded late: so it takes fewer registers
  decode_places(opened.q[i], opened.factor, x);
}
#else
struct Opened {
  u32 words[16];
};
#if A_BEFORE
struct Part {
  uint4 v[4];
};
INLINE bool open(const Part& part, Opened& opened) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const uint4 v = part.v[j];
    u32(&x)[16] = opened.words;
    x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
  }
  return A_FORMAT == BF16 || opened.words[0] != NOT_HELD;
}
#else
typedef Raw Part;
INLINE bool open(const Part& part, Opened& opened) { return round_block(part, opened.words); }
#endif
INLINE void four_words(const Opened& opened, int i, u32 (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = opened.words[4 * i + j];
}
#endif
