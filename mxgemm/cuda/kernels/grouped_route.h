// Pairs of a token and an expert in the order of their experts, those of one in their own order, and the list of tiles of
// COLUMNS rows that they make (grouped_tile.h), by one workgroup: a pair and an expert a thread.
//
// Macros: COLUMNS; EARLY, the ids were written before the launch before this one began; ROUTING, its threads.
#pragma once
#include "grouped_places.h"

constexpr int ROUTING_WARPS = ROUTING / 32;

INLINE void route_pairs(const PlacesArguments& p) {
#if !EARLY
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();
  int* const expert_of = reinterpret_cast<int*>(sums);  // [ROUTING]
  int *const start_of = expert_of + ROUTING, *const of_warps = start_of + ROUTING;
  const int id = threadIdx.x, pairs = p.routing.rows;
  const int own = id < pairs ? local_expert(p.routing, id) : -1;
  expert_of[id] = own;
  workgroup_barrier();
  int rank = 0, count = 0;
  if (id < pairs || id < p.routing.experts)
#pragma unroll 4
    for (int pair = 0; pair < pairs; pair += 4) {  // behind the last one are some of no expert
      const uint4 v = load_shared_16(shared_address(sums) + 4 * pair);
      const u32 expert[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        rank += static_cast<int>(expert[i]) == own && pair + i < id;
        count += static_cast<int>(expert[i]) == id;
      }
    }
  const int start = sum_before(count, of_warps), tiles = (count + COLUMNS - 1) / COLUMNS;
  const int listed = sum_before(tiles, of_warps + ROUTING_WARPS);
  start_of[id] = start;
  workgroup_barrier();
#if EARLY
  wait_for_earlier_launches();
#endif
  if (own >= 0) store_u32(p.places + 4 * (start_of[own] + rank), static_cast<u32>(id));
#pragma unroll 1
  for (int i = 0; i < tiles; i++) {
    u8* const entry = p.tiles + 12 * (1 + listed + i);
    const int first = start + i * COLUMNS;
    store_u32(entry, static_cast<u32>(id));
    store_u32(entry + 4, static_cast<u32>(first));
    store_u32(entry + 8, static_cast<u32>(min(first + COLUMNS, start + count)));
  }
  if (id == ROUTING - 1) store_u32(p.tiles, static_cast<u32>(listed + tiles));
}
