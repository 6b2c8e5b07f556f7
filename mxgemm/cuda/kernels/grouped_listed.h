// What grouped_layer.cu's warp that calls for weights begins with: the number of a share, and the tiles of rows, which a
// launch before has listed (grouped_route.h), or which it finds by the ids of few pairs. Those were written before that launch
// began, which has set counts to 0 before this one could begin: so nothing of it is waited for.
//
// Macros: those of grouped_layer.cu.
#pragma once
#include "grouped_layer.h"

// What the warp that calls for weights begins with, before the workgroup has met, and does not wait for there: a share's
// number, of lane 0, and with FEW a pair's id.
struct Begun {
  u32 share;
  i64 id;
};
INLINE Routing ids_of(const LayerArguments& p) {
  return Routing{p.ids, p.map, p.first_id, p.rows, p.experts, 0, 0, 0, 0, 0, p.id_bytes, p.map_length, 0};
}
INLINE u32 take_share(const LayerArguments& p) {
  u32 number = 0;
  if ((threadIdx.x & 31) == 0) number = take_number(p.tiles + 4ll * p.counts_at);
  return number;  // which is not waited for here
}
INLINE Begun begin_calling(const LayerArguments& p) {
  const int lane = threadIdx.x & 31;
  Begun begun = {0, -1};
#if !FEW
  wait_for_earlier_launches();
#endif
  begun.share = take_share(p);
#if FEW
  if (lane < p.rows) begun.id = id_of_pair(ids_of(p), lane);
#endif
  return begun;
}

// The tiles of rows, one a lane.
struct Listed {
  int tiles, expert, first, end;
};
#if FEW
// Of up to 32 pairs, one a lane: by their ids, in the list's order, without waiting for it.
INLINE Listed listed_by_ids(const LayerArguments& p, int own, u32 shared) {
  const int lane = threadIdx.x & 31;
  const u32 same = lanes_with(static_cast<u32>(own));
  const int count = own < 0 ? 0 : count_bits(same), leads = own >= 0 && lowest_bit(same) == lane;
  const int some = leads ? (count + A_ROWS - 1) / A_ROWS : 0;
  int pairs = 0, before = 0, all = 0;  // of experts before this one
#pragma unroll 1
  for (int pair = 0; pair < p.rows; pair += 8)  // those past the end have no expert
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int both = static_cast<int>(from_lane(static_cast<u32>(own) << 8 | static_cast<u32>(some), pair + i));
      const int of = both & 255;
      const bool is_before = both >= 0 && both >> 8 < own;
      pairs += is_before, before += is_before ? of : 0, all += of;
    }
#pragma unroll 1
  for (int i = 0; i < some; i++) {
    const int first = pairs + i * A_ROWS, end = min(first + A_ROWS, pairs + count);
    store_shared_16(shared + LISTED_AT + 16 * (before + i),
                    make_uint4(static_cast<u32>(own), static_cast<u32>(first), static_cast<u32>(end), 0));
  }
  warp_barrier();
  const uint4 mine = load_shared_16(shared + LISTED_AT + 16 * lane);
  return Listed{all, static_cast<int>(mine.x), static_cast<int>(mine.y), static_cast<int>(mine.z)};
}
#endif
// As the launch before has listed them; those behind the 32nd are loaded when they are wanted.
INLINE Listed listed_before(const LayerArguments& p) {
  const int own = 3 * min(static_cast<int>(threadIdx.x & 31), p.counts_at / 3 - 2) + 3;
  return Listed{load_int(p.tiles, 0), load_int(p.tiles, own), load_int(p.tiles, own + 1), load_int(p.tiles, own + 2)};
}
INLINE Group group_listed(const LayerArguments& p, const Listed& listed, int y) {
  if (!FEW && y >= 32) return group_of(Routing{p.tiles}, Tiles{listed.tiles}, y);
  Group group;
  group.expert = static_cast<int>(from_lane(static_cast<u32>(listed.expert), y));
  group.first = static_cast<int>(from_lane(static_cast<u32>(listed.first), y));
  group.count = static_cast<int>(from_lane(static_cast<u32>(listed.end), y)) - group.first;
  return group;
}
