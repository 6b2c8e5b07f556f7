// Values of A that a lane rounds to e2m1 and folds to e4m3: of bf16 side by side two at a time, of others each by itself.
//
// Macros: those of load_values.h; VALUES of a lane.
#pragma once
#include "load_values.h"
#include "fp8.h"

#define PAIRS (A_TYPE == BF16 && A_VECTOR)

#if PAIRS
struct Values {
  u32 x[VALUES / 2];
};
INLINE void load(Values& v, const u8* from, i64) {
#pragma unroll
  for (int i = 0; i < VALUES / 8; i++) {
    const uint4 some = load_16(from + 16 * i);
    v.x[4 * i] = some.x, v.x[4 * i + 1] = some.y, v.x[4 * i + 2] = some.z, v.x[4 * i + 3] = some.w;
  }
}
// fp32 bits; a NaN's are above infinity's.
INLINE u32 largest_of(const Values& v) {
  u32 m[4] = {};  // so that no maximum waits for all others
#pragma unroll
  for (int i = 0; i < VALUES / 2; i++) m[i % 4] = max_bf16x2(m[i % 4], abs_bf16x2(v.x[i]));
  const u32 most = max_bf16x2(max_bf16x2(m[0], m[1]), max_bf16x2(m[2], m[3]));
  return max(most << 16, most & 0xFFFF0000u);
}
INLINE void fold_values(const Values& v, u32 reciprocal, int shift, u32 (&made)[VALUES / 4]) {
  const u32 unit = static_cast<u32>(shift + 15) << 10;
#pragma unroll
  for (int i = 0; i < VALUES / 4; i++)
    made[i] = fold_pair(v.x[2 * i], float_of(reciprocal), unit | unit << 16) |
              fold_pair(v.x[2 * i + 1], float_of(reciprocal), unit | unit << 16) << 16;
}
#else
struct Values {
  float x[VALUES / 8][8];
};
INLINE void load(Values& v, const u8* from, i64 column) {
#pragma unroll
  for (int i = 0; i < VALUES / 8; i++) load_values(from + 8 * i * column * A_BYTES, column * A_BYTES, v.x[i]);
}
INLINE u32 largest_of(const Values& v) {
  u32 m = 0;
#pragma unroll
  for (int i = 0; i < VALUES / 8; i++) m = max(m, largest(v.x[i]));
  return m;
}
INLINE void fold_values(const Values& v, u32 reciprocal, int shift, u32 (&made)[VALUES / 4]) {
  const float unit = float_of(static_cast<u32>(shift + 127) << 23);
#pragma unroll
  for (int i = 0; i < VALUES / 8; i++) {
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = rounded(v.x[i][j] * float_of(reciprocal)) * unit;
#pragma unroll
    for (int h = 0; h < 2; h++)
      made[2 * i + h] = e4m3x2_of(x[4 * h], x[4 * h + 1]) | e4m3x2_of(x[4 * h + 2], x[4 * h + 3]) << 16;
  }
}
#endif
