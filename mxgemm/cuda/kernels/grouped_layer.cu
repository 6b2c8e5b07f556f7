// Both grouped products of a layer of experts in one launch, for calls that read a weight for few rows: to the bits of
// grouped_mma.cu, of weights in fragment order. What a lane does with a chunk is in w4_mma.cu and grouped_mma.cu.
//
// A unit is a tile of up to 8 rows of A (grouped_tile.h) by 64 weight rows, WARPS_K chunks a round. Of a workgroup's warps
// the last one calls for weights, by bulk copies to SLOTS places of shared memory, unit after unit, of the second product
// too, which depend on nobody; the first WARPS multiply; STORING warps add their sums and store. So memory is waited for
// once, whatever warps that multiply wait for. Rows of the second product are read when all units of the first that make
// them have been counted.
//
// Units come in shares, which running workgroups take by number, those of the first product before those of the second.
// Who has one of the first never waits: so all that is waited for is done by workgroups that run, however many there are.
//
// Macros: those of grouped_stream.cu, of the first product, but EARLY, BY_IDS and ROUNDS, which are 0; TAIL is of either.
#include "grouped_a.h"
#include "grouped_bulk.h"

constexpr int STORING = 4, ALL_THREADS = 32 * (WARPS + STORING + 1);
static_assert(TILES == 1 && ROWS_OF_ALL == 64 && GATED, "two pairs of tiles a unit");

constexpr u32 OF_TILE = WARPS_K * 1024, OF_PAIR = WARPS_K * 128;  // bytes of a round: codes, scales
constexpr u32 STAGE_BYTES = 4 * OF_TILE + 2 * OF_PAIR;

// Shared memory: two times the warps' sums; barriers; units, of each place and of both sums; a word for each chunk of A that
// says if a block of it is not held; the places; A's chunks.
constexpr u32 FULL_AT = 2 * WARPS * SHARED * 4, EMPTY_AT = FULL_AT + 8 * SLOTS;
constexpr u32 SUMS_FULL_AT = EMPTY_AT + 8 * SLOTS, SUMS_EMPTY_AT = SUMS_FULL_AT + 16;
constexpr u32 UNITS_AT = SUMS_EMPTY_AT + 16, UNITS_OF_SUMS_AT = UNITS_AT + 32 * SLOTS;
constexpr u32 FLAGS_AT = UNITS_OF_SUMS_AT + 64;
constexpr u32 RING_AT = (FLAGS_AT + 4 * 32 * WARPS_K + 127) / 128 * 128, ROWS_AT = RING_AT + SLOTS * STAGE_BYTES;

// What differs between the products; strides as those of Arguments.
struct Half {
  i64 a_row, a_scales_row, w_expert, s_expert, bias_expert, bias_column, out_row, out_column;
  int n, k, bias_type, out_type, a_rows, divisor, reads, writes;
  int chunks, places, tiles, unused;
};
struct LayerArguments {
  const u8 *a, *a_scales, *w13, *s13, *b13;
  u8 *inner, *inner_scales;
  const u8 *w2, *s2, *b2;
  u8 *y, *tiles;  // counts lie behind the list
  const u8* index;
  Half first, second;
  float alpha, limit, offset;
  int rows, experts;
  int shares;     // of each product
  int counts_at;  // words: of shares taken, then of each tile's units of the first product that are done
  int unused;
};

// A unit's product, 2 for none any more; its place, its tile's number, its group.
struct Unit {
  u32 product;
  int place, y;
  Group group;
};
INLINE void keep_unit(u32 at, const Unit& unit) {
  store_shared_16(at, make_uint4(unit.product, static_cast<u32>(unit.place), static_cast<u32>(unit.y), 0));
  store_shared_16(at + 16, make_uint4(static_cast<u32>(unit.group.expert), static_cast<u32>(unit.group.count),
                                      static_cast<u32>(unit.group.first), 0));
}
INLINE Unit kept_unit(u32 at) {
  const uint4 v = load_shared_16(at), of_group = load_shared_16(at + 16);
  Unit unit;
  unit.product = v.x, unit.place = static_cast<int>(v.y), unit.y = static_cast<int>(v.z);
  unit.group = Group{static_cast<int>(of_group.x), static_cast<int>(of_group.y), static_cast<int>(of_group.z)};
  return unit;
}

// One product's arguments, as grouped_mma.cu would have them.
INLINE Arguments arguments_of(const LayerArguments& p, u32 product) {
  const bool two = product != 0;
  const Half& half = two ? p.second : p.first;
  Arguments q;
  q.a = two ? p.inner : p.a, q.a_scales = two ? p.inner_scales : p.a_scales;
  q.w = two ? p.w2 : p.w13, q.s = two ? p.s2 : p.s13, q.bias = two ? p.b2 : p.b13;
  q.out = two ? p.y : p.inner, q.out_scales = p.inner_scales;
  q.routing = Routing{p.tiles, p.index, 0, p.rows, p.experts, half.a_rows, half.divisor, half.reads, half.writes, 0, 0, 0, 0};
  q.a_row = half.a_row, q.a_column = 1, q.a_scales_row = half.a_scales_row;
  q.w_expert = half.w_expert, q.w_row = 0, q.s_expert = half.s_expert, q.s_row = 0;
  q.bias_expert = half.bias_expert, q.bias_column = half.bias_column;
  q.out_row = half.out_row, q.out_column = half.out_column;
  q.n = half.n, q.k = half.k, q.bias_type = half.bias_type, q.out_type = half.out_type;
  q.alpha = p.alpha, q.limit = p.limit, q.offset = p.offset;
  q.chunks = half.chunks, q.places = half.places, q.tiles = half.tiles;
  return q;
}
INLINE int row_of_unit(int n, u32 product, int place, int local) {
  return product ? place * 64 + local : weight_row(n, place, local);
}
INLINE u8* count_of_tile(const LayerArguments& p, int y) { return p.tiles + 4ll * (p.counts_at + 1 + y); }

struct Turn {  // through the places
  u32 stage, parity;
};
INLINE void pass(Turn& turn) {
  turn.stage = turn.stage == SLOTS - 1 ? 0 : turn.stage + 1;
  turn.parity ^= turn.stage == 0;
}

// The warp that calls for weights.
INLINE void call_for_weights(const LayerArguments& p, u32 shared) {
  const int lane = threadIdx.x & 31, tiles = load_int(p.tiles, 0);
  Turn turn = {0, 0};
  Unit unit = {0, 0, -1, {0, 0, 0}};
#pragma unroll 1
  for (;;) {
    u32 number = 0;
    if (lane == 0) number = take_number(p.tiles + 4ll * p.counts_at);
    int share = static_cast<int>(from_lane(number, 0));
    if (share >= 2 * p.shares) break;
    unit.product = share >= p.shares;
    if (unit.product) share -= p.shares;
    const Arguments q = arguments_of(p, unit.product);
    const int total = tiles * q.places, each = total / p.shares, more = total % p.shares;  // that many have one more
    const int first = share * each + min(share, more);
    unit.y = first / q.places, unit.place = first - unit.y * q.places;
    unit.group = group_of(q.routing, Tiles{tiles}, unit.y);
#pragma unroll 1
    for (int left = each + (share < more); left > 0; left--) {
      // Lanes have a tile's codes each, then a pair's scales.
      const int pair = min(row_of_unit(q.n, unit.product, unit.place, 32 * (lane < 4 ? lane >> 1 : lane & 1)) >> 5,
                           (q.tiles >> 1) - 1);
      const bool codes = lane < 4;
      const u8* from = codes ? q.w + unit.group.expert * q.w_expert + (2 * pair + (lane & 1)) * 1024ll * q.chunks
                             : q.s + unit.group.expert * q.s_expert + pair * 128ll * q.chunks;
      const u32 each_chunk = codes ? 1024 : 128;
      const u32 to = shared + RING_AT + (codes ? lane * OF_TILE : 4 * OF_TILE + (lane - 4) * OF_PAIR);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int n = row_of_unit(q.n, unit.product, unit.place, lane + 32 * i);
        if (q.bias && n < q.n)
          prefetch_line(q.bias + (unit.group.expert * q.bias_expert + n * q.bias_column) * (q.bias_type == OF_FP32 ? 4 : 2));
      }
#pragma unroll 1
      for (int chunk = 0; chunk < q.chunks; chunk += WARPS_K) {
        const u32 full = shared + FULL_AT + 8 * turn.stage, count = min(WARPS_K, q.chunks - chunk);
        barrier_wait(shared + EMPTY_AT + 8 * turn.stage, turn.parity ^ 1);
        if (lane == 0) {
          if (chunk == 0) keep_unit(shared + UNITS_AT + 32 * turn.stage, unit);
          barrier_expect(full, count * (4 * 1024 + 2 * 128));
        }
        warp_barrier();
        if (lane < 6) copy_bulk(to + turn.stage * STAGE_BYTES, from, count * each_chunk, full);
        from += WARPS_K * each_chunk;
        pass(turn);
      }
      if (++unit.place == q.places && left > 1) {
        unit.place = 0, unit.y++;
        unit.group = group_of(q.routing, Tiles{tiles}, unit.y);
      }
    }
  }
  barrier_wait(shared + EMPTY_AT + 8 * turn.stage, turn.parity ^ 1);
  unit.product = 2;
  if (lane == 0) {
    keep_unit(shared + UNITS_AT + 32 * turn.stage, unit);
    barrier_arrive(shared + FULL_AT + 8 * turn.stage);
  }
}

// Warps that multiply: a tile of 16 weight rows each, and chunks warp % WARPS_K, WARPS_K more, ...
INLINE void multiply_units(const LayerArguments& p, u32 shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, along_n = warp / WARPS_K, along_k = warp % WARPS_K;
  const u32 codes_at = shared + RING_AT + along_n * OF_TILE + along_k * 1024 + 16 * lane;
  const u32 scales_at =
      shared + RING_AT + 4 * OF_TILE + (along_n >> 1) * OF_PAIR + along_k * 128 + 4 * lane + 2 * (along_n & 1);
  Turn turn = {0, 0};
  u32 at_product = 2, a_lane = 0, of_a = 0;
  int at_y = -1;
#pragma unroll 1
  for (u32 number = 0;; number++) {
    barrier_wait(shared + FULL_AT + 8 * turn.stage, turn.parity);
    const Unit unit = kept_unit(shared + UNITS_AT + 32 * turn.stage);
    const u32 half = number & 1, sums_full = shared + SUMS_FULL_AT + 8 * half;
    const u32 sums_empty = shared + SUMS_EMPTY_AT + 8 * half, sums_parity = (number >> 1 & 1) ^ 1;
    if (unit.product == 2) {
      barrier_wait(sums_empty, sums_parity);
      if (threadIdx.x == 0) keep_unit(shared + UNITS_OF_SUMS_AT + 32 * half, unit);
      warp_barrier();
      if (lane == 0) barrier_arrive(sums_full);
      return;
    }
    const int chunks = unit.product ? p.second.chunks : p.first.chunks;
    if (unit.product != at_product || unit.y != at_y) {
      at_product = unit.product, at_y = unit.y;
      if (threadIdx.x == 0 && unit.product) wait_for_count(count_of_tile(p, unit.y), p.first.places);
      warps_barrier(1, 32 * WARPS);  // nor does anybody read the rows before any more
      decode_a(arguments_of(p, unit.product), unit.group, shared + FLAGS_AT, shared + ROWS_AT);
      warps_barrier(1, 32 * WARPS);
      const int behind = along_k + WARPS_K * lane;
      of_a = lanes_where(behind < chunks && load_shared_4(shared + FLAGS_AT + 4 * behind) != 0);
      a_lane = shared + ROWS_AT + (4 * min(lane >> 2, unit.group.count - 1) + (lane & 3)) * 16;
    }
    u32 left = 0;  // chunks of this warp that are left
    float acc[4] = {};
#pragma unroll 1
    for (int round = 0; round < chunks; round += WARPS_K) {
      const int chunk = round + along_k;
      if (round) barrier_wait(shared + FULL_AT + 8 * turn.stage, turn.parity);
      const u32 stage = turn.stage * STAGE_BYTES, empty = shared + EMPTY_AT + 8 * turn.stage;
      pass(turn);
      if (chunk >= chunks) {
        warp_barrier();
        if (lane == 0) barrier_arrive(empty);
        continue;
      }
      Weights weights;
      weights.scales[0] = load_shared_2(scales_at + stage);
      weights.codes[0][0] = load_shared_16(codes_at + stage), weights.codes[0][1] = load_shared_16(codes_at + stage + 512);
      warp_barrier();
      if (lane == 0) barrier_arrive(empty);
      bool odd = slow_scales(weights);
      if (any_lane(odd)) {  // zeros are zeros, however small their scale
        odd = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const uint4 q = weights.codes[0][h];
          const u32 scale = scale_of(weights, 0, h);
          odd |= (scale > MOST_FAST) | ((scale < LEAST_FAST) & (((q.x | q.y | q.z | q.w) & MAGNITUDES) != 0));
        }
        odd = any_lane(odd);
        if (odd) left |= 1u << (chunk / WARPS_K);
      }
      if (odd) continue;
      u32 q[2][4], factor[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        words_of(weights.codes[0][h], q[h]);
        factor[h] = factor_of(scale_of(weights, 0, h));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 x[4], d[2][4];
        words_of(load_shared_16(a_lane + chunk * CHUNK_OF_A + i * (CHUNK_OF_A / 4)), x);
#pragma unroll
        for (int h = 0; h < 2; h++) decode(q[h][i], factor[h], d[h]);
#pragma unroll
        for (int j = 0; j < 4; j += 2) multiply(acc, d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[j], x[j + 1]);
      }
    }

    barrier_wait(sums_empty, sums_parity);
    float* const mine = sums + half * (WARPS * SHARED) + warp * SHARED + 2 * (lane & 3) * PITCH + (lane >> 2);
#pragma unroll
    for (int j = 0; j < 4; j++) mine[(j & 1) * PITCH + 8 * (j >> 1)] = acc[j] * UP;
    if (left | of_a) {
      const Arguments q = arguments_of(p, unit.product);
      const int tile = min(row_of_unit(q.n, unit.product, unit.place, 16 * along_n) >> 4, q.tiles - 1);
      add_left(q, unit.group, tile, left, of_a, mine, threadIdx.x, shared + ROWS_AT);
    }
    if (threadIdx.x == 0) keep_unit(shared + UNITS_OF_SUMS_AT + 32 * half, unit);
    warp_barrier();
    if (lane == 0) barrier_arrive(sums_full);
  }
}

// Warps that add up and store.
INLINE void store_units(const LayerArguments& p, u32 shared) {
  const u32 thread = threadIdx.x - 32 * WARPS;
#pragma unroll 1
  for (u32 number = 0;; number++) {
    const u32 half = number & 1;
    barrier_wait(shared + SUMS_FULL_AT + 8 * half, number >> 1 & 1);
    const Unit unit = kept_unit(shared + UNITS_OF_SUMS_AT + 32 * half);
    if (unit.product == 2) return;
    const float* const of_warps = sums + half * (WARPS * SHARED);
    const Arguments q = arguments_of(p, unit.product);
    if (unit.product) {
      const int local = thread % 64, n = unit.place * 64 + local;
      const u32 bias = bias_bits(q, unit.group.expert, n);
#pragma unroll 1
      for (int m = thread / 64; m < unit.group.count && n < q.n; m += STORING / 2)
        store_float(q.out, target_of(q.routing, unit.group, m) * q.out_row + n * q.out_column, q.out_type,
                    sum_of_warps(q, of_warps, unit.group, bias, m, local));
    } else {
      Biases biases;
      call_biases(q, unit.group, unit.place, thread, biases);
      store_results<STORING>(q, of_warps, unit.place, unit.group, biases, thread);
    }
    warp_barrier();
    if (thread % 32 == 0) barrier_arrive(shared + SUMS_EMPTY_AT + 8 * half);
    if (unit.product == 0) {
      warps_barrier(2, 32 * STORING);
      if (thread == 0) add_to_count(count_of_tile(p, unit.y));
    }
  }
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, RESIDENT)
    grouped_layer(const __grid_constant__ LayerArguments p) {
  const u32 shared = shared_address(sums);
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < SLOTS; i++) barrier_init(shared + FULL_AT + 8 * i, 1), barrier_init(shared + EMPTY_AT + 8 * i, WARPS);
#pragma unroll 1
    for (int i = 0; i < 2; i++)
      barrier_init(shared + SUMS_FULL_AT + 8 * i, WARPS), barrier_init(shared + SUMS_EMPTY_AT + 8 * i, STORING);
    barriers_are_ready();
  }
  workgroup_barrier();
  wait_for_earlier_launches();
  let_later_launches_begin();
  const int warp = threadIdx.x >> 5;
  if (warp < WARPS)
    multiply_units(p, shared);
  else if (warp < WARPS + STORING)
    store_units(p, shared);
  else
    call_for_weights(p, shared);
}
