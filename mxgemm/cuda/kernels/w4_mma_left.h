// The second loop of w4_mma.cu: chunks that bf16 cannot hold, where extreme scales or NaN are among A's or the weight's.
// Macros: those of w4_mma.cu.
#pragma once
#include "w4_mma_places.h"

constexpr float UP = A_CODES ? 1ull << 2 * DOWN : 1ull << DOWN;  // what sums are too small by: see round_block.h

// x 2^(a - 127) 2^(w - 127) of two scale bytes, in two steps of which the first neither rounds nor overflows where the
// result does not. A weight's scale below LEAST_FAST has 2^-8 in the sum already.
INLINE float scaled(float x, u32 a, u32 w) {
  if (a == 255 || w == 255) return float_of(0x7FC00000u);
  const int e = static_cast<int>(a + w) - 254 + (w < LEAST_FAST ? 8 : 0), half = e >> 1;
  return x * float_of(static_cast<u32>(half + 127) << 23) * float_of(static_cast<u32>(e - half + 127) << 23);
}

// Adds a warp's chunks that are in `left`, the last one in the lowest bit, to its sums in shared memory, of which a lane's
// begin at `mine`: A and the weights without their scales, the values of one block a time, the others' A being 0.
INLINE void add_what_was_left(const Places& places, u64 left, float* mine) {
#pragma unroll 1
  for (; left; left &= left - 1) {
    const int chunk = places.first + ((places.end - 1 - places.first) / ALONG_K - lowest_bit(left)) * ALONG_K;
    const i64 codes_at = places.codes_at(chunk), scales_at = places.scales_at(chunk);
#pragma unroll 1
    for (int c = 0; c < MT; c++) {
      u32 x[16];
      const u32 scale = round_unscaled(places.load_raw(places.a_of(c), chunk), x);
#pragma unroll 1
      for (int r = 0; r < TILES; r++) {
        u32 q[2][4], s[2], factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          words_of(load_weights(places.codes_of(r, h) + codes_at, places.p.w_byte), q[h]);
          s[h] = load_u8(places.scales_of(r, h) + scales_at);
          factor[h] = twice((127 + 126 - (s[h] < LEAST_FAST ? 8 : 0)) << 7);
        }
#pragma unroll 1
        for (int block = 0; block < 4; block++) {
          float sum[4] = {};
#pragma unroll
          for (int i = 0; i < 4; i++) {
            u32 d[2][4];
            decode(q[0][i], factor[0], d[0]);
            decode(q[1][i], factor[1], d[1]);
#pragma unroll
            for (int j = 0; j < 4; j += 2)
              multiply(sum, d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], places.t == block ? x[4 * i + j] : 0,
                       places.t == block ? x[4 * i + j + 1] : 0);
          }
#pragma unroll
          for (int j = 0; j < 4; j++) {
            const u32 of_a = from_lane(scale, (2 * places.t + (j & 1)) * 4 + block);
            const u32 of_w = from_lane(s[j >> 1], places.g * 4 + block);
            mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] += scaled(sum[j], of_a, of_w);
          }
        }
      }
    }
  }
}
