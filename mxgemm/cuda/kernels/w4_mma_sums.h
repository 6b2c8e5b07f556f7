// Shared memory of w4_mma.cu, and the end of it: the sums of its warps, added in order and stored.
// Macros: those of w4_mma.cu.
//
// Workgroups of a cluster share K. Each has an equal part of the results, which the others send it their sums of: one for
// all their warps, so that few bytes pass from one multiprocessor to another.
#pragma once
#include "cluster.h"
#include "floats.h"
#include "w4_operands.h"

constexpr int WARPS = WARPS_N * WARPS_M * WARPS_K, ROWS = 16 * TILES, COLUMNS = 8 * MT;
constexpr int ALONG_K = WARPS_K * SPLITS;  // warps that share K
static_assert(!A_SLOTS || WARPS_N == 1 || WARPS_K * WARPS_M < 16, "warps that share A have a barrier of their own");
constexpr int PITCH = ROWS + 4;            // of a row of sums in shared memory: the quads of a warp meet different banks
// Words of shared memory of a warp, 64 bytes at a time: A's, the same as the sums'.
constexpr int OF_A = (A_SLOTS * MT * 8 * 256 / 64 + WARPS_N - 1) / WARPS_N * 16;
constexpr int SHARED = COLUMNS * PITCH > OF_A ? COLUMNS * PITCH : OF_A;

// [WARPS_M][WARPS_K][WARPS_N][SHARED], of that [COLUMNS][PITCH]; then, in a cluster, a barrier and [SPLITS][its results].
// Before, warps that differ only along N have A's slots together where their sums are then.
extern __shared__ __align__(128) float sums[];
constexpr int BARRIER_AT = WARPS * SHARED, RECEIVED_AT = BARRIER_AT + 4;

// All strides are in bytes but those of a, bias and out, which are in elements.
struct Arguments {
  const u8* a;
  const u8* rounded;  // by round_a.cu
  const u8* w;
  const u8* s;
  const u8* bias;
  u8* out;
  i64 a_row, a_column;
  i64 w_tile, w_row, w_block, w_byte;                      // 16 rows, a row, a block, a byte
  i64 s_tile, s_half, s_row, s_eighth, s_fourth, s_block;  // 32 rows, 16 rows, a row; 8 blocks, 4 blocks, a block
  i64 bias_stride, out_row, out_column;
  int m, n, k, bias_type, out_type, unused;
};

// Results of a lane and turn. Where there are few turns few are enough: code that runs once takes the time to fetch it.
// Of eight rows of A some may be past the last one.
constexpr int TURNS = WARPS_N * ROWS * COLUMNS * WARPS_M / (32 * WARPS);
constexpr int COUNT = TURNS >= 4 ? 4 : TURNS >= 2 && MT * WARPS_M > 1 ? 2 : 1;
struct Sum {
  float v[COUNT];
};
INLINE void add_from_shared(Sum& sum, u32 at) {
  if (COUNT == 4) {
    u32 v[4];
    words_of(load_shared_16(at), v);
#pragma unroll
    for (int i = 0; i < COUNT; i++) sum.v[i] += float_of(v[i]);
  } else if (COUNT == 2) {
    const uint2 v = load_shared_8(at);
    sum.v[0] += float_of(v.x), sum.v[COUNT - 1] += float_of(v.y);
  } else {
    sum.v[0] += float_of(load_shared_4(at));
  }
}

// Where a result and those of the next rows of the weight lie: the sums of the first warp that has a part of them, an
// address in shared memory, and themselves, of weight row n, in `out`.
struct Spot {
  u32 from;
  int n;
  i64 to;
};
// Of a workgroup's result z, which is of its weight row z % (WARPS_N ROWS).
INLINE Spot spot_of(const Arguments& p, int group, u32 z) {
  const u32 local = z % (WARPS_N * ROWS), m = z / (WARPS_N * ROWS);
  const u32 warp = m / COLUMNS * WARPS_K * WARPS_N + local / ROWS;
  const int n = group * (WARPS_N * ROWS) + static_cast<int>(local);
  const float* const from = sums + warp * SHARED + m % COLUMNS * PITCH + local % ROWS;
  return {shared_address(from), n, m * p.out_row + n * (OUT_VECTOR ? 1 : p.out_column)};
}

// What a workgroup's warps have.
INLINE Sum sum_of_warps(u32 from) {
  Sum sum = {};
#pragma unroll
  for (int i = 0; i < WARPS_K; i++) add_from_shared(sum, from + i * (WARPS_N * SHARED * 4));
  return sum;
}

// A cluster's workgroups have as many results each, a multiple of 4, and the last one what is left.
INLINE int results_each(const Arguments& p) { return (WARPS_N * ROWS / 4 * p.m + SPLITS - 1) / SPLITS * 4; }
INLINE int results_of(const Arguments& p, int rank) {
  return max(0, min(results_each(p), WARPS_N * ROWS * p.m - rank * results_each(p)));
}

// Before all else.
INLINE void begin_sums(const Arguments& p, int rank) {
#if SPLITS > 1
  cluster_begins(shared_address(sums + BARRIER_AT), (SPLITS - 1) * 4 * results_of(p, rank), threadIdx.x == 0);
#endif
}

// Of a lane's first turn, often its only one: where its results are, and the sums that it sends to the other workgroup of
// a cluster of two. With SPOTS_FIRST they are computed before anything is waited for.
constexpr bool ONE_TURN = SPOTS_FIRST && (WARPS_N * ROWS / 4 * COLUMNS * WARPS_M + SPLITS - 1) / SPLITS * 4 <= COUNT * 32 * WARPS;
struct Spots {
  Spot own;
  u32 sent_from;
};
INLINE Spots first_spots(const Arguments& p, int group, int rank) {
  const int each = results_each(p), z = COUNT * static_cast<int>(threadIdx.x);
  return {spot_of(p, group, rank * each + z), SPLITS == 2 ? spot_of(p, group, (1 - rank) * each + z).from : 0};
}

INLINE void add_and_store(const Arguments& p, int group, int rank, const Spots& spots) {
  const int each = results_each(p), begin = COUNT * static_cast<int>(threadIdx.x), count = results_of(p, rank);
  constexpr int STEP = COUNT * 32 * WARPS;
  Sum own = {};
#if SPLITS > 1
  const u32 barrier = shared_address(sums + BARRIER_AT), received = shared_address(sums + RECEIVED_AT);
  wait_for_cluster();
#pragma unroll 1
  for (int other = 1; other < SPLITS; other++) {
    const int to = (rank + other) % SPLITS, sent = results_of(p, to);
#pragma unroll 1
    for (int z = begin; z < sent; z += STEP) {
      const u32 from = ONE_TURN && SPLITS == 2 ? spots.sent_from : spot_of(p, group, to * each + z).from;
      send(received + 4 * (rank * each + z), barrier, to, sum_of_warps(from).v);
      if (ONE_TURN) break;
    }
  }
  if (ONE_TURN && begin < count) own = sum_of_warps(spots.own.from);  // while what others send is on its way
  wait_for_sent(barrier);
#endif
#pragma unroll 1
  for (int z = begin; z < count; z += STEP) {
    const Spot spot = ONE_TURN ? spots.own : spot_of(p, group, rank * each + z);
    if (!ONE_TURN || SPLITS == 1) own = sum_of_warps(spot.from);
    Sum sum = {};
#pragma unroll
    for (int i = 0; i < SPLITS; i++) {
      if (i == rank)
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum.v[j] += own.v[j];
      else
        add_from_shared(sum, shared_address(sums + RECEIVED_AT + i * each + z));
    }
    const int n = spot.n;
#if OUT_VECTOR
    if (n < p.n) {
      if (p.bias)
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum.v[j] += load_float(p.bias, (n + j) * p.bias_stride, p.bias_type);
      store_floats(p.out, spot.to, p.out_type, sum.v);
    }
#else
#pragma unroll
    for (int j = 0; j < COUNT; j++)
      if (n + j < p.n) {
        if (p.bias) sum.v[j] += load_float(p.bias, (n + j) * p.bias_stride, p.bias_type);
        store_float(p.out, spot.to + j * p.out_column, p.out_type, sum.v[j]);
      }
#endif
    if (ONE_TURN) break;
  }
}
