// Results of the kernels of warpgroups, four side by side.
// Macros: COLUMNS, rows of A of a workgroup; WK, warpgroups that share K; SPLITS, workgroups of a cluster; OUT_VECTOR.
#pragma once
#include "floats.h"
#include "wgmma.h"

INLINE void store_four(u8* p, i64 at, int type, const float4& v) {
  if (type == OF_FP32)
    store_16(p + 4 * at, make_uint4(bits_of(v.x), bits_of(v.y), bits_of(v.z), bits_of(v.w)));
  else if (type == OF_FP16)
    store_8(p + 2 * at, f16_of(v.x) | f16_of(v.y) << 16, f16_of(v.z) | f16_of(v.w) << 16);
  else
    store_8(p + 2 * at, bf16x2_of(v.x, v.y), bf16x2_of(v.z, v.w));
}
INLINE float4 added(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Sums of a workgroup of so many lanes, times `up`: they are added over what shares K, in order, and stored. They lie in
// shared memory from `ring` on, of each part of K [COLUMNS][PITCH]. Four rows of the weight a lane, always the same. A
// cluster's workgroups take rows of A in turn.
template <int ROWS, int PITCH, int LANES, class Arguments>
INLINE void store_sums(const Arguments& p, u32 ring, int tile_m, int n0, int split, float up) {
  constexpr int LANES_A_ROW = ROWS / 4, STEP = LANES / LANES_A_ROW;
  const int column = static_cast<int>(threadIdx.x) % LANES_A_ROW * 4, n = n0 + column;
  const int m_end = min(COLUMNS, p.m - tile_m * COLUMNS);
  auto sum_of = [&](int m) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int s = 0; s < SPLITS; s++)
#pragma unroll
      for (int i = 0; i < WK; i++) {
        const u32 at = ring + ((i * COLUMNS + m) * PITCH + column) * 4;
        sum = added(sum, SPLITS > 1 ? load_sums_of(at, s) : load_sums(at));
      }
    return sum;
  };
  float bias[4] = {};
  if (p.bias)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (n + i < p.n) bias[i] = load_float(p.bias, (n + i) * p.bias_stride, p.bias_type);
  auto finish = [&](int m, const float4& sum) {
    const float4 v =
        make_float4(sum.x * up + bias[0], sum.y * up + bias[1], sum.z * up + bias[2], sum.w * up + bias[3]);
    const i64 at = static_cast<i64>(tile_m * COLUMNS + m) * p.out_row + n * p.out_column;
    if (OUT_VECTOR && n + 4 <= p.n) {
      store_four(p.out, at, p.out_type, v);
    } else {
      const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i < p.n) store_float(p.out, at + i * p.out_column, p.out_type, each[i]);
    }
  };
#pragma unroll 1
  for (int m = static_cast<int>(threadIdx.x) / LANES_A_ROW * SPLITS + split; m < m_end; m += STEP * SPLITS)
    finish(m, sum_of(m));
}
