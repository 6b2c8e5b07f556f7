// C[m, n] = sum over k of round(A)[m, k] W[n, k], M <= 8 MT WARPS_M: MXFP4 weights as they lie, or in fragment order.
//
// The weight is the 16-row operand of the matrix instruction, A the 8-column one. K may be permuted freely as long as
// both operands agree, and here the instruction's k belong to lanes so that lane t of a quad owns block t of a chunk of
// four: 16 bytes and one scale of a weight's row are whole blocks of one lane, so are 32 values of a row of A, which
// it rounds to A_FORMAT by itself. Decoded weights hold their scale as bf16.
//
// A chunk that bf16 cannot hold (extreme scales, NaN) is left to a second loop, which scales the sums of each block.
//
// Macros: those of round_block.h; MT, tiles of 8 rows of A of a warp; TILES, its tiles of 16 weight rows; WARPS_N,
// WARPS_M, WARPS_K, warps of a workgroup along N, M and K; DEPTH, chunks in flight at once; A_AHEAD, A is among
// them; A_BEFORE, a launch of round_a.cu comes before, which this one overlaps, A_CODES, it makes e2m1 codes; RESIDENT,
// workgroups for which a multiprocessor's registers must do, 0 if no matter how many; SPLITS, workgroups that share K, a
// cluster; FRAGMENTS, the weight is in the order of mxgemm.mx.fragments; PREFETCH, all that a workgroup reads of it is
// called to L2 first; A_SLOTS, so many chunks of A are copied to shared memory by whole rows and rounded there, A_WHOLE,
// these are all; ONCE, no warp comes back for another round; IN_TURN, warps call for what they read four at a time;
// A_VECTOR, W_VECTOR, loads of 16 bytes are aligned and contiguous; TAIL, K % 128 != 0; OVERLAP, launched so that it may
// begin before earlier launches have ended; OUT_VECTOR, N % 4 = 0 and four results of a row are 4 elements side by side,
// aligned; SPOTS_FIRST, there are registers for where results lie from the beginning; RACECHECKED, for compute-sanitizer.
#include "w4_mma_left.h"

// The weight is called to L2 by lines, in the order in which they are waited for, not all of a workgroup's at once.
#define BY_LINES (PREFETCH && !ONCE && (A_FORMAT == BF16 || MT == 1))

// Slots of A that are copied before weights are called for: few rows that are rounded are waited for first.
#define A_FIRST (A_FORMAT == BF16 || MT > 1 || (ONCE && DEPTH > 1) ? 1 : A_SLOTS)

#if RESIDENT
#define BOUNDS __launch_bounds__(32 * WARPS, RESIDENT)
#else
#define BOUNDS __launch_bounds__(32 * WARPS)
#endif
extern "C" __global__ void BOUNDS w4_mma(const Arguments p) {
  const Places places(p);
  const int lane = places.lane, warp = places.warp, g = places.g, t = places.t, group = places.group, rank = places.rank;
  const int side = places.side, sides = places.sides, first = places.first, m0 = places.m0;
  const int chunks = places.chunks, end = places.end;
  begin_sums(p, rank);
#if PREFETCH
  if (threadIdx.x == 0) {  // a cluster's workgroups a part each
    const int tiles = ((p.n + 31) >> 5) * 2, tile = group * WARPS_N * TILES;
    const int pair = tile >> 1, past = min(tile + WARPS_N * TILES, tiles);
    const int codes = (past - tile) * chunks, scales = (((past + 1) >> 1) - pair) * chunks;
    const int code = codes * rank / SPLITS, scale = scales * rank / SPLITS;
#if !BY_LINES
    prefetch_to_l2(p.w + (tile * static_cast<i64>(chunks) + code) * 1024, (codes * (rank + 1) / SPLITS - code) * 1024);
#endif
    prefetch_to_l2(p.s + (pair * static_cast<i64>(chunks) + scale) * 128, (scales * (rank + 1) / SPLITS - scale) * 128);
  }
#endif
  // Where chunks are a constant apart, places move on with the round, and loads add what is `ahead` by themselves:
  // pointers would take twice the registers. Of rounded A 16 bytes are counted; a block of its codes is the one of its
  // scale's place.
  constexpr int STEP = A_CODES ? 32 : 128;  // of rounded A, a chunk
  u32 rounded_at[MT];
#if FRAGMENTS
  u32 codes_place[PLACES], scales_place[PLACES];
#pragma unroll
  for (int i = 0; i < PLACES; i++) {
    codes_place[i] = places.codes_place_of(i * TOGETHER) + first * 64;
    scales_place[i] = places.scales_place_of(i * TOGETHER) + first * 64;
  }
#else
  const u8 *codes[TILES][2], *scales[TILES][2];
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int h = 0; h < 2; h++) {  // and they are not computed anew at each round
      codes[r][h] = places.codes_of(r, h), scales[r][h] = places.scales_of(r, h);
      keep_as_it_is(codes[r][h]), keep_as_it_is(scales[r][h]);
    }
#endif
#if A_BEFORE
  const u8* const scales_of_a = p.rounded + ((p.m + 7) >> 3) * static_cast<i64>(512) * chunks;
#elif A_SLOTS
  // Of a chunk a warp copies two rows at a time, a lane piece lane % 16 of one; and a lane reads block t of the rows g.
  const u32 copied = lane & 15, area = shared_address(sums + sides * WARPS_N * SHARED);
  const int copied_row = 2 * side + (lane >> 4), rows_left = p.m - m0 - copied_row;
  const u8* const copied_from = p.a + (m0 + copied_row) * p.a_row * A_BYTES + copied * 16;
  u32 copied_to = area + place_of(copied_row, copied);
  u32 place = area + place_of(g, 4 * t);  // of its first piece; piece i is at 16 i in other bits of the address
  keep_as_it_is(place);
  u32 slot = 0;  // what of A is multiplied next, in bytes
#else
  const u8* a[MT];
#endif
#pragma unroll
  for (int i = 0; i < MT; i++) {
#if A_BEFORE
    rounded_at[i] = ((places.a_row(i) >> 3) * chunks + first) * STEP + (places.a_row(i) & 7) * 4 + t;
#elif !A_SLOTS
    a[i] = places.a_of(i);
    keep_as_it_is(a[i]);
#endif
  }
  auto next_round = [&] {
    constexpr u32 BY = DEPTH * ALONG_K;
#if FRAGMENTS
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      codes_place[i] += BY * 64, scales_place[i] += BY * 64;
      keep_as_it_is(codes_place[i]), keep_as_it_is(scales_place[i]);
    }
#endif
#if A_BEFORE
#pragma unroll
    for (int i = 0; i < MT; i++) {
      rounded_at[i] += BY * STEP;
      keep_as_it_is(rounded_at[i]);
    }
#endif
  };

  auto load_scales = [&](Weights& w, int round, int ahead) {
#if FRAGMENTS
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const u8* at = p.s + scales_place[i] * 2ull + ahead * 128;
      w.scales[i] = TOGETHER == 1 ? load_u16(at) : load_u32(at);
    }
#else
    const i64 at = places.scales_at(round + ahead);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) w.scales[2 * r + h] = load_u8(scales[r][h] + at);
#endif
  };
  auto load_codes = [&](Weights& w, int round, int ahead) {
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
#if FRAGMENTS
        const u32 place = codes_place[r / TOGETHER] + r % TOGETHER * static_cast<u32>(chunks) * 64;
        w.codes[r][h] = load_weights(p.w + place * 16ull + ahead * 1024 + h * 512, 1);
#else
        w.codes[r][h] = load_weights(codes[r][h] + places.codes_at(round + ahead), p.w_byte);
#endif
      }
  };
#if A_SLOTS
  constexpr u32 SLOT = MT * TILE_BYTES;
  auto meet_on_a = [&] { WARPS_N == 1 ? warp_barrier() : warps_barrier(1 + sides, 32 * WARPS_N); };
  constexpr int COPIES = (4 * MT + WARPS_N - 1) / WARPS_N;  // of a chunk, by a warp
  auto copied_rows = [&](const u8* (&rows)[COPIES], int chunk) {
#pragma unroll
    for (int j = 0; j < COPIES; j++) rows[j] = copied_from + j * (2 * WARPS_N * A_BYTES * p.a_row) + chunk * 256;
  };
  auto copy_a = [&](u32 to, int chunk, const u8* (&rows)[COPIES], int ahead) {  // rows and blocks past the end are 0
    if (chunk < end) {
      const bool real = !TAIL || 4 * chunk + (copied >> 2) < places.blocks;
#pragma unroll
      for (int j = 0; j < COPIES; j++)
        if (4 * MT % WARPS_N == 0 || side + WARPS_N * j < 4 * MT)
          copy_16(copied_to + to + j * (512 * WARPS_N), rows[j] + ahead * 256,
                  real && 2 * WARPS_N * j < rows_left ? 16 : 0);
    }
    end_group_of_copies();
  };
#endif
  auto load_a = [&](Part (&part)[MT], int round, int ahead) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
#if A_SLOTS
#pragma unroll
      for (int j = 0; j < 4; j++) part[i].at[j] = (place + slot ^ 16 * j) + i * TILE_BYTES;
#elif A_BEFORE
      const u8* at = p.rounded + rounded_at[i] * 16ull + ahead * (STEP * 16);
#endif
#if A_CODES
      part[i].codes = load_16(at), part[i].scale = load_u8(scales_of_a + rounded_at[i] + ahead * 32);
#elif A_BEFORE
#pragma unroll
      for (int j = 0; j < 4; j++) part[i].v[j] = load_16(at + 512 * j);
#elif !A_SLOTS
      part[i] = places.load_raw(a[i], round + ahead);
#endif
    }
  };

  float acc[TILES][MT][4] = {};
  u64 left = 0;  // chunks of this warp that are left to the second loop, the last one in the lowest bit
  // Adds a chunk, or says that it has to be left. Another one, if there is one, is called for as soon as there is room.
  auto add_chunk = [&](Weights& w, Part (&part)[MT], int round, int ahead) {
    const int then = ahead + DEPTH * ALONG_K;
    const bool more = !ONCE && round + then < end;
    if (!A_AHEAD || A_SLOTS) load_a(part, round, ahead);
    Opened opened[MT];
    bool odd = false;
#if A_SLOTS && A_FORMAT != BF16 && !ROUNDED_ALONE
#pragma unroll 2
    for (int j = 0; j < (MT + WARPS_N - 1) / WARPS_N; j++)
      if (MT % WARPS_N == 0 || side + j * WARPS_N < MT)
        odd |= !round_in_place(part[0].at, (side + j * WARPS_N) * TILE_BYTES);
    if (WARPS_N > 1) odd = any_of_warps(1 + sides, 32 * WARPS_N, odd);
#endif
#pragma unroll
    for (int i = 0; i < MT; i++) odd |= !open(part[i], opened[i]);
    bool held = true;
    if (any_lane(odd || slow_scales(w))) {
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {  // zeros are zeros, however small their scale
          const uint4 q = w.codes[r][h];
          const u32 s = scale_of(w, r, h);
          odd |= (s > MOST_FAST) | ((s < LEAST_FAST) & (((q.x | q.y | q.z | q.w) & MAGNITUDES) != 0));
        }
      held = !any_lane(odd);
    }
    u32 factor[TILES][2];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) factor[r][h] = factor_of(scale_of(w, r, h));
    if (FRAGMENTS && more) load_scales(w, round, then);
    if (held)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 x[MT][4];
#pragma unroll
        for (int c = 0; c < MT; c++) four_words(opened[c], i, x[c]);
#pragma unroll
        for (int r = 0; r < TILES; r++) {
          u32 q[2][4], d[2][4];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            words_of(w.codes[r][h], q[h]);
            decode(q[h][i], factor[r][h], d[h]);
          }
#pragma unroll
          for (int j = 0; j < 4; j += 2)
#pragma unroll
            for (int c = 0; c < MT; c++)
              multiply(acc[r][c], d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[c][j], x[c][j + 1]);
        }
      }
    if (more) load_codes(w, round, then);
    if (!FRAGMENTS && more) load_scales(w, round, then);  // with the places of the codes, which take registers
    return held;
  };

  Weights weights[DEPTH];
  Part parts[DEPTH][MT];
  // Where loads begin is computed before the wait, not behind it.
#if FRAGMENTS
#pragma unroll
  for (int i = 0; i < PLACES; i++) keep_as_it_is(codes_place[i]), keep_as_it_is(scales_place[i]);
#endif
#if A_SLOTS
  const u8* rows[COPIES];
  copied_rows(rows, first);
#pragma unroll
  for (int j = 0; j < COPIES; j++) keep_as_it_is(rows[j]);
  keep_as_it_is(copied_to);
#endif
#if SPOTS_FIRST
  Spots spots = first_spots(p, group, rank);
  keep_as_it_is(spots.own.from), keep_as_it_is(spots.own.to), keep_as_it_is(spots.sent_from);
#endif
#if BY_LINES
#pragma unroll 1
  for (int chunk = first, ahead = 0; chunk < end; chunk += ALONG_K, ahead += ALONG_K) {
#pragma unroll
    for (int r = 0; r < TILES; r++) {
      const u32 place = codes_place[r / TOGETHER] + r % TOGETHER * static_cast<u32>(chunks) * 64;
      prefetch_line(p.w + place * 16ull + (ahead * 1024 + lane * 16));
    }
  }
#endif
#if OVERLAP && !A_BEFORE
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();  // no earlier: they would take places on some multiprocessors and leave others without work
#if IN_TURN
  constexpr int WAVES = (WARPS + 3) / 4;
  const int wave = warp >> 2;
  auto lanes_of = [](int wave) { return WARPS % 4 ? 32 * (4 + min(4, WARPS - 4 * wave)) : 256; };  // and those before
  if (wave) warps_barrier(wave, lanes_of(wave));
#endif
#if A_SLOTS
#pragma unroll
  for (int i = 0; i < A_FIRST; i++) copy_a(i * SLOT, first + i * ALONG_K, rows, i * ALONG_K);
#endif
  auto load_chunk = [&](int d) {
    if (first + d * ALONG_K < end) {
      load_scales(weights[d], first, d * ALONG_K);
      load_codes(weights[d], first, d * ALONG_K);
    }
  };
#pragma unroll
  for (int d = 0; d < (ONCE ? 1 : DEPTH); d++) load_chunk(d);
#if A_BEFORE
  wait_for_earlier_launches();  // not for the weight: what wrote that had ended before the launch that rounds A began
#endif
#if A_SLOTS
#pragma unroll
  for (int i = A_FIRST; i < A_SLOTS; i++) copy_a(i * SLOT, first + i * ALONG_K, rows, i * ALONG_K);
#if ONCE && A_FIRST == A_SLOTS  // or loads of the weight are moved behind the wait for the copies
  end_group_of_copies();
#endif
#else
  if (A_AHEAD)
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (first + d * ALONG_K < end) load_a(parts[d], first, d * ALONG_K);
#endif
#if IN_TURN
  if (wave + 1 < WAVES) arrive_at_barrier(wave + 1, lanes_of(wave + 1));
#endif
#pragma unroll 1
  for (int round = first; round < end; round += DEPTH * ALONG_K) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (round + d * ALONG_K < end) {
#if A_SLOTS
        wait_for_copies<A_SLOTS - 1>();
        meet_on_a();
#endif
        if (ONCE && d + 1 < DEPTH) load_chunk(d + 1);  // when this one has come: together they would come late
        left = 2 * left + !add_chunk(weights[d], parts[d], round, d * ALONG_K);
#if A_SLOTS && (DEPTH > 1 || !ONCE)
#if A_WHOLE
        end_group_of_copies();
        slot += SLOT;
#else
        meet_on_a();
        const u8* next_rows[COPIES];
        copied_rows(next_rows, round + (d + A_SLOTS) * ALONG_K);
        copy_a(slot, round + (d + A_SLOTS) * ALONG_K, next_rows, 0);
        slot = slot == (A_SLOTS - 1) * SLOT ? 0 : slot + SLOT;
#endif
#elif !A_SLOTS
        if (A_AHEAD && !ONCE && round + (DEPTH + d) * ALONG_K < end)
          load_a(parts[d], round, (DEPTH + d) * ALONG_K);
#endif
      }
    if (ONCE) break;
    next_round();
  }

#if A_SLOTS
  meet_on_a();  // the sums take A's place
#endif
  float* const mine = sums + (sides * WARPS_N + side) * SHARED + 2 * t * PITCH + g;
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int c = 0; c < MT; c++)
#pragma unroll
      for (int j = 0; j < 4; j++) mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] = acc[r][c][j] * UP;

  add_what_was_left(places, left, mine);
  workgroup_barrier();
#if RACECHECKED && SPLITS == 1  // a second time: compute-sanitizer loses the first one where warps meet at others, too
  meet_as_cluster();
#endif
#if !SPOTS_FIRST
  const Spots spots = first_spots(p, group, rank);
#endif
  add_and_store(p, group, rank, spots);
}
