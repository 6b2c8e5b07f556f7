// Shared memory of grouped_mma.cu, its arguments, and its end: sums of the warps, the activation, rounding, stores.
//
// Macros: those of grouped_mma.cu. GATED: 0 for plain results; 1 where gate and up are rows in turn, 2 where they are the
// two halves of N. Gated results have half as many columns, of which a workgroup has 32: one block, so that a warp with a
// row of it quantises it alone. QUANTISES: they are bytes of A_FORMAT with scales.
#pragma once
#include "floats.h"
#include "grouped_rows.h"
#include "mx_codes.h"
#include "warp.h"

constexpr int WARPS = WARPS_N * WARPS_K, THREADS = 32 * WARPS, ROWS = 16 * TILES, COLUMNS = 8 * MT;
constexpr int ROWS_OF_ALL = WARPS_N * ROWS;  // of the weight
constexpr int PITCH = ROWS + 4;              // of a row of sums: the quads of a warp meet different banks
constexpr int SHARED = COLUMNS * PITCH;      // of a warp
constexpr float UP = A_FORMAT == BF16 ? 1ull << DOWN : 1ull << 2 * DOWN;  // what sums are too small by
static_assert(!GATED || ROWS_OF_ALL == 64, "a block of 32 gated columns");
#include "grouped_tile.h"

extern __shared__ __align__(128) float sums[];  // [WARPS][SHARED], of that [COLUMNS][PITCH]; then a Tile

// Strides of a, bias and out are in elements, the others in bytes.
struct Arguments {
  const u8* a;
  const u8* a_scales;
  const u8* w;
  const u8* s;
  const u8* bias;
  u8* out;
  u8* out_scales;
  Routing routing;
  i64 a_row, a_column, a_scales_row;
  i64 w_expert, w_row, s_expert, s_row;
  i64 bias_expert, bias_column, out_row, out_column;
  int n, k, bias_type, out_type;
  float alpha, limit, offset;  // limit: infinity for none
  int unused;
};

// x 2^(a - 127) 2^(w - 127) of two scale bytes, in two steps of which the first neither rounds nor overflows where the
// result does not. A weight's scale below LEAST_FAST has 2^-8 in the sum already.
INLINE float scaled(float x, u32 a, u32 w) {
  if (a == 255 || w == 255) return float_of(0x7FC00000u);
  const int e = static_cast<int>(a + w) - 254 + (w < LEAST_FAST ? 8 : 0), half = e >> 1;
  return x * float_of(static_cast<u32>(half + 127) << 23) * float_of(static_cast<u32>(e - half + 127) << 23);
}

// The row of the weight that row `local` of workgroup `place` is.
INLINE int row_of_weight(int n, int place, int local) {
#if GATED == 2
  return place * 32 + (local & 31) + (local >> 5) * (n >> 1);
#else
  return place * ROWS_OF_ALL + local;
#endif
}

// What the warps have of a row of A and of the weight, and the bias.
INLINE float sum_of_warps(const Arguments& p, const Tile& tile, int place, int m, int local) {
  const float* of_warp = sums + local / ROWS * WARPS_K * SHARED + m * PITCH + local % ROWS;
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS_K; i++) sum += of_warp[i * SHARED];
  if (tile.expert < 0) return 0.f;
  if (p.bias) {
    const int n = row_of_weight(p.n, place, local);
    sum += load_float(p.bias, tile.expert * p.bias_expert + n * p.bias_column, p.bias_type);
  }
  return tile.source[m] < 0 ? float_of(0x7FC00000u) : sum;
}

#if GATED
INLINE float gated(const Arguments& p, float gate, float up) {  // a NaN stays one
  gate = gate > p.limit ? p.limit : gate;
  up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  const float sigmoid = 1.f / (1.f + power_of_two(gate * (p.alpha * -1.44269504f)));
  return gate * sigmoid * (up + p.offset);
}

#if QUANTISES
// The lanes of a warp have a block of a row: its codes and scale are stored.
INLINE void quantise_and_store(const Arguments& p, int place, i64 row, float value) {
  const int lane = threadIdx.x & 31;
  u32 amax = bits_of(value) & 0x7FFFFFFFu;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) amax = max(amax, from_lane_xor(amax, d));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = up > EMAX ? up - EMAX : 0;
  const bool finite = amax < 0x7F800000u;
  u32 code = code_of(finite ? rounded(value * float_of((254 - e) << 23)) : 0.f);
#if A_FORMAT == E2M1
  code <<= lane % 8 * 4;
#pragma unroll
  for (int d = 1; d < 8; d *= 2) code |= from_lane_xor(code, d);
  if (lane % 8 == 0) store_u32(p.out + row * p.out_row + place * 16 + lane / 2, code);
#else
  store_u8(p.out + row * p.out_row + place * 32 + lane, code);
#endif
  if (lane == 0) store_u8(p.out_scales + row * (p.n >> 6) + place, finite ? e : 255);
}
#endif

INLINE void store_results(const Arguments& p, int place, const Tile& tile) {
  const int lane = threadIdx.x & 31;
  const int gate_at = GATED == 1 ? 2 * lane : lane, up_at = GATED == 1 ? 2 * lane + 1 : 32 + lane;
#pragma unroll 1
  for (int m = threadIdx.x >> 5; m < tile.count; m += WARPS) {
    const float gate = sum_of_warps(p, tile, place, m, gate_at), up = sum_of_warps(p, tile, place, m, up_at);
    const float value = gated(p, gate, up);
#if QUANTISES
    quantise_and_store(p, place, tile.target[m], value);
#else
    store_float(p.out, tile.target[m] * p.out_row + (place * 32 + lane) * p.out_column, p.out_type, value);
#endif
  }
}
#else
// One sum a lane and turn: code that runs once takes the time to fetch it.
INLINE void store_results(const Arguments& p, int place, const Tile& tile) {
#pragma unroll 1
  for (int z = threadIdx.x; z < ROWS_OF_ALL * tile.count; z += THREADS) {
    const int local = z % ROWS_OF_ALL, m = z / ROWS_OF_ALL, n = place * ROWS_OF_ALL + local;
    if (n < p.n)
      store_float(p.out, tile.target[m] * p.out_row + n * p.out_column, p.out_type,
                  sum_of_warps(p, tile, place, m, local));
  }
}
#endif
