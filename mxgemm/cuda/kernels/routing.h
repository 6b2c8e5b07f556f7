// Which rows or pairs of a token and an expert there are, as the kernels around grouped products read it.
#pragma once
#include "sm90.h"

struct Routing {
  const u8* offsets;  // a tile list (grouped_tile.h); or ids, of id_bytes each
  const u8* index;    // int32 [rows], or 0; of ids: a map from them to experts, or 0
  i64 first_id;       // the id of expert 0 where there is no map
  int rows;           // all; of ids: pairs
  int experts;
  int a_rows;
  int divisor;     // a place is that of row place / divisor of A
  int reads;       // row r is at place index[r] of A, else r
  int writes;      // and at place index[r] of the result, else r
  int programs;    // workgroups that take tiles in turn
  int id_bytes;    // 4 or 8
  int map_length;  // 0 without a map
  int unused;
};

INLINE int load_int(const u8* p, i64 at) { return static_cast<int>(load_u32(p + 4 * at)); }

INLINE i64 id_of_pair(const Routing& p, int pair) {
  return p.id_bytes == 8 ? static_cast<i64>(load_u32(p.offsets + 8ll * pair)) |
                               static_cast<i64>(load_int(p.offsets, 2ll * pair + 1)) << 32
                         : load_int(p.offsets, pair);
}
// The expert of this call that an id means, -1 for none.
INLINE int expert_of_id(const Routing& p, i64 id) {
  if (id < 0) return -1;
  if (p.map_length) {
    const int expert = id < p.map_length ? load_int(p.index, id) : -1;
    return expert >= 0 && expert < p.experts ? expert : -1;
  }
  const i64 expert = id - p.first_id;
  return expert >= 0 && expert < p.experts ? static_cast<int>(expert) : -1;
}
INLINE int local_expert(const Routing& p, int pair) { return expert_of_id(p, id_of_pair(p, pair)); }
