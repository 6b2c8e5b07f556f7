// Products of groups of rows of A, each by its own expert's MXFP4 weight, for groups of more rows than grouped_mma.cu is
// for: up to COLUMNS rows a workgroup. How a workgroup multiplies, and why bf16 holds all: see w4_wgmma.cu and
// w4_wgmma.h; A's slabs are those of grouped_slabs.cu.
//
// Workgroups are those of N first, then of the tiles in a list on the device; there are as many as any routing can need,
// and those that have no tile end at once. K is not divided: a row's sum has one order.
//
// Macros: those of w4_wgmma.cu but WK and SPLITS; GATED, QUANTISES, SCALE_ADDEND, EARLY as in grouped_mma.cu.
#include "floats.h"
#include "grouped_values.h"
#include "routing.h"
#include "w4_wgmma.h"
#include "warp.h"
#include "wgmma.h"

constexpr int CONSUMERS = 128 * WN, THREADS = CONSUMERS + (WN > 1 ? 128 : 32);
constexpr int OF_PRODUCER = 24, OF_CONSUMER = WN == 2 ? 240 : WN == 3 ? 160 : 112;
constexpr int ROWS = 64 * TILES * WN, PITCH = ROWS + 4, SLAB = 256 * COLUMNS, PER_TILE = COLUMNS / 2;
constexpr int SUMS = 4 * COLUMNS * PITCH, BARRIERS = STAGES * SLAB > SUMS ? STAGES * SLAB : SUMS;

// Strides of bias and out are in elements, the others in bytes.
struct Arguments {
  const u8* slabs;  // by grouped_slabs.cu
  const u8* w;
  const u8* s;
  const u8* bias;
  u8* out;
  u8* out_scales;
  const u8* tiles;  // int32 [1 + most, 3]: their number; expert or -1, first row, and the row behind the last of each
  const u8* index;  // int32 [rows]: row r of the product is row index[r] of the result; 0: r
  i64 w_expert, w_row, s_expert, s_row;
  i64 bias_expert, bias_column, out_row, out_column;
  int n, k, bias_type, out_type;
  float alpha, limit, offset;  // limit: infinity for none
  int unused;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) grouped_wgmma(const Arguments p) {
  u8* const memory = shared_memory();  // the ring, in the end the sums; behind both, barriers
  const int lane = threadIdx.x & 31, warp = static_cast<int>(threadIdx.x) >> 5, g = lane >> 2, t = lane & 3;
  const u32 ring = address_in_shared(memory), full = ring + BARRIERS, empty = full + 8 * STAGES;
  const int across = (p.n + ROWS - 1) / ROWS, place = static_cast<int>(blockIdx.x) % across;
  const int tile = static_cast<int>(blockIdx.x) / across;
#if !EARLY
  wait_for_earlier_launches();
#endif
  let_later_launches_begin();
  if (tile >= load_int(p.tiles, 0)) {
#if EARLY
    wait_for_earlier_launches();  // who waits for this launch waits for those before it as well
#endif
    return;
  }
  const int expert = load_int(p.tiles, 3 * tile + 3), start = load_int(p.tiles, 3 * tile + 4);
  const int rows = load_int(p.tiles, 3 * tile + 5) - start;
  const int blocks = p.k >> 5, chunks = (blocks + 3) >> 2, count = expert < 0 ? 0 : chunks;
  const i64 which = expert < 0 ? 0 : expert;

  if (warp >= CONSUMERS / 32) {
    // The producer: one lane.
    if (WN > 1) have_fewer_registers<OF_PRODUCER>();
    const bool chosen = threadIdx.x == CONSUMERS;
    if (chosen) {
      for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * WN);
      barriers_are_ready();
    }
    warp_meets();
    workgroup_barrier();
    if (chosen) {
      const u8* slab = p.slabs + static_cast<i64>(tile) * chunks * SLAB;
#if EARLY
      wait_for_earlier_launches();  // for A; weights and tiles had been written before the launch ahead began
#endif
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
  } else {
    if (WN > 1) have_more_registers<OF_CONSUMER>();
    const int wn = warp >> 2, tile0 = (wn * 4 + (warp & 3)) * TILES;  // of 16 rows, in the workgroup
    auto block_of = [&](int chunk) { return TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t; };
    auto first_row = [&](int r) { return row_of_weight(p.n, place * (ROWS / 64), (tile0 + r) * 16); };
    // Rows and blocks past the end are the last one's again: they are not stored, and A is 0 there.
    const u8 *const w_of = p.w + which * p.w_expert, *const s_of = p.s + which * p.s_expert;
#if FRAGMENTS
    const u8 *codes[(TILES + 1) / 2], *scales[(TILES + 1) / 2];
#pragma unroll
    for (int r = 0; r < TILES; r += 2) {
      const int own = first_row(r) >> 4, at = min(own, ((p.n + 31) >> 5) * 2 - 2 + (TILES == 1 ? own & 1 : 0));
      codes[r / 2] = w_of + (static_cast<i64>(at) * chunks * 64 + lane) * 16;
      scales[r / 2] = s_of + (static_cast<i64>(at >> 1) * chunks * 32 + lane) * 4 + (at & 1) * 2;
    }
#else
    const u8 *codes[TILES][2], *scales[TILES][2];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = min(first_row(r) + 8 * h + g, p.n - 1);
        codes[r][h] = w_of + row * p.w_row, scales[r][h] = s_of + row * p.s_row;
      }
#endif
    auto load_codes = [&](Weights& w, int r, int chunk) {
#if FRAGMENTS
      const u8* at = codes[r / 2] + ((r & 1) * chunks + chunk) * static_cast<i64>(1024);
      w.codes[r][0] = load_weights(at, 1);
      w.codes[r][1] = load_weights(at + 512, 1);
#else
#pragma unroll
      for (int h = 0; h < 2; h++) w.codes[r][h] = load_weights(codes[r][h] + block_of(chunk) * 16, 1);
#endif
    };
    auto load_scales = [&](Weights& w, int chunk) {
#if FRAGMENTS
#pragma unroll
      for (int r = 0; r < TILES; r += 2) {
        const u8* at = scales[r / 2] + chunk * 128;
        w.scales[r / 2] = TILES == 1 ? load_u16(at) : load_u32(at);
      }
#else
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) w.scales[2 * r + h] = load_u8(scales[r][h] + block_of(chunk));
#endif
    };

    Weights weights[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
      if (d < count) {
        load_scales(weights[d], d);
#pragma unroll
        for (int r = 0; r < TILES; r++) load_codes(weights[d], r, d);
      }
    float acc[TILES][PER_TILE];
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int i = 0; i < PER_TILE; i++) acc[r][i] = 0.f;
    workgroup_barrier();

    u32 stage = 0, parity = 0, last = STAGES;
#pragma unroll 1
    for (int round = 0; round < count; round += DEPTH) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++)
        if (round + d < count) {
          Weights& w = weights[d];
          const int ahead = round + DEPTH + d;
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
          if (ahead < count) load_scales(w, ahead);
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
            if (ahead < count) load_codes(w, r, ahead);
          }
          last = stage;
          if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
    products_wait<0>();

    threads_barrier(1, CONSUMERS);  // nothing of the ring is needed any more, and all of it has come
    float* const sums = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int z = 0; z < PER_TILE; z++)
        sums[(z / 4 * 8 + 2 * t + (z & 1)) * PITCH + 16 * (tile0 + r) + (z & 2) * 4 + g] = acc[r][z] * UP;
    threads_barrier(1, CONSUMERS);
#if EARLY
    wait_for_earlier_launches();  // before anything is written that they may still read
#endif

    auto sum_of = [&](int m, int local) {
      if (expert < 0) return 0.f;
      const int n = row_of_weight(p.n, place * (ROWS / 64), local);
      float sum = sums[m * PITCH + local];
      if (p.bias) sum += load_float(p.bias, which * p.bias_expert + n * p.bias_column, p.bias_type);
      return sum;
    };
    auto target = [&](int m) -> i64 { return p.index ? load_int(p.index, start + m) : start + m; };
#if GATED
    const Gate gate = {p.alpha, p.limit, p.offset};
    const int gate_at = GATED == 1 ? 2 * lane : lane, up_at = GATED == 1 ? 2 * lane + 1 : 32 + lane;
#pragma unroll 1
    for (int z = warp; z < rows * (ROWS / 64); z += CONSUMERS / 32) {
      const int m = z / (ROWS / 64), part = z % (ROWS / 64), block = place * (ROWS / 64) + part;
      if (block * 64 >= p.n) continue;
      const float value = gated(gate, sum_of(m, part * 64 + gate_at), sum_of(m, part * 64 + up_at));
#if QUANTISES
      quantise_and_store(p.out + target(m) * p.out_row, p.out_scales + target(m) * (p.n >> 6), block, value);
#else
      store_float(p.out, target(m) * p.out_row + (block * 32 + lane) * p.out_column, p.out_type, value);
#endif
    }
#else
#pragma unroll 4
    for (int z = threadIdx.x; z < rows * ROWS; z += CONSUMERS) {
      const int m = z / ROWS, local = z % ROWS, n = place * ROWS + local;
      if (n < p.n) store_float(p.out, target(m) * p.out_row + n * p.out_column, p.out_type, sum_of(m, local));
    }
#endif
  }
}
