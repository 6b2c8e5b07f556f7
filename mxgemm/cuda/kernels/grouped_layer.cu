// Both grouped products of a layer of experts in one launch, for calls that read a weight for few rows: to the bits of
// grouped_mma.cu, of weights in fragment order. What a lane does with a chunk is in w4_mma.cu and grouped_mma.cu.
//
// A unit is a tile of up to A_ROWS rows of A (grouped_tile.h) by two places of 64 weight rows, or one, WARPS_K chunks a
// round. Of a workgroup's warps the last one calls for weights, by bulk copies to SLOTS stages of shared memory, unit after
// unit, of the second product too, which depend on nobody; the first ones multiply, a team of WARPS for each place, or all
// for one; STORING warps add their sums and store; BRINGING warps bring a tile's rows of A, one tile ahead if there is room.
// So memory is waited for once, whatever warps that multiply wait for. Rows of the second product are read when all places
// of the first that make them have been counted.
//
// Units come in shares of some that follow each other, the last ones one by one or place by place, which running workgroups
// take by number, those of the first product before those of the second. Who has one of the first never waits: so all that
// is waited for is done by workgroups that run, however many there are.
//
// Macros: those of grouped_stream.cu, of the first product, but EARLY, BY_IDS and ROUNDS, which are 0; TAIL is of either;
// A_BUFFERS, tiles of A that there is room for; BRINGING; FEW, there are up to 32 pairs; WATCHED (grouped_layer.h).
#include "grouped_listed.h"

// The warp that calls for weights.
INLINE void call_for_weights(const LayerArguments& p, u32 shared, const Begun& begun) {
  const int lane = threadIdx.x & 31;
#if FEW
  const Listed listed = listed_by_ids(p, expert_of_id(ids_of(p), begun.id), shared);
#else
  const Listed listed = listed_before(p);
#endif
  const u64 once = read_once();
  u32 next = begun.share;
  const int tiles = listed.tiles;
  auto group_at = [&](int y) { return group_listed(p, listed, y); };
  // Of so many units the last ones are shares of their own, those before in so many shares.
  auto singles_of = [&](const Half& half) {
    return half.shares ? min(half.singles, tiles * half.units) : tiles * half.units;
  };
  auto shares_of = [&](const Half& half) { return min(half.shares, tiles * half.units - singles_of(half)); };
  const int of_first = shares_of(p.first) + (singles_of(p.first) << p.first.split);
  const int of_second = shares_of(p.second) + (singles_of(p.second) << p.second.split);
  Turn turn = {0, 0, 0};
  u32 asked = 0, asked_parity = 1, at_product = 2;
  int total = 0, of = 0, each = 0, more = 0;  // of a product: units in shares, shares of so many, some of one more
  Unit unit = {2, 0, 0, -1, {0, 0, 0}};
  auto ask = [&] {  // for a tile's rows of A
    wait_met(shared + TAKEN_AT + 8 * asked, asked_parity);
    if (lane == 0) {
      keep_unit(shared + UNITS_ASKED_AT + 32 * asked, unit);
      barrier_arrive(shared + ASKED_AT + 8 * asked);
    }
    asked = asked == QUEUE - 1 ? 0 : asked + 1;
    asked_parity ^= asked == 0;
  };
#pragma unroll 1
  for (;;) {
    const int number = static_cast<int>(from_lane(next, 0));
    if (number >= of_first + of_second) break;
    next = take_share(p);
    const u32 product = number >= of_first;
    const int share = number - (product ? of_first : 0);
    const Half& half = product ? p.second : p.first;
    const Arguments q = arguments_of(p, product);
    if (product != at_product) {
      at_product = product;
      total = tiles * half.units - singles_of(half), of = shares_of(half);
      each = of ? total / of : 0, more = total - each * of;
    }
    const int singly = share - of;
    const int first = singly >= 0 ? total + (singly >> half.split) : share * each + min(share, more);
    const int y = half.units == 1 ? first : static_cast<int>(high_of_product(static_cast<u32>(first), half.reciprocal));
    const int part = singly >= 0 && half.split ? singly & 1 : 0;
    if (TEAMS * (first - y * half.units) + part >= half.places) continue;  // there is no second place
    bool is_new = product != unit.product || y != unit.y;
    unit.product = product, unit.y = y, unit.place = TEAMS * (first - y * half.units) + part;
    unit.places = min(half.places - unit.place, singly >= 0 && half.split ? 1 : TEAMS);
    if (is_new) unit.group = group_at(y);
#pragma unroll 1
    for (int left = singly >= 0 ? 1 : each + (share < more); left > 0; left--) {
      if (is_new) ask();
      // Lanes have a tile's codes each, then a pair's scales.
      const bool codes = lane < 4 * TEAMS;
      const int local = codes ? lane : 2 * (lane - 4 * TEAMS);  // tile of the unit
      const int place = min(unit.place + (local >> 2), half.places - 1);
      const int pair = min(row_of_unit(q.n, product, place, 16 * (local & 2)) >> 5, (q.tiles >> 1) - 1);
      const u8* from = codes ? q.w + unit.group.expert * q.w_expert + (2 * pair + (lane & 1)) * 1024ll * q.chunks
                             : q.s + unit.group.expert * q.s_expert + pair * 128ll * q.chunks;
      const bool there = codes ? lane < 4 * unit.places : lane < 4 * TEAMS + 2 * unit.places;
      const u32 each_chunk = codes ? 1024 : 128;
      const u32 to = shared + RING_AT + (codes ? lane * OF_TILE : SCALES_OF_STAGE + (lane - 4 * TEAMS) * OF_PAIR);
#pragma unroll 1
      for (int chunk = 0; chunk < q.chunks; chunk += WARPS_K) {
        const u32 full = shared + FULL_AT + turn.barrier, count = min(WARPS_K, q.chunks - chunk);
        wait_met(shared + EMPTY_AT + turn.barrier, turn.parity ^ 1);
        if (lane == 0) {
          if (chunk == 0) keep_unit(shared + UNITS_AT + 4 * turn.barrier, unit);
          barrier_expect(full, count * (static_cast<u32>(unit.places) * (4 * 1024 + 2 * 128)));
        }
        warp_barrier();
        if (there) copy_bulk(to + turn.bytes, from, count * each_chunk, full, once);
        from += WARPS_K * each_chunk;
        pass(turn);
      }
      unit.place += TEAMS;
      is_new = unit.place >= half.places && left > 1;
      if (is_new) unit.place = 0, unit.y++, unit.group = group_at(unit.y);
      unit.places = min(half.places - unit.place, TEAMS);
    }
  }
  unit.product = 2;
  ask();
  wait_met(shared + EMPTY_AT + turn.barrier, turn.parity ^ 1);
  if (lane == 0) {
    keep_unit(shared + UNITS_AT + 4 * turn.barrier, unit);
    barrier_arrive(shared + FULL_AT + turn.barrier);
  }
}

#if A_FORMAT == BF16 && A_ROWS > 2
// As decode_a(), of so many rows that its loads would come one after the other: they are copied to where they will be, all
// at once, and then put in order by the lanes that copied them. bf16 holds all of them.
template <int BRINGING_WARPS>
INLINE void copy_a(const Arguments& p, const Group& group, u32 thread, u32 flags_at, u32 rows_at) {
  const int pieces = 16 * p.chunks, there = p.k >> 3;  // of a row, of 8 values each
  const int own_row = source_of(p.routing, group, min(static_cast<int>(thread & 31), group.count - 1));
  auto at = [&](int m, int i) {
    return rows_at + (i >> 4) * CHUNK_OF_A + (i & 3) * (CHUNK_OF_A / 4) + (4 * m + (i >> 2 & 3)) * 16;
  };
#pragma unroll 1
  for (int m = 0; m < group.count; m++) {
    const u8* const from = p.a + static_cast<int>(from_lane(static_cast<u32>(own_row), m)) * p.a_row * 2;
#pragma unroll 4
    for (int i = static_cast<int>(thread); i < pieces; i += 32 * BRINGING_WARPS) {
      const bool real = !TAIL || i < there;
      copy_16(at(m, i), real ? from + 16ll * i : from, real ? 16 : 0);
    }
  }
  end_group_of_copies();
#pragma unroll 1
  for (int i = static_cast<int>(thread); i < p.chunks; i += 32 * BRINGING_WARPS) store_shared_4(flags_at + 4 * i, 0);
  wait_for_copies<0>();
#pragma unroll 1
  for (int m = 0; m < group.count; m++)
#pragma unroll 4
    for (int i = static_cast<int>(thread); i < pieces; i += 32 * BRINGING_WARPS) {
      u32 x[4];
      pairs_of(load_shared_16(at(m, i)), x);
      store_shared_16(at(m, i), make_uint4(x[0], x[1], x[2], x[3]));
    }
}
#endif

// Warps that bring a tile's rows of A, to A_BUFFERS places in turn.
INLINE void bring_rows(const LayerArguments& p, u32 shared) {
  const u32 lane = threadIdx.x & 31;
  wait_for_earlier_launches();
  u32 asked = 0, parity = 0;
#pragma unroll 1
  for (u32 number = 0;; number++) {
    wait_met(shared + ASKED_AT + 8 * asked, parity);
    const Unit unit = kept_unit(shared + UNITS_ASKED_AT + 32 * asked);
    warp_barrier();
    arrive_met(shared + TAKEN_AT + 8 * asked);
    if (unit.product == 2) return;
    asked = asked == QUEUE - 1 ? 0 : asked + 1;
    parity ^= asked == 0;
    if (lane == 0 && unit.product) wait_for_count(count_of_tile(p, unit.y), p.first.places);
    warp_barrier();
    const u32 half = number % A_BUFFERS;
    const Arguments q = arguments_of(p, unit.product);
    wait_met(shared + A_EMPTY_AT + 8 * half, (number / A_BUFFERS & 1) ^ 1);
    const u32 thread = threadIdx.x - 32 * (MULTIPLYING + STORING), rows_at = shared + ROWS_AT + half * p.rows_bytes;
#if A_FORMAT == BF16 && A_ROWS > 2
    copy_a<BRINGING>(q, unit.group, thread, shared + FLAGS_AT + half * OF_FLAGS, rows_at);
#else
    decode_a<BRINGING, AHEAD_OF_A>(q, unit.group, thread, shared + FLAGS_AT + half * OF_FLAGS, rows_at);
#endif
    warp_barrier();
    arrive_met(shared + A_FULL_AT + 8 * half);
  }
}

// Whether a chunk of the weight whose scales are not all usual is left: zeros are zeros, however small their scale.
template <int T>
INLINE bool is_left(const Weights& weights) {
  bool odd = false;
#pragma unroll
  for (int r = 0; r < T; r++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint4 q = weights.codes[r][h];
      const u32 scale = scale_of(weights, r, h);
      odd |= (scale > MOST_FAST) | ((scale < LEAST_FAST) & (((q.x | q.y | q.z | q.w) & MAGNITUDES) != 0));
    }
  return any_lane(odd);
}

// A warp's chunks of T tiles, the first of which has come; returns those that are left. `scales` says which bytes of a pair's
// scales are the tiles'.
template <int T>
INLINE u32 multiply_chunks(float (&acc)[TILES][4], Turn& turn, u32 shared, u32 codes_at, u32 scales_at, u32 scales,
                           u32 a_at, u32 chunks) {
  u32 left = 0;
#pragma unroll 1
  for (u32 i = 0; chunks;) {
    const u32 empty = shared + EMPTY_AT + turn.barrier;
    Weights weights;
    weights.scales[0] = load_shared_4(scales_at + turn.bytes);
    if (T == 1) weights.scales[0] = permute(weights.scales[0], 0, scales);
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) weights.codes[r][h] = load_shared_16(codes_at + turn.bytes + r * OF_TILE + 512 * h);
    uint4 rows[4];  // of one tile's there are registers for all of A
    if (T == 1)
#pragma unroll
      for (int j = 0; j < 4; j++) rows[j] = load_shared_16(a_at + j * (CHUNK_OF_A / 4));
    pass(turn);
    const bool slow = any_lane(slow_scales(weights));  // all lanes have loaded
    arrive_met(empty);
    if (slow && is_left<T>(weights)) {
      left |= 1u << i;
    } else {
      u32 factor[T][2];
#pragma unroll
      for (int r = 0; r < T; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) factor[r][h] = factor_of(scale_of(weights, r, h));
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 x[4];
        words_of(T == 1 ? rows[j] : load_shared_16(a_at + j * (CHUNK_OF_A / 4)), x);
#pragma unroll
        for (int r = 0; r < T; r++) {
          u32 q[2][4], d[2][4];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            words_of(weights.codes[r][h], q[h]);
            decode_places(q[h][j], factor[r][h], d[h]);
          }
#pragma unroll
          for (int k = 0; k < 4; k += 2) multiply(acc[r], d[0][k], d[1][k], d[0][k + 1], d[1][k + 1], x[k], x[k + 1]);
        }
      }
    }
    a_at += WARPS_K * CHUNK_OF_A;
    if (++i == chunks) break;
    wait_met(shared + FULL_AT + turn.barrier, turn.parity);
  }
  return left;
}

// Warps that multiply chunks warp % WARPS_K, WARPS_K more, ... of a pair of tiles of 16 weight rows each, or, of a unit of one
// place, of a tile.
INLINE void multiply_units(const LayerArguments& p, u32 shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int along_k = warp % WARPS_K, along_n = warp / WARPS_K;
  const u32 ring = shared + RING_AT;
  const u32 sums_full = shared + SUMS_FULL_AT, sums_empty = shared + SUMS_EMPTY_AT;
  Turn turn = {0, 0, 0};
  wait_for_earlier_launches();
  u32 at_product = 2, rows_at = 0, a_lane = 0, of_a = 0, tiles = 0;
  int at_y = -1;
#pragma unroll 1
  for (u32 number = 0;; number++) {
    wait_met(shared + FULL_AT + turn.barrier, turn.parity);
    const Unit unit = kept_unit(shared + UNITS_AT + 4 * turn.barrier);
    const u32 sums_parity = (number & 1) ^ 1;
    if (threadIdx.x == 0) {  // the one that was there has been stored: its sums' place has been another's since
      keep_unit(shared + UNIT_OF_SUMS_AT + 32 * (number & 1), unit);
      barrier_arrive(shared + UNIT_KNOWN_AT + 8 * (number & 1));
    }
    if (unit.product == 2) return;
    u32 chunks = unit.product ? p.second.chunks : p.first.chunks;
    keep_as_it_is(chunks);
    if (unit.product != at_product || unit.y != at_y) {
      at_product = unit.product, at_y = unit.y;
      if (tiles > 0) arrive_met(shared + A_EMPTY_AT + 8 * ((tiles - 1) % A_BUFFERS));
      const u32 half_of_a = tiles % A_BUFFERS, flags_at = shared + FLAGS_AT + half_of_a * OF_FLAGS;
      wait_met(shared + A_FULL_AT + 8 * half_of_a, tiles / A_BUFFERS & 1);
      tiles++;
      rows_at = shared + ROWS_AT + half_of_a * p.rows_bytes;
      const u32 behind = along_k + WARPS_K * lane;
      of_a = lanes_where(behind < chunks && load_shared_4(flags_at + 4 * behind) != 0);
      a_lane = rows_at + along_k * CHUNK_OF_A + (4 * min(lane >> 2, unit.group.count - 1) + (lane & 3)) * 16;
    }
    float acc[TILES][4] = {};
    u32 own = (chunks + WARPS_K - 1 - along_k) / WARPS_K;
    keep_as_it_is(own);
    const bool single = unit.places < 2;  // then each warp has one tile
    const int first = single ? along_n : TILES * along_n;
    u32 codes_at = ring + first * OF_TILE + along_k * 1024 + 16 * lane;
    u32 scales_at = ring + SCALES_OF_STAGE + (first >> 1) * OF_PAIR + along_k * 128 + 4 * lane;
    keep_as_it_is(codes_at), keep_as_it_is(scales_at);  // not computed anew for each chunk
    u32 left;  // chunks of this warp
    if (single)
      left = multiply_chunks<1>(acc, turn, shared, codes_at, scales_at, first & 1 ? 0x3232 : 0x1010, a_lane, own);
    else
      left = multiply_chunks<TILES>(acc, turn, shared, codes_at, scales_at, 0, a_lane, own);
    if (along_k > static_cast<int>((chunks - 1) % WARPS_K)) {
      if (own) wait_met(shared + FULL_AT + turn.barrier, turn.parity);  // a round that has none of this warp's
      warp_barrier();
      arrive_met(shared + EMPTY_AT + turn.barrier);
      pass(turn);
    }

    wait_met(sums_empty, sums_parity);
    const int of_warp = (first >> 1) * WARPS_K + along_k;
    float* const mine = sums + of_warp * SHARED + 2 * (lane & 3) * PITCH + 16 * (first & 1) + (lane >> 2);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (r == 0 || !single) mine[(j & 1) * PITCH + 16 * r + 8 * (j >> 1)] = acc[r][j] * UP;
    if (left | of_a) {
      const Arguments q = arguments_of(p, unit.product);
      const int row = row_of_unit(q.n, unit.product, unit.place + (first >> 2), 16 * (first & 2));
      const int tile = min(row >> 4, q.tiles - 2) + (first & 1);
      if (single)
        add_left<1>(q, unit.group, tile, first & 1, left, of_a, mine, threadIdx.x, rows_at);
      else
        add_left(q, unit.group, tile, 0, left, of_a, mine, threadIdx.x, rows_at);
    }
    warp_barrier();
    arrive_met(sums_full);
  }
}

// Warps that add up and store, two for each place.
INLINE void store_units(const LayerArguments& p, u32 shared) {
  const u32 thread = threadIdx.x - 32 * MULTIPLYING, own = thread % 64;
  const int team = static_cast<int>(thread / 64);
  const float* const of_warps = sums + team * (WARPS * SHARED);
  wait_for_earlier_launches();
#pragma unroll 1
  for (u32 number = 0;; number++) {
    wait_met(shared + UNIT_KNOWN_AT + 8 * (number & 1), number >> 1 & 1);
    const Unit unit = kept_unit(shared + UNIT_OF_SUMS_AT + 32 * (number & 1));
    if (unit.product == 2) return;
    const Arguments q = arguments_of(p, unit.product);
    const int place = unit.place + team;
    if (team < unit.places && unit.product) {
      const int n = place * 64 + static_cast<int>(own);
      const u32 bias = bias_bits(q, unit.group.expert, n);
      wait_met(shared + SUMS_FULL_AT, number & 1);
#pragma unroll 1
      for (int m = 0; m < unit.group.count && n < q.n; m++)
        store_float(q.out, target_of(q.routing, unit.group, m) * q.out_row + n * q.out_column, q.out_type,
                    sum_of_warps(q, of_warps, unit.group, bias, m, own));
    } else if (team < unit.places) {
      Biases biases;
      call_biases(q, unit.group, place, own, biases);
      wait_met(shared + SUMS_FULL_AT, number & 1);
      store_results<2>(q, of_warps, place, unit.group, biases, own);
    } else {
      wait_met(shared + SUMS_FULL_AT, number & 1);
    }
    warp_barrier();
    arrive_met(shared + SUMS_EMPTY_AT);
    if (unit.product == 0) {
      warps_barrier(1, 32 * STORING);
      if (thread == 0) add_to_count(count_of_tile(p, unit.y), static_cast<u32>(unit.places));
    }
  }
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, RESIDENT)
    grouped_layer(const __grid_constant__ LayerArguments p) {
  const u32 shared = shared_address(sums);
  const int warp = threadIdx.x >> 5;
  Begun begun = {};
  if (warp == MULTIPLYING + STORING + BRINGING) begun = begin_calling(p);
  if ((threadIdx.x & 31) == 0) {
#pragma unroll 1
    for (int i = warp; i < BARRIERS; i += ALL_THREADS / 32) barrier_init(shared + FULL_AT + 8 * i, arrivals_of(i));
    barriers_are_ready();
  }
  workgroup_barrier();
  let_later_launches_begin();
  if (warp < MULTIPLYING)
    multiply_units(p, shared);
  else if (warp < MULTIPLYING + STORING)
    store_units(p, shared);
  else if (warp < MULTIPLYING + STORING + BRINGING)
    bring_rows(p, shared);
  else
    call_for_weights(p, shared, begun);
}
