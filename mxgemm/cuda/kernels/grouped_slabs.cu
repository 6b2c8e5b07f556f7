// Rows of A in the order of their groups, as slabs for grouped_wgmma.cu: bf16, 2^-DOWN_A of their values, in the order of
// w4_wgmma_round.cu; a tile of the list has COLUMNS rows. A comes as bytes of e2m1 or e4m3 with scales, which bf16 holds
// but for e4m3 below 2^-132, or as floats, which count as bf16. A row that A does not have is NaN.
//
// Macros: those of grouped_rows.h; COLUMNS.
#include "grouped_rows.h"
#include "load_values.h"
#include "routing.h"
#include "w4_wgmma.h"

constexpr int LANES = 128;  // of a workgroup

struct SlabArguments {
  const u8* a;
  const u8* a_scales;
  u8* slabs;
  const u8* tiles;  // as grouped_wgmma.cu has it
  const u8* index;  // int32 [rows]: row r is of place index[r]; 0: r
  i64 a_row, a_column, a_scales_row;  // of floats in elements, of bytes in bytes
  int a_rows, divisor, k, unused;     // a place is that of row place / divisor of A
};

// Eight values of a row over 2^DOWN_A, as words 4 i + j of its block.
INLINE void load_words(const SlabArguments& p, int row, int at, u32 (&x)[4]) {
#if A_FORMAT == BF16
  float v[8];
  load_values(p.a + (row * p.a_row + 8 * at * p.a_column) * A_BYTES, p.a_column * A_BYTES, v);
  pack(v, x);
#else
  constexpr int WORDS = CODES;  // of eight codes
  u32 words[4 * CODES] = {};
#pragma unroll
  for (int i = 0; i < WORDS; i++) words[i] = load_u32(p.a + row * p.a_row + (at * WORDS + i) * 4);
  const u32 scale = load_u8(p.a_scales + row * p.a_scales_row + (at >> 2));
  // In two steps, as weights have it: one factor does for scale bytes to MOST_OF_ONE.
  decode_rows(words, 0, min(scale, MOST_OF_ONE) * 0x00800080u + twice((DECODED - DOWN_A) << 7), x);
  const u32 second = second_factor(scale);
#pragma unroll
  for (int j = 0; j < 4; j++) x[j] = mul_bf16x2(x[j], second);
#if A_FORMAT == E4M3  // a code that is NaN
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const u32 low = words[0] >> (8 * j) & 0x7F, high = words[1] >> (8 * j) & 0x7F;
    x[j] |= (low == 0x7F ? 0x7FFFu : 0u) | (high == 0x7F ? 0x7FFF0000u : 0u);
  }
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(LANES) grouped_slabs(const SlabArguments p) {
  wait_for_earlier_launches();
  let_later_launches_begin();
  const int chunks = (p.k + 127) >> 7;
  const i64 eighth = static_cast<i64>(blockIdx.x) * LANES + threadIdx.x, row_of_slab = eighth / (16 * chunks);
  const int at = static_cast<int>(eighth % (16 * chunks));  // a row's eighths of values
  const int tile = static_cast<int>(row_of_slab / COLUMNS), m = static_cast<int>(row_of_slab % COLUMNS);
  bool real = tile < load_int(p.tiles, 0);
  int row = -1;
  if (real) {
    const int first = load_int(p.tiles, 3 * tile + 4), stop = load_int(p.tiles, 3 * tile + 5);
    real = first + m < stop;
    if (real) {
      const int place = p.index ? load_int(p.index, first + m) : first + m;
      row = place < 0 || place / p.divisor >= p.a_rows ? -1 : place / p.divisor;
    }
  }
  u32 x[4] = {};
  if (real && 8 * at < p.k) {
    if (row >= 0)
      load_words(p, row, at, x);
    else
#pragma unroll
      for (int j = 0; j < 4; j++) x[j] = 0x7FFF7FFFu;
  }
  // Of 16 lanes with an eighth i each of blocks t, this one has words 4 i + j of block t and stores word 4 i + t of all
  // blocks: in two steps, each with half the lanes.
  const int i = at & 3, t = (at >> 2) & 3;
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (!(j & step)) {
        const u32 mine = t & step ? x[j] : x[j | step], theirs = from_lane_xor(mine, 4 * step);
        (t & step ? x[j] : x[j | step]) = theirs;
      }
  if (real) {
    const int piece = (i & 1) * 4 + t;
    const i64 slab = (static_cast<i64>(tile) * chunks + (at >> 4)) * 2 + (i >> 1);
    store_16(p.slabs + (slab * COLUMNS + m) * 128 + (piece ^ (m & 7)) * 16, make_uint4(x[0], x[1], x[2], x[3]));
  }
}
