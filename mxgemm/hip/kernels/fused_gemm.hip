// C[M, N] = quantise(A[M, K]) * W[N, K]^T + bias in one launch: bf16 A to e2m1 in registers, e2m1 weight, scaled MFMA.
//
// A workgroup computes BLOCK_M x BLOCK_N of C. Its WAVES waves share K: each takes steps of BLOCK_K elements and keeps
// sums of the whole block; at the end the waves' sums are added in LDS, in the order of the waves, so that runs agree
// to the bit. Nothing else passes through LDS: a lane loads just the blocks of 32 that it feeds to the matrix unit.
//
//   A        bf16, rows a_stride bytes apart (a multiple of 16)    lane l: 64 bytes, block l / 16 of row l % 16
//   weight   preshuffled e2m1 [N/16, K/128, 64 lanes, 16 bytes]    lane l: 16 bytes
//   scales   shuffled E8M0 [N/32, K/256, 64 lanes, 4 bytes]        lane l: a dword, byte 2 * (k / 128 % 2) + n / 16 % 2
//   bias     BIAS_TYPE [N], where that is defined
//   C        OUT_TYPE, rows c_stride bytes apart (a multiple of 4 elements)
//
// Generated for one weight: GEMM_N, GEMM_K, BLOCK_M, BLOCK_N, BLOCK_K, WAVES, UNROLL, XCDS (dies with an L2 of their
// own, to which workgroups are dealt in turn), SCALE_ADDEND (to the bits of a bf16) and OUT_TYPE are defined on the
// command line. mxgemm/hip/fused.py says which values are legal, and why.
#include "mfma.h"
#include "quantize_bf16.h"
#include "vectors.h"

constexpr u32 LANES = 64;
constexpr u32 TILES_M = BLOCK_M / 16, TILES_N = BLOCK_N / 16, TILES_K = BLOCK_K / 128;  // of a matrix instruction
constexpr u32 TILES = TILES_M * TILES_N;
constexpr u32 SCALE_DWORDS = ceil_div(TILES_N, 2);
constexpr u32 ALL_TILES_N = GEMM_N / 16;
constexpr u32 WEIGHT_TILE_BYTES = 16 * GEMM_K / 2, SCALE_TILE_BYTES = ceil_div(GEMM_K, 256) * 256;
constexpr u32 BLOCKS_N = ceil_div(GEMM_N, BLOCK_N), BLOCKS_N_OF_XCD = ceil_div(BLOCKS_N, XCDS);
constexpr u32 STEPS = GEMM_K / BLOCK_K;
constexpr u32 ROUNDS = STEPS / (WAVES * UNROLL);  // in a round each wave takes UNROLL steps
constexpr u32 STEPS_IN_ROUNDS = ROUNDS * WAVES * UNROLL;

using out_x4 = OUT_TYPE __attribute__((ext_vector_type(4)));
#ifdef BIAS_TYPE
using bias_x4 = BIAS_TYPE __attribute__((ext_vector_type(4)));
#endif

// Where a workgroup's operands begin (the same for all lanes), and how far into them a lane's lie.
struct Operands {
  const u8 *a, *weight, *scales;
  u32 a_lane[TILES_M], lane;
  u32 first_tile_n;
};

// What a lane holds of BLOCK_K elements.
struct Step {
  u32x4 weight[TILES_N][TILES_K];
  u32 scales[SCALE_DWORDS];
  Bf16Block a[TILES_M][TILES_K];
};

// Steps whose loads are in flight together.
struct Round {
  Step steps[UNROLL];
};

struct Sums {
  f32x4 of[TILES_M][TILES_N];
};

// Bytes from the weight of the first tile to that of tile n; past the last it stands in, and is not stored.
DEVICE u32 weight_tile_offset(const Operands &from, u32 n) {
  if constexpr (GEMM_N % BLOCK_N == 0) return n * WEIGHT_TILE_BYTES;
  const u32 left = ALL_TILES_N - 1 - from.first_tile_n;
  return (n < left ? n : left) * WEIGHT_TILE_BYTES;
}

DEVICE void load(const Operands &from, u32 step, Step &to) {
  // The weight first: it comes from HBM. A is in L2, as soon as one workgroup has read it.
#pragma unroll
  for (u32 n = 0; n < TILES_N; n++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++) {
      const u8 *tile = from.weight + weight_tile_offset(from, n) + (step * TILES_K + k) * (LANES * 16);
      to.weight[n][k] = *(const u32x4 *)(tile + from.lane * 16);
    }
#pragma unroll
  for (u32 pair = 0; pair < SCALE_DWORDS; pair++) {
    const u8 *tile = from.scales + pair * SCALE_TILE_BYTES + step * TILES_K / 2 * (LANES * 4);
    to.scales[pair] = *(const u32 *)(tile + from.lane * 4);
  }
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 k = 0; k < TILES_K; k++)
#pragma unroll
      for (u32 quarter = 0; quarter < 4; quarter++) {
        const u8 *tile = from.a + step * (BLOCK_K * 2) + k * 256 + quarter * 16;
        to.a[m][k][quarter] = *(const u32x4 *)(tile + from.a_lane[m]);
      }
}

// Tile K_TILE of a step: quantise A, once for all tiles along N.
template <u32 K_TILE> DEVICE void accumulate_tile(const Step &step, u32 scale_shift, Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++) {
    const Fp4Block a = quantize<SCALE_ADDEND>(step.a[m][K_TILE]);
#pragma unroll
    for (u32 n = 0; n < TILES_N; n += 2) {
      const u32 scales = step.scales[n / 2] >> scale_shift;
      sums.of[m][n] = multiply_add<2 * K_TILE>(step.weight[n][K_TILE], scales, a, sums.of[m][n]);
      if constexpr (TILES_N > 1)
        sums.of[m][n + 1] = multiply_add<2 * K_TILE + 1>(step.weight[n + 1][K_TILE], scales, a, sums.of[m][n + 1]);
    }
  }
}

DEVICE void accumulate(const Operands &from, const Step &step, u32 number, Sums &sums) {
  // A dword of scales covers two tiles along N and two along K: what a narrower step does not take is shifted out.
  const u32 scale_shift = (TILES_N == 1 ? from.first_tile_n % 2 * 8 : 0) + (TILES_K == 1 ? number % 2 * 16 : 0);
  accumulate_tile<0>(step, scale_shift, sums);
  if constexpr (TILES_K > 1) accumulate_tile<1>(step, scale_shift, sums);
}

DEVICE u32 first_step(u32 round, u32 wave) { return (round * WAVES + wave) * UNROLL; }

DEVICE void load(const Operands &from, u32 round, u32 wave, Round &to) {
#pragma unroll
  for (u32 i = 0; i < UNROLL; i++) load(from, first_step(round, wave) + i, to.steps[i]);
}

DEVICE void accumulate(const Operands &from, const Round &held, u32 round, u32 wave, Sums &sums) {
#pragma unroll
  for (u32 i = 0; i < UNROLL; i++) accumulate(from, held.steps[i], first_step(round, wave) + i, sums);
}

// No load of what follows is issued before the sums are there. The compiler would put matrix instructions off until
// after the next loads, which then could not take the registers that are free by now, and copy all that they load.
DEVICE void finish(Sums &sums) {
#pragma unroll
  for (u32 m = 0; m < TILES_M; m++)
#pragma unroll
    for (u32 n = 0; n < TILES_N; n++) asm volatile("" : "+v"(sums.of[m][n]) : : "memory");
}

// One wave's part of K. While a round is multiplied, the next one's loads are in flight.
DEVICE void accumulate_wave(const Operands &from, u32 wave, Sums &sums) {
  if constexpr (ROUNDS > 0) {
    Round even, odd;
    load(from, 0, wave, even);
#pragma unroll 1
    for (u32 round = 0; round + 2 < ROUNDS; round += 2) {
      load(from, round + 1, wave, odd);
      accumulate(from, even, round, wave, sums);
      finish(sums);
      load(from, round + 2, wave, even);
      accumulate(from, odd, round + 1, wave, sums);
      finish(sums);
    }
    if constexpr (ROUNDS % 2 == 0) {
      load(from, ROUNDS - 1, wave, odd);
      accumulate(from, even, ROUNDS - 2, wave, sums);
      accumulate(from, odd, ROUNDS - 1, wave, sums);
    } else {
      accumulate(from, even, ROUNDS - 1, wave, sums);
    }
  }
  if constexpr (STEPS_IN_ROUNDS < STEPS) {
#pragma unroll 1
    for (u32 step = STEPS_IN_ROUNDS + wave; step < STEPS; step += WAVES) {
      Step held;
      load(from, step, held);
      accumulate(from, held, step, sums);
    }
  }
}

KERNEL __attribute__((amdgpu_flat_work_group_size(WAVES * LANES, WAVES * LANES)))
void fused_gemm(const u8 *__restrict__ a, const u8 *__restrict__ weight, const u8 *__restrict__ scales,
                [[maybe_unused]] const u8 *__restrict__ bias, u8 *__restrict__ c, u32 m, u32 a_stride, u32 c_stride) {
  SHARED static f32x4 partial[WAVES][TILES][LANES];
  const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % LANES;
  const u32 wave = __builtin_amdgcn_readfirstlane(thread / LANES);
  // Grid (XCD, block along M, block along N of that XCD): a part of the weight is read through one L2, for all of M.
  const u32 block_n = __builtin_amdgcn_workgroup_id_x() * BLOCKS_N_OF_XCD + __builtin_amdgcn_workgroup_id_z();
  if (BLOCKS_N % XCDS != 0 && block_n >= BLOCKS_N) return;
  const u32 first_row = __builtin_amdgcn_workgroup_id_y() * BLOCK_M;
  const u32 rows = m - first_row;  // of this block and those below
  const u32 first_tile_n = block_n * TILES_N;

  Operands from;
  from.a = a + (u64)first_row * a_stride;
  from.weight = weight + (u64)first_tile_n * WEIGHT_TILE_BYTES;
  from.scales = scales + (u64)(first_tile_n / 2) * SCALE_TILE_BYTES;
  from.lane = lane;
  from.first_tile_n = first_tile_n;
#pragma unroll
  for (u32 i = 0; i < TILES_M; i++) {
    const u32 row = i * 16 + lane % 16, last = rows - 1;  // rows past the end read the last one, and are not stored
    from.a_lane[i] = (row < last ? row : last) * a_stride + lane / 16 * 64;
  }

  Sums sums = {};
  accumulate_wave(from, wave, sums);
#pragma unroll
  for (u32 tile = 0; tile < TILES; tile++) partial[wave][tile][lane] = sums.of[tile / TILES_N][tile % TILES_N];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");

  u8 *corner = c + (u64)first_row * c_stride + block_n * (BLOCK_N * sizeof(OUT_TYPE));
  for (u32 tile = wave; tile < TILES; tile += WAVES) {
    f32x4 sum = partial[0][tile][lane];
#pragma unroll
    for (u32 other = 1; other < WAVES; other++) sum += partial[other][tile][lane];
    if (GEMM_N % BLOCK_N != 0 && first_tile_n + tile % TILES_N >= ALL_TILES_N) continue;
    const u32 row = tile / TILES_N * 16 + lane % 16, column = tile % TILES_N * 16 + lane / 16 * 4;
#ifdef BIAS_TYPE
    const bias_x4 added = ((const bias_x4 *)bias)[(block_n * BLOCK_N + column) / 4];
    sum += __builtin_convertvector(added, f32x4);
#endif
    if (row < rows)
      *(out_x4 *)(corner + row * c_stride + column * sizeof(OUT_TYPE)) = __builtin_convertvector(sum, out_x4);
  }
}
