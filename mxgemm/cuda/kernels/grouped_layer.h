// What grouped_layer.cu divides a layer into: its warps, shared memory, arguments, units. Macros: those of grouped_layer.cu.
#pragma once
#include "grouped_a.h"
#include "grouped_bulk.h"

constexpr int TEAMS = 2, MULTIPLYING = TEAMS * WARPS, STORING = 2 * TEAMS;
constexpr int AHEAD_OF_A = A_FORMAT == E2M1 ? 4 : 2;
constexpr int ALL_THREADS = 32 * (MULTIPLYING + STORING + BRINGING + 1);
constexpr int QUEUE = 4;  // tiles that are asked for
static_assert(TILES == 2 && ROWS_OF_ALL == 64 && GATED, "a place is four tiles");

constexpr u32 OF_TILE = WARPS_K * 1024, OF_PAIR = WARPS_K * 128;  // bytes of a round: codes, scales
constexpr u32 SCALES_OF_STAGE = 4 * TEAMS * OF_TILE, STAGE_BYTES = SCALES_OF_STAGE + 2 * TEAMS * OF_PAIR;

// Shared memory: the warps' sums; barriers; units, of each stage, of the sums, asked for; tiles; a word for each chunk of
// tiles of A that says if a block of it is not held; the stages; A's chunks.
constexpr u32 FULL_AT = MULTIPLYING * SHARED * 4, EMPTY_AT = FULL_AT + 8 * SLOTS;
constexpr u32 SUMS_FULL_AT = EMPTY_AT + 8 * SLOTS, SUMS_EMPTY_AT = SUMS_FULL_AT + 8;
constexpr u32 A_FULL_AT = SUMS_EMPTY_AT + 8, A_EMPTY_AT = A_FULL_AT + 16;
constexpr u32 UNIT_KNOWN_AT = A_EMPTY_AT + 16, ASKED_AT = UNIT_KNOWN_AT + 16, TAKEN_AT = ASKED_AT + 8 * QUEUE;
constexpr u32 UNITS_AT = TAKEN_AT + 8 * QUEUE, UNIT_OF_SUMS_AT = UNITS_AT + 32 * SLOTS;
constexpr u32 UNITS_ASKED_AT = UNIT_OF_SUMS_AT + 64;
constexpr u32 LISTED_AT = UNITS_ASKED_AT + 32 * QUEUE, FLAGS_AT = LISTED_AT + (FEW ? 512 : 0);
constexpr u32 OF_FLAGS = 4 * 32 * WARPS_K;
constexpr u32 RING_AT = (FLAGS_AT + A_BUFFERS * OF_FLAGS + 127) / 128 * 128, ROWS_AT = RING_AT + SLOTS * STAGE_BYTES;

// What differs between the products; strides as those of Arguments.
struct Half {
  i64 a_row, a_scales_row, w_expert, s_expert, bias_expert, bias_column, out_row, out_column;
  int n, k, bias_type, out_type, a_rows, divisor, reads, writes;
  int chunks, places, tiles;
  int units, shares, singles;  // units of a tile; shares of some, if there are so many; of the last units, shares of one
  int split;                   // those last ones are shares of a place each
  u32 reciprocal;              // 2^32 over units, rounded up: for a division of less than that
};
struct LayerArguments {
  const u8 *a, *a_scales, *w13, *s13, *b13;
  u8 *inner, *inner_scales;
  const u8 *w2, *s2, *b2;
  u8 *y, *tiles;  // counts lie behind the list
  const u8 *index, *ids, *map;
  Half first, second;
  float alpha, limit, offset;
  int rows, experts;
  int counts_at;   // words: of shares taken, then of each tile's units of the first product that are done
  int rows_bytes;  // of A's chunks in shared memory, of a tile
  int id_bytes, map_length, unused;
  i64 first_id;
};

// A unit's product, 2 for none any more; its first place, how many, its tile's number, its group.
struct Unit {
  u32 product;
  int place, places, y;
  Group group;
};
INLINE void keep_unit(u32 at, const Unit& unit) {
  store_shared_16(at, make_uint4(unit.product, static_cast<u32>(unit.place), static_cast<u32>(unit.y),
                                 static_cast<u32>(unit.places)));
  store_shared_16(at + 16, make_uint4(static_cast<u32>(unit.group.expert), static_cast<u32>(unit.group.count),
                                      static_cast<u32>(unit.group.first), 0));
}
INLINE Unit kept_unit(u32 at) {
  const uint4 v = load_shared_16(at), of_group = load_shared_16(at + 16);
  Unit unit;
  unit.product = v.x, unit.place = static_cast<int>(v.y), unit.y = static_cast<int>(v.z);
  unit.places = static_cast<int>(v.w);
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
  q.routing = Routing{p.tiles,      p.index,    0,           p.rows, p.experts, half.a_rows,
                      half.divisor, half.reads, half.writes, 0,      0,         0,           0};
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

// A warp, whose lanes have met, arrives at a barrier as one, and waits for one. A sanitizer does not follow what a lane learns
// from the others: for it each lane arrives, and they meet behind a wait.
constexpr int OF_WARP = WATCHED ? 32 : 1;
INLINE void arrive_met(u32 barrier) {
  if (WATCHED || (threadIdx.x & 31) == 0) barrier_arrive(barrier);
}
INLINE void wait_met(u32 barrier, u32 parity) {
  barrier_wait(barrier, parity);
  if (WATCHED) warp_barrier();
}

// Arrivals that the i-th barrier waits for, from FULL_AT on.
constexpr int BARRIERS = 2 * SLOTS + 8 + 2 * QUEUE;
INLINE u32 arrivals_of(int i) {
  const int behind = i - 2 * SLOTS;
  if (i < SLOTS || (behind >= 6 && behind < 8 + QUEUE)) return 1;  // chunks, the unit of the sums, a tile that is asked for
  if (behind < 1 || behind == 4 || behind == 5) return MULTIPLYING * OF_WARP;
  return (behind == 1 ? STORING : BRINGING) * OF_WARP;
}

struct Turn {  // through the places: of its barriers and of its bytes, from the first ones on
  u32 barrier, bytes, parity;
};
INLINE void pass(Turn& turn) {
  turn.barrier += 8, turn.bytes += STAGE_BYTES;
  if (turn.barrier == 8 * SLOTS) turn.barrier = turn.bytes = 0, turn.parity ^= 1;
}
