// C[m, n] = sum over k of round(A)[m, k] W[n, k] by the fp8 products of a warpgroup: MXFP4 weights whose rows fold
// (mxgemm.mx.fold), as they lie or in fragment order, decoded to e4m3 in registers; A rounded and folded by w4_fp8_fold.cu.
//
// The weight is the 64-row operand of the products and A the column one. Warpgroups have WN times 64 rows, and WK share K.
// Each lane copies its own words of the weight to shared memory, DEPTH chunks ahead, and reads them itself: nobody waits
// for another. One lane of the first warp copies slabs of A into a ring. Sums leave the tensor cores after each chunk of
// 128 and are added in fp32, times the power of two of the chunk of A's row; a chunk of A that does not fold is multiplied
// block by block. Sums lack the base of the weight's row until the end; where A is so large or small that fp32 might not
// hold them so, they get it at once and what follows is multiplied with it.
//
// Macros: A_FORMAT; FRAGMENTS; BASES, bytes of a row's base, 1 or 4; TAIL, the last chunk is not whole; COLUMNS, rows of A
// of a workgroup; WN, WK; STAGES of the ring; DEPTH; AHEAD, a chunk is decoded while the one before is multiplied, in
// registers of its own; SPLITS, workgroups that share K, a cluster; RESIDENT workgroups of a
// multiprocessor; OUT_VECTOR, four results of a row are 4 elements side by side, aligned.
#include "floats.h"
#include "w4_fp8.h"
#include "w4_fp8_weights.h"

constexpr int GROUPS = WN * WK, THREADS = 128 * GROUPS;
constexpr int ROWS = 64 * WN;            // of the weight, of a workgroup
constexpr int PITCH = ROWS + 4;          // of a row of sums in shared memory: the quads of a warp meet different banks
constexpr int PER_TILE = COLUMNS / 2;    // sums of a lane
constexpr int STAGE = (SLAB + 1023) / 1024 * 1024;
constexpr int SLOT = FRAGMENTS ? 1152 : 1024;  // of a chunk's weights of a warp
constexpr int WEIGHTS = STAGES * STAGE, TABLE = WEIGHTS + 4 * GROUPS * DEPTH * SLOT;
constexpr int SUMS = 4 * WK * COLUMNS * PITCH, BEFORE = TABLE + static_cast<int>(TABLE_BYTES);
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

INLINE void store_four(u8* p, i64 at, int type, const float4& v) {
  if (type == OF_FP32)
    store_16(p + 4 * at, make_uint4(bits_of(v.x), bits_of(v.y), bits_of(v.z), bits_of(v.w)));
  else if (type == OF_FP16)
    store_8(p + 2 * at, f16_of(v.x) | f16_of(v.y) << 16, f16_of(v.z) | f16_of(v.w) << 16);
  else
    store_8(p + 2 * at, bf16x2_of(v.x, v.y), bf16x2_of(v.z, v.w));
}
INLINE float4 added(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// x times 2^e, rounded once where fp32 holds it.
INLINE float times_power(float x, int e) {
  e = max(min(e, 252), -252);
  const int half = e >> 1;
  return x * float_of(static_cast<u32>(127 + half) << 23) * float_of(static_cast<u32>(127 + e - half) << 23);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) w4_fp8(const Arguments p) {
  u8* const memory = shared_memory();  // the ring, weights, the table, in the end the sums; behind all, barriers
  const int lane = threadIdx.x & 31, warp = static_cast<int>(threadIdx.x) >> 5, g = lane >> 2, t = lane & 3;
  const u32 ring = address_in_shared(memory), full = ring + BARRIERS, empty = full + 8 * STAGES, table = ring + TABLE;
  // Tiles that share weights are neighbours.
  const int tiles_m = (p.m + COLUMNS - 1) / COLUMNS, tile = static_cast<int>(blockIdx.x) / SPLITS;
  const int tile_m = tile % tiles_m, n0 = tile / tiles_m * ROWS;
  const int split = static_cast<int>(blockIdx.x) % SPLITS;
  const int blocks = p.k >> 5, chunks = (blocks + 3) >> 2;
  const int first = chunks * split / SPLITS, count = chunks * (split + 1) / SPLITS - first;
  const int group = warp >> 2, wn = group % WN, wk = WK == 1 ? 0 : group / WN;
  const bool chosen = threadIdx.x == 0;
  let_later_launches_begin();

  // Where the weight lies, of rows 16 w + g and 8 more. Rows and blocks past the end are the last one's again: they are
  // not stored, and A is 0 there.
  const int row0 = n0 + 64 * wn + 16 * (warp & 3) + g;
  const int rows[2] = {min(row0, p.n - 1), min(row0 + 8, p.n - 1)};
  u32 bases[2];
#pragma unroll
  for (int h = 0; h < 2; h++) bases[h] = BASES == 1 ? load_u8(p.bases + rows[h]) : load_u32(p.bases + 4 * rows[h]) >> 23;
  const u32 own = ring + WEIGHTS + warp * (DEPTH * SLOT) + lane * 16;
  // Places in the weight are counted in 32 bits, here from its beginning.
#if FRAGMENTS
  const int tile16 = min((n0 >> 4) + 4 * wn + (warp & 3), ((p.n + 31) >> 5) * 2 - 2 + (warp & 1));
  const u32 codes = (static_cast<u32>(tile16) * chunks + first) * 64 + lane;         // in 16 bytes
  const u32 scales = (static_cast<u32>(tile16 >> 1) * chunks + first) * 32 + lane;   // in 4 bytes
  auto copy_weights = [&](int chunk, u32 to) {
    const u8* const at = p.w + (codes + chunk * 64) * 16ull;
    copy_16(to, at, 16);
    copy_16(to + 512, at + 512, 16);
    copy_4(to + 1024 - lane * 12, p.s + (scales + chunk * 32) * 4ull);
  };
#else
  u32 codes[2], scales[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 row = rows[h];
    codes[h] = (row >> 4) * static_cast<u32>(p.w_tile) + (row & 15) * static_cast<u32>(p.w_row);
    scales[h] = (row >> 5) * static_cast<u32>(p.s_tile) + ((row >> 4) & 1) * static_cast<u32>(p.s_half) +
                (row & 15) * static_cast<u32>(p.s_row);
  }
  auto block_of = [&](int chunk) {
    const u32 block = 4 * (first + chunk) + t;
    return TAIL ? min(block, static_cast<u32>(blocks - 1)) : block;
  };
  auto copy_weights = [&](int chunk, u32 to) {
    const u32 at = block_of(chunk) * static_cast<u32>(p.w_block);
    copy_16_of_256(to, p.w + (codes[0] + at));
    copy_16_of_256(to + 512, p.w + (codes[1] + at));
  };
  u32 scale[2][2];  // of this chunk and of the next
  auto load_scales = [&](int chunk, u32(&of)[2]) {
    const u32 block = block_of(chunk);
    const u32 at = (block >> 3) * static_cast<u32>(p.s_eighth) + (block >> 2 & 1) * static_cast<u32>(p.s_fourth) +
                   (block & 3) * static_cast<u32>(p.s_block);
    of[0] = load_u8(p.s + (scales[0] + at)), of[1] = load_u8(p.s + (scales[1] + at));
  };
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (wk + i * WK < count) load_scales(wk + i * WK, scale[i]);
#endif
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (wk + d * WK < count) copy_weights(wk + d * WK, own + d * SLOT);
    end_group_of_copies();
  }

  auto copy_slab = [&](int chunk, u32 stage) {
    barrier_expect(full + 8 * stage, SLAB);
    copy_bulk(ring + stage * STAGE, p.slabs + (static_cast<i64>(tile_m) * chunks + first + chunk) * SLAB, SLAB,
              full + 8 * stage);
  };
  if (chosen) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * WN);
    barriers_are_ready();
  }
  if (threadIdx.x < 16) make_table(table, threadIdx.x);
  float acc[PER_TILE], sum[PER_TILE];
#pragma unroll
  for (int z = 0; z < PER_TILE; z++) acc[z] = 0.f;
  workgroup_barrier();
  if (chosen) {
    wait_for_earlier_launches();  // for A; the weight had been written before the launch that folds A began
#pragma unroll 1
    for (int i = 0; i < min(STAGES, count); i++) copy_slab(i, i);
  }
  warp_meets();

  // Sums of the products so far, which are done, times what A's chunk in a stage is too small by.
  auto add_sums = [&](u32 at) {
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++) {
      const float4 by = load_sums(at + SLAB_SCALES + 64 * j + 16 * t);
      const float each[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
      for (int z = 0; z < 8; z++) acc[8 * j + z] += sum[8 * j + z] * each[z / 4 * 2 + (z & 1)];
    }
  };
  // A chunk block by block: the lanes that hold others have zeros.
  bool based = false;
  auto add_blocks = [&](u32 at, const u32(&x)[4][4]) {
    if (!based) {
      bool far = false;
#pragma unroll 1
      for (int m = lane; m < COLUMNS; m += 32) {
        const u32 unit = load_shared_4(at + SLAB_SCALES + 4 * place_of_scale(m)) >> 23;
        const u32 rest = load_shared_4(at + SLAB_REST + 4 * m);
        far |= unit > MOST_UNIT + 1;
#pragma unroll
        for (int b = 0; b < 4; b++) far |= unit < (rest >> (8 * b) & 255) + LEAST_UNIT;
      }
      if (any_lane(far)) {
        based = true;
#pragma unroll
        for (int z = 0; z < PER_TILE; z++) acc[z] *= float_of(bases[z >> 1 & 1] << 23);
      }
    }
#pragma unroll 1
    for (int b = 0; b < 4; b++) {
      const u32 mine = t == b ? ~0u : 0u;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const u32 y[4] = {x[i][0] & mine, x[i][1] & mine, x[i][2] & mine, x[i][3] & mine};
        products_begin();
        if (i == 0)
          multiply_fp8<false>(sum, y[0], y[1], y[2], y[3], matrix_at(at));
        else
          multiply_fp8<true>(sum, y[0], y[1], y[2], y[3], matrix_at(at) + 2 * i);
        products_commit();
        products_wait<0>();  // few registers, and rare
#pragma unroll
        for (int z = 0; z < PER_TILE; z++) come_to_rest(sum[z]);
      }
#pragma unroll
      for (int z = 0; z < PER_TILE; z++) {
        const int m = z / 4 * 8 + 2 * t + (z & 1);
        const int unit = static_cast<int>(load_shared_4(at + SLAB_SCALES + 4 * place_of_scale(m)) >> 23);
        const int rest = static_cast<int>(load_shared_4(at + SLAB_REST + 4 * m) >> (8 * b) & 255);
        acc[z] += times_power(sum[z], unit - rest - 127 + (based ? static_cast<int>(bases[z >> 1 & 1]) - 127 : 0));
      }
    }
  };

  // A chunk's words of the weight become e4m3, and their place takes later ones.
  u32 slot = 0, x[1 + AHEAD][4][4];
  auto decode_weights = [&](int chunk, int u) {
    wait_for_copies<DEPTH - 1>();
    const u32 from = own + slot * SLOT;
    u32 q[2][4];
    uint2 magnitude[2];
#if FRAGMENTS
    const u32 both = load_shared_4(from + 1024 - lane * 12);
#endif
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint4 v = load_shared_16(from + 512 * h);
      q[h][0] = v.x, q[h][1] = v.y, q[h][2] = v.z, q[h][3] = v.w;
#if FRAGMENTS
      magnitude[h] = magnitudes(table, permute(both, 0, 0x4440 + 2 * (warp & 1) + h), bases[h]);
#else
      magnitude[h] = magnitudes(table, scale[u][h], bases[h]);
#endif
    }
    u32(&to)[4][4] = x[u * AHEAD];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) decode_e4m3(q[h][i], magnitude[h], to[i][h], to[i][2 + h]);
    if (chunk + DEPTH * WK < count) copy_weights(chunk + DEPTH * WK, from);
    end_group_of_copies();
#if !FRAGMENTS
    if (chunk + 2 * WK < count) load_scales(chunk + 2 * WK, scale[u]);
#endif
    if (++slot == DEPTH) slot = 0;
  };

  u32 stage = wk, parity = 0;
  if (AHEAD && wk < count) decode_weights(wk, 0);
#pragma unroll 1
  for (int round = wk; round < count; round += 2 * WK) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      const int chunk = round + u * WK;
      if (chunk < count) {
        const u32 at = ring + stage * STAGE;
        u32(&now)[4][4] = x[u * AHEAD];
        if (!AHEAD) decode_weights(chunk, u);
        barrier_wait(full + 8 * stage, parity);
        u32 rest = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS / 64; i++) {
          const uint2 some = load_shared_8(at + SLAB_REST + 256 * i + 8 * lane);
          rest |= some.x | some.y;
        }
        if (any_lane(rest != 0) || based) {
          add_blocks(at, now);
          if (AHEAD && chunk + WK < count) decode_weights(chunk + WK, u ^ 1);
        } else {
          const u64 columns = matrix_at(at);
          products_begin();
          multiply_fp8<false>(sum, now[0][0], now[0][1], now[0][2], now[0][3], columns);
#pragma unroll
          for (int i = 1; i < 4; i++)  // 32 bytes further
            multiply_fp8<true>(sum, now[i][0], now[i][1], now[i][2], now[i][3], columns + 2 * i);
          products_commit();
          if (AHEAD && chunk + WK < count) decode_weights(chunk + WK, u ^ 1);  // meanwhile
          products_wait<0>();
#pragma unroll
          for (int z = 0; z < PER_TILE; z++) come_to_rest(sum[z]);
          add_sums(at);
        }
        warp_meets();
        if (lane == 0) barrier_arrive(empty + 8 * stage);
        if ((stage += WK) >= STAGES) stage -= STAGES, parity ^= 1;
        // What the round before has left takes later slabs.
        if (chosen && chunk >= WK) {
#pragma unroll 1
          for (int left = chunk - WK; left < chunk && left + STAGES < count; left++) {
            const u32 of = static_cast<u32>(left) % STAGES;
            barrier_wait(empty + 8 * of, static_cast<u32>(left) / STAGES & 1);
            copy_slab(left + STAGES, of);
          }
        }
        warp_meets();
      }
    }
  }
  if (!based)
#pragma unroll
    for (int z = 0; z < PER_TILE; z++) acc[z] *= float_of(bases[z >> 1 & 1] << 23);

  workgroup_barrier();  // nothing of the ring is needed any more, and all of it has come
  float* const sums = reinterpret_cast<float*>(memory) + wk * COLUMNS * PITCH;
#pragma unroll
  for (int z = 0; z < PER_TILE; z++)
    sums[(z / 4 * 8 + 2 * t + (z & 1)) * PITCH + 64 * wn + 16 * (warp & 3) + (z & 2) * 4 + g] = acc[z];
  if (SPLITS > 1)
    cluster_barrier();
  else
    workgroup_barrier();

  // Four rows of the weight a lane, always the same. A cluster's workgroups take rows of A in turn.
  constexpr int LANES_A_ROW = ROWS / 4, STEP = THREADS / LANES_A_ROW;
  const int column = static_cast<int>(threadIdx.x) % LANES_A_ROW * 4, n = n0 + column;
  const int m_end = min(COLUMNS, p.m - tile_m * COLUMNS);
  auto sum_of = [&](int m) {
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int s = 0; s < SPLITS; s++)
#pragma unroll
      for (int i = 0; i < WK; i++) {
        const u32 at = ring + ((i * COLUMNS + m) * PITCH + column) * 4;
        total = added(total, SPLITS > 1 ? load_sums_of(at, s) : load_sums(at));
      }
    return total;
  };
  float bias[4] = {};
  if (p.bias)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (n + i < p.n) bias[i] = load_float(p.bias, (n + i) * p.bias_stride, p.bias_type);
  auto finish = [&](int m, const float4& total) {
    const float4 v = make_float4(total.x + bias[0], total.y + bias[1], total.z + bias[2], total.w + bias[3]);
    const i64 at = static_cast<i64>(tile_m * COLUMNS + m) * p.out_row + n * p.out_column;
    if (OUT_VECTOR && n + 4 <= p.n) {
      store_four(p.out, at, p.out_type, v);
    } else {
      const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i < p.n) store_float(p.out, at + i * p.out_column, p.out_type, each[i]);
    }
  };
#pragma unroll 1
  for (int m = static_cast<int>(threadIdx.x) / LANES_A_ROW * SPLITS + split; m < m_end; m += STEP * SPLITS)
    finish(m, sum_of(m));
  if (SPLITS > 1) cluster_barrier();  // nobody leaves while others may read its shared memory
}
