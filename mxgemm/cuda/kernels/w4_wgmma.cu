// C[m, n] = sum over k of round(A)[m, k] W[n, k] for more rows of A than w4_mma.cu takes: MXFP4 weights as they lie, or in
// fragment order, decoded to bf16 in registers; A rounded by w4_wgmma_round.cu, in shared memory.
//
// The weight is the 64-row operand of the warpgroup's products and A the column one. Warpgroups multiply, of which WN
// have rows of their own and WK share K; one lane more copies slabs of A into a ring. Each decodes the next words while
// its tensor core multiplies the last: two sets of registers take turns. bf16 holds every decoded weight (w4_wgmma.h).
//
// Macros: those of w4_operands.h, of which TILES is here the tiles of 64 rows of a warpgroup; COLUMNS, rows of A of a
// workgroup; WN, WK; STAGES of the ring; DEPTH, chunks of the weight in flight; SPLITS, workgroups that share K, a
// cluster; OUT_VECTOR, four results of a row are 4 elements side by side, aligned.
#include "w4_wgmma.h"
#include "wgmma_results.h"

// A multiprocessor's registers are dealt out to four warps at a time. So where they are short, whole warpgroups are
// launched, and the producer's, which needs few, leaves its own to the others.
constexpr int GROUPS = WN * WK, CONSUMERS = 128 * GROUPS, THREADS = CONSUMERS + (GROUPS > 1 ? 128 : 32);
constexpr int OF_PRODUCER = 24, OF_CONSUMER = GROUPS == 2 ? 240 : GROUPS == 3 ? 160 : 112;
constexpr int ROWS = 64 * TILES * WN;  // of the weight, of a workgroup
constexpr int PITCH = ROWS + 4;        // of a row of sums in shared memory: the quads of a warp meet different banks
constexpr int SLAB = 256 * COLUMNS;    // bytes of A of a chunk
constexpr int PER_TILE = COLUMNS / 2;  // sums of a lane
constexpr int SUMS = 4 * WK * COLUMNS * PITCH, BARRIERS = STAGES * SLAB > SUMS ? STAGES * SLAB : SUMS;

// All strides are in bytes but those of bias and out, which are in elements.
struct Arguments {
  const u8* rounded;  // by w4_wgmma_round.cu
  const u8* w;
  const u8* s;
  const u8* bias;
  u8* out;
  i64 w_tile, w_row, w_block, w_byte;                      // 16 rows, a row, a block, a byte
  i64 s_tile, s_half, s_row, s_eighth, s_fourth, s_block;  // 32 rows, 16 rows, a row; 8 blocks, 4 blocks, a block
  i64 bias_stride, out_row, out_column;
  int m, n, k, bias_type, out_type, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) w4_wgmma(const Arguments p) {
  u8* const memory = shared_memory();  // the ring, in the end the sums; behind both, barriers
  const int lane = threadIdx.x & 31, warp = static_cast<int>(threadIdx.x) >> 5, g = lane >> 2, t = lane & 3;
  const u32 ring = address_in_shared(memory), full = ring + BARRIERS, empty = full + 8 * STAGES;
  // Tiles that share weights are neighbours.
  const int tiles_m = (p.m + COLUMNS - 1) / COLUMNS, tile = static_cast<int>(blockIdx.x) / SPLITS;
  const int tile_m = tile % tiles_m, n0 = tile / tiles_m * ROWS;
  const int split = static_cast<int>(blockIdx.x) % SPLITS;
  const int blocks = p.k >> 5, chunks = (blocks + 3) >> 2;
  const int first = chunks * split / SPLITS, count = chunks * (split + 1) / SPLITS - first;
  let_later_launches_begin();

  if (warp >= CONSUMERS / 32) {
    // The producer: one lane.
    if (GROUPS > 1) have_fewer_registers<OF_PRODUCER>();
    const bool chosen = threadIdx.x == CONSUMERS;
    if (chosen) {
      for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * WN);
      barriers_are_ready();
    }
    warp_meets();
    workgroup_barrier();
    if (chosen) {
      const u8* slab = p.rounded + (static_cast<i64>(tile_m) * chunks + first) * SLAB;
      wait_for_earlier_launches();  // for A; the weight had been written before the launch that rounds A began
      u32 stage = 0, parity = 1;
#pragma unroll 1
      for (int i = 0; i < count; i++, slab += SLAB) {
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(full + 8 * stage, SLAB);
        copy_bulk(ring + stage * SLAB, slab, SLAB, full + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
    }
    warp_meets();
    if (SPLITS > 1) cluster_barrier();
  } else {
    if (GROUPS > 1) have_more_registers<OF_CONSUMER>();
    const int group = warp >> 2, wn = group % WN, wk = WK == 1 ? 0 : group / WN;
    const int tile0 = (n0 >> 4) + (wn * 4 + (warp & 3)) * TILES;  // tiles of 16 rows, of which the warp has TILES
    auto block_of = [&](int chunk) { return TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t; };
    // Rows and blocks past the end are the last one's again: they are not stored, and A is 0 there.
#if FRAGMENTS
    u32 codes_at[(TILES + 1) / 2], scales_at[(TILES + 1) / 2];  // in 16 bytes, in 2 bytes
#pragma unroll
    for (int r = 0; r < TILES; r += 2) {
      const int tile = min(tile0 + r, ((p.n + 31) >> 5) * 2 - 2 + (TILES == 1 ? tile0 & 1 : 0));
      codes_at[r / 2] = static_cast<u32>(tile) * chunks * 64 + (first + wk) * 64 + lane;
      scales_at[r / 2] = (static_cast<u32>(tile >> 1) * chunks + first + wk) * 64 + lane * 2 + (tile & 1);
    }
#else
    const u8 *codes[TILES][2], *scales[TILES][2];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = min(16 * (tile0 + r) + 8 * h + g, p.n - 1);
        codes[r][h] = p.w + (row >> 4) * p.w_tile + (row & 15) * p.w_row;
        scales[r][h] = p.s + (row >> 5) * p.s_tile + ((row >> 4) & 1) * p.s_half + (row & 15) * p.s_row;
      }
#endif
    // Chunk `round + ahead`; with fragments, `round` is what the places have come to.
    auto load_codes = [&](Weights& w, int r, int round, int ahead) {
#if FRAGMENTS
      const u8* at = p.w + (codes_at[r / 2] + (r & 1) * static_cast<u32>(chunks) * 64) * 16ull + ahead * 1024;
      w.codes[r][0] = load_weights(at, 1);
      w.codes[r][1] = load_weights(at + 512, 1);
#else
      const i64 at = block_of(first + round + ahead) * p.w_block;
#pragma unroll
      for (int h = 0; h < 2; h++) w.codes[r][h] = load_weights(codes[r][h] + at, p.w_byte);
#endif
    };
    auto load_scales = [&](Weights& w, int round, int ahead) {
#if FRAGMENTS
#pragma unroll
      for (int r = 0; r < TILES; r += 2) {
        const u8* at = p.s + scales_at[r / 2] * 2ull + ahead * 128;
        w.scales[r / 2] = TILES == 1 ? load_u16(at) : load_u32(at);
      }
#else
      const int block = block_of(first + round + ahead);
      const i64 at = (block >> 3) * p.s_eighth + ((block >> 2) & 1) * p.s_fourth + (block & 3) * p.s_block;
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) w.scales[2 * r + h] = load_u8(scales[r][h] + at);
#endif
    };
    auto next_round = [&] {
#if FRAGMENTS
#pragma unroll
      for (int r = 0; r < TILES; r += 2) {
        codes_at[r / 2] += DEPTH * WK * 64, scales_at[r / 2] += DEPTH * WK * 64;
        keep_as_it_is(codes_at[r / 2]), keep_as_it_is(scales_at[r / 2]);
      }
#endif
    };

    Weights weights[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (wk + d * WK < count) {
        load_scales(weights[d], wk, d * WK);
#pragma unroll
        for (int r = 0; r < TILES; r++) load_codes(weights[d], r, wk, d * WK);
      }
    float acc[TILES][PER_TILE];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int i = 0; i < PER_TILE; i++) acc[r][i] = 0.f;
    workgroup_barrier();

    u32 stage = wk, parity = 0, last = STAGES;
#pragma unroll 1
    for (int round = wk; round < count; round += DEPTH * WK) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (round + d * WK < count) {
          Weights& w = weights[d];
          const int ahead = (DEPTH + d) * WK;
          const bool more = round + ahead < count;
          bool slow = false;
#pragma unroll
          for (int i = 0; i < static_cast<int>(sizeof w.scales / 4); i++)
            slow |= (w.scales[i] & (FRAGMENTS ? 0x80808080u : 0x80u)) != 0;
          slow = any_lane(slow);
          u32 scale[TILES][2];
#pragma unroll
          for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) scale[r][h] = scale_of(w, r, h);
          if (more) load_scales(w, round, ahead);
          barrier_wait(full + 8 * stage, parity);
          const u32 slab = ring + stage * SLAB;
#pragma unroll
          for (int r = 0; r < TILES; r++) {
            u32 factor[2], q[2][4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
              words_of(w.codes[r][h], q[h]);
              factor[h] = factor_down(slow ? min(scale[r][h], MOST_OF_ONE) : scale[r][h]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
              u32 x[2][4];
              decode(q[0][i], factor[0], x[0]);
              decode(q[1][i], factor[1], x[1]);
              if (slow) {
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                  for (int j = 0; j < 4; j++) x[h][j] = mul_bf16x2(x[h][j], second_factor(scale[r][h]));
              }
              const u32 b = slab + i / 2 * (COLUMNS * 128) + i % 2 * 64;
              products_begin();
              multiply_group(acc[r], x[0][0], x[1][0], x[0][1], x[1][1], matrix_at(b));
              multiply_group(acc[r], x[0][2], x[1][2], x[0][3], x[1][3], matrix_at(b + 32));
              products_commit();
              products_wait<1>();
              if (r == 0 && i == 0 && lane == 0 && last != STAGES) barrier_arrive(empty + 8 * last);
            }
            if (more) load_codes(w, r, round, ahead);
          }
          last = stage;
          if ((stage += WK) >= STAGES) stage -= STAGES, parity ^= 1;
        }
      next_round();
    }
    products_wait<0>();

    threads_barrier(1, CONSUMERS);  // nothing of the ring is needed any more, and all of it has come
    float* const sums = reinterpret_cast<float*>(memory) + wk * COLUMNS * PITCH;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int z = 0; z < PER_TILE; z++)
        sums[(z / 4 * 8 + 2 * t + (z & 1)) * PITCH + 16 * ((wn * 4 + (warp & 3)) * TILES + r) + (z & 2) * 4 + g] =
            acc[r][z];
    if (SPLITS > 1)
      cluster_barrier();
    else
      threads_barrier(1, CONSUMERS);
    store_sums<ROWS, PITCH, CONSUMERS>(p, ring, tile_m, n0, split, UP);
  }
  if (SPLITS > 1) cluster_barrier();  // nobody leaves while others may read its shared memory
}
