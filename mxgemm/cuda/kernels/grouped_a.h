// Rows of A of grouped products in shared memory, decoded once for all warps of a workgroup, and what the loop over chunks
// has left, which is added to a warp's sums: for warps whose weights come through shared memory.
//
// Macros: those of grouped_stream.cu.
#pragma once
#include "grouped_ring.h"
#include "load_values.h"

static_assert(MT == 1 && A_ROWS <= 8, "a tile of 8 rows of A");
constexpr int CHUNK_OF_A = A_ROWS * 256;  // bytes: [4][A_ROWS][4] pieces of 16

// The thread's number, of which the compiler computes nothing ahead: what is needed once a place would fill the registers.
INLINE u32 thread_anew() {
  u32 thread = threadIdx.x;
  keep_as_it_is(thread);
  return thread;
}

INLINE void load_a(const Arguments& p, Rows& rows, int row, int chunk, int t) {
  const int blocks = p.k >> 5, block = TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t;
  const bool real = !TAIL || 4 * chunk + t < blocks;
#if A_FORMAT == BF16 || ROUNDS
  rows.raw = load_block(p.a + (row * p.a_row + block * 32 * p.a_column) * A_BYTES, p.a_column * A_BYTES);
  if (!real) rows.raw = Raw{};
#else
#pragma unroll
  for (int j = 0; j < CODES; j++) {
    rows.codes[j] = load_16(p.a + row * p.a_row + (block * CODES + j) * 16);
    if (!real) rows.codes[j] = make_uint4(0, 0, 0, 0);
  }
  rows.scale = load_u8(p.a_scales + row * p.a_scales_row + block);
  if (!real) rows.scale = 127;
#endif
}

// Rows of A for a new tile, by so many warps, whose `thread` it is; what bf16 does not hold is 0 there, and a chunk's word at
// flags_at says so. Lanes that have no row of a chunk have one of the next chunks. A warp loads AHEAD_OF_A times before it
// decodes.
template <int DECODING, int AHEAD_OF_A>
INLINE void decode_a(const Arguments& p, const Group& group, u32 thread, u32 flags_at, u32 rows_at) {
  constexpr int LANES = 4 * A_ROWS, CHUNKS = 32 / LANES, BY = DECODING * CHUNKS;
  const int lane = thread & 31, m = lane / 4 % A_ROWS;
  const int row = source_of(p.routing, group, min(m, group.count - 1));
#pragma unroll 1
  for (int first = (thread >> 5) * CHUNKS; first < p.chunks; first += BY * AHEAD_OF_A) {
    Rows rows[AHEAD_OF_A];
    const int own = first + lane / LANES;
#pragma unroll
    for (int ahead = 0; ahead < AHEAD_OF_A; ahead++)
      if (ahead == 0 || first + ahead * BY < p.chunks)
        load_a(p, rows[ahead], row, CHUNKS == 1 ? own + ahead * BY : min(own + ahead * BY, p.chunks - 1), lane & 3);
#pragma unroll
    for (int ahead = 0; ahead < AHEAD_OF_A; ahead++)
      if (ahead == 0 || first + ahead * BY < p.chunks) {
        const int chunk = own + ahead * BY;
        OpenRows open;
        bool held = open_rows(rows[ahead], open);
        if (any_lane(!held)) held = is_held(rows[ahead]), open_held_rows(rows[ahead], held, open);
        const u32 odd =
            CHUNKS == 1 ? any_lane(!held) : lanes_where(!held) >> (lane & -LANES) & ((1u << LANES % 32) - 1);
        if (CHUNKS > 1 && chunk >= p.chunks) continue;
        if (lane % LANES == 0) store_shared_4(flags_at + 4 * chunk, odd);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 x[4];
          words_of_rows(open, i, x);
          store_shared_16(rows_at + chunk * CHUNK_OF_A + i * (CHUNK_OF_A / 4) + 16 * (lane % LANES),
                          make_uint4(x[0], x[1], x[2], x[3]));
        }
      }
  }
}

// What the loop has left, of a block of A: its scale, and of its values over that the i-th eight. Few registers matter
// here, and not how often something is read.
INLINE u32 scale_of_block(const Arguments& p, int row, int block) {
#if A_FORMAT == BF16
  return 127;
#elif ROUNDS
  u32 amax = 0;
#pragma unroll 1
  for (int i = 0; i < 4; i++) {
    float v[8];
    load_values(p.a + (row * p.a_row + block * 32 + 8 * i) * A_BYTES, A_BYTES, v);
    amax = max(amax, largest(v));
  }
  const u32 up = (amax + SCALE_ADDEND) >> 23;
  return amax >= 0x7F800000u ? 255 : up > EMAX ? up - EMAX : 0;
#else
  u32 scale = load_u8(p.a_scales + row * p.a_scales_row + block);
#if A_FORMAT == E4M3  // a code is NaN
#pragma unroll 1
  for (int i = 0; i < 8; i++)
    if (((load_u32(p.a + row * p.a_row + block * 32 + 4 * i) & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) scale = 255;
#endif
  return scale;
#endif
}
INLINE void unscaled_words(const Arguments& p, int row, int block, int i, u32 scale, u32 (&x)[4]) {
#if A_FORMAT == BF16 || ROUNDS
  float v[8];
  load_values(p.a + (row * p.a_row + (block * 32 + 8 * i) * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
#if ROUNDS
  const float reciprocal = float_of((254 - min(scale, 253u)) << 23);
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = scale == 255 ? 0.f : rounded(v[j] * reciprocal);
#endif
  pack(v, x);
#else
  u32 words[4 * CODES] = {};
#pragma unroll
  for (int j = 0; j < CODES; j++) words[j] = load_u32(p.a + row * p.a_row + (block * 4 + i) * CODES * 4 + 4 * j);
  decode_rows(words, 0, twice((127 + DECODED) << 7), x);
#endif
}

// Adds what the loop has left of T tiles, the first of them that half of a pair, to a warp's sums, as grouped_mma.cu does:
// whole chunks, or blocks of A that are not held.
template <int T = TILES>
INLINE void add_left(const Arguments& p, const Group& group, int tile, int half, u32 left, u32 of_a, float* mine,
                     u32 thread, u32 rows_at) {
  const int lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3, m = min(g, group.count - 1);
  const int row = source_of(p.routing, group, m);
#pragma unroll 1
  for (u32 both = left | of_a; both; both &= both - 1) {
    const int number = lowest_bit(both), chunk = warp % WARPS_K + WARPS_K * number;
    const bool real = !TAIL || 4 * chunk + t < p.k >> 5;
    const int block = real ? 4 * chunk + t : 0;
    u32 any = 0;  // of what the loop has added of this block
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
      const uint4 v =
          load_shared_16(rows_at + chunk * CHUNK_OF_A + i * (CHUNK_OF_A / 4) + (4 * m + t) * 16);
      any |= (v.x | v.y | v.z | v.w) & 0x7FFF7FFFu;
    }
    const bool mine_now = real && ((left >> number & 1) || any == 0);
    const u32 scale = mine_now ? scale_of_block(p, row, block) : 127;
    const From from = tile_from(p, group.expert, tile, chunk, lane);
#pragma unroll 1
    for (int r = 0; r < T; r++) {
      u32 of_row[2], factor[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        of_row[h] = load_u8(from.scales + static_cast<i64>(r >> 1) * p.chunks * 128 + (half + r & 1) * 2 + h);
        factor[h] = twice((127 + 126 - (of_row[h] < LEAST_FAST ? 8 : 0)) << 7);
      }
#pragma unroll 1
      for (int turn = 0; turn < 4; turn++) {  // blocks one after the other, the others' A being 0
        float sum[4] = {};
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
          u32 x[4] = {}, d[2][4];
          if (mine_now && t == turn) unscaled_words(p, row, block, i, scale, x);
#pragma unroll
          for (int h = 0; h < 2; h++)
            decode(load_u32(from.codes + static_cast<i64>(r) * p.chunks * 1024 + 512 * h + 4 * i), factor[h], d[h]);
#pragma unroll
          for (int j = 0; j < 4; j += 2) multiply(sum, d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[j], x[j + 1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const u32 of_rows = from_lane(scale, (2 * (lane & 3) + (j & 1)) * 4 + turn);
          const u32 of_w = from_lane(of_row[j >> 1], g * 4 + turn);
          mine[(j & 1) * PITCH + 16 * r + 8 * (j >> 1)] += scaled(sum[j], of_rows, of_w);
        }
      }
    }
  }
}
