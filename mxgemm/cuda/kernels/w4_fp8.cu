// C[m, n] = sum over k of round(A)[m, k] W[n, k] by the fp8 products of a warpgroup: MXFP4 weights whose rows fold
// (mxgemm.mx.fold), as they lie, decoded to e4m3 in registers; A rounded and folded by w4_fp8_fold.cu.
//
// The weight is the 64-row operand of the products and A the column one. Warpgroups have WN times 64 rows, and WK share K,
// in steps of two chunks of 128. Each lane copies its own words of the weight to shared memory, DEPTH steps ahead, and
// reads them itself: nobody waits for another. Slabs of A are copied into a ring. Sums leave the
// tensor cores after each chunk and are added in fp32; a step of which a chunk of A has another power of two than its row
// is multiplied chunk by chunk, and one of which a chunk does not fold block by block. Sums lack the powers of two of their
// rows, A's and the weight's, until the end; where fp32 might not hold them so, they get them at once and what follows is
// multiplied with them.
//
// Macros: W_BLOCK, bytes from a block's codes to the next one's; S_FOURTH, from a block's scale to that of the fourth
// after; BASES, bytes of a row's base, 1 or 4; TAIL, the last step is not whole; COLUMNS, rows of A of a workgroup; WN, WK;
// STAGES of the ring; DEPTH; AHEAD, a chunk is decoded while the one before is multiplied, in registers of its own; SPLITS,
// workgroups that share K, a cluster; RESIDENT workgroups of a multiprocessor; OUT_VECTOR, four results of a row are 4
// elements side by side, aligned.
#include "w4_fp8_weights.h"
#include "w4_fp8.h"
#include "wgmma_results.h"

constexpr int GROUPS = WN * WK, THREADS = 128 * GROUPS;
constexpr int LAG = STAGES > 2 * WK ? 1 : 0;  // rounds
constexpr int ROWS = 64 * WN;            // of the weight, of a workgroup
constexpr int PITCH = ROWS + 4;          // of a row of sums in shared memory: the quads of a warp meet different banks
// Products are of 64 columns, a part. Those of two parts are in flight, but for a single one where registers are few.
constexpr int PARTS = COLUMNS / 64, OF_PART = 32, PART = 64 * 128 / 16, FLYING = PARTS == 2 || (AHEAD && PARTS < 4) ? 2 : 1;
static_assert(SLAB % 1024 == 0, "rows of 128 bytes are swizzled by their address");
constexpr int SLOT = 2048, SCALE_SLOTS = 4;  // of a step's weights of a warp; for scales, of 4 bytes a lane
constexpr int WEIGHTS = STAGES * SLAB, OF_SCALES = WEIGHTS + 4 * GROUPS * DEPTH * SLOT;
constexpr int TABLE = OF_SCALES + 4 * GROUPS * SCALE_SLOTS * 128;  // a multiple of 512
constexpr int OF_UNITS = TABLE + static_cast<int>(TABLE_BYTES), UNITS = 8 * COLUMNS;  // rows' powers of two
constexpr int SUMS = 4 * WK * COLUMNS * PITCH, BEFORE = OF_UNITS + UNITS;
constexpr int BARRIERS = BEFORE > SUMS ? BEFORE : SUMS;

// All strides are in bytes but those of bias and out, which are in elements.
struct Arguments {
  const u8* slabs;  // by w4_fp8_fold.cu
  const u8* w;
  const u8* s;
  const u8* bases;  // of the weight's rows: bytes, or fp32 powers of two
  const u8* bias;
  u8* out;
  i64 w_tile, w_row, w_block, w_byte;                      // 16 rows, a row, a block, a byte
  i64 s_tile, s_half, s_row, s_eighth, s_fourth, s_block;  // 32 rows, 16 rows, a row; 8 blocks, 4 blocks, a block
  i64 bias_stride, out_row, out_column;
  int m, n, k, bias_type, out_type, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) w4_fp8(const Arguments p) {
  u8* const memory = shared_memory();  // the ring, weights, the table, units, in the end the sums; behind all, barriers
  const int lane = threadIdx.x & 31, warp = static_cast<int>(threadIdx.x) >> 5, g = lane >> 2, t = lane & 3;
  const u32 ring = address_in_shared(memory), full = ring + BARRIERS, empty = full + 8 * STAGES, table = ring + TABLE;
  // Tiles that share weights are neighbours.
  const int tiles_m = (p.m + COLUMNS - 1) / COLUMNS, tile = static_cast<int>(blockIdx.x) / SPLITS;
  const u32 units = ring + OF_UNITS, units_full = empty + 8 * STAGES;
  const int tile_m = tile % tiles_m, n0 = tile / tiles_m * ROWS;
  const int split = static_cast<int>(blockIdx.x) % SPLITS;
  const int blocks = p.k >> 5, steps = (blocks + 7) >> 3;
  const int first = steps * split / SPLITS, count = steps * (split + 1) / SPLITS - first;
  const int group = warp >> 2, wn = group % WN, wk = WK == 1 ? 0 : group / WN;
  const bool chosen = threadIdx.x == 0, first_lane = wk == 0 && threadIdx.x % 128 == 0;
  let_later_launches_begin();

  // Where the weight lies, of rows 16 w + g and 8 more. Rows and blocks past the end are the last one's again: they are
  // not stored, and A is 0 there.
  const int row0 = n0 + 64 * wn + 16 * (warp & 3) + g;
  const int rows[2] = {min(row0, p.n - 1), min(row0 + 8, p.n - 1)};
  u32 bases[2];
#pragma unroll
  for (int h = 0; h < 2; h++) bases[h] = BASES == 1 ? load_u8(p.bases + rows[h]) : load_u32(p.bases + 4 * rows[h]) >> 23;
  const u32 own = ring + WEIGHTS + warp * (DEPTH * SLOT) + lane * 16;
  const u32 own_scales = ring + OF_SCALES + warp * (SCALE_SLOTS * 128) + lane * 4;
  u32 codes[2], scales[2];  // places from the weight's beginning, counted in 32 bits
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 row = rows[h];
    codes[h] = (row >> 4) * static_cast<u32>(p.w_tile) + (row & 15) * static_cast<u32>(p.w_row);
    scales[h] = (row >> 5) * static_cast<u32>(p.s_tile) + ((row >> 4) & 1) * static_cast<u32>(p.s_half) +
                (row & 15) * static_cast<u32>(p.s_row);
    if (!TAIL) codes[h] += t * W_BLOCK, scales[h] += t * static_cast<u32>(p.s_block);
    keep_as_it_is(codes[h]), keep_as_it_is(scales[h]);
  }
  // Of a lane where steps may not be whole, else of the first one.
  auto block_of = [&](int step, int c) {
    const u32 block = 8 * (first + step) + 4 * c;
    return TAIL ? min(block + t, static_cast<u32>(blocks - 1)) : block;
  };
  auto copy_weights = [&](int step, u32 to) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u8* const at = p.w + (codes[h] + block_of(step, 0) * W_BLOCK);
      copy_16_of_256(to + 512 * h, at);
      copy_16_of_256(to + 512 * h + 1024, TAIL ? p.w + (codes[h] + block_of(step, 1) * W_BLOCK) : at + 4 * W_BLOCK);
    }
  };
  // Of both chunks and both rows.
  auto load_scales = [&](int step, u32(&of)[4]) {
    auto place = [&](u32 block) {
      const u32 eighth = (block >> 3) * static_cast<u32>(p.s_eighth);
      return TAIL ? eighth + (block >> 2 & 1) * S_FOURTH + (block & 3) * static_cast<u32>(p.s_block) : eighth;
    };
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u8* const at = p.s + (scales[h] + place(block_of(step, 0)));
      of[h] = load_u8(at);
      of[2 + h] = load_u8(TAIL ? p.s + (scales[h] + place(block_of(step, 1))) : at + S_FOURTH);
    }
  };
  auto store_scales = [&](u32 to, const u32(&of)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) store_shared_1(to + i, of[i]);
  };
  auto scale_slot = [&](u32 round) { return own_scales + (round & (SCALE_SLOTS - 1)) * 128; };
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (wk + d * WK < count) copy_weights(wk + d * WK, own + d * SLOT);
    end_group_of_copies();
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (wk + i * WK < count) {
      u32 of[4];
      load_scales(wk + i * WK, of);
      store_scales(scale_slot(i), of);
    }
  // Scales of the step after the next: called for before the products behind which they are stored, or, where registers are
  // few, behind those of the step before.
  u32 later[4];
  if (!AHEAD && wk + 2 * WK < count) load_scales(wk + 2 * WK, later);

  auto copy_slab = [&](int step, u32 stage) {
    barrier_expect(full + 8 * stage, SLAB);
    copy_bulk(ring + stage * SLAB, p.slabs + (static_cast<i64>(tile_m) * steps + first + step) * SLAB, SLAB,
              full + 8 * stage);
  };
  if (chosen) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * WN);
    barrier_init(units_full, 1);
    barriers_are_ready();
  }
  if (threadIdx.x <= PLACES) make_table(table, threadIdx.x);
  float acc[PARTS][OF_PART], sums[FLYING][OF_PART];
#pragma unroll
  for (int i = 0; i < PARTS; i++)
#pragma unroll
    for (int z = 0; z < OF_PART; z++) acc[i][z] = 0.f;
  workgroup_barrier();
  if (chosen) {
    wait_for_earlier_launches();  // for A; the weight had been written before the launch that folds A began
#pragma unroll 1
    for (int i = 0; i < min(STAGES, count); i++) copy_slab(i, i);
    barrier_expect(units_full, UNITS);
    copy_bulk(units, p.slabs + (static_cast<i64>(tiles_m) * steps * SLAB + tile_m * UNITS), UNITS, units_full);
  }
  warp_meets();

  u32 half = 1 << 16, beginning[2] = {beginning_in(table, bases[0]), beginning_in(table, bases[1])};
  auto base_of = [&](int h) { return base_from(table, beginning[h]); };
  keep_as_it_is(half), keep_as_it_is(beginning[0]), keep_as_it_is(beginning[1]);
  // A chunk's words of the weight become e4m3.
  auto decode_weights = [&](int c, u32 from, u32 scales_from, u32(&x)[4][4]) {
    uint4 words[2];
    u32 place[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      words[h] = load_shared_16(from + 1024 * c + 512 * h);
      place[h] = beginning[h] + 8 * load_shared_1(scales_from + 2 * c + h);
    }
    if (any_lane(outside(table, place[0], place[1])))
#pragma unroll
      for (int h = 0; h < 2; h++)
        place[h] = place_after_all(table, place[h], load_shared_1(scales_from + 2 * c + h));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint2 magnitude = load_shared_8(place[h]);
      const u32 q[4] = {words[h].x, words[h].y, words[h].z, words[h].w};
#pragma unroll
      for (int i = 0; i < 4; i++) decode_e4m3(q[i], magnitude, half, x[i][h], x[i][2 + h]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) keep_as_it_is(x[i][j]);
  };
  // Adds sums of products, which are done.
  auto add_sums = [&](float(&to)[OF_PART], float(&sum)[OF_PART]) {
#pragma unroll
    for (int z = 0; z < OF_PART; z++) come_to_rest(sum[z]), to[z] += sum[z];
  };
  // Sums get the powers of two of their rows.
  auto complete = [&] {
    barrier_wait(units_full, 0);
    TwoPowers up[2];
#pragma unroll
    for (int h = 0; h < 2; h++) up[h] = two_powers(base_of(h));
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (j % 2 == 0) warp_meets();  // few loads at a time: so they take few registers
        const float4 two = load_sums(units + 8 * (64 * part + 8 * j + 2 * t));
#pragma unroll
        for (int z = 4 * j; z < 4 * j + 4; z++) {
          const TwoPowers by = up[z >> 1 & 1];
          acc[part][z] *= (z & 1 ? two.z : two.x) * by.x;
          acc[part][z] *= (z & 1 ? two.w : two.y) * by.y;
        }
      }
  };
  // A chunk, or, if it does not fold, block by block: the lanes that hold others have zeros.
  bool completed = false;
  auto add_chunk = [&](bool folds, u64 columns, u32 words_at, u32 rest_at, const u32(&x)[4][4]) {
    float(&sum)[OF_PART] = sums[0];
#pragma unroll 1
    for (int b = 0; b < (folds ? 1 : 4); b++) {
      const u32 mine = folds || t == b ? ~0u : 0u;
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        u32 rests_at = rest_at;
        keep_as_it_is(rests_at);  // what it gives is not kept for the loop
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const u32 y[4] = {x[i][0] & mine, x[i][1] & mine, x[i][2] & mine, x[i][3] & mine};
          products_begin();
          multiply_fp8(sum, y, columns + part * PART + 2 * i, i == 0);
          products_commit();
          products_wait<0>();  // few registers, and rare
#pragma unroll
          for (int z = 0; z < OF_PART; z++) come_to_rest(sum[z]);
        }
#pragma unroll
        for (int z = 0; z < OF_PART; z++) {
          if (z % 4 == 0) warp_meets();  // few loads at a time: so they take few registers
          const int m = 64 * part + z / 4 * 8 + 2 * t + (z & 1);
          const u32 word = load_shared_4(words_at + 4 * place_of_scale(m));
          const int rest = static_cast<int>(load_shared_4(rests_at + 4 * m) >> (8 * b) & 255);
          const int up = static_cast<int>(completed ? (word & UNIT) + base_of(z >> 1 & 1) - 127 : word >> 23) - 127;
          acc[part][z] += times_power(sum[z], up - rest);
        }
      }
    }
  };

  u32 x[1 + AHEAD][4][4];
  auto slot_of = [&](u32 round) { return own + round % DEPTH * SLOT; };
  if (AHEAD && wk < count) {
    wait_for_copies<DEPTH - 1>();
    decode_weights(0, own, scale_slot(0), x[0]);
  }
#pragma unroll 1
  for (int own_step = wk; own_step < count; own_step += WK) {
    const int step = static_cast<int>(from_lane(own_step, 0));  // the compiler does not know that all lanes have it
    const u32 round = static_cast<u32>(step) / WK, use = static_cast<u32>(step) / STAGES;
    const u32 stage = step - use * STAGES, at = ring + stage * SLAB, slot = slot_of(round), now = scale_slot(round);
    const u64 columns = matrix_at(at);
    if (AHEAD && step + 2 * WK < count) load_scales(step + 2 * WK, later);
    if (!AHEAD) {
      wait_for_copies<DEPTH - 1>();
      decode_weights(0, slot, now, x[0]);
    }
    barrier_wait(full + 8 * stage, use & 1);
    u32 unlike = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS / 64; i++) {
      const uint4 some = load_shared_16(at + SLAB_SCALES + 512 * i + 16 * lane);
      unlike |= (some.x ^ ALIKE) | (some.y ^ ALIKE) | (some.z ^ ALIKE) | (some.w ^ ALIKE);
    }
    const bool alike = !(any_lane(unlike > UNIT) || completed);
    // Behind the second chunk's products: the place of this step's weights takes later ones, and AHEAD the next ones are
    // decoded.
    auto meanwhile = [&] {
      if (step + 2 * WK < count) store_scales(scale_slot(round + 2), later);
      if (!AHEAD && step + 3 * WK < count) load_scales(step + 3 * WK, later);
      if (step + DEPTH * WK < count) copy_weights(step + DEPTH * WK, slot);
      end_group_of_copies();
      if (AHEAD && step + WK < count) {
        wait_for_copies<DEPTH - 1>();
        decode_weights(0, slot_of(round + 1), scale_slot(round + 1), x[0]);
      }
    };
    if (alike) {
      // Parts of both chunks one after the other: while one is added, the next is multiplied.
      auto begin = [&](int i) {
        products_begin();
        multiply_fp8(sums[i % FLYING], x[i / PARTS * AHEAD], columns + i * PART);
        products_commit();
      };
      auto end = [&](int i) {
        add_sums(acc[i % PARTS], sums[i % FLYING]);
      };
#if AHEAD
      begin(0);
      if (FLYING == 2 && PARTS > 1) begin(1);
      // Always: but behind a branch the compiler does not wait for products first.
      if (p.unused == 0) decode_weights(1, slot, now, x[1]);
      if (PARTS == 1) begin(1);
#pragma unroll
      for (int i = 0; i < 2 * PARTS; i++) {
        if (i == 2 * PARTS - FLYING) meanwhile();
        if (FLYING == 2 && i < 2 * PARTS - 1)
          products_wait<1>();
        else
          products_wait<0>();
        end(i);
        if (i + FLYING < 2 * PARTS) begin(i + FLYING);
      }
#else
#pragma unroll
      for (int c = 0; c < 2; c++) {
        if (c) decode_weights(1, slot, now, x[0]);
        begin(c * PARTS);
        if (FLYING == 2) begin(c * PARTS + 1);
#pragma unroll
        for (int i = c * PARTS; i < (c + 1) * PARTS; i++) {
          if (i == 2 * PARTS - 1) meanwhile();
          if (FLYING == 2 && i < (c + 1) * PARTS - 1)
            products_wait<1>();
          else
            products_wait<0>();
          end(i);
          if (i + FLYING < (c + 1) * PARTS) begin(i + FLYING);
        }
      }
#endif
    } else {
      if (!completed && any_lane((unlike & FAR) != 0)) {
        completed = true;
        complete();
      }
      const bool folds = !any_lane((unlike & APART) != 0);
#pragma unroll 1
      for (int c = 0; c < 2; c++) {
        decode_weights(c, slot, now, x[0]);
        add_chunk(folds, columns + c * PARTS * PART, at + SLAB_SCALES + c * SCALES, at + SLAB_REST + c * REST, x[0]);
      }
      meanwhile();
    }
    warp_meets();
    if (lane == 0) barrier_arrive(empty + 8 * stage);
    // What the round before has left, or this one where there are few stages, takes later slabs. Warpgroups see to it
    // in turn.
    if (first_lane && round % WN == static_cast<u32>(wn) && round >= LAG) {
#pragma unroll 1
      for (int left = step - LAG * WK; left < step + (1 - LAG) * WK && left + STAGES < count; left++) {
        const u32 of = static_cast<u32>(left) % STAGES;
        barrier_wait(empty + 8 * of, static_cast<u32>(left) / STAGES & 1);
        copy_slab(left + STAGES, of);
      }
    }
    warp_meets();
  }
  if (!completed) complete();

  workgroup_barrier();  // nothing of the ring is needed any more, and all of it has come
  float* const results = reinterpret_cast<float*>(memory) + wk * COLUMNS * PITCH + 64 * wn + 16 * (warp & 3) + g;
#pragma unroll
  for (int i = 0; i < PARTS; i++)
#pragma unroll
    for (int z = 0; z < OF_PART; z++) results[(64 * i + z / 4 * 8 + 2 * t + (z & 1)) * PITCH + (z & 2) * 4] = acc[i][z];
  if (SPLITS > 1)
    cluster_barrier();
  else
    workgroup_barrier();
  store_sums<ROWS, PITCH, THREADS>(p, ring, tile_m, n0, split, 1.f);
  if (SPLITS > 1) cluster_barrier();  // nobody leaves while others may read its shared memory
}
