// Weights on their way to a warp of grouped_mma.cu: each lane copies its own pieces of the chunks to come to SLOTS places of
// shared memory and reads them from there itself, so that nobody has to meet and what is in flight takes no registers.
//
// Macros: those of grouped_mma.cu. Weights are in fragment order, tiles come in pairs.
#pragma once
#include "grouped_results.h"

#if SLOTS
static_assert(FRAGMENTS && TOGETHER == 2, "pieces of 16 bytes, and scales of two tiles in a word");
constexpr u32 SCALES_AT = TILES * 1024, SLOT_BYTES = SCALES_AT + PLACES * 128;  // of a warp and a chunk

// Copies a lane's part of a chunk to a slot, of an expert's codes and scales.
INLINE void call(const u8* codes, const u8* scales, const int (&tile)[PLACES], int chunk, int chunks, u32 slot, int lane) {
  const u32 to = slot + 16 * lane;
#pragma unroll
  for (int i = 0; i < PLACES; i++) {  // pairs of tiles
    const u8 *low = codes + (static_cast<u32>(tile[i] * chunks + chunk) * 1024ull + 16 * lane), *high = low + chunks * 1024;
    copy_16(to + 2048 * i, low, 16), copy_16(to + 2048 * i + 512, low + 512, 16);
    copy_16(to + 2048 * i + 1024, high, 16), copy_16(to + 2048 * i + 1536, high + 512, 16);
    copy_4(slot + SCALES_AT + 128 * i + 4 * lane,
           scales + (static_cast<u32>((tile[i] >> 1) * chunks + chunk) * 128ull + 4 * lane));
  }
}

INLINE void scales_of_slot(u32 slot, int lane, Weights& weights) {
#pragma unroll
  for (int i = 0; i < PLACES; i++) weights.scales[i] = load_shared_4(slot + SCALES_AT + 128 * i + 4 * lane);
}
INLINE uint4 code_of_slot(u32 slot, int lane, int tile, int half) {
  return load_shared_16(slot + 1024 * tile + 512 * half + 16 * lane);
}
#endif
