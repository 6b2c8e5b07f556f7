// What grouped_route.cu makes, of any number of pairs: places in the order of their experts, those of one in their own order,
// and the list of tiles of COLUMNS rows (grouped_tile.h). One workgroup, whose warps have a part of the pairs each and go over
// it twice: to count, and, once it is known where each expert's begin for each warp, to place. No count depends on which
// lane is quicker.
//
// Macros: COLUMNS; EARLY, the ids were written before the launch before this one began.
#include "grouped_places.h"

constexpr int THREADS = 1024, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS) grouped_sort(const PlacesArguments p) {
#if !EARLY
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, id = threadIdx.x;
  const int pairs = p.routing.rows, experts = p.routing.experts;
  // [WARPS][experts] counts, then where a warp's next pair of an expert goes; [2][WARPS] sums.
  int* const all = reinterpret_cast<int*>(sums);
  int *const of_warps = all + WARPS * experts, *const own = all + warp * experts;
#pragma unroll 1
  for (int i = id; i < WARPS * experts; i += THREADS) all[i] = 0;
  workgroup_barrier();

  const int each = ((pairs + 31) / 32 + WARPS - 1) / WARPS * 32, first = warp * each, stop = min(first + each, pairs);
#pragma unroll 1
  for (int at = first; at < stop; at += 32) {
    const int pair = at + lane, expert = pair < stop ? local_expert(p.routing, pair) : -1;
    const u32 same = lanes_with(static_cast<u32>(expert));
    if (expert >= 0 && lowest_bit(same) == lane) own[expert] += count_bits(same);
    warp_barrier();
  }
  workgroup_barrier();

  // A thread has some experts that follow each other. Counts become places.
  const int some = (experts + THREADS - 1) / THREADS, from = min(id * some, experts), to = min(from + some, experts);
  int count = 0, tiles = 0;
#pragma unroll 1
  for (int e = from; e < to; e++) {
    int of_expert = 0;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) of_expert += all[w * experts + e];
    count += of_expert, tiles += (of_expert + COLUMNS - 1) / COLUMNS;
  }
  int start = sum_before(count, of_warps), listed = sum_before(tiles, of_warps + WARPS);
#if EARLY
  wait_for_earlier_launches();
#endif
#pragma unroll 1
  for (int e = from; e < to; e++) {
    const int begin = start;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
      const int of_warp = all[w * experts + e];
      all[w * experts + e] = start;
      start += of_warp;
    }
#pragma unroll 1
    for (int row = begin; row < start; row += COLUMNS, listed++) {
      u8* const entry = p.tiles + 12 * (1 + static_cast<i64>(listed));
      store_u32(entry, static_cast<u32>(e));
      store_u32(entry + 4, static_cast<u32>(row));
      store_u32(entry + 8, static_cast<u32>(min(row + COLUMNS, start)));
    }
  }
  if (id == THREADS - 1) store_u32(p.tiles, static_cast<u32>(listed));
  workgroup_barrier();

#pragma unroll 1
  for (int at = first; at < stop; at += 32) {
    const int pair = at + lane, expert = pair < stop ? local_expert(p.routing, pair) : -1;
    const u32 same = lanes_with(static_cast<u32>(expert));
    int place = 0;
    if (expert >= 0) place = own[expert] + count_bits(same & ((1u << lane) - 1));
    warp_barrier();
    if (expert >= 0) store_u32(p.places + 4ll * place, static_cast<u32>(pair));
    if (expert >= 0 && lowest_bit(same) == lane) own[expert] += count_bits(same);
    warp_barrier();
  }
}
