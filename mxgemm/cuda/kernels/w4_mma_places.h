// Who a lane of w4_mma.cu is, and where what it reads lies: of the weight, as it lies or in fragment order, and of A.
// Macros: those of w4_mma.cu.
#pragma once
#include "w4_mma_sums.h"

// Rows and blocks past the end are the last one's again: they are not stored, and A counts as 0 there.
struct Places {
  const Arguments& p;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  int group = static_cast<int>(blockIdx.x) / SPLITS, rank = static_cast<int>(blockIdx.x) % SPLITS;
  int side = WARPS_N > 1 ? warp / (WARPS_K * WARPS_M) : 0, sides = warp % (WARPS_K * WARPS_M);  // these share A
  int first = warp % WARPS_K * SPLITS + rank, m0 = warp / WARPS_K % WARPS_M * COLUMNS;
  int n0 = (group * WARPS_N + side) * ROWS;
  int blocks = p.k >> 5, chunks = (blocks + 3) >> 2;
  int end = n0 < p.n || (A_SLOTS && WARPS_N > 1) ? chunks : 0;  // barriers want all warps

  MEMBER explicit Places(const Arguments& p) : p(p) {}

  MEMBER int block_of(int chunk) const { return TAIL ? min(4 * chunk + t, blocks - 1) : 4 * chunk + t; }
#if FRAGMENTS
  // Places are 32-bit counts, of 16 bytes of codes and of two bytes of scales.
  MEMBER u32 tile_of(int r) const {  // N is padded to pairs of tiles
    const int in = r % TOGETHER;
    return min((n0 >> 4) + r - in, ((p.n + 31) >> 5) * 2 - TOGETHER) + in;
  }
  MEMBER u32 codes_place_of(int r) const { return tile_of(r) * chunks * 64 + lane; }
  MEMBER u32 scales_place_of(int r) const { return ((tile_of(r) >> 1) * chunks * 32 + lane) * 2 + (tile_of(r) & 1); }
  MEMBER const u8* codes_of(int r, int h) const { return p.w + codes_place_of(r) * 16ull + h * 512; }
  MEMBER const u8* scales_of(int r, int h) const { return p.s + scales_place_of(r) * 2ull + h; }
  MEMBER i64 codes_at(int chunk) const { return chunk * static_cast<i64>(1024); }
  MEMBER i64 scales_at(int chunk) const { return chunk * static_cast<i64>(128); }
#else
  MEMBER int row_of(int r, int h) const { return min(n0 + 16 * r + 8 * h + g, p.n - 1); }
  MEMBER const u8* codes_of(int r, int h) const {
    return p.w + (row_of(r, h) >> 4) * p.w_tile + (row_of(r, h) & 15) * p.w_row;
  }
  MEMBER const u8* scales_of(int r, int h) const {
    const int row = row_of(r, h);
    return p.s + (row >> 5) * p.s_tile + ((row >> 4) & 1) * p.s_half + (row & 15) * p.s_row;
  }
  MEMBER i64 codes_at(int chunk) const { return block_of(chunk) * p.w_block; }
  MEMBER i64 scales_at(int chunk) const {
    const int block = block_of(chunk);
    return (block >> 3) * p.s_eighth + ((block >> 2) & 1) * p.s_fourth + (block & 3) * p.s_block;
  }
#endif
  MEMBER int a_row(int i) const { return min(m0 + 8 * i + g, p.m - 1); }
  MEMBER const u8* a_of(int i) const { return p.a + a_row(i) * p.a_row * A_BYTES; }
  MEMBER Raw load_raw(const u8* row, int chunk) const {
    Raw raw = load_block(row + block_of(chunk) * (32 * p.a_column * A_BYTES), p.a_column * A_BYTES);
    if (TAIL && 4 * chunk + t >= blocks) raw = Raw{};
    return raw;
  }
};
