// What comes before grouped_layer.cu: the first workgroup sorts pairs and lists tiles (grouped_route.h) and sets counts behind
// the list to 0, the others make tokens MX bytes (grouped_quantise.h).
//
// Macros: those of grouped_route.h but EARLY, which is 0; QUANTISES, there are tokens, and those of grouped_quantise.h.
#include "grouped_bulk.h"
#include "grouped_route.h"
#if QUANTISES
#include "grouped_quantise.h"
#endif

struct BeginArguments {
  u8 *places, *tiles;
  const u8 *ids, *map, *a;
  u8 *out, *scales;
  i64 first_id;
  int pairs, experts, id_bytes, map_length;
  i64 a_row, a_column;
  int m, k;
  int counts_at, counts;  // in words
};

extern "C" __global__ void __launch_bounds__(ROUTING) grouped_begin(const BeginArguments p) {
  wait_for_earlier_launches();
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (int i = threadIdx.x; i < p.counts; i += ROUTING) store_u32(p.tiles + 4ll * (p.counts_at + i), 0);
    publish();
    workgroup_barrier();
    let_later_launches_begin();  // which may add to counts, and read what was written before this launch
    PlacesArguments q = {p.places, p.tiles, {}};
    q.routing.offsets = p.ids, q.routing.index = p.map, q.routing.first_id = p.first_id;
    q.routing.rows = p.pairs, q.routing.experts = p.experts;
    q.routing.id_bytes = p.id_bytes, q.routing.map_length = p.map_length;
    route_pairs(q);
    return;
  }
  let_later_launches_begin();
#if QUANTISES
  const QuantiseArguments q = {p.a, p.out, p.scales, p.a_row, p.a_column, p.m, p.k};
  quantise_eight(q, (static_cast<int>(blockIdx.x) - 1) * ROUTING + static_cast<int>(threadIdx.x));
#endif
}
