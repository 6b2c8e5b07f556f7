// One block of A: 32 values of a row that one lane holds, rounded to the values that its format has.
//
// Macros: A_TYPE (what A is stored as), A_FORMAT (what it is rounded to), SCALE_ADDEND (the rule for block scales: see
// mxgemm.mx.formats.scale_addend). Results are pairs of bf16 in the order in which decode() of w4_operands.h makes pairs of
// weights: word 4 i + j holds values 8 i + j and 8 i + j + 4, or, with NEIGHBOURS, 8 i + 2 j and 8 i + 2 j + 1, as they lie.
// Every e2m1 or e4m3 value times 2^(e - 127) is a bf16.
// With A_BEFORE a launch of round_a.cu has done it, and a block comes as these words, or, with A_CODES, as a word of e2m1
// codes for four of them, in the places of mxgemm.mx.fragments, and a scale byte.
#pragma once
#include "sm90.h"

#define BF16 0
#define FP16 1
#define FP32 2
#define E2M1 1
#define E4M3 2

#ifndef SATURATES  // the rule for block scales may leave values above the format's largest
#define SATURATES 1
#endif

#ifndef NEIGHBOURS  // as a weight in fragment order has them; see mxgemm.mx.fragments
#define NEIGHBOURS 0
#endif
constexpr int OF_PAIRS = NEIGHBOURS ? 2 : 1, BESIDE = NEIGHBOURS ? 1 : 4;  // from pair to pair, and to its other value

#if A_FORMAT == E4M3
constexpr int EMAX = 8, MANTISSA = 3, EMIN = -6;
constexpr float LARGEST = 448.f;
constexpr u32 LARGEST_BF16 = 0x43E0;
#else
constexpr int EMAX = 2, MANTISSA = 1, EMIN = 0;
constexpr float LARGEST = 6.f;
constexpr u32 LARGEST_BF16 = 0x40C0;
#endif

// Scale bytes of A's blocks for which bf16 holds every step of the rounding; zero blocks aside, whose scale is no matter.
constexpr u32 LEAST_SCALE = 72, MOST_SCALE = 240;

constexpr int A_BYTES = A_TYPE == FP32 ? 4 : 2;
constexpr int A_VECTORS = 2 * A_BYTES;  // of 16 bytes in a block

// A block as it lies in memory.
struct Raw {
  uint4 v[A_VECTORS];
};

INLINE u32 twice(u32 half) { return half * 0x00010001u; }

INLINE void words_of(const uint4& v, u32 (&w)[4]) { w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w; }

#if A_TYPE == BF16
// Pairs in the order of the weights'.
INLINE void pairs_of(const uint4& v, u32 (&x)[4]) {
#if NEIGHBOURS
  words_of(v, x);
#else
  x[0] = permute(v.x, v.z, 0x5410), x[1] = permute(v.x, v.z, 0x7632);
  x[2] = permute(v.y, v.w, 0x5410), x[3] = permute(v.y, v.w, 0x7632);
#endif
}
INLINE void pairs_of(const Raw& raw, u32 (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 four[4];
    pairs_of(raw.v[i], four);
#pragma unroll
    for (int j = 0; j < 4; j++) x[4 * i + j] = four[j];
  }
}
#endif

// The values of 16 bytes of A, the i-th of those that `x` is of, as fp32.
template <int COUNT>
INLINE void floats_of_words(const u32 (&w)[4], float (&x)[COUNT], int i) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
#if A_TYPE == FP32
    x[4 * i + j] = float_of(w[j]);
#elif A_TYPE == FP16
    x[8 * i + 2 * j] = float_of_f16(w[j] & 0xFFFFu), x[8 * i + 2 * j + 1] = float_of_f16(w[j] >> 16);
#else
    x[8 * i + 2 * j] = float_of(w[j] << 16), x[8 * i + 2 * j + 1] = float_of(w[j] & 0xFFFF0000u);
#endif
  }
}

// Value j of a block, as fp32.
INLINE void floats_of(const Raw& raw, float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < A_VECTORS; i++) {
    u32 w[4];
    words_of(raw.v[i], w);
    floats_of_words(w, x, i);
  }
}

template <int COUNT>
INLINE void pack(const float (&q)[COUNT], u32 (&x)[COUNT / 2]) {
#pragma unroll
  for (int i = 0; i < COUNT / 8; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) x[4 * i + j] = bf16x2_of(q[8 * i + OF_PAIRS * j], q[8 * i + OF_PAIRS * j + BESIDE]);
}

// fp32 bits of the largest magnitude; a NaN's are above infinity's.
template <int COUNT>
INLINE u32 largest(const float (&x)[COUNT]) {
  u32 m = 0;
#pragma unroll
  for (int i = 0; i < COUNT; i++) m = max(m, bits_of(x[i]) & 0x7FFFFFFFu);
  return m;
}

// The nearest value of the format, ties to even: 1.5 2^(23 - MANTISSA) steps away fp32 has just these values.
INLINE float rounded(float y) {
  const u32 exponent = max(bits_of(y) & 0x7F800000u, static_cast<u32>(127 + EMIN) << 23);
  const float far = float_of((exponent + ((23 - MANTISSA) << 23)) | 0x00400000u);
  return fminf(fmaxf((y + far) - far, -LARGEST), LARGEST);
}

// Values of a block whose largest magnitude is `amax`, rounded; false where bf16 does not hold them.
template <int COUNT>
INLINE bool round_floats(float (&v)[COUNT], u32 amax) {
  const u32 up = (amax + SCALE_ADDEND) >> 23, e = min(max(up, LEAST_SCALE + EMAX) - EMAX, 253u);
  const float scale = float_of(e << 23), reciprocal = float_of((254 - e) << 23);
#pragma unroll
  for (int i = 0; i < COUNT; i++) v[i] = rounded(v[i] * reciprocal) * scale;
  return amax == 0 || up - (LEAST_SCALE + EMAX) <= MOST_SCALE - LEAST_SCALE;
}

// The rounded values over their scale, and the scale byte: for every block, 255 for one with a NaN or an infinity.
INLINE u32 round_unscaled(const Raw& raw, u32 (&x)[16]) {
  float v[32];
  floats_of(raw, v);
#if A_FORMAT == BF16
  pack(v, x);
  return 127;
#else
  const u32 amax = largest(v), up = (amax + SCALE_ADDEND) >> 23;
  const u32 e = amax >= 0x7F800000u ? 255 : up > EMAX ? up - EMAX : 0;
  const float reciprocal = float_of((254 - min(e, 253u)) << 23);
#pragma unroll
  for (int i = 0; i < 32; i++) v[i] = e == 255 ? 0.f : rounded(v[i] * reciprocal);
  pack(v, x);
  return e;
#endif
}

#if A_TYPE == BF16
// As rounded(), of pairs of bf16 of one block: 1.5 2^(7 - MANTISSA) steps away bf16 has just the format's values.
struct Rounding {
  u32 least, limit;
};
// Largest magnitudes of a block's halves; false where bf16 does not hold the rounded values.
INLINE bool rounding_of(u32 m, Rounding& r) {
  const u32 amax = max(m << 16, m & 0xFFFF0000u), up = (amax + SCALE_ADDEND) >> 23;
  const u32 e = max(up, LEAST_SCALE + EMAX) - EMAX;
  r.least = twice(e + EMIN) << 7, r.limit = twice(e) * 128 + twice(LARGEST_BF16 - (127 << 7));
  return amax == 0 || up - (LEAST_SCALE + EMAX) <= MOST_SCALE - LEAST_SCALE;
}
INLINE u32 rounded_pair(u32 x, const Rounding& r) {
  constexpr u32 FAR = static_cast<u32>(127 + 7 - MANTISSA) << 7 | 0x40;
  const u32 exponent = max_bf16x2(x & 0x7F807F80u, r.least);
  x = fma_bf16x2(exponent, twice(FAR | 0x8000), fma_bf16x2(exponent, twice(FAR), x));
  return SATURATES ? min_magnitude_bf16x2(x, r.limit) : x;
}
#endif

// The rounded values; false where bf16 does not hold them (then they are no matter).
INLINE bool round_block(const Raw& raw, u32 (&x)[16]) {
#if A_FORMAT == BF16 && A_TYPE == BF16
  pairs_of(raw, x);
  return true;
#elif A_FORMAT == BF16
  float v[32];
  floats_of(raw, v);
  pack(v, x);
  return true;
#elif A_TYPE == BF16
  pairs_of(raw, x);
  u32 m[4] = {};  // so that no maximum waits for fifteen
#pragma unroll
  for (int i = 0; i < 16; i++) m[i % 4] = max_bf16x2(m[i % 4], abs_bf16x2(x[i]));
  Rounding r;
  const bool held = rounding_of(max_bf16x2(max_bf16x2(m[0], m[1]), max_bf16x2(m[2], m[3])), r);
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = rounded_pair(x[i], r);
  return held;
#else
  float v[32];
  floats_of(raw, v);
  const bool held = round_floats(v, largest(v));
  pack(v, x);
  return held;
#endif
}

// What round_a.cu writes for a block that bf16 does not hold: no rounded value of e2m1 or e4m3 is NaN.
constexpr u32 NOT_HELD = 0x7FFF7FFF;
// And as scale byte of a block of codes with another scale than decode_places() is right for.
constexpr u32 NO_SCALE = 255;

constexpr int DOWN = 16;  // binades by which decoded values are too small: so bf16 holds what decodes scales above 128
// Scales that decoding is right for, and whose products keep their bits. There are 64, so that their top bits tell.
constexpr u32 LEAST_FAST = 80, MOST_FAST = 143;
static_assert(LEAST_FAST >= LEAST_SCALE && MOST_FAST <= 128 + DOWN, "bf16 holds what decodes these");

INLINE u32 factor_of(u32 scale) { return scale * 0x00800080u + twice((126 - DOWN) << 7); }  // 2^(126 + s - 127 - DOWN)

// Eight codes as pairs of bf16, in the places of mxgemm.mx.fragments. The bits of a code are those of a bf16 126 binades
// down, subnormals included. Three pairs are a rotation away from where they have to be; of the fourth one a product moves
// sign, exponent and mantissa by as many distances at once, which meet nowhere.
INLINE void decode_places(u32 q, u32 factor, u32 (&d)[4]) {
  constexpr u32 PAIR = 0x81C081C0u;
  d[0] = q & PAIR;
  d[1] = (q >> 3 | q << (32 - 3)) & PAIR;
  d[2] = (q & 0x001B001Bu) * (1 << 2 | 1 << 7 | 1 << 12) & PAIR;
  d[3] = (q >> 6 | q << (32 - 6)) & PAIR;
#pragma unroll
  for (int j = 0; j < 4; j++) d[j] = mul_bf16x2(d[j], factor);
}
