// C[m, n] = sum over k of round(A)[m, k] W[n, k], for M <= 8 MT: MXFP4 weights in the order in which they lie, one launch.
//
// The weight is the 16-row operand of the matrix instruction, A the 8-column one. K may be permuted freely as long as
// both operands agree, and here the instruction's k belong to lanes so that lane t of a quad owns block t of a chunk of
// four: 16 bytes and one scale of a weight's row are whole blocks of one lane, and so are 32 values of a row of A, which
// it rounds to A_FORMAT by itself. Decoded weights hold their scale as bf16.
//
// A chunk that bf16 cannot hold (extreme scales, NaN) is left to a second loop, which scales the sums of each block.
//
// Macros: those of round_block.h; MT, tiles of 8 rows of A; TILES, tiles of 16 weight rows of a warp; WARPS_N, WARPS_K,
// warps of a workgroup along N and K; DEPTH, chunks that are in flight at once; A_AHEAD, A is among them;
// A_VECTOR, W_VECTOR, loads of 16 bytes are aligned and contiguous; TAIL, K % 128 != 0; OVERLAP, launched so that it may
// begin before earlier launches have ended.
#ifndef SATURATES
#define SATURATES 1
#endif
#include "round_block.h"

constexpr int WARPS = WARPS_N * WARPS_K, ROWS = 16 * TILES, COLUMNS = 8 * MT;
constexpr int PITCH = ROWS + 4;  // of a row of sums in shared memory: the quads of a warp meet different banks
constexpr int DOWN = 16;  // binades by which decoded weights are too small: so bf16 holds what decodes scales above 128
// Scales of weights that decode() is right for, and whose products with A's blocks of any fast scale keep their bits.
constexpr u32 LEAST_FAST = 72, MOST_FAST = 128 + DOWN;

// All strides are in bytes but those of a, bias and out, which are in elements.
struct Arguments {
  const u8* a;
  const u8* w;
  const u8* s;
  const u8* bias;
  u8* out;
  i64 a_row, a_column;
  i64 w_tile, w_row, w_block, w_byte;                      // 16 rows, a row, a block, a byte
  i64 s_tile, s_half, s_row, s_eighth, s_fourth, s_block;  // 32 rows, 16 rows, a row; 8 blocks, 4 blocks, a block
  i64 bias_stride, out_row, out_column;
  int m, n, k, bias_type, out_type, unused;
};

// A lane's part of a chunk of the weight.
struct Weights {
  uint4 codes[TILES][2];
  u32 scales[TILES][2];
};

// Eight codes as pairs (j, j + 4) of bf16. The bits of a code are those of a bf16 126 binades down, subnormals included.
INLINE void decode(u32 q, u32 factor, u32 (&d)[4]) {
  d[0] = and_or(q << 12, 0x80008000u, (q << 6) & 0x01C001C0u);
  d[1] = and_or(q << 8, 0x80008000u, (q << 2) & 0x01C001C0u);
  d[2] = and_or(q << 4, 0x80008000u, (q >> 2) & 0x01C001C0u);
  d[3] = and_or(q, 0x80008000u, (q >> 6) & 0x01C001C0u);
#pragma unroll
  for (int j = 0; j < 4; j++) d[j] = mul_bf16x2(d[j], factor);
}

INLINE uint4 load_weights(const u8* p, i64 stride) {
#if W_VECTOR
  return load_streamed(p);
#else
  u32 w[4] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) w[i / 4] |= load_u8(p + i * stride) << (8 * (i % 4));
  return make_uint4(w[0], w[1], w[2], w[3]);
#endif
}

INLINE Raw load_block(const u8* p, i64 stride) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < A_VECTORS; i++) {
#if A_VECTOR
    raw.v[i] = load_16(p + 16 * i);
#else
    u32 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u8* at = p + (i * 16 / A_BYTES + j * (4 / A_BYTES)) * stride;
      w[j] = A_BYTES == 4 ? load_u32(at) : load_u16(at) | load_u16(at + stride) << 16;
    }
    raw.v[i] = make_uint4(w[0], w[1], w[2], w[3]);
#endif
  }
  return raw;
}

INLINE float load_float(const u8* p, i64 at, int type) {
  return type == FP32 ? float_of(load_u32(p + 4 * at)) : type == FP16 ? float_of_f16(load_u16(p + 2 * at))
                                                                      : float_of(load_u16(p + 2 * at) << 16);
}

INLINE void store_float(u8* p, i64 at, int type, float x) {
  if (type == FP32)
    store_f32(p + 4 * at, x);
  else
    store_u16(p + 2 * at, type == FP16 ? f16_of(x) : bf16x2_of(x, 0.f) & 0xFFFFu);
}

// x 2^(a - 127) 2^(w - 127) of two scale bytes, in two steps of which the first neither rounds nor overflows where the
// result does not. A weight's scale below LEAST_FAST has 2^-8 in the sum already.
INLINE float scaled(float x, u32 a, u32 w) {
  if (a == 255 || w == 255) return float_of(0x7FC00000u);
  const int e = static_cast<int>(a + w) - 254 + (w < LEAST_FAST ? 8 : 0), half = e >> 1;
  return x * float_of(static_cast<u32>(half + 127) << 23) * float_of(static_cast<u32>(e - half + 127) << 23);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) w4_mma(const Arguments p) {
  extern __shared__ float sums[];  // [WARPS][COLUMNS][PITCH]
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first = warp % WARPS_K;
  const int n0 = (static_cast<int>(blockIdx.x) * WARPS_N + warp / WARPS_K) * ROWS;
  const int blocks = p.k >> 5, end = n0 < p.n ? (blocks + 3) >> 2 : 0;
#if OVERLAP
  wait_for_earlier_launches();
#endif

  // Rows and blocks past the end are the last one's again: they are not stored, and A counts as 0 there.
  auto block_of = [&](int chunk) { return TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t; };
  auto row_of = [&](int tile, int half) { return min(n0 + 16 * tile + 8 * half + g, p.n - 1); };
  auto codes_of = [&](int row) { return p.w + (row >> 4) * p.w_tile + (row & 15) * p.w_row; };
  auto scales_of = [&](int row) {
    return p.s + (row >> 5) * p.s_tile + ((row >> 4) & 1) * p.s_half + (row & 15) * p.s_row;
  };
  auto scale_offset = [&](int block) {
    return (block >> 3) * p.s_eighth + ((block >> 2) & 1) * p.s_fourth + (block & 3) * p.s_block;
  };
  auto a_of = [&](int tile) { return p.a + min(8 * tile + g, p.m - 1) * p.a_row * A_BYTES; };
  auto load_a = [&](const u8* row, int chunk) {
    Raw raw = load_block(row + block_of(chunk) * (32 * p.a_column * A_BYTES), p.a_column * A_BYTES);
    if (TAIL && 4 * chunk + t >= blocks) raw = Raw{};
    return raw;
  };

  const u8 *codes[TILES][2], *scales[TILES][2], *a[MT];
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int h = 0; h < 2; h++) codes[r][h] = codes_of(row_of(r, h)), scales[r][h] = scales_of(row_of(r, h));
#pragma unroll
  for (int i = 0; i < MT; i++) a[i] = a_of(i);

  auto load_chunk = [&](Weights& w, Raw (&raw)[MT], int chunk) {
    const i64 at = block_of(chunk) * p.w_block, scale_at = scale_offset(block_of(chunk));
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        w.codes[r][h] = load_weights(codes[r][h] + at, p.w_byte);
        w.scales[r][h] = load_u8(scales[r][h] + scale_at);
      }
    if (A_AHEAD)
#pragma unroll
      for (int i = 0; i < MT; i++) raw[i] = load_a(a[i], chunk);
  };

  float acc[TILES][MT][4] = {};
  u64 left = 0;  // chunks of this warp that are left to the second loop
  // Adds a chunk, or says that it has to be left.
  auto add_chunk = [&](const Weights& w, Raw (&raw)[MT], int chunk) {
    u32 x[MT][16];
    bool odd = false;
#pragma unroll
    for (int i = 0; i < MT; i++) {
      if (!A_AHEAD) raw[i] = load_a(a[i], chunk);
      odd |= !round_block(raw[i], x[i]);
    }
    bool odd_weights = false;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int h = 0; h < 2; h++) odd_weights |= w.scales[r][h] - LEAST_FAST > MOST_FAST - LEAST_FAST;
    if (any_lane(odd || odd_weights)) {
#pragma unroll
      for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {  // zeros are zeros, however small their scale
          const uint4 q = w.codes[r][h];
          const u32 s = w.scales[r][h];
          odd |= s > MOST_FAST || (s < LEAST_FAST && (((q.x | q.y | q.z | q.w) & 0x77777777u) != 0));
        }
      if (any_lane(odd)) return false;
    }
#pragma unroll
    for (int r = 0; r < TILES; r++) {
      u32 q[2][4], factor[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        words_of(w.codes[r][h], q[h]);
        factor[h] = w.scales[r][h] * 0x00800080u + twice((126 - DOWN) << 7);  // 2^(126 + s - 127 - DOWN)
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 d[2][4];
        decode(q[0][i], factor[0], d[0]);
        decode(q[1][i], factor[1], d[1]);
#pragma unroll
        for (int j = 0; j < 4; j += 2)
#pragma unroll
          for (int c = 0; c < MT; c++)
            multiply(acc[r][c], d[0][j], d[1][j], d[0][j + 1], d[1][j + 1], x[c][4 * i + j], x[c][4 * i + j + 1]);
      }
    }
    return true;
  };

  Weights weights[DEPTH];
  Raw raw[DEPTH][MT];
#pragma unroll
  for (int d = 0; d < DEPTH; d++)
    if (first + d * WARPS_K < end) load_chunk(weights[d], raw[d], first + d * WARPS_K);
  u64 bit = 1;
#pragma unroll 1
  for (int round = first; round < end; round += DEPTH * WARPS_K)
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int chunk = round + d * WARPS_K;
      if (chunk < end) {
        if (!add_chunk(weights[d], raw[d], chunk)) left |= bit;
        bit <<= 1;
        if (chunk + DEPTH * WARPS_K < end) load_chunk(weights[d], raw[d], chunk + DEPTH * WARPS_K);
      }
    }

  float* const mine = sums + warp * COLUMNS * PITCH + 2 * t * PITCH + g;
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int c = 0; c < MT; c++)
#pragma unroll
      for (int j = 0; j < 4; j++) mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] = acc[r][c][j] * (1 << DOWN);

  // What was left: A and the weights without their scales, the values of one block a time, the others' A being 0.
#pragma unroll 1
  for (; left; left &= left - 1) {
    const int chunk = first + WARPS_K * lowest_bit(left);
    const i64 at = block_of(chunk) * p.w_block, scale_at = scale_offset(block_of(chunk));
#pragma unroll 1
    for (int c = 0; c < MT; c++) {
      u32 x[16];
      const u32 scale = round_unscaled(load_a(a_of(c), chunk), x);
#pragma unroll 1
      for (int r = 0; r < TILES; r++) {
        u32 q[2][4], s[2], factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          words_of(load_weights(codes_of(row_of(r, h)) + at, p.w_byte), q[h]);
          s[h] = load_u8(scales_of(row_of(r, h)) + scale_at);
          factor[h] = twice((127 + 126 - (s[h] < LEAST_FAST ? 8 : 0)) << 7);
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
            const u32 of_w = from_lane(s[j >> 1], g * 4 + block);
            mine[(8 * c + (j & 1)) * PITCH + 16 * r + 8 * (j >> 1)] += scaled(sum[j], of_a, of_w);
          }
        }
      }
    }
  }
  workgroup_barrier();

#pragma unroll 1
  for (int z = threadIdx.x; z < WARPS_N * ROWS * p.m; z += 32 * WARPS) {
    const int local = z % (WARPS_N * ROWS), m = z / (WARPS_N * ROWS);
    const int n = static_cast<int>(blockIdx.x) * (WARPS_N * ROWS) + local;
    if (n < p.n) {
      const float* of_warp = sums + (local / ROWS * WARPS_K * COLUMNS + m) * PITCH + local % ROWS;
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < WARPS_K; i++) sum += of_warp[i * COLUMNS * PITCH];
      if (p.bias) sum += load_float(p.bias, n * p.bias_stride, p.bias_type);
      store_float(p.out, m * p.out_row + n * p.out_column, p.out_type, sum);
    }
  }
}
