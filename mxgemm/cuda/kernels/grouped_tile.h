// Which rows and which expert a workgroup of grouped_mma.cu multiplies: found on the device, so that a launch fits any
// routing. Every group has tiles of up to COLUMNS rows; tile y of all groups' is looked for by all threads at once.
//
// Macros: THREADS, of a workgroup; COLUMNS; EACH, groups that a thread looks at; BY_IDS, groups are those of pairs of a
// token and an expert, which are counted here (then PAIRS is the most of them), else those between offsets.
#pragma once
#include "routing.h"
#include "warp.h"

// In shared memory.
struct Tile {
  int expert, first, count;  // rows of the group from `first` on; count 0: there is no such tile
  int source[COLUMNS];       // row of A, -1 where A has none
  int target[COLUMNS];       // row of the result
  int of_warps[2][THREADS / 32];
#if BY_IDS
  int local[PAIRS];
#endif
};

INLINE int larger(int x, int y) { return x > y ? x : y; }
INLINE int added(int x, int y) { return x + y; }

// Of one value a thread: that of all threads before, from `none` on.
template <int (*JOIN)(int, int)>
INLINE int before_all(int x, int none, int* of_warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = static_cast<int>(from_lane(static_cast<u32>(x), lane < d ? 0 : lane - d));
    if (lane >= d) x = JOIN(other, x);
  }
  if (lane == 31) of_warps[warp] = x;
  const int previous = static_cast<int>(from_lane(static_cast<u32>(x), lane ? lane - 1 : 0));
  workgroup_barrier();
  int before = lane ? previous : none;
  #pragma unroll 1
  for (int w = 0; w < warp; w++) before = JOIN(of_warps[w], before);
  return before;
}

// Finds tile y and its rows; all threads return when they are in shared memory.
INLINE void find_tile(const Routing& p, int y, Tile& tile) {
  const int id = threadIdx.x;
  int counts[EACH], most = 0;
  if (id == 0) tile.count = 0;
#if BY_IDS
#pragma unroll 1
  for (int pair = id; pair < p.rows; pair += THREADS) tile.local[pair] = local_expert(p, pair);
  workgroup_barrier();
#pragma unroll
  for (int i = 0; i < EACH; i++) counts[i] = 0;
#pragma unroll 4
  for (int pair = 0; pair < p.rows; pair++) {
    const int expert = tile.local[pair];
#pragma unroll
    for (int i = 0; i < EACH; i++) counts[i] += expert == id * EACH + i;
  }
#else
  // Group 0 is what lies before all offsets, group e + 1 that of expert e; offsets that decrease or leave the rows are
  // cut off.
  int ends[EACH], all = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int group = id * EACH + i;
    all = larger(all, group <= p.experts ? load_int(p.offsets, group) : p.rows);
    ends[i] = all;
  }
  const int before = before_all<larger>(all, 0, tile.of_warps[0]);
  int start = min(before, p.rows);
  const int first = start;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int group = id * EACH + i, end = min(larger(before, ends[i]), p.rows);
    counts[i] = p.zeros || (group >= 1 && group <= p.experts) ? end - start : 0;
    ends[i] = end, start = end;
  }
#endif
#pragma unroll
  for (int i = 0; i < EACH; i++) most += (counts[i] + COLUMNS - 1) / COLUMNS;
  int earlier = before_all<added>(most, 0, tile.of_warps[1]);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int tiles = (counts[i] + COLUMNS - 1) / COLUMNS, part = y - earlier;
    if (part >= 0 && part < tiles) {
      const int group = id * EACH + i;
#if BY_IDS
      tile.expert = group, tile.first = part * COLUMNS;
#else
      tile.expert = group <= p.experts ? group - 1 : -1;
      tile.first = (i ? ends[i ? i - 1 : 0] : first) + part * COLUMNS;
#endif
      tile.count = min(counts[i] - part * COLUMNS, COLUMNS);
    }
    earlier += tiles;
  }
  workgroup_barrier();
#if BY_IDS
  if (id < 32) {
    int known = 0;  // pairs of the expert so far
#pragma unroll 1
    for (int from = 0; from < p.rows; from += 32) {
      const int pair = from + id;
      const u32 mine = lanes_where(pair < p.rows && tile.count && tile.local[pair] == tile.expert);
      const int at = known + count_bits(mine & ((1u << id) - 1)) - tile.first;
      if ((mine >> id & 1) && at >= 0 && at < COLUMNS) tile.source[at] = pair / p.divisor, tile.target[at] = pair;
      known += count_bits(mine);
    }
  }
#else
  if (id < tile.count) {
    const int row = tile.first + id, place = p.reads || p.writes ? load_int(p.index, row) : row;
    const int read = p.reads ? place : row, source = read / p.divisor;
    tile.source[id] = read < 0 || source >= p.a_rows ? -1 : source;
    tile.target[id] = p.writes ? place : row;
  }
#endif
  workgroup_barrier();
}
