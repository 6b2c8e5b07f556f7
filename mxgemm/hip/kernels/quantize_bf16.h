#pragma once
#include "vectors.h"

// 32 bf16 that one lane holds, a block of A along K, to e2m1: no other lane is asked.
//
// The scale byte is that of mxgemm/mx/formats.py:scale_addend on the upper half of the fp32 bits; the lower half of a bf16
// is zero and cannot carry. Zero and tiny blocks give byte 0. A block with NaN or Inf gives 255 and arbitrary codes:
// whatever the matrix unit multiplies by that scale is NaN.

constexpr u32 BF16_INFINITY = 0x7f80;
constexpr u32 FP16_INFINITY = 0x7c00;
constexpr u32 E8M0_NAN = 255;
constexpr u32 E2M1_EMAX = 2;

using Bf16Block = u32x4[4];  // element k in half k % 2 of dword k / 2

struct Fp4Block {
  u32x4 codes;  // element k in bits 4 * (k % 8) of dword k / 8
  u32 scale;    // E8M0 byte
};

DEVICE u32 larger_half(u32 halves) {
  const u32 high = halves >> 16, low = halves & 0xffff;
  return high > low ? high : low;
}

// Bits of the largest magnitude. Integers order magnitudes, keep subnormals, and put NaN above infinity.
DEVICE u32 largest_magnitude(const Bf16Block &block) {
  u16x2 largest = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i++)
    largest = __builtin_elementwise_max(largest, bits_as<u16x2>(block[i / 4][i % 4] & 0x7fff7fffu));
  return larger_half(bits_as<u32>(largest));
}

// The same in half the instructions: read as fp16, magnitudes below fp16's infinity keep the order of their bits, and
// gfx950 has a packed maximum of three that negates for free. Where a magnitude is FP16_INFINITY or more (2^121 as a
// bf16) the result is too, but maybe not the largest: a NaN of fp16 wins every maximum.
#if __has_builtin(__builtin_elementwise_maximum)
DEVICE u32 largest_magnitude_as_fp16(const Bf16Block &block) {
  fp16x2 largest[2] = {{0, 0}, {0, 0}};  // two that take turns, because each would have to wait for itself
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const fp16x2 pair = bits_as<fp16x2>(block[i / 4][i % 4]);
    largest[i % 2] = __builtin_elementwise_maximum(__builtin_elementwise_maximum(largest[i % 2], pair), -pair);
  }
  return larger_half(bits_as<u32>(__builtin_elementwise_maximum(largest[0], largest[1])));
}
#else
DEVICE u32 largest_magnitude_as_fp16(const Bf16Block &) { return FP16_INFINITY; }
#endif

template <u32 ADDEND> DEVICE u32 scale_of(u32 magnitude) {
  return __builtin_elementwise_sub_sat((magnitude + ADDEND) >> 7, E2M1_EMAX);
}

template <u32 ADDEND> DEVICE Fp4Block quantize(const Bf16Block &block) {
  u32 magnitude = largest_magnitude_as_fp16(block);
  u32 scale = scale_of<ADDEND>(magnitude);
  if (__builtin_expect(__builtin_amdgcn_ballot_w64(magnitude >= FP16_INFINITY) != 0, 0)) {  // the same for all lanes
    magnitude = largest_magnitude(block);
    scale = magnitude >= BF16_INFINITY ? E8M0_NAN : scale_of<ADDEND>(magnitude);
  }
  // A convert divides by the power of two in its scale's exponent and writes one byte of its destination. In this order
  // the codes take the place of the block's first quarter as that is used up, and few writes wait for another.
  const float divisor = bits_as<float>(scale << 23);
  u32x4 codes = block[0];
#define CONVERT(dword, byte) \
  codes[dword] = \
      __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes[dword], bits_as<bf16x2>(block[dword][byte]), divisor, byte)
  CONVERT(0, 0), CONVERT(0, 1), CONVERT(1, 0), CONVERT(0, 2);
  CONVERT(2, 0), CONVERT(0, 3), CONVERT(3, 0), CONVERT(1, 1);
  CONVERT(2, 1), CONVERT(3, 1), CONVERT(1, 2), CONVERT(2, 2);
  CONVERT(3, 2), CONVERT(1, 3), CONVERT(2, 3), CONVERT(3, 3);
#undef CONVERT
  return {codes, scale};
}
