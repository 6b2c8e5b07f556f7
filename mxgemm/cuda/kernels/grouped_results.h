// Shared memory of grouped_mma.cu, its arguments, and its end: sums of the warps, the activation, rounding, stores.
//
// Macros: those of grouped_mma.cu and of grouped_values.h.
#pragma once
#include "floats.h"
#include "grouped_rows.h"
#include "grouped_values.h"

constexpr int WARPS = WARPS_N * WARPS_K, THREADS = 32 * WARPS, ROWS = 16 * TILES, COLUMNS = 8 * MT;
constexpr int ROWS_OF_ALL = WARPS_N * ROWS;  // of the weight
constexpr int PITCH = ROWS + 4;              // of a row of sums: the quads of a warp meet different banks
constexpr int SHARED = COLUMNS * PITCH;      // of a warp
constexpr float UP = A_FORMAT == BF16 ? 1ull << DOWN : 1ull << 2 * DOWN;  // what sums are too small by
static_assert(!GATED || ROWS_OF_ALL == 64, "a block of 32 gated columns");
#include "grouped_tile.h"

extern __shared__ __align__(128) float sums[];  // [WARPS][SHARED], of that [COLUMNS][PITCH]

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
  int chunks, places, tiles;   // of K; of N, those of a workgroup and those of 16 rows, padded
};

// x 2^(a - 127) 2^(w - 127) of two scale bytes, in two steps of which the first neither rounds nor overflows where the
// result does not. A weight's scale below LEAST_FAST has 2^-8 in the sum already.
INLINE float scaled(float x, u32 a, u32 w) {
  if (a == 255 || w == 255) return float_of(0x7FC00000u);
  const int e = static_cast<int>(a + w) - 254 + (w < LEAST_FAST ? 8 : 0), half = e >> 1;
  return x * float_of(static_cast<u32>(half + 127) << 23) * float_of(static_cast<u32>(e - half + 127) << 23);
}

// The row of the weight that row `local` of workgroup `place` is.
INLINE int weight_row(int n, int place, int local) {
  return GATED == 2 ? row_of_weight(n, place, local) : place * ROWS_OF_ALL + local;
}

// The rows of a place whose results a thread stores: these of each row of A, so that their biases are called for before
// the product. Where a turn of all threads is no whole number of rows of A, they are found when they are wanted.
constexpr int OWN = GATED ? 2 : 1;
constexpr bool SAME_ROWS = GATED || THREADS % ROWS_OF_ALL == 0;
INLINE int own_row(u32 thread, int i) {
  const int lane = thread & 31;
  return GATED == 1 ? 2 * lane + i : GATED == 2 ? 32 * i + lane : static_cast<int>(thread) % ROWS_OF_ALL;
}
INLINE u32 bias_bits(const Arguments& p, int expert, int n) {
  if (!p.bias || expert < 0 || n >= p.n) return 0;
  const i64 at = expert * p.bias_expert + n * p.bias_column;
  return p.bias_type == OF_FP32 ? load_u32(p.bias + 4 * at) : load_u16(p.bias + 2 * at);
}
INLINE float bias_of(u32 bits, int type) {
  return type == OF_FP32 ? float_of(bits) : type == OF_FP16 ? float_of_f16(bits) : float_of(bits << 16);
}
struct Biases {
  u32 bits[OWN];
};
INLINE void call_biases(const Arguments& p, const Group& group, int place, u32 thread, Biases& biases) {
  if (SAME_ROWS)
#pragma unroll
    for (int i = 0; i < OWN; i++)
      biases.bits[i] = bias_bits(p, group.expert, weight_row(p.n, place, own_row(thread, i)));
}
INLINE void prefetch_biases(const Arguments& p, int expert, int place, u32 thread) {
  const int local = static_cast<int>(thread);
  if (!p.bias || local >= ROWS_OF_ALL) return;
  const int n = weight_row(p.n, place, local);
  if (n < p.n) prefetch_line(p.bias + (expert * p.bias_expert + n * p.bias_column) * (p.bias_type == OF_FP32 ? 4 : 2));
}

// What the warps have of a row of A and of the weight, and the bias.
INLINE float sum_of_warps(const Arguments& p, const float* sums, const Group& group, u32 bias, int m, int local) {
  const float* of_warp = sums + local / ROWS * WARPS_K * SHARED + m * PITCH + local % ROWS;
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS_K; i++) sum += of_warp[i * SHARED];
  if (group.expert < 0) return 0.f;
  if (p.bias) sum += bias_of(bias, p.bias_type);
  return is_absent(p.routing, group, m) ? float_of(0x7FC00000u) : sum;
}

// By STORING warps, whose `thread` it is.
#if GATED
template <int STORING = WARPS>
INLINE void store_results(const Arguments& p, const float* sums, int place, const Group& group, const Biases& biases,
                          u32 thread) {
#pragma unroll 1
  for (int m = thread >> 5; m < group.count; m += STORING) {
    const float gate = sum_of_warps(p, sums, group, biases.bits[0], m, own_row(thread, 0));
    const float up = sum_of_warps(p, sums, group, biases.bits[1], m, own_row(thread, 1));
    const float value = gated(Gate{p.alpha, p.limit, p.offset}, gate, up);
#if QUANTISES
    const i64 row = target_of(p.routing, group, m);
    quantise_and_store(p.out + row * p.out_row, p.out_scales + row * (p.n >> 6), place, value);
#else
    const int column = place * 32 + static_cast<int>(thread & 31);
    store_float(p.out, target_of(p.routing, group, m) * p.out_row + column * p.out_column, p.out_type, value);
#endif
  }
}
#else
// One sum a lane and turn: code that runs once takes the time to fetch it.
INLINE void store_results(const Arguments& p, const float* sums, int place, const Group& group, const Biases& biases,
                          u32 thread) {
#pragma unroll 1
  for (int z = thread; z < ROWS_OF_ALL * group.count; z += THREADS) {
    const int local = z % ROWS_OF_ALL, m = z / ROWS_OF_ALL, n = place * ROWS_OF_ALL + local;
    if (n < p.n)
      store_float(p.out, target_of(p.routing, group, m) * p.out_row + n * p.out_column, p.out_type,
                  sum_of_warps(p, sums, group, SAME_ROWS ? biases.bits[0] : bias_bits(p, group.expert, n), m, local));
  }
}
#endif
