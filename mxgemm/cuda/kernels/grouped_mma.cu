// Products of groups of rows of A, each by its own expert's MXFP4 weight, up to COLUMNS rows a workgroup: for mixtures of
// experts. Which lane holds what, how weights are decoded and why a chunk may be left to a second loop: see w4_mma.cu.
//
// Workgroups take tiles (grouped_tile.h) in turn, those of N first. Those that find none end at once. A row's sum has one order, whatever rows lie beside it: K is divided over WARPS_K warps
// and a block of A that bf16 does not hold counts as 0 in the first loop, as all that bf16 holds do in the second.
//
// Macros: A_TYPE, A_FORMAT, A_VECTOR, ROUNDS (grouped_rows.h), SCALE_ADDEND (of what is rounded); MT, tiles of 8 rows of A of
// a workgroup; TILES, tiles of 16 weight rows of a warp; WARPS_N, WARPS_K, warps along N and K; DEPTH, chunks in flight;
// FRAGMENTS, the weight is in fragment order; TAIL, K % 128 != 0; GATED, BY_IDS (grouped_values.h,
// grouped_tile.h); EARLY, what the tile is found by was written before the launch before this one began; AHEAD, the
// next tile is begun before the last one's sums are stored; RESIDENT, workgroups for which a multiprocessor's registers must do, 0 if no matter how many.
#include "grouped_results.h"

#if RESIDENT
#define BOUNDS __launch_bounds__(THREADS, RESIDENT)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif
extern "C" __global__ void BOUNDS grouped_mma(const Arguments p) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first = warp % WARPS_K, across = (p.n + ROWS_OF_ALL - 1) / ROWS_OF_ALL;
  const int blocks = p.k >> 5, chunks = (blocks + 3) >> 2;
#if !EARLY
  wait_for_earlier_launches();
  let_later_launches_begin();
#endif

  // What the workgroup is at: place along N, group, its weight, the rows of A of this lane.
  int item = static_cast<int>(blockIdx.x), place = item % across, end = 0;
  Group group = group_of(p.routing, find_tiles(p.routing), item / across);
  const u8 *w = p.w, *s = p.s;
  int row[MT] = {};
  Biases biases;
  auto begin = [&] {
    if (group.count == 0) return;
    const i64 which = group.expert < 0 ? 0 : group.expert;
    w = p.w + which * p.w_expert, s = p.s + which * p.s_expert;
    end = group.expert < 0 ? 0 : chunks;
#pragma unroll
    for (int i = 0; i < MT; i++) row[i] = source_of(p.routing, group, min(8 * i + g, group.count - 1));
    call_biases(p, group, place, threadIdx.x, biases);
  };
  begin();

  // Rows and blocks past the end are the last one's again: they are not stored, and A counts as 0 there.
  auto block_of = [&](int chunk) { return TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t; };
  auto first_row = [&](int r) { return weight_row(p.n, place, (warp / WARPS_K * TILES + r) * 16); };
#if FRAGMENTS
  auto tile_of = [&](int r) {  // N is padded to pairs of tiles
    const int in = r % TOGETHER;
    return min((first_row(r) >> 4) - in, ((p.n + 31) >> 5) * 2 - TOGETHER) + in;
  };
  auto codes_at = [&](int r, int chunk) {
    return w + (tile_of(r) * static_cast<i64>(chunks) + chunk) * 1024 + lane * 16;
  };
  auto scales_at = [&](int r, int chunk) {
    return s + ((tile_of(r) >> 1) * static_cast<i64>(chunks) + chunk) * 128 + lane * 4 + (tile_of(r) & 1) * 2;
  };
#else
  auto row_of = [&](int r, int h) { return min(first_row(r) + 8 * h + g, p.n - 1); };
#endif
  auto load_codes = [&](int r, int h, int chunk) {
#if FRAGMENTS
    return load_streamed(codes_at(r, chunk) + h * 512);
#else
    return load_streamed(w + row_of(r, h) * p.w_row + block_of(chunk) * 16);
#endif
  };
  auto load_scale = [&](int r, int h, int chunk) {
#if FRAGMENTS
    return load_u8(scales_at(r, chunk) + h);
#else
    return load_u8(s + row_of(r, h) * p.s_row + block_of(chunk));
#endif
  };
  auto load_chunk = [&](Weights& into, int chunk) {
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) into.codes[r][h] = load_codes(r, h, chunk);
#if FRAGMENTS
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const u8* at = scales_at(i * TOGETHER, chunk);
      into.scales[i] = TOGETHER == 1 ? load_u16(at) : load_u32(at);
    }
#else
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) into.scales[2 * r + h] = load_scale(r, h, chunk);
#endif
  };

  auto load_a = [&](Rows& rows, int row, int chunk) {
    const bool real = !TAIL || 4 * chunk + t < blocks;
#if A_FORMAT == BF16 || ROUNDS
    rows.raw = load_block(p.a + (row * p.a_row + block_of(chunk) * 32 * p.a_column) * A_BYTES, p.a_column * A_BYTES);
    if (!real) rows.raw = Raw{};
#else
#pragma unroll
    for (int j = 0; j < CODES; j++) {
      rows.codes[j] = load_16(p.a + row * p.a_row + (block_of(chunk) * CODES + j) * 16);
      if (!real) rows.codes[j] = make_uint4(0, 0, 0, 0);
    }
    rows.scale = load_u8(p.a_scales + row * p.a_scales_row + block_of(chunk));
    if (!real) rows.scale = 127;
#endif
  };

  float acc[TILES][MT][4];
  u32 left = 0, left_of_a = 0;  // chunks of this warp for the second loop: whole ones, and blocks of A that are not held
  auto add_chunk = [&](const Weights& weights, const Rows (&rows)[MT], u32 bit) {
    OpenRows open[MT];
    bool usual = !slow_scales(weights);
#pragma unroll
    for (int i = 0; i < MT; i++) usual &= open_rows(rows[i], open[i]);
    if (any_lane(!usual)) {
      bool odd = false, odd_of_a = false;
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {  // zeros are zeros, however small their scale
          const uint4 q = weights.codes[r][h];
          const u32 scale = scale_of(weights, r, h);
          odd |= (scale > MOST_FAST) | ((scale < LEAST_FAST) & (((q.x | q.y | q.z | q.w) & MAGNITUDES) != 0));
        }
      if (any_lane(odd)) {
        left |= bit;
        return;
      }
#pragma unroll
      for (int i = 0; i < MT; i++) odd_of_a |= !is_held(rows[i]);
      if (any_lane(odd_of_a)) left_of_a |= bit;
#pragma unroll
      for (int i = 0; i < MT; i++) open_held_rows(rows[i], is_held(rows[i]), open[i]);
    }
    u32 factor[TILES][2];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) factor[r][h] = factor_of(scale_of(weights, r, h));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 x[MT][4];
#pragma unroll
      for (int c = 0; c < MT; c++) words_of_rows(open[c], i, x[c]);
#pragma unroll
      for (int r = 0; r < TILES; r++) {
        u32 q[2][4], d[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          words_of(weights.codes[r][h], q[h]);
          decode(q[h][i], factor[r][h], d[h]);
        }
#pragma unroll
        for (int j = 0; j < 4; j += 2)
#pragma unroll
          for (int c = 0; c < MT; c++)
            multiply(acc[r][c], d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[c][j], x[c][j + 1]);
      }
    }
  };

  Weights weights[DEPTH];
  Rows rows[DEPTH][MT];
  auto load_first_weights = [&] {
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (first + d * WARPS_K < end) load_chunk(weights[d], first + d * WARPS_K);
  };
  auto load_first_rows = [&] {
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (first + d * WARPS_K < end)
#pragma unroll
        for (int i = 0; i < MT; i++) load_a(rows[d][i], row[i], first + d * WARPS_K);
  };
  if (group.count) load_first_weights();
#if EARLY
  wait_for_earlier_launches();  // not for the weight, nor for the routing
  let_later_launches_begin();
#endif
  if (group.count) load_first_rows();
#pragma unroll 1
  while (group.count) {
    left = left_of_a = 0;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int c = 0; c < MT; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[r][c][j] = 0.f;
    u32 bit = 1;
#pragma unroll 1
    for (int round = first; round < end; round += DEPTH * WARPS_K) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (round + d * WARPS_K < end) {
          const int ahead = round + (DEPTH + d) * WARPS_K;
          add_chunk(weights[d], rows[d], bit);
          bit <<= 1;
          if (ahead < end) {
            load_chunk(weights[d], ahead);
#pragma unroll
            for (int i = 0; i < MT; i++) load_a(rows[d][i], row[i], ahead);
          }
        }
    }

    float* const mine = sums + warp * SHARED + 2 * t * PITCH + g;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int c = 0; c < MT; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] = acc[r][c][j] * UP;

    // What was left: A and the weights without their scales, the values of one block a time, the others' A being 0.
#pragma unroll 1
    for (u32 both = left | left_of_a; both; both &= both - 1) {
      const int number = lowest_bit(both), chunk = first + WARPS_K * number;
      const bool whole = left >> number & 1;
#pragma unroll 1
      for (int c = 0; c < MT; c++) {
        Rows part;
        u32 x[16];
        load_a(part, source_of(p.routing, group, min(8 * c + g, group.count - 1)), chunk);
        u32 scale = unscaled_rows(part, x);
        if (!whole && is_held(part)) {  // this block's products are in the sums
          scale = 127;
#pragma unroll
          for (int i = 0; i < 16; i++) x[i] = 0;
        }
#pragma unroll 1
        for (int r = 0; r < TILES; r++) {
          u32 q[2][4], of_row[2], factor[2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            words_of(load_codes(r, h, chunk), q[h]);
            of_row[h] = load_scale(r, h, chunk);
            factor[h] = twice((127 + 126 - (of_row[h] < LEAST_FAST ? 8 : 0)) << 7);
          }
#pragma unroll 1
          for (int block = 0; block < 4; block++) {
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
              u32 d[2][4];
              decode(q[0][i], factor[0], d[0]);
              decode(q[1][i], factor[1], d[1]);
#pragma unroll
              for (int j = 0; j < 4; j += 2)
                multiply(sum, d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], t == block ? x[4 * i + j] : 0,
                         t == block ? x[4 * i + j + 1] : 0);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
              const u32 of_a = from_lane(scale, (2 * t + (j & 1)) * 4 + block);
              const u32 of_w = from_lane(of_row[j >> 1], g * 4 + block);
              mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] += scaled(sum[j], of_a, of_w);
            }
          }
        }
      }
    }

    const Group done = group;
    const int done_place = place;
    const Biases done_biases = biases;
    auto next = [&] {
#if BY_IDS
      group.count = 0;
#else
      item += p.routing.programs;
      place = item % across;
      group = group_of(p.routing, find_tiles(p.routing), item / across);
      begin();
      if (group.count) load_first_weights(), load_first_rows();
#endif
    };
    if (AHEAD) next();  // its first loads are on their way while this one's sums are added and stored
    workgroup_barrier();
    store_results(p, sums, done_place, done, done_biases, threadIdx.x);
    if (!BY_IDS) workgroup_barrier();  // the sums' memory is the next tile's
    if (!AHEAD) next();
  }
}
