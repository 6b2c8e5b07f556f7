#pragma once
#include "fp4_block.h"

// A tile of A, 16 rows x 128 columns of bf16, to e2m1 by one wave: loaded in whole rows, handed to the matrix unit.
//
//   loaded    lane l, number i of 4: row 4 i + l / 16, elements 8 (l % 16) to + 7. A load covers 4 x 256 whole bytes,
//             so L1 serves it at its full rate; a block of 32 is a quad of lanes
//   wanted    lane l: row l % 16, elements 32 (l / 16) to + 31: a block and its scale
//
// The codes, a quarter of the bytes, get there through 1 KB of LDS that is the wave's own, the scales by a permute.
// Column block c of row r lies in LDS at column block c ^ (r / 4): neither writes nor reads meet in a bank.
//
// The scale byte is that of mxgemm/mx/formats.py:scale_addend on the upper half of the fp32 bits; the lower half of a
// bf16 is zero and cannot carry. Zero and tiny blocks give byte 0. A block with NaN or Inf gives 255 and arbitrary
// codes: whatever the matrix unit multiplies by that scale is NaN.

constexpr u32 BF16_INFINITY = 0x7f80;
constexpr u32 FP16_INFINITY = 0x7c00;
constexpr u16 E8M0_NAN = 255;
constexpr u16 E2M1_EMAX = 2;
constexpr u32 TILE_DWORDS = 256;  // of codes

using Bf16Tile = u32x4[4];

// What a lane needs to know of the way from one layout to the other.
struct Lanes {
  u32 number, read, source, shift;  // dword in LDS; 4 * the lane that has the scale, and its bits there
};

DEVICE Lanes lanes_of(u32 lane) {
  const u32 row = lane % 16, block = lane / 16;
  return {lane, row * 16 + (block ^ row / 4) * 4, (row % 4 * 16 + block * 4) * 4, row / 4 * 8};
}

DEVICE u16x2 larger(u16x2 a, u16x2 b) { return __builtin_elementwise_max(a, b); }

// The larger half of a below, that of b above.
DEVICE u16x2 larger_halves(u32 a, u32 b) {
  return larger(bits_as<u16x2>(__builtin_amdgcn_perm(b, a, 0x05040100u)),
                bits_as<u16x2>(__builtin_amdgcn_perm(b, a, 0x07060302u)));
}

template <int CONTROL> DEVICE u16x2 of_neighbour(u16x2 value) {
  return bits_as<u16x2>(
      (u32)__builtin_amdgcn_update_dpp(0, (int)bits_as<u32>(value), CONTROL, 0xf, 0xf, true));
}

// The largest among a quad of lanes, in each of them.
DEVICE u16x2 largest_of_quad(u16x2 value) {
  value = larger(value, of_neighbour<0xb1>(value));  // quad_perm [1, 0, 3, 2]
  return larger(value, of_neighbour<0x4e>(value));   // quad_perm [2, 3, 0, 1]
}

// Bits of the largest magnitudes of a lane's parts of two blocks. Integers order magnitudes, keep subnormals, and put
// NaN above infinity.
DEVICE u16x2 largest_magnitudes(u32x4 first, u32x4 second) {
  u16x2 largest[2] = {{0, 0}, {0, 0}};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    largest[0] = larger(largest[0], bits_as<u16x2>(first[i] & 0x7fff7fffu));
    largest[1] = larger(largest[1], bits_as<u16x2>(second[i] & 0x7fff7fffu));
  }
  return larger_halves(bits_as<u32>(largest[0]), bits_as<u32>(largest[1]));
}

// The same in half the instructions: read as fp16, magnitudes below fp16's infinity keep the order of their bits, and
// gfx950 has a packed maximum of three that negates for free. Where a magnitude is FP16_INFINITY or more (2^121 as a
// bf16) the result is too, but maybe not the largest: a NaN of fp16 wins every maximum.
#if __has_builtin(__builtin_elementwise_maximum)
DEVICE u32 largest_pair_as_fp16(u32x4 part) {
  const fp16x2 a = bits_as<fp16x2>(part[0]), b = bits_as<fp16x2>(part[1]);
  const fp16x2 c = bits_as<fp16x2>(part[2]), d = bits_as<fp16x2>(part[3]);
  fp16x2 most = __builtin_elementwise_maximum(__builtin_elementwise_maximum(a, -a), b);
  most = __builtin_elementwise_maximum(__builtin_elementwise_maximum(most, -b), c);
  most = __builtin_elementwise_maximum(__builtin_elementwise_maximum(most, -c), d);
  return bits_as<u32>(__builtin_elementwise_maximum(most, -d));
}
#else
DEVICE u32 largest_pair_as_fp16(u32x4) { return FP16_INFINITY; }
#endif

template <u32 ADDEND> DEVICE u16x2 scales_of(u16x2 magnitudes) {
  return __builtin_elementwise_sub_sat((magnitudes + (u16)ADDEND) >> (u16)7, (u16x2){E2M1_EMAX, E2M1_EMAX});
}

// Scale bytes of rows 0 and 4 below (i = 0, 1), 8 and 12 above (i = 2, 3), of a lane's block in each.
struct TileScales {
  u16x2 of01, of23;
};

// Tiles of a step together: one branch, and instructions of one fill the gaps of another.
template <u32 ADDEND, u32 TILES> DEVICE void find_scales(const Bf16Tile (&tiles)[TILES], TileScales (&scales)[TILES]) {
  u16x2 most = {0, 0};
#pragma unroll
  for (u32 t = 0; t < TILES; t++) {
    const Bf16Tile &tile = tiles[t];
    const u16x2 most01 =
        largest_of_quad(larger_halves(largest_pair_as_fp16(tile[0]), largest_pair_as_fp16(tile[1])));
    const u16x2 most23 =
        largest_of_quad(larger_halves(largest_pair_as_fp16(tile[2]), largest_pair_as_fp16(tile[3])));
    scales[t] = {scales_of<ADDEND>(most01), scales_of<ADDEND>(most23)};
    most = larger(most, larger(most01, most23));
  }
  const bool unordered = most[0] >= FP16_INFINITY || most[1] >= FP16_INFINITY;
  if (__builtin_expect(__builtin_amdgcn_ballot_w64(unordered) != 0, 0)) {  // the same for all lanes
#pragma unroll
    for (u32 t = 0; t < TILES; t++) {
      const u16x2 most01 = largest_of_quad(largest_magnitudes(tiles[t][0], tiles[t][1]));
      const u16x2 most23 = largest_of_quad(largest_magnitudes(tiles[t][2], tiles[t][3]));
      scales[t] = {scales_of<ADDEND>(most01), scales_of<ADDEND>(most23)};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (most01[i] >= BF16_INFINITY) scales[t].of01[i] = E8M0_NAN;
        if (most23[i] >= BF16_INFINITY) scales[t].of23[i] = E8M0_NAN;
      }
    }
  }
}

// Quantise a tile: codes to LDS, scale bytes of rows 4 i + lane / 16 to byte i of the result.
DEVICE u32 quantize(const Bf16Tile &tile, const TileScales &scales, const Lanes &lanes, u32 *codes) {
  // A convert divides by its scale, a power of two, and writes one byte of its destination. The codes take the place of
  // what is used up first; few writes wait for another.
  const u32 low = bits_as<u32>(scales.of01), high = bits_as<u32>(scales.of23);
  const float divisors[4] = {bits_as<float>(low << 23), bits_as<float>(low << 7 & 0x7f800000),
                             bits_as<float>(high << 23), bits_as<float>(high << 7 & 0x7f800000)};
  u32x4 written = {tile[0][0], tile[1][0], tile[2][0], tile[3][0]};
#define CONVERT(row, byte) \
  written[row] = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(written[row], bits_as<bf16x2>(tile[row][byte]), \
                                                           divisors[row], byte)
  CONVERT(0, 0), CONVERT(1, 0), CONVERT(2, 0), CONVERT(3, 0);
  CONVERT(0, 1), CONVERT(1, 1), CONVERT(2, 1), CONVERT(3, 1);
  CONVERT(0, 2), CONVERT(1, 2), CONVERT(2, 2), CONVERT(3, 2);
  CONVERT(0, 3), CONVERT(1, 3), CONVERT(2, 3), CONVERT(3, 3);
#undef CONVERT
#pragma unroll
  for (u32 i = 0; i < 4; i++) codes[64 * i + (lanes.number ^ 4 * i)] = written[i];
  return __builtin_amdgcn_perm(high, low, 0x06040200u);
}

// The block of a quantised tile that this lane feeds to the matrix unit.
DEVICE Fp4Block block_of(const u32 *codes, u32 scale_bytes, const Lanes &lanes) {
  const u32 scale = (u32)__builtin_amdgcn_ds_bpermute((int)lanes.source, (int)scale_bytes) >> lanes.shift;
  return {*(const u32x4 *)(codes + lanes.read), scale};
}

// What lanes wrote to their wave's LDS is read by others of the same wave, and not overwritten before. Waves execute
// LDS operations in order: this is for the compiler, and no instruction.
DEVICE void between_lanes() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
