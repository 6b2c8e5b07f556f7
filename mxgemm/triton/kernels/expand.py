"""e2m1 codes to e4m3 relative to their row's base, or to bf16, by permutations of bytes.

A block has one scale, so its eight magnitudes are eight bytes (sixteen in bf16), and four codes choose four of them in
one instruction.
"""

import triton
import triton.language as tl

# A word of 64 bits with sixteen codes -> two of e4m3; the block's magnitudes lie in $3 (codes 0 to 3) and $4 (4 to 7).
# A selector of PRMT is three bits and a fourth that spreads the chosen byte's sign: the codes' own signs are left out
# of the first permutation, and make 0xff of 0x80 in the second, whose next bit is then moved to the top of the byte.
EXPAND_E2M1 = tl.constexpr(
    """{
    .reg .b32 x, y, m, n, a, b, c, d, s, t, u, v, ones;
    mov.b32 ones, 0x80808080;
    mov.b64 {x, y}, $2;
    and.b32 m, x, 0x77777777;
    and.b32 n, y, 0x77777777;
    prmt.b32 a, $3, $4, m;
    prmt.b32 c, $3, $4, n;
    prmt.b32 s, ones, ones, x;
    prmt.b32 u, ones, ones, y;
    shr.u32 m, m, 16;
    shr.u32 n, n, 16;
    shr.u32 x, x, 16;
    shr.u32 y, y, 16;
    prmt.b32 b, $3, $4, m;
    prmt.b32 d, $3, $4, n;
    prmt.b32 t, ones, ones, x;
    prmt.b32 v, ones, ones, y;
    shl.b32 s, s, 1;
    shl.b32 t, t, 1;
    shl.b32 u, u, 1;
    shl.b32 v, v, 1;
    lop3.b32 a, s, ones, a, 0xea;
    lop3.b32 b, t, ones, b, 0xea;
    lop3.b32 c, u, ones, c, 0xea;
    lop3.b32 d, v, ones, d, 0xea;
    mov.b64 $0, {a, b};
    mov.b64 $1, {c, d};
    }"""
)

# A word with eight codes -> two words of 64 bits of bf16; the block's magnitudes lie in $3 (codes 0 and 1) to $6 (6 and
# 7). Their low and high bytes are chosen apart, by the same selectors, and put together again.
EXPAND_TO_BF16 = tl.constexpr(
    """{
    .reg .b32 la, lb, ha, hb, x, m, n, a, b, c, d, s, t, ones, w0, w1, w2, w3;
    mov.b32 ones, 0x80808080;
    prmt.b32 la, $3, $4, 0x6420;
    prmt.b32 lb, $5, $6, 0x6420;
    prmt.b32 ha, $3, $4, 0x7531;
    prmt.b32 hb, $5, $6, 0x7531;
    and.b32 m, $2, 0x77777777;
    shr.u32 n, m, 16;
    shr.u32 x, $2, 16;
    prmt.b32 a, la, lb, m;
    prmt.b32 b, la, lb, n;
    prmt.b32 c, ha, hb, m;
    prmt.b32 d, ha, hb, n;
    prmt.b32 s, ones, ones, $2;
    prmt.b32 t, ones, ones, x;
    shl.b32 s, s, 1;
    shl.b32 t, t, 1;
    lop3.b32 c, s, ones, c, 0xea;
    lop3.b32 d, t, ones, d, 0xea;
    prmt.b32 w0, a, c, 0x5140;
    prmt.b32 w1, a, c, 0x7362;
    prmt.b32 w2, b, d, 0x5140;
    prmt.b32 w3, b, d, 0x7362;
    mov.b64 $0, {w0, w1};
    mov.b64 $1, {w2, w3};
    }"""
)


@triton.jit
def magnitudes(exponent, base):
    """Scale bytes and their rows' bases (int32) -> e4m3 of 0, 0.5, 1, 1.5 and of 2, 3, 4, 6 in such a block.

    A block that does not fold has nothing but zeros, whose byte is 0 whatever the scale; a NaN scale makes all NaN.
    """
    step = tl.minimum(tl.maximum(exponent - base + 8, 0), 14)
    # Each binade adds 8 to a normal byte; below, bytes count units of 2**-9 and double.
    low = tl.where(step < 3, 0x03020100 << step, 0x14100800 + (step - 3) * 0x08080800)
    high = tl.where(step == 0, 0x0C080604, 0x14100C08 + (step - 1) * 0x08080808)
    bad = exponent == 255
    return tl.where(bad, 0x7F7F7F7F, low), tl.where(bad, 0x7F7F7F7F, high)


@triton.jit
def expand_e2m1(words, low, high, INTERPRETED: tl.constexpr):
    """int64 words of sixteen codes, magnitudes of their blocks (int32) -> two int64 of eight e4m3 each, in order."""
    if INTERPRETED:
        first, second = expand_eight(words, low, high), expand_eight(words >> 32, low, high)
    else:
        first, second = tl.inline_asm_elementwise(
            EXPAND_E2M1, "=l,=l,l,r,r", [words, low, high], dtype=(tl.int64, tl.int64), is_pure=True, pack=1
        )
    return first, second


@triton.jit
def expand_eight(codes, low, high):
    """The low eight codes of a word -> eight e4m3: the same, for the interpreter."""
    table = (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
    made = tl.zeros_like(codes)
    for i in tl.static_range(8):
        code = (codes >> (4 * i)) & 15
        byte = ((table >> ((code & 7) * 8)) & 0x7F) | ((code & 8) << 4)
        made |= byte << (8 * i)
    return made


@triton.jit
def magnitudes_bf16(exponent):
    """Scale bytes (int32) -> bf16 of 0 and 0.5, 1 and 1.5, 2 and 3, 4 and 6 in such a block; NaN where it is one."""
    both = exponent * 0x00800080
    # Byte 0 is 2**-127: what is below 2**-126 is subnormal, and a half is for byte 1 too. Above, an infinity ends it.
    halves = tl.where(exponent == 0, 0x00200000, tl.where(exponent == 1, 0x00400000, (both & 0x7FFF0000) - 0x00800000))
    ones = tl.where(exponent == 0, 0x00600040, both + 0x00400000)
    twos = tl.where(exponent >= 254, 0x7F807F80, both + 0x00C00080)
    fours = tl.where(exponent >= 253, 0x7F807F80, both + 0x01400100)
    bad = exponent == 255
    nan = 0x7FC07FC0
    return tl.where(bad, nan, halves), tl.where(bad, nan, ones), tl.where(bad, nan, twos), tl.where(bad, nan, fours)


@triton.jit
def expand_to_bf16(words, halves, ones, twos, fours, INTERPRETED: tl.constexpr):
    """int32 words of eight codes, magnitudes of their blocks -> two int64 of four bf16 each, in order."""
    if INTERPRETED:
        first = expand_four(words, halves, ones, twos, fours)
        second = expand_four(words >> 16, halves, ones, twos, fours)
    else:
        first, second = tl.inline_asm_elementwise(
            EXPAND_TO_BF16, "=l,=l,r,r,r,r,r", [words, halves, ones, twos, fours], dtype=(tl.int64, tl.int64),
            is_pure=True, pack=1,
        )  # fmt: skip
    return first, second


@triton.jit
def expand_four(codes, halves, ones, twos, fours):
    """The low four codes of a word -> four bf16: the same, for the interpreter."""
    low = (halves.to(tl.int64) & 0xFFFFFFFF) | (ones.to(tl.int64) << 32)
    high = (twos.to(tl.int64) & 0xFFFFFFFF) | (fours.to(tl.int64) << 32)
    made = tl.zeros_like(low)
    for i in tl.static_range(4):
        code = ((codes >> (4 * i)) & 15).to(tl.int64)
        value = (tl.where((code & 4) != 0, high, low) >> ((code & 3) * 16)) & 0x7FFF
        made |= (value | ((code & 8) << 12)) << (16 * i)
    return made
