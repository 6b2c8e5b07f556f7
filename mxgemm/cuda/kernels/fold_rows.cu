// Rows of A rounded to e2m1 and folded to e4m3 with a base a row, and rows of MXFP4 weights that fold decoded to e4m3: what
// mxgemm/triton/kernels/fold.py and fold_weight.py make, with the same bytes, sooner where rows are few.
//
// A workgroup has a row of A, VALUES of it a lane; those behind them decode, CODES of 16 each a lane and turn.
//
// Macros: those of load_values.h; LANES of a workgroup; VALUES, 16 or 32; DECODES, there is a weight; PLAIN, it and its
// scales are row-major; W_BLOCK, bytes from a block's codes to the next one's; TURNS; KEEPS, 1: the weight leaves
// L2 first, 2: and what it is decoded to stays there.
#include "fold_pairs.h"
#include "w4_fp8_weights.h"

constexpr u32 TABLE = 0, RANGES = TABLE_BYTES;  // in shared memory: magnitudes by scale; of each warp, its exponents

// Strides of A in elements, others in bytes.
struct Arguments {
  const u8* a;
  u8* folded;
  u8* base;      // fp32
  u8* unfolded;  // 1 where a row does not fold
  const u8* w;
  const u8* s;
  const u8* bases;  // of the weight's rows, bytes
  u8* decoded;
  u8* factors;  // they in fp32, 1 for rows up to whole sixteens
  i64 a_row, a_column;
  i64 w_tile, w_row;                                       // 16 rows, a row
  i64 s_tile, s_half, s_row, s_eighth, s_fourth, s_block;  // 32 rows, 16 rows, a row; 8 blocks, 4 blocks, a block
  int m, n, k, unused;
};

INLINE void fold_row(const Arguments& p, u32 shared, u32 row) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k = threadIdx.x * VALUES;
  const bool inside = k < static_cast<u32>(p.k);
  wait_for_earlier_launches();
  Values v = {};
  if (inside) load(v, p.a + (row * p.a_row + k * p.a_column) * A_BYTES, p.a_column);
  u32 amax = largest_of(v);
  if (VALUES == 16) amax = max(amax, from_lane_xor(amax, 1));
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(up > EMAX ? up - EMAX : 0, 253u);
  const bool bad = amax >= 0x7F800000u, live = amax != 0 && !bad;
  // Of all blocks that are not zero: one more than the highest exponent, or BAD, and 1023 less the lowest.
  constexpr u32 BAD = 1023;
  u32 high = most_of_warp(bad ? BAD : live ? e + 1 : 0), low = most_of_warp(live ? 1023 - e : 0);
  if (LANES > 32) {
    if (lane == 0) store_shared_4(shared + RANGES + 4 * warp, high << 16 | low);
    workgroup_barrier();
    const u32 of_warp = lane < LANES / 32 ? load_shared_4(shared + RANGES + 4 * lane) : 0;
    high = most_of_warp(of_warp >> 16), low = most_of_warp(of_warp & 0xFFFFu);
  }
  // At least 1, so that the base itself is a normal fp32.
  const int byte = high == 0 ? 127 : min(max(static_cast<int>(high) - 1 - 6, 1), 250);
  if (inside) {
    const int shift = min(max(static_cast<int>(e) - byte, -8), 6);  // more only where nothing folds
    u32 made[VALUES / 4];
    fold_values(v, (254 - e) << 23, shift, made);
#pragma unroll
    for (int i = 0; i < VALUES / 16; i++)
      store_16(p.folded + (static_cast<i64>(row) * p.k + k + 16 * i),
               make_uint4(made[4 * i], made[4 * i + 1], made[4 * i + 2], made[4 * i + 3]));
  }
  if (threadIdx.x == 0) {
    store_u32(p.base + 4 * row, high == BAD ? 0x7FC00000u : static_cast<u32>(byte) << 23);
    store_u32(p.unfolded + 4 * row, high != BAD && low != 0 && 1023 - static_cast<int>(low) < byte - 8);
  }
}

// Four codes as four bytes in their order.
INLINE u32 decode_in_order(u32 q, const uint2& magnitude) {
  const u32 signs = permute(q, q, 0x1100);  // each byte has its code's sign, those of even codes at bit 3
  const u32 moved = (signs << 4 & 0x00800080u) | (signs & 0x80008000u);
  return permute(magnitude.x, magnitude.y, q & 0x7777u) | moved;
}

INLINE void decode_rows(const Arguments& p, u32 table, u32 workgroup) {
  if (threadIdx.x <= PLACES) make_table(table, threadIdx.x);
  const u32 of_row = static_cast<u32>(p.k) / 16, all = static_cast<u32>(p.n) * of_row;
  const u32 first = workgroup * (LANES * TURNS) + threadIdx.x;
  u32 row = first / of_row, at = first - row * of_row;
  uint2 codes[TURNS];
  u32 scales[TURNS], bases[TURNS];
  const u64 first_out = leaves_first(), last_out = stays();
  auto load_codes = [&](const u8* from) { return KEEPS > 0 ? load_8(from, first_out) : load_8(from); };
  wait_for_earlier_launches();
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    if (row < static_cast<u32>(p.n)) {
      const u32 block = at >> 1;
      if (PLAIN) {
        codes[i] = load_codes(p.w + (row * p.w_row + at * 8));
        scales[i] = load_u8(p.s + (row * p.s_row + block));
      } else {
        codes[i] = load_codes(p.w + ((row >> 4) * p.w_tile + (row & 15) * p.w_row + block * W_BLOCK + (at & 1) * 8));
        scales[i] = load_u8(p.s + ((row >> 5) * p.s_tile + (row >> 4 & 1) * p.s_half + (row & 15) * p.s_row +
                                   (block >> 3) * p.s_eighth + (block >> 2 & 1) * p.s_fourth + (block & 3) * p.s_block));
      }
      bases[i] = load_u8(p.bases + row);
      if (at == 0) store_u32(p.factors + 4 * row, bases[i] << 23);
    }
    at += LANES;
    while (at >= of_row) at -= of_row, row++;
  }
  workgroup_barrier();
#pragma unroll
  for (int i = 0; i < TURNS; i++)
    if (first + i * LANES < all) {
      const u32 place = beginning_in(table, bases[i]) + 8 * scales[i];
      const uint2 magnitude =
          load_shared_8(outside(table, place, place) ? place_after_all(table, place, scales[i]) : place);
      const uint2 q = codes[i];
      const uint4 made = make_uint4(decode_in_order(q.x, magnitude), decode_in_order(q.x >> 16, magnitude),
                                    decode_in_order(q.y, magnitude), decode_in_order(q.y >> 16, magnitude));
      u8* const to = p.decoded + static_cast<i64>(first + i * LANES) * 16;
      if (KEEPS > 1)
        store_16(to, made, last_out);
      else
        store_16(to, made);
    }
  if (workgroup == 0 && threadIdx.x < (-static_cast<u32>(p.n) & 15))
    store_u32(p.factors + 4 * (p.n + threadIdx.x), 127u << 23);
}

extern "C" __global__ void __launch_bounds__(LANES) fold_rows(const Arguments p) {
  const u32 shared = address_in_shared(shared_memory());
  if (blockIdx.x < static_cast<u32>(p.m))
    fold_row(p, shared, blockIdx.x);
  else if (DECODES)
    decode_rows(p, shared + TABLE, blockIdx.x - p.m);
}
