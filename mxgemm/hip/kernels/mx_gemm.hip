// C[M, N] = A[M, K] * W[N, K]^T + bias, both e2m1 with a scale for each 32 elements: tiles for many rows, eight waves.
//
// A workgroup computes BLOCK_M x BLOCK_N of C in steps of 256 elements of K; its waves, 2 along M and 4 along N, a part
// each. Four of them read the same rows of A, so those pass through LDS, copied there by the memory unit without
// registers, two steps held at a time. Of the weight only two waves read the same, and it lies as the matrix unit wants
// it: straight to registers, a step ahead. Through LDS it would take as many cycles there as the products take.
//
//   A         e2m1 bytes in rows a_stride bytes apart (a multiple of 16)
//   A scales  shuffled E8M0 [M/32, K/256, 64 lanes, 4 bytes]        lane l: a dword, byte 2 * (k / 128 % 2) + m / 16 % 2
//   weight    preshuffled e2m1 [N/16, K/128, 64 lanes, 16 bytes]    lane l: 16 bytes
//   scales    shuffled like A's
//   bias      BIAS_TYPE [N], where that is defined
//   C         OUT_TYPE, rows c_stride bytes apart (a multiple of 4 elements)
//
// In LDS a row of a step is 8 columns of 16 bytes; column c of row r lies at column c ^ (r / 2 % 8), so that 16 lanes with
// a row each meet in no bank. The copy keeps to that by what each lane fetches: within 64 bytes, so L1 loses nothing.
//
// Work on a step goes in phases of two tiles along M, 16 matrix instructions each. In a phase the next one's part of A is
// read from LDS; in the last that is the next step's, behind the one barrier of a step.
//
// Generated for one weight: GEMM_N, GEMM_K, BLOCK_M, BLOCK_N, RUN, XCDS and OUT_TYPE are defined on the command line.
// mxgemm/hip/mx.py says which values are legal, and why.
#include "lds_copy.h"
#include "mfma.h"

constexpr u32 LANES = 64, WAVES_M = 2, WAVES_N = 4, WAVES = WAVES_M * WAVES_N;
constexpr u32 STEP_BYTES = 128;  // of a row of A
constexpr u32 STEPS = ceil_div(GEMM_K, 256);
constexpr bool HALF_STEP = GEMM_K % 256 != 0;  // the last step has one tile of K, not two
constexpr u32 TILES_M = BLOCK_M / 16 / WAVES_M, TILES_N = BLOCK_N / 16 / WAVES_N;  // of a wave
constexpr u32 PHASES = TILES_M / 2;
constexpr u32 PIECE_ROWS = 8, PIECE_BYTES = PIECE_ROWS * STEP_BYTES;  // what a wave copies at once
constexpr u32 PIECES = BLOCK_M / PIECE_ROWS / WAVES;
constexpr u32 ALL_TILES_N = GEMM_N / 16, BLOCKS_N = ceil_div(GEMM_N, BLOCK_N);
constexpr u32 WEIGHT_TILE_BYTES = 16 * GEMM_K / 2, SCALE_TILE_BYTES = STEPS * 256;

using out_x4 = OUT_TYPE __attribute__((ext_vector_type(4)));
#ifdef BIAS_TYPE
using bias_x4 = BIAS_TYPE __attribute__((ext_vector_type(4)));
#endif

struct Operands {
  Buffer a, a_scales, weight, scales;
  u32 copied[2], read[2];  // bytes: of even and odd pieces in A, of a tile's halves in LDS
  u32 lane, first_piece, a_stride;
};

// What is loaded to registers, of a step.
struct Step {
  u32x4 weight[TILES_N][2];
  u32 scales[TILES_N / 2], a_scales[PHASES];
};

// Two tiles of A along M, both halves of a step.
struct Part {
  u32x4 codes[2][2];
};

struct Sums {
  f32x4 of[TILES_M][TILES_N];
};

struct Block {
  u32 m, n;
};

// Workgroups are dealt to the XCDs in turn; each XCD takes blocks that follow one another: RUN along M of a column, then
// those of the next column, so that both operands stay in its L2.
DEVICE Block block_of_workgroup(u32 blocks_m) {
  const u32 id = __builtin_amdgcn_workgroup_id_x(), xcd = id % XCDS, all = blocks_m * BLOCKS_N;
  const u32 longer = all % XCDS;
  const u32 number = xcd * (all / XCDS) + (xcd < longer ? xcd : longer) + id / XCDS;
  const u32 first = number / (RUN * BLOCKS_N) * RUN, within = number % (RUN * BLOCKS_N);
  const u32 height = blocks_m - first < RUN ? blocks_m - first : RUN;
  return {first + within % height, within / height};
}

DEVICE void load(const Operands &from, u32 step, Step &to) {
#pragma unroll
  for (u32 n = 0; n < TILES_N; n++)
#pragma unroll
    for (u32 k = 0; k < 2; k++)
      to.weight[n][k] = load_16(from.weight, from.lane * 16 + k * 1024, n * WEIGHT_TILE_BYTES + step * 2048);
#pragma unroll
  for (u32 pair = 0; pair < TILES_N / 2; pair++)
    to.scales[pair] = load_4(from.scales, from.lane * 4, pair * SCALE_TILE_BYTES + step * 256);
#pragma unroll
  for (u32 pair = 0; pair < PHASES; pair++)
    to.a_scales[pair] = load_4(from.a_scales, from.lane * 4, pair * SCALE_TILE_BYTES + step * 256);
}

DEVICE void copy_a(const Operands &from, u32 step, u8 *to) {
#pragma unroll
  for (u32 i = 0; i < PIECES; i++) {
    const u32 piece = from.first_piece + i;
    copy_16(from.a, to + piece * PIECE_BYTES, from.lane, from.copied[i % 2],
            piece * PIECE_ROWS * from.a_stride + step * STEP_BYTES);
  }
}

DEVICE void read(const Operands &from, const u8 *memory, u32 phase, Part &to) {
#pragma unroll
  for (u32 m = 0; m < 2; m++)
#pragma unroll
    for (u32 k = 0; k < 2; k++)
      to.codes[m][k] = *(const u32x4 *)(memory + from.read[k] + (phase * 2 + m) * 16 * STEP_BYTES);
}

template <u32 K, u32 M> DEVICE void multiply_row(const Step &step, const Part &part, u32 phase, Sums &sums) {
  const Fp4Block a = {part.codes[M][K], step.a_scales[phase]};
#pragma unroll
  for (u32 n = 0; n < TILES_N; n += 2) {
    f32x4 *sum = &sums.of[phase * 2 + M][n];
    sum[0] = multiply_add<2 * K, 2 * K + M>(step.weight[n][K], step.scales[n / 2], a, sum[0]);
    sum[1] = multiply_add<2 * K + 1, 2 * K + M>(step.weight[n + 1][K], step.scales[n / 2], a, sum[1]);
  }
}

template <bool HALF> DEVICE void multiply(const Step &step, const Part &part, u32 phase, Sums &sums) {
  multiply_row<0, 0>(step, part, phase, sums);
  multiply_row<0, 1>(step, part, phase, sums);
  if constexpr (!HALF) {
    multiply_row<1, 0>(step, part, phase, sums);
    multiply_row<1, 1>(step, part, phase, sums);
  }
}

// All that this wave has copied is in LDS and all that it has read from it in registers; then the same of all waves.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// How a phase is issued: loads and reads between matrix instructions, which go on meanwhile.
template <u32 LOADS> DEVICE void interleave() {
  constexpr int MATRIX = 0x8, LOAD = 0x20, READ = 0x100;
  constexpr u32 ALL = 4 * TILES_N, EACH = ALL / 4;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    __builtin_amdgcn_sched_group_barrier(READ, 1, 0);
    if constexpr (LOADS > 0) __builtin_amdgcn_sched_group_barrier(LOAD, ceil_div(LOADS, 4), 0);
    __builtin_amdgcn_sched_group_barrier(MATRIX, EACH, 0);
  }
}

// Multiply a step whose first part of A is held, while the next step arrives. MORE: there is one.
template <bool MORE, bool HALF>
DEVICE void advance(const Operands &from, u32 number, const u8 *here, u8 *there, const Step &held, Step &next,
                    Part (&parts)[2], Sums &sums) {
  __builtin_amdgcn_sched_barrier(0);
  if constexpr (MORE) {
    copy_a(from, number + 1, there);
    load(from, number + 1, next);
  }
#pragma unroll
  for (u32 phase = 0; phase < PHASES; phase++) {
    if (phase + 1 < PHASES) {
      read(from, here, phase + 1, parts[(phase + 1) % 2]);
    } else if constexpr (MORE) {
      barrier();
      read(from, there, 0, parts[0]);
    }
    multiply<HALF>(held, parts[phase % 2], phase, sums);
    if (phase == 0 && MORE)
      interleave<2 * TILES_N + TILES_N / 2 + PHASES + PIECES>();
    else
      interleave<0>();
    __builtin_amdgcn_sched_barrier(0);
  }
}

template <class Vector> DEVICE void store_vector(Buffer to, Vector value, u32 lane_offset, u32 offset) {
  static_assert(sizeof(Vector) == 8 || sizeof(Vector) == 16);
  if constexpr (sizeof(Vector) == 16)
    store_16(to, bits_as<u32x4>(value), lane_offset, offset);
  else
    __builtin_amdgcn_raw_buffer_store_b64(bits_as<u32x2>(value), to, (int)lane_offset, (int)offset, 0);
}

// Add the bias, round and store. Rows past the end lie behind that of the buffer.
DEVICE void store(const Sums &sums, Buffer c, u32 lane, u32 c_stride, u32 first_tile_n, [[maybe_unused]] const u8 *bias) {
#pragma unroll
  for (u32 n = 0; n < TILES_N; n++) {
    if (GEMM_N % BLOCK_N != 0 && first_tile_n + n >= ALL_TILES_N) break;
    const u32 column = (first_tile_n + n) * 16 + lane / 16 * 4;
#ifdef BIAS_TYPE
    const f32x4 added = __builtin_convertvector(((const bias_x4 *)bias)[column / 4], f32x4);
#else
    const f32x4 added = {};
#endif
#pragma unroll
    for (u32 m = 0; m < TILES_M; m++)
      store_vector(c, __builtin_convertvector(sums.of[m][n] + added, out_x4),
                   lane % 16 * c_stride + column * (u32)sizeof(OUT_TYPE), m * 16 * c_stride);
  }
}

KERNEL __attribute__((amdgpu_flat_work_group_size(WAVES * LANES, WAVES * LANES), amdgpu_waves_per_eu(2, 2)))
void mx_gemm(const u8 *__restrict__ a, const u8 *__restrict__ a_scales, const u8 *__restrict__ weight,
             const u8 *__restrict__ scales, [[maybe_unused]] const u8 *__restrict__ bias, u8 *__restrict__ c, u32 m,
             u32 a_stride, u32 c_stride) {
  SHARED static u8 even_a[BLOCK_M * STEP_BYTES] __attribute__((aligned(16)));
  SHARED static u8 odd_a[BLOCK_M * STEP_BYTES] __attribute__((aligned(16)));
  const u32 thread = __builtin_amdgcn_workitem_id_x(), lane = thread % LANES;
  const u32 wave = __builtin_amdgcn_readfirstlane(thread / LANES), wave_m = wave / WAVES_N, wave_n = wave % WAVES_N;
  const Block block = block_of_workgroup(ceil_div(m, BLOCK_M));
  const u32 first_row = block.m * BLOCK_M, row_of_wave = wave_m * (BLOCK_M / WAVES_M);
  const u32 first_tile_n = (block.n * WAVES_N + wave_n) * TILES_N;
  const u32 tiles_left = first_tile_n < ALL_TILES_N ? ALL_TILES_N - first_tile_n : 0;
  const u32 rows = m - first_row < BLOCK_M ? m - first_row : BLOCK_M;

  Operands from;
  // Rows of A and tiles of the weight past the end lie behind that of a buffer: zeros, which are not stored.
  from.a = buffer_of(a + (u64)first_row * a_stride, (rows - 1) * a_stride + GEMM_K / 2);
  from.a_scales = buffer_of(a_scales + (u64)((first_row + row_of_wave) / 32) * SCALE_TILE_BYTES, PHASES * SCALE_TILE_BYTES);
  from.weight = buffer_of(weight + (u64)first_tile_n * WEIGHT_TILE_BYTES,
                          (tiles_left < TILES_N ? tiles_left : TILES_N) * WEIGHT_TILE_BYTES);
  from.scales = buffer_of(scales + (u64)(first_tile_n / 2) * SCALE_TILE_BYTES, TILES_N / 2 * SCALE_TILE_BYTES);
  from.lane = lane;
  from.first_piece = wave * PIECES;
  from.a_stride = a_stride;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    from.copied[i] = lane / 8 * a_stride + ((lane % 8) ^ (lane / 16 + 4 * i)) * 16;
    from.read[i] = (row_of_wave + lane % 16) * STEP_BYTES + ((lane / 16 + 4 * i) ^ (lane % 16 / 2)) * 16;
  }

  Sums sums = {};
  Step even, odd;
  Part parts[2];
  copy_a(from, 0, even_a);
  load(from, 0, even);
  barrier();
  read(from, even_a, 0, parts[0]);
#pragma unroll 1
  for (u32 step = 0; step + 2 < STEPS; step += 2) {
    advance<true, false>(from, step, even_a, odd_a, even, odd, parts, sums);
    advance<true, false>(from, step + 1, odd_a, even_a, odd, even, parts, sums);
  }
  if constexpr (STEPS % 2 == 0) {
    advance<true, false>(from, STEPS - 2, even_a, odd_a, even, odd, parts, sums);
    advance<false, HALF_STEP>(from, STEPS - 1, odd_a, even_a, odd, even, parts, sums);
  } else {
    advance<false, HALF_STEP>(from, STEPS - 1, even_a, odd_a, even, odd, parts, sums);
  }
  const u32 row = first_row + row_of_wave;
  const u32 rows_left = rows > row_of_wave ? rows - row_of_wave : 0;
  const Buffer part = buffer_of(c + (u64)row * c_stride, rows_left ? (rows_left - 1) * c_stride + GEMM_N * (u32)sizeof(OUT_TYPE) : 0);
  store(sums, part, lane, c_stride, first_tile_n, bias);
}
