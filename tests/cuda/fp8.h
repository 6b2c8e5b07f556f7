// Stands in for mxgemm/cuda/kernels/fp8.h on a CPU, beside wgmma.h: products are done when they are waited for.
#pragma once
#ifdef SHARED_OF_WORKGROUPS
#include "wgmma.h"

#include "warp.h"
#else
#include "sm90.h"
#endif

INLINE u32 e4m3_of(float x) {
  if (std::isnan(x)) return 0x7F;
  const u32 sign = bits_of(x) >> 31 << 7;
  for (u32 byte = 0; byte < 0x7F; byte++) {  // what is converted has such a value
    const int e = byte >> 3, m = byte & 7;
    if (std::ldexp(e ? 8 + m : m, (e ? e : 1) - 10) == std::fabs(x)) return sign | byte;
  }
  wrong("a value that e4m3 has not");
}
INLINE u32 e4m3x2_of(float low, float high) { return e4m3_of(low) | e4m3_of(high) << 8; }

INLINE u32 fold_pair(u32 x, float reciprocal, u32 unit) {
  u32 made = 0;
  for (int h = 0; h < 2; h++) {
    const double y = float_of_f16(f16_of(value_of_bf16(x >> (16 * h) & 0xFFFFu) * reciprocal));
    const double m = std::fmin(std::fabs(y), 6), step = m >= 4 ? 2 : m >= 2 ? 1 : 0.5;
    const double rounded = std::copysign(std::nearbyint(m / step) * step, y) * float_of_f16(unit & 0xFFFFu);
    made |= e4m3_of(static_cast<float>(rounded)) << (8 * h);
  }
  return made;
}
INLINE u32 most_of_warp(u32 x) {
  for (int i = 1; i < 32; i *= 2) x = max(x, from_lane_xor(x, i));
  return x;
}

#ifdef SHARED_OF_WORKGROUPS
INLINE u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
INLINE u32 load_shared_1(u32 at) { return *in_shared(at, 1); }
INLINE void store_shared_1(u32 at, u32 v) { *in_shared(at, 1) = static_cast<u8>(v); }
INLINE void store_shared_8(u32 at, u32 low, u32 high) {
  const u32 both[] = {low, high};
  std::memcpy(in_shared(at, 8), both, 8);
}
INLINE void copy_16_of_256(u32 to, const void* from) { copy_16(to, from, 16); }
INLINE void come_to_rest(float&) {}
static void multiply_fp8(float (&d)[32], const u32 (&x)[4], u64 b, bool first) {
  std::vector<std::vector<Product>>& groups = products[running];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({{x[0], x[1], x[2], x[3], static_cast<u32>(b), 64, first ? OF_E4M3 : OF_E4M3_ADDED}, d});
}
static void multiply_fp8(float (&d)[32], const u32 (&x)[4][4], u64 b) {
  for (int i = 0; i < 4; i++) multiply_fp8(d, x[i], b + 2 * i, i == 0);
}
#endif
