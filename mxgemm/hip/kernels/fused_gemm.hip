// C[M, N] = quantise(A[M, K]) * W[N, K]^T + bias in one launch: bf16 A to e2m1 in registers, e2m1 weight, scaled MFMA.
//
// SPLIT_K workgroups share BLOCK_M x BLOCK_N of C, each has a part of K, and its WAVES waves share that: each takes
// steps of BLOCK_K elements and keeps sums of the whole block; at the end the waves' sums are added in LDS, in the order
// of the waves, and those of workgroups by the last of them (split_k.h), in the order of the parts: runs agree to the
// bit. What else passes through LDS are the codes of A, within a wave (quantize_bf16.h).
//
//   A        bf16, rows a_stride bytes apart (a multiple of 16)    whole rows: 4 x 256 bytes a load
//   weight   preshuffled e2m1 [N/16, K/128, 64 lanes, 16 bytes]    lane l: 16 bytes
//   scales   shuffled E8M0 [N/32, K/256, 64 lanes, 4 bytes]        lane l: a dword, byte 2 * (k / 128 % 2) + n / 16 % 2
//   bias     BIAS_TYPE [N], where that is defined
//   C        OUT_TYPE, rows c_stride bytes apart (a multiple of 4 elements)
//   partials fp32 [blocks of C, SPLIT_K, TILES, 64 lanes, 4], and counters, zero, [blocks of C, HANDING_OVER];
//            neither is looked at where SPLIT_K is 1
//
// Generated for one weight: GEMM_N, GEMM_K, BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K, WAVES, UNROLL, XCDS (dies with an L2 of
// their own, to which workgroups are dealt in turn), SCALE_ADDEND (to the bits of a bf16) and OUT_TYPE are defined on
// the command line. mxgemm/hip/fused.py says which values are legal, and why.
#include "buffer.h"
#include "mfma.h"
#include "quantize_bf16.h"
#include "split_k.h"
#include "vectors.h"

constexpr u32 LANES = 64;
constexpr u32 TILES_M = BLOCK_M / 16, TILES_N = BLOCK_N / 16, TILES_K = BLOCK_K / 128;  // of a matrix instruction
constexpr u32 TILES = TILES_M * TILES_N;
constexpr u32 SCALE_PAIRS = ceil_div(TILES_N, 2);
constexpr bool ODD_BLOCKS = TILES_N % 2 != 0;  // every other one starts in the middle of a dword of scales
constexpr u32 SCALE_DWORDS = ODD_BLOCKS && TILES_N > 1 ? TILES_N / 2 + 1 : SCALE_PAIRS;
constexpr u32 ALL_TILES_N = GEMM_N / 16;
constexpr u32 WEIGHT_TILE_BYTES = 16 * GEMM_K / 2, SCALE_TILE_BYTES = ceil_div(GEMM_K, 256) * 256;
constexpr u32 BLOCKS_N = ceil_div(GEMM_N, BLOCK_N), BLOCKS_N_OF_XCD = ceil_div(BLOCKS_N, XCDS);
constexpr u32 STEPS = GEMM_K / BLOCK_K / SPLIT_K;  // of a workgroup
constexpr u32 ROUNDS = STEPS / (WAVES * UNROLL);   // in a round each wave takes UNROLL steps
constexpr u32 STEPS_IN_ROUNDS = ROUNDS * WAVES * UNROLL;
constexpr u32 WAVES_A_SIMD = ceil_div(WAVES, 4);
constexpr u32 TILES_OF_WAVE = ceil_div(TILES, WAVES);  // in the end, when the waves share the block
constexpr u32 HANDING_OVER = WAVES < TILES ? WAVES : TILES;  // waves that have sums of the block in the end
constexpr u32 A_TILES = TILES_M * TILES_K;  // of a step
constexpr u32 WAVE_KB = TILES > UNROLL * A_TILES ? TILES : UNROLL * A_TILES;  // of LDS: codes, and then sums

using out_x4 = OUT_TYPE __attribute__((ext_vector_type(4)));
#ifdef BIAS_TYPE
using bias_x4 = BIAS_TYPE __attribute__((ext_vector_type(4)));
#endif

// Where a workgroup's operands begin (the same for all lanes), and how far into them a lane's lie.
struct Operands {
  Buffer a, weight, scales;
  u32 a_lane[TILES_M][4], lane;
  u32 first_tile_n;
  Lanes lanes;
  u32 *codes;  // LDS of this wave
  const void *later[SPLIT_K > 1 ? 3 : 1];  // arguments of the end
};

// What a lane holds of BLOCK_K elements of the weight.
struct Step {
  u32x4 weight[TILES_N][TILES_K];
  u32 scales[SCALE_DWORDS];
};

// Steps whose loads are in flight together, and A's part of them.
template <u32 COUNT> struct Round {
  Step steps[COUNT];
  Bf16Tile a[COUNT * A_TILES];
};

struct Sums {
  f32x4 of[TILES_M][TILES_N];
};

// Tile n of the block, and pair n of tiles, or the last there is, which stands in for those past it: not stored.
DEVICE u32 weight_tile_offset(const Operands &from, u32 n) {
  if constexpr (GEMM_N % BLOCK_N == 0) return n * WEIGHT_TILE_BYTES;
  const u32 left = ALL_TILES_N - 1 - from.first_tile_n;
  return (n < left ? n : left) * WEIGHT_TILE_BYTES;
}

DEVICE u32 scale_tile_offset(const Operands &from, u32 pair) {
  if constexpr (GEMM_N % BLOCK_N == 0 && !(ODD_BLOCKS && TILES_N > 1)) return pair * SCALE_TILE_BYTES;
  const u32 left = (ALL_TILES_N - 1) / 2 - from.first_tile_n / 2;
  return (pair < left ? pair : left) * SCALE_TILE_BYTES;
}

DEVICE void load(const Operands &from, u32 step, Step &to, Bf16Tile *a) {
  // The weight first: it comes from HBM. A is in L2, as soon as one workgroup has read it.
#pragma unroll
  for (u32 n = 0; n < TILES_N; n++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++)
      to.weight[n][k] = load_16(from.weight, from.lane * 16 + k * (LANES * 16),
                                weight_tile_offset(from, n) + step * TILES_K * (LANES * 16));
#pragma unroll
  for (u32 pair = 0; pair < SCALE_DWORDS; pair++)
    to.scales[pair] =
        load_4(from.scales, from.lane * 4, scale_tile_offset(from, pair) + step * TILES_K / 2 * (LANES * 4));
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++)
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        a[m * TILES_K + k][i] = load_16(from.a, from.a_lane[m][i] + k * 256, step * (BLOCK_K * 2));
}

// The scale bytes of tiles 2 pair and 2 pair + 1 of the block, at bytes 0 and 1 for the step's first 128 elements.
DEVICE u32 scales_of_pair(const Operands &from, const Step &step, u32 number, u32 pair) {
  u32 scales = step.scales[pair];
  u32 shift = TILES_K == 1 ? number % 2 * 16 : 0;
  if constexpr (ODD_BLOCKS) {
    const u32 odd = from.first_tile_n % 2;
    if (pair + 1 < SCALE_DWORDS)
      scales = __builtin_amdgcn_perm(step.scales[pair + 1], scales, odd ? 0x06030401u : 0x03020100u);
    else
      shift += odd * 8;
  }
  return scales >> shift;
}

// Tile K_TILE of a step, whose first tile of A has number `first`.
template <u32 K_TILE>
DEVICE void multiply_tile(const Operands &from, const Step &step, const u32 (&scales)[SCALE_PAIRS], const u32 *a_scales,
                          u32 first, Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++) {
    const u32 tile = first + m * TILES_K + K_TILE;
    const Fp4Block a = block_of(from.codes + tile * TILE_DWORDS, a_scales[tile], from.lanes);
#pragma unroll
    for (u32 n = 0; n < TILES_N; n += 2) {
      sums.of[m][n] = multiply_add<2 * K_TILE>(step.weight[n][K_TILE], scales[n / 2], a, sums.of[m][n]);
      if (n + 1 < TILES_N)
        sums.of[m][n + 1] =
            multiply_add<2 * K_TILE + 1>(step.weight[n + 1][K_TILE], scales[n / 2], a, sums.of[m][n + 1]);
    }
  }
}

// Quantise A of a round's steps, of which `number` is the first, once for all tiles along N; then multiply. A's
// registers are free before the first product, whose sums need some.
template <u32 COUNT>
DEVICE void accumulate(const Operands &from, const Round<COUNT> &held, u32 number, Sums &sums) {
  TileScales found[COUNT * A_TILES];
  u32 a_scales[COUNT * A_TILES];
  find_scales<SCALE_ADDEND>(held.a, found);
#pragma unroll
  for (u32 t = 0; t < COUNT * A_TILES; t++)
    a_scales[t] = quantize(held.a[t], found[t], from.lanes, from.codes + t * TILE_DWORDS);
  between_lanes();
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) {
    const Step &step = held.steps[i];
    u32 scales[SCALE_PAIRS];
#pragma unroll
    for (u32 pair = 0; pair < SCALE_PAIRS; pair++) scales[pair] = scales_of_pair(from, step, number + i, pair);
    multiply_tile<0>(from, step, scales, a_scales, i * A_TILES, sums);
    if constexpr (TILES_K > 1) multiply_tile<1>(from, step, scales, a_scales, i * A_TILES, sums);
  }
  between_lanes();
}

DEVICE u32 step_of(u32 first, u32 round, u32 wave) { return first + (round * WAVES + wave) * UNROLL; }

template <u32 COUNT> DEVICE void load(const Operands &from, u32 number, Round<COUNT> &to) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) load(from, number + i, to.steps[i], to.a + i * A_TILES);
}

// No load of what follows is issued before the sums are there. The compiler would put matrix instructions off until
// after the next loads, which then could not take the registers that are free by now, and copy all that they load.
DEVICE void finish(Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 n = 0; n < TILES_N; n++) asm volatile("" : "+v"(sums.of[m][n]) : : "memory");
}

// What the end of the kernel needs is fetched now, behind the first loads: where firmware does not preload an argument,
// its miss would come on top of theirs.
DEVICE void fetched(const void *argument) { asm volatile("" : : "s"(argument)); }

// One wave's part of the workgroup's steps, from `first` on. While a round is multiplied, the next one's loads are in flight.
DEVICE void accumulate_wave(const Operands &from, u32 first, u32 wave, Sums &sums) {
  if constexpr (ROUNDS > 0) {
    Round<UNROLL> even, odd;
    load(from, step_of(first, 0, wave), even);
#pragma unroll
    for (const void *argument : from.later) fetched(argument);
    __builtin_amdgcn_sched_barrier(0);  // however many registers that takes: a later load is another miss
#pragma unroll 1
    for (u32 round = 0; round + 2 < ROUNDS; round += 2) {
      load(from, step_of(first, round + 1, wave), odd);
      accumulate(from, even, step_of(first, round, wave), sums);
      finish(sums);
      load(from, step_of(first, round + 2, wave), even);
      accumulate(from, odd, step_of(first, round + 1, wave), sums);
      finish(sums);
    }
    if constexpr (ROUNDS % 2 == 0) {
      load(from, step_of(first, ROUNDS - 1, wave), odd);
      accumulate(from, even, step_of(first, ROUNDS - 2, wave), sums);
      accumulate(from, odd, step_of(first, ROUNDS - 1, wave), sums);
    } else {
      accumulate(from, even, step_of(first, ROUNDS - 1, wave), sums);
    }
  }
  if constexpr (STEPS_IN_ROUNDS < STEPS) {
#pragma unroll 1
    for (u32 step = STEPS_IN_ROUNDS + wave; step < STEPS; step += WAVES) {
      Round<1> held;
      load(from, first + step, held);
      accumulate(from, held, first + step, sums);
    }
  }
}

// Add the bias, round and store a tile of the block.
DEVICE void finish_tile(f32x4 sum, u32 tile, u32 lane, [[maybe_unused]] u32 block_n, u32 rows,
                        [[maybe_unused]] const u8 *bias, u8 *corner, u32 c_stride) {
  const u32 row = tile / TILES_N * 16 + lane % 16, column = tile % TILES_N * 16 + lane / 16 * 4;
#ifdef BIAS_TYPE
  const bias_x4 added = ((const bias_x4 *)bias)[(block_n * BLOCK_N + column) / 4];
  sum += __builtin_convertvector(added, f32x4);
#endif
  if (row < rows)
    *(out_x4 *)(corner + row * c_stride + column * sizeof(OUT_TYPE)) = __builtin_convertvector(sum, out_x4);
}

KERNEL __attribute__((amdgpu_flat_work_group_size(WAVES * LANES, WAVES * LANES),
                      amdgpu_waves_per_eu(WAVES_A_SIMD, WAVES_A_SIMD)))
void fused_gemm(const u8 *__restrict__ a, const u8 *__restrict__ weight, const u8 *__restrict__ scales,
                [[maybe_unused]] const u8 *__restrict__ bias, u8 *__restrict__ c, u32 m, u32 a_stride, u32 c_stride,
                [[maybe_unused]] u8 *partials, [[maybe_unused]] u32 *counters) {
  SHARED static f32x4 memory[WAVES][WAVE_KB][LANES];
  const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % LANES;
  const u32 wave = __builtin_amdgcn_readfirstlane(thread / LANES);
  // Grid (XCD, block along M, (block along N of that XCD, part of K)): a part of the weight is read through one L2, for
  // all of M, and the parts of a block hand their sums over within it.
  const u32 in_xcd = __builtin_amdgcn_workgroup_id_z();
  const u32 split = in_xcd % SPLIT_K;
  const u32 block_n = __builtin_amdgcn_workgroup_id_x() * BLOCKS_N_OF_XCD + in_xcd / SPLIT_K;
  if (BLOCKS_N % XCDS != 0 && block_n >= BLOCKS_N) return;
  const u32 block_m = __builtin_amdgcn_workgroup_id_y(), first_row = block_m * BLOCK_M;
  const u32 rows = m - first_row;  // of this block and those below
  const u32 first_tile_n = block_n * TILES_N;

  Operands from;
  // Rows past the end lie behind that of the buffer: zeros, which are not stored.
  const u32 rows_here = rows < BLOCK_M ? rows : BLOCK_M;
  from.a = buffer_of(a + (u64)first_row * a_stride, (rows_here - 1) * a_stride + GEMM_K * 2);
  from.weight = buffer_of(weight + (u64)first_tile_n * WEIGHT_TILE_BYTES, TILES_N * WEIGHT_TILE_BYTES);
  from.scales = buffer_of(scales + (u64)(first_tile_n / 2) * SCALE_TILE_BYTES, SCALE_DWORDS * SCALE_TILE_BYTES);
  from.lane = lane;
  from.first_tile_n = first_tile_n;
  from.lanes = lanes_of(lane);
  from.codes = (u32 *)memory[wave];
#pragma unroll
  for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      from.a_lane[i][j] = lane / 16 * a_stride + lane % 16 * 16 + (i * 16 + j * 4) * a_stride;

  from.later[0] = c;
  if constexpr (SPLIT_K > 1) from.later[1] = partials, from.later[2] = counters;

  Sums sums = {};
  accumulate_wave(from, split * STEPS, wave, sums);
#pragma unroll
  for (u32 tile = 0; tile < TILES; tile++) memory[wave][tile][lane] = sums.of[tile / TILES_N][tile % TILES_N];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");

  u8 *corner = c + (u64)first_row * c_stride + block_n * (BLOCK_N * sizeof(OUT_TYPE));
  const u32 block = block_m * BLOCKS_N + block_n;
  [[maybe_unused]] const Buffer parts =
      buffer_of(partials + (u64)block * (SPLIT_K * TILES * LANES * 16), SPLIT_K * TILES * LANES * 16);
  for (u32 tile = wave; tile < TILES; tile += WAVES) {
    f32x4 sum = memory[0][tile][lane];
#pragma unroll
    for (u32 other = 1; other < WAVES; other++) sum += memory[other][tile][lane];
    if (GEMM_N % BLOCK_N != 0 && first_tile_n + tile % TILES_N >= ALL_TILES_N) continue;
    if constexpr (SPLIT_K == 1)
      finish_tile(sum, tile, lane, block_n, rows, bias, corner, c_stride);
    else
      store_16<THROUGH>(parts, bits_as<u32x4>(sum), lane * 16, (split * TILES + tile) * (LANES * 16));
  }
  if constexpr (SPLIT_K > 1) {
    if (wave >= HANDING_OVER || !last_to_arrive(counters + block * HANDING_OVER + wave, lane, SPLIT_K)) return;
    u32x4 part[TILES_OF_WAVE][SPLIT_K];
#pragma unroll
    for (u32 t = 0; t < TILES_OF_WAVE; t++) {
      const u32 tile = wave + t * WAVES < TILES ? wave + t * WAVES : wave;  // it has fewer than others: one again
#pragma unroll
      for (u32 i = 0; i < SPLIT_K; i++)
        part[t][i] = load_16<THROUGH>(parts, lane * 16, (i * TILES + tile) * (LANES * 16));
    }
#pragma unroll
    for (u32 t = 0; t < TILES_OF_WAVE; t++) {
      const u32 tile = wave + t * WAVES;
      f32x4 sum = bits_as<f32x4>(part[t][0]);
#pragma unroll
      for (u32 i = 1; i < SPLIT_K; i++) sum += bits_as<f32x4>(part[t][i]);
      if (tile < TILES && !(GEMM_N % BLOCK_N != 0 && first_tile_n + tile % TILES_N >= ALL_TILES_N))
        finish_tile(sum, tile, lane, block_n, rows, bias, corner, c_stride);
    }
  }
}
