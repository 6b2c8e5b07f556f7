// Which rows and which expert a workgroup of grouped products multiplies: from a list on the device, or, of few pairs of a
// token and an expert, found by each warp from the ids, so that nothing has to sort them first.
//
// Macros: COLUMNS, rows of a tile; BY_IDS, tiles are found by ids, of up to 32 pairs.
#pragma once
#include "routing.h"
#include "warp.h"

struct Group {
  int expert;  // -1: rows of none
  int count;   // of rows; 0: there is no such tile
#if BY_IDS
  u32 members;  // pairs
#else
  int first;  // row
#endif
};

#if BY_IDS
// What a warp knows of all pairs, one a lane: its expert, the pairs of that expert, and where their tiles begin and end if
// it is the first of them.
struct Tiles {
  int own, before, past;
  u32 same;
};
INLINE Tiles find_tiles(const Routing& p) {
  const int lane = threadIdx.x & 31;
  Tiles all;
  all.own = lane < p.rows ? local_expert(p, lane) : -1;
  all.same = lanes_with(static_cast<u32>(all.own));
  const bool leads = all.own >= 0 && (all.same & ((1u << lane) - 1)) == 0;
  const int tiles = leads ? (count_bits(all.same) + COLUMNS - 1) / COLUMNS : 0;
  all.past = tiles;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = static_cast<int>(from_lane(static_cast<u32>(all.past), lane < d ? 0 : lane - d));
    if (lane >= d) all.past += other;
  }
  all.before = all.past - tiles;
  return all;
}
INLINE int count_of(const Tiles& all) { return static_cast<int>(from_lane(static_cast<u32>(all.past), 31)); }
// Tile y, of pairs of one expert in their order; experts in the order in which pairs have them.
INLINE Group group_of(const Routing&, const Tiles& all, int y) {
  const u32 found = lanes_where(y >= all.before && y < all.past);
  const int who = found ? lowest_bit(found) : 0;
  Group group;
  group.expert = static_cast<int>(from_lane(static_cast<u32>(all.own), who));
  group.members = from_lane(all.same, who);
  const int parts = y - static_cast<int>(from_lane(static_cast<u32>(all.before), who));
#pragma unroll 1
  for (int i = 0; found && i < parts * COLUMNS; i++) group.members &= group.members - 1;
  group.count = found ? min(count_bits(group.members), COLUMNS) : 0;
  return group;
}
INLINE int number_of(u32 members, int m) {  // of the m-th
#pragma unroll 1
  for (; m > 0; m--) members &= members - 1;
  return lowest_bit(members);
}
// Rows of A and of the result of a tile's row m.
INLINE int source_of(const Routing& p, const Group& group, int m) { return number_of(group.members, m) / p.divisor; }
INLINE int target_of(const Routing&, const Group& group, int m) { return number_of(group.members, m); }
INLINE bool is_absent(const Routing&, const Group&, int) { return false; }
#else
// Tile y of the list: int32 [1 + most, 3], their number, then of each its expert, its first row and the row behind.
struct Tiles {
  int count;
};
INLINE Tiles find_tiles(const Routing& p) { return Tiles{load_int(p.offsets, 0)}; }
INLINE int count_of(const Tiles& all) { return all.count; }
INLINE Group group_of(const Routing& p, const Tiles& all, int y) {
  Group group = {-1, 0, 0};
  if (y < all.count) {
    group.expert = load_int(p.offsets, 3 * y + 3), group.first = load_int(p.offsets, 3 * y + 4);
    group.count = load_int(p.offsets, 3 * y + 5) - group.first;
  }
  return group;
}
// Rows of A and of the result of a tile's row m; of A 0 where it has none.
INLINE bool is_absent(const Routing& p, const Group& group, int m) {
  if (!p.reads) return false;
  const int place = load_int(p.index, group.first + m);
  return place < 0 || place / p.divisor >= p.a_rows;
}
INLINE int source_of(const Routing& p, const Group& group, int m) {
  if (!p.reads) return group.first + m;
  return is_absent(p, group, m) ? 0 : load_int(p.index, group.first + m) / p.divisor;
}
INLINE int target_of(const Routing& p, const Group& group, int m) {
  return p.writes ? load_int(p.index, group.first + m) : group.first + m;
}
#endif

// A group as three words of shared memory, the expert first.
INLINE void keep_group(u32 at, const Group& group) {
  store_shared_4(at, static_cast<u32>(group.expert)), store_shared_4(at + 4, static_cast<u32>(group.count));
#if BY_IDS
  store_shared_4(at + 8, group.members);
#else
  store_shared_4(at + 8, static_cast<u32>(group.first));
#endif
}
INLINE Group kept_group(u32 at) {
  Group group;
  group.expert = static_cast<int>(load_shared_4(at)), group.count = static_cast<int>(load_shared_4(at + 4));
#if BY_IDS
  group.members = load_shared_4(at + 8);
#else
  group.first = static_cast<int>(load_shared_4(at + 8));
#endif
  return group;
}
