// The last launch of fp8_fold where the vendor's product of e4m3 elements lacks the bases of their rows: out = product times
// both bases, powers of two, plus bias; and rows of A that do not fold anew, from A and the weight in e4m3.
//
// The first workgroups finish tiles of 8 ROWS rows and 256 columns, a warp ROWS rows, a lane 8 columns. The warps of the
// others, RECOMPUTE workgroups, look for rows that do not fold and share their columns. The product may lie where the
// result is to be.
//
// Macros: those of round_block.h; A_VECTOR, loads of 16 bytes of A are aligned and contiguous; FP32_PRODUCT, or bf16; ROWS;
// RECOMPUTE; OUT_VECTOR, eight results of a row are 8 elements side by side, aligned; PACKED, so in bf16 as the product, N is
// a multiple of 8 and there is no bias.
#include "load_values.h"
#include "floats.h"
#include "warp.h"

constexpr int THREADS = 256, WARPS = THREADS / 32, TILE_M = WARPS * ROWS, TILE_N = 256;
constexpr int PARTS = 4;  // of 8 columns, of rows that are recomputed

// Strides in elements.
struct Arguments {
  const u8* unfolded;  // int32, of each row of A, and whole fours of them
  const u8* product;
  const u8* base;      // fp32, of each row of A
  const u8* a;
  const u8* w;         // e4m3 [>= n, k]
  const u8* w_base;    // fp32, of each row of w, aligned to 16 bytes
  const u8* bias;
  u8* out;
  i64 a_row, a_column, bias_stride, out_row, out_column;
  int m, n, k, product_row, bias_type, out_type;
};

INLINE float bias_of(const Arguments& p, int n) {
  return p.bias && n < p.n ? load_float(p.bias, n * p.bias_stride, p.bias_type) : 0.f;
}

INLINE void store_eight(const Arguments& p, int m, int n, const float (&v)[8]) {
  const i64 at = m * p.out_row + n * p.out_column;
  if (OUT_VECTOR && n + 8 <= p.n) {
    if (p.out_type == OF_FP32) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        store_16(p.out + 4 * (at + 4 * h),
                 make_uint4(bits_of(v[4 * h]), bits_of(v[4 * h + 1]), bits_of(v[4 * h + 2]), bits_of(v[4 * h + 3])));
    } else {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        w[i] = p.out_type == OF_FP16 ? f16_of(v[2 * i]) | f16_of(v[2 * i + 1]) << 16 : bf16x2_of(v[2 * i], v[2 * i + 1]);
      store_16(p.out + 2 * at, make_uint4(w[0], w[1], w[2], w[3]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (n + i < p.n) store_float(p.out, at + i * p.out_column, p.out_type, v[i]);
  }
}

// Two bf16 times powers of two, given as pairs of exponents in place, of a row and of columns.
INLINE u32 times_powers(u32 x, u32 row_half, u32 row_rest, u32 half, u32 rest) {
  return mul_bf16x2(mul_bf16x2(x, row_half + half), row_rest + rest);
}

// A tile. Of a row's power of two goes one half after the other, with that of a column: the product of both whole may be
// too large or too small for a float where the result is not.
INLINE void finish(const Arguments& p, int tile) {
  const int across = (p.n + TILE_N - 1) / TILE_N, warp = static_cast<int>(threadIdx.x) >> 5;
  const int n = tile % across * TILE_N + 8 * static_cast<int>(threadIdx.x & 31), m0 = (tile / across * WARPS + warp) * ROWS;
  if (n >= p.n) return;
  u32 unfolded[ROWS], base[ROWS], column[8];
  uint4 words[ROWS][1 + FP32_PRODUCT];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int h = 0; h <= FP32_PRODUCT; h++)
      words[r][h] = load_16(p.product + (static_cast<i64>(min(m0 + r, p.m - 1)) * p.product_row + n + 4 * h) *
                                            (2 + 2 * FP32_PRODUCT));
#pragma unroll
  for (int h = 0; h < 2; h++) {
    u32 w[4];
    words_of(load_16(p.w_base + 4 * (n + 4 * h)), w);
#pragma unroll
    for (int i = 0; i < 4; i++) column[4 * h + i] = w[i] >> 23;
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int m = min(m0 + r, p.m - 1);
    unfolded[r] = load_u32(p.unfolded + 4 * m), base[r] = load_u32(p.base + 4 * m) >> 23;
  }
#if PACKED
  u32 half[4], rest[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 both = column[2 * i] | column[2 * i + 1] << 16;
    half[i] = both >> 1 & 0x007F007Fu, rest[i] = (both - half[i]) << 7, half[i] <<= 7;
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (m0 + r >= p.m || unfolded[r]) continue;
    const u32 row_half = twice(base[r] >> 1) << 7, row_rest = twice(base[r] - (base[r] >> 1)) << 7;
    const u32 nan = base[r] == 255 ? 0x7FC07FC0u : 0;  // a row with a NaN or an infinity
    u32 w[4];
    words_of(words[r][0], w);
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = times_powers(w[i], row_half, row_rest, half[i], rest[i]) | nan;
    store_16(p.out + 2 * ((m0 + r) * p.out_row + n), make_uint4(w[0], w[1], w[2], w[3]));
  }
#else
  u32 half[8];
  float bias[8];
#pragma unroll
  for (int i = 0; i < 8; i++) half[i] = column[i] >> 1 << 23, column[i] = (column[i] << 23) - half[i], bias[i] = bias_of(p, n + i);
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (m0 + r >= p.m || unfolded[r]) continue;
    const u32 row_half = base[r] >> 1 << 23, row_rest = (base[r] << 23) - row_half;
    float v[8];
#pragma unroll
    for (int h = 0; h <= FP32_PRODUCT; h++) {
      u32 w[4];
      words_of(words[r][h], w);
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (FP32_PRODUCT)
          v[4 * h + i] = float_of(w[i]);
        else
          v[2 * i] = float_of(w[i] << 16), v[2 * i + 1] = float_of(w[i] & 0xFFFF0000u);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i] = v[i] * float_of(row_half + half[i]) * float_of(row_rest + column[i]) + bias[i];
      if (base[r] == 255) v[i] = float_of(0x7FC00000u);  // a row with a NaN or an infinity
    }
    store_eight(p, m0 + r, n, v);
  }
#endif
}

// Four bytes of e4m3 as two words of bf16. A byte's bits are those of a bf16 120 binades down, subnormals included.
INLINE void bf16_of_e4m3(u32 bytes, u32 (&x)[2]) {
  const u32 nan = ((bytes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 both = permute(bytes, 0, i ? 0x3424 : 0x1404);  // each byte at the top of a half
    const u32 nans = permute(nan, 0, i ? 0x3424 : 0x1404);
    x[i] = mul_bf16x2((both & 0x80008000u) | (both & 0x7F007F00u) >> 4, twice((127 + 120) << 7));
    if (nans) x[i] |= (nans >> 15 & 0x00010001u) * 0x7FC0u;
  }
}

// Eight values of a block of A, of which the lanes t have the others, as they lie.
INLINE void round_eight(float (&v)[8], u32 (&x)[4]) {
  u32 amax = largest(v);
  amax = max(amax, from_lane_xor(amax, 1));
  amax = max(amax, from_lane_xor(amax, 2));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(up > EMAX ? up - EMAX : 0, 253u);
  const float reciprocal = float_of((254 - e) << 23), scale = float_of(e ? e << 23 : 1u << 22);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = rounded(v[i] * reciprocal) * scale;
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = bf16x2_of(v[2 * i], v[2 * i + 1]);
}

// Sixteen rows of A from m0 on, those of `chosen` alone to be stored, times 8 PARTS rows of the weight from n0 on. K is
// permuted within a block, of A as of the weight, so that a lane has 8 values side by side.
INLINE void recompute(const Arguments& p, int m0, u32 chosen, int n0) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const u8* rows[2];
  const u8* columns[PARTS];
#pragma unroll
  for (int h = 0; h < 2; h++)
    rows[h] = p.a + (min(m0 + g + 8 * h, p.m - 1) * p.a_row + 8 * t * p.a_column) * A_BYTES;
#pragma unroll
  for (int j = 0; j < PARTS; j++) columns[j] = p.w + static_cast<i64>(min(n0 + 8 * j + g, p.n - 1)) * p.k + 8 * t;
  float sums[PARTS][4] = {};
#pragma unroll 1
  for (int k = 0; k < p.k; k += 32) {
    u32 x[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float v[8];
      load_values(rows[h] + k * p.a_column * A_BYTES, p.a_column * A_BYTES, v);
      round_eight(v, x[h]);
    }
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      u32 w[2][2];
#pragma unroll
      for (int i = 0; i < 2; i++) bf16_of_e4m3(load_u32(columns[j] + k + 4 * i), w[i]);
#pragma unroll
      for (int i = 0; i < 2; i++)
        multiply(sums[j], x[0][2 * i], x[1][2 * i], x[0][2 * i + 1], x[1][2 * i + 1], w[i][0], w[i][1]);
    }
  }
#pragma unroll
  for (int j = 0; j < PARTS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = g + (i & 2) * 4, n = n0 + 8 * j + 2 * t + (i & 1);
      if ((chosen >> row & 1) == 0 || n >= p.n) continue;
      const float v = sums[j][i] * float_of(load_u32(p.w_base + 4 * n)) + bias_of(p, n);
      store_float(p.out, (m0 + row) * p.out_row + n * p.out_column, p.out_type, v);
    }
}

// Does any row not fold? Mostly none does, and there is nothing but this to wait for: loads are under way together.
INLINE bool some_row(const Arguments& p, int lane) {
  u32 some = 0;
#pragma unroll 1
  for (int first = 4 * lane; first < p.m + 4 * lane; first += 8 * 128)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int m = first + 128 * i;
      if (m >= p.m) continue;
      const uint4 four = load_16(p.unfolded + 4 * m);
      some |= four.x | (m + 1 < p.m ? four.y : 0) | (m + 2 < p.m ? four.z : 0) | (m + 3 < p.m ? four.w : 0);
    }
  return any_lane(some != 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 2 ? 3 : 2) fold_last(const Arguments p) {
  wait_for_earlier_launches();
  let_later_launches_begin();
  const int across = (p.n + TILE_N - 1) / TILE_N, tiles = (p.m + TILE_M - 1) / TILE_M * across;
  const int at = static_cast<int>(blockIdx.x);
  if (at < tiles) return finish(p, at);
  const int first = (at - tiles) * WARPS + (static_cast<int>(threadIdx.x) >> 5), lane = threadIdx.x & 31;
  if (!some_row(p, lane)) return;
#pragma unroll 1
  for (int m = 0; m < p.m; m += 32) {
    const u32 chosen = lanes_where(m + lane < p.m && load_u32(p.unfolded + 4 * min(m + lane, p.m - 1)));
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
      const u32 some = chosen >> (16 * h) & 0xFFFFu;
      if (!some) continue;
#pragma unroll 1
      for (int n = first * 8 * PARTS; n < p.n; n += RECOMPUTE * WARPS * 8 * PARTS) recompute(p, m + 16 * h, some, n);
    }
  }
}
