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
// Tile y, of pairs of one expert in their order; experts in the order in which pairs have them.
INLINE Group group_of(const Routing& p, int y) {
  const int lane = threadIdx.x & 31;
  const int own = lane < p.rows ? local_expert(p, lane) : -1;
  const u32 same = lanes_with(static_cast<u32>(own));
  const bool leads = own >= 0 && (same & ((1u << lane) - 1)) == 0;
  const int tiles = leads ? (count_bits(same) + COLUMNS - 1) / COLUMNS : 0;
  int past = tiles;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = static_cast<int>(from_lane(static_cast<u32>(past), lane < d ? 0 : lane - d));
    if (lane >= d) past += other;
  }
  const int before = past - tiles;
  const u32 found = lanes_where(y >= before && y < past);
  const int who = found ? lowest_bit(found) : 0;
  Group group;
  group.expert = static_cast<int>(from_lane(static_cast<u32>(own), who));
  group.members = from_lane(same, who);
  const int parts = y - static_cast<int>(from_lane(static_cast<u32>(before), who));
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
INLINE Group group_of(const Routing& p, int y) {
  Group group = {-1, 0, 0};
  if (y < load_int(p.offsets, 0)) {
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
