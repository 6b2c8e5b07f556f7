// Weights on their way to a warp of grouped_stream.cu: each lane copies its own pieces of the chunks to come to SLOTS places
// of shared memory and reads them from there itself, so that nobody has to meet and what is in flight takes no registers.
//
// Macros: those of grouped_stream.cu. Weights are in fragment order.
#pragma once
#include "grouped_results.h"

constexpr int PAIRS = (TILES + 1) / 2;  // of tiles, whose scales share words
static_assert(FRAGMENTS && (TILES == 1 || TILES % 2 == 0), "pieces of 16 bytes, and scales of two tiles in a word");
constexpr u32 SCALES_AT = TILES * 1024, SLOT_BYTES = SCALES_AT + PAIRS * 128;  // of a warp and a chunk

// Where a lane's part of the next chunk of a warp's first tile is, and of the scales of its pair.
struct From {
  const u8 *codes, *scales;
};
INLINE From tile_from(const Arguments& p, int expert, int tile, int chunk, int lane) {
  From from;
  from.codes = p.w + expert * p.w_expert + (static_cast<i64>(tile) * p.chunks + chunk) * 1024 + 16 * lane;
  from.scales = p.s + expert * p.s_expert + (static_cast<i64>(tile >> 1) * p.chunks + chunk) * 128 + 4 * lane;
  return from;
}

// Which half of a pair's scales a warp's r-th tile has. A place begins with a pair; past N's end it does not matter.
INLINE int half_of_pair(int warp, int r) { return (warp / WARPS_K * TILES + r) & 1; }

// A lane's places in a warp's first slot: of a single tile the scales are one half of a pair's.
struct Slot {
  u32 codes, scales;
};
INLINE Slot first_slot(u32 slots, int warp, int lane) {
  const u32 at = slots + warp * (SLOTS * SLOT_BYTES);
  return Slot{at + 16 * lane, at + SCALES_AT + 4 * lane + (TILES == 1 ? 2 * half_of_pair(warp, 0) : 0)};
}
INLINE void copy_chunk(const Arguments& p, const From& from, const Slot& slot) {
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      copy_16(slot.codes + 1024 * r + 512 * h, from.codes + static_cast<i64>(r) * p.chunks * 1024 + 512 * h, 16);
#pragma unroll
  for (int i = 0; i < PAIRS; i++)
    copy_4((slot.scales & ~3u) + 128 * i, from.scales + static_cast<i64>(i) * p.chunks * 128);
}
INLINE void scales_of_slot(const Slot& slot, Weights& weights) {
#pragma unroll
  for (int i = 0; i < PAIRS; i++)
    weights.scales[i] = TILES == 1 ? load_shared_2(slot.scales) : load_shared_4(slot.scales + 128 * i);
}
INLINE uint4 codes_of_slot(const Slot& slot, int r, int half) { return load_shared_16(slot.codes + 1024 * r + 512 * half); }
