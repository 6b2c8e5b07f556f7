// Products of groups of up to 8 rows of A, each by its own expert's MXFP4 weight in fragment order: as grouped_mma.cu, to the
// same bits, for sizes at which reading the weight is all that matters. What a lane does is in w4_mma.cu and grouped_mma.cu.
//
// Many small warps: a warp has few weight rows, its chunks come through shared memory (grouped_ring.h), tile after tile
// without a pause, and rows of A are decoded once for all warps and tiles of an expert that a workgroup takes one after the
// other. So a lane needs half the registers, and a multiprocessor holds twice the warps to hide their chains by.
//
// Macros: those of grouped_mma.cu but MT, which is 1, DEPTH and AHEAD; SLOTS, chunks of a warp on their way; A_ROWS, rows of
// A that there is room for.
#include "grouped_a.h"

// Shared memory: two times the warps' sums; [WARPS][SLOTS] slots; the group; a word for each chunk of A that says if a
// block of it is not held; A's chunks.
constexpr u32 SLOTS_AT = 2 * WARPS * SHARED * 4, GROUP_AT = SLOTS_AT + WARPS * SLOTS * SLOT_BYTES;
constexpr u32 FLAGS_AT = GROUP_AT + 16, ROWS_AT = FLAGS_AT + 4 * 32 * WARPS_K;

INLINE int tile_of_place(const Arguments& p, int place, int warp) {  // N is padded to pairs of tiles
  return min(weight_row(p.n, place, warp / WARPS_K * ROWS) >> 4, p.tiles - TILES);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) grouped_stream(const __grid_constant__ Arguments p) {
  const u32 shared = shared_address(sums);
#if !EARLY
  wait_for_earlier_launches();
  let_later_launches_begin();
#endif

  // An equal part of all places of all tiles, those of N first: so many of them, from this one on.
  const Tiles all = find_tiles(p.routing);
  const int total = p.places * count_of(all), number = static_cast<int>(blockIdx.x);
  const int each = total / p.routing.programs, more = total % p.routing.programs;  // that many have one more
  int left_to_do = each + (number < more), y = (number * each + min(number, more)) / p.places;
  int place = number * each + min(number, more) - y * p.places;
  if (left_to_do == 0) {
#if EARLY
    wait_for_earlier_launches();  // or a later launch, which waits for this one alone, would not wait for those
#endif
    return;
  }

  // Chunks are called for SLOTS ahead, those of the next place where this one has no more: a warp has as many of each.
  Slot slot = first_slot(shared + SLOTS_AT, static_cast<int>(threadIdx.x >> 5), threadIdx.x & 31);
  u32 next = 0;  // slot, in bytes
  From from;
  auto call_place = [&](int place, int expert) {
    const int thread = thread_anew();
    from = tile_from(p, expert, tile_of_place(p, place, thread >> 5), (thread >> 5) % WARPS_K, thread & 31);
  };
  auto call_chunk = [&] {
    copy_chunk(p, from, Slot{slot.codes + next, slot.scales + next});
    from.codes += WARPS_K * 1024, from.scales += WARPS_K * 128;
  };
  auto pass_slot = [&] { next = next == (SLOTS - 1) * SLOT_BYTES ? 0 : next + SLOT_BYTES; };
  Group group = group_of(p.routing, all, y);
  call_place(place, group.expert);
#pragma unroll 1
  for (int i = 0; i < SLOTS; i++) call_chunk(), end_group_of_copies(), pass_slot();
#if EARLY
  wait_for_earlier_launches();  // not for the weight, nor for the routing
  let_later_launches_begin();
#endif

  u32 of_sums = 0, a_lane = 0;  // the half of the sums, a lane's A
#pragma unroll 1
  for (bool new_tile = true;;) {
    if (new_tile) {
      decode_a<WARPS, 1>(p, group, thread_anew(), shared + FLAGS_AT, shared + ROWS_AT);
      if (threadIdx.x == 0) keep_group(shared + GROUP_AT, group);
      workgroup_barrier();
      const int lane = thread_anew() & 31;
      a_lane = shared + ROWS_AT + (4 * min(lane >> 2, group.count - 1) + (lane & 3)) * 16;
    }
    prefetch_biases(p, static_cast<int>(load_shared_4(shared + GROUP_AT)), place, thread_anew());
    u32 left = 0;  // chunks of this warp that are left
    float acc[TILES][4] = {};
#pragma unroll 1
    for (int chunk = (threadIdx.x >> 5) % WARPS_K; chunk < p.chunks; chunk += WARPS_K) {
      wait_for_copies<SLOTS - 1>();
      const Slot here = {slot.codes + next, slot.scales + next};
      Weights weights;
      scales_of_slot(here, weights);
      bool odd = slow_scales(weights);
      if (any_lane(odd)) {  // zeros are zeros, however small their scale
        odd = false;
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const uint4 q = codes_of_slot(here, r, h);
            const u32 scale = scale_of(weights, r, h);
            odd |= (scale > MOST_FAST) | ((scale < LEAST_FAST) & (((q.x | q.y | q.z | q.w) & MAGNITUDES) != 0));
          }
        odd = any_lane(odd);
        if (odd) left |= 1u << (chunk / WARPS_K);
      }
      if (!odd) {
#pragma unroll
        for (int r = 0; r < TILES; r++) {
          u32 q[2][4], factor[2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            words_of(codes_of_slot(here, r, h), q[h]);
            factor[h] = factor_of(scale_of(weights, r, h));
          }
#pragma unroll
          for (int i = 0; i < 4; i++) {
            u32 x[4], d[2][4];
            words_of(load_shared_16(a_lane + chunk * CHUNK_OF_A + i * (CHUNK_OF_A / 4)), x);
#pragma unroll
            for (int h = 0; h < 2; h++) decode(q[h][i], factor[h], d[h]);
#pragma unroll
            for (int j = 0; j < 4; j += 2) multiply(acc[r], d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[j], x[j + 1]);
          }
        }
      }
      const int beyond = chunk + SLOTS * WARPS_K - p.chunks;
      if (beyond < 0 || left_to_do > 1) {
        if (beyond >= 0 && beyond < WARPS_K) {  // the next place's first one
          if (place + 1 < p.places)
            call_place(place + 1, static_cast<int>(load_shared_4(shared + GROUP_AT)));
          else
            call_place(0, group_of(p.routing, find_tiles(p.routing), y + 1).expert);
        }
        call_chunk();
      }
      end_group_of_copies();
      pass_slot();
    }

    const u32 thread = thread_anew();
    const int lane = thread & 31, warp = thread >> 5, behind = warp % WARPS_K + WARPS_K * lane;
    float* const of_warps = sums + of_sums;
    float* const mine = of_warps + warp * SHARED + 2 * (lane & 3) * PITCH + (lane >> 2);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int j = 0; j < 4; j++) mine[(j & 1) * PITCH + 16 * r + 8 * (j >> 1)] = acc[r][j] * UP;
    group = kept_group(shared + GROUP_AT);
    Biases biases;
    call_biases(p, group, place, thread, biases);
    const u32 of_a = lanes_where(behind < p.chunks && load_shared_4(shared + FLAGS_AT + 4 * behind) != 0);
    if (left | of_a)
      add_left(p, group, tile_of_place(p, place, warp), half_of_pair(warp, 0), left, of_a, mine, thread, shared + ROWS_AT);
    workgroup_barrier();
    store_results(p, of_warps, place, group, biases, thread);
    if (--left_to_do == 0) return;
    of_sums ^= WARPS * SHARED, place++;
    new_tile = place == p.places;
    if (new_tile) place = 0, y++, group = group_of(p.routing, find_tiles(p.routing), y);
  }
}
