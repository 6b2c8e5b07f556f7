"""Packed elements to e4m3, exactly, by integer arithmetic on four bytes of a word at a time.

e2m1 has eight magnitudes and int4 nine (-8 to 7), all of which e4m3 holds. A word of eight nibbles becomes two words.
"""

import triton
import triton.language as tl


@triton.jit
def unpack_e4m3_kernel(
    packed, out, R, W, stride_r,
    TYPE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr, EVEN_R: tl.constexpr, EVEN_W: tl.constexpr,
):  # fmt: skip
    """int32 words ``[R, W]`` of packed elements -> words of e4m3 ``[R, 2 * W]``, contiguous; ``stride_r`` in words.

    ``TYPE``: "e2m1", whose even k is the low nibble, or "int4", whose even k is the high one and means nibble - 8.
    Grid: blocks of rows, blocks of words.
    """
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    words = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    wide = tl.program_id(1) * BLOCK_W * 2 + tl.arange(0, 2 * BLOCK_W)
    far = rows.to(tl.int64)[:, None]
    if EVEN_R and EVEN_W:
        raw = tl.load(packed + far * stride_r + words[None, :])
    else:
        raw = tl.load(
            packed + far * stride_r + words[None, :], mask=(rows < R)[:, None] & (words < W)[None, :], other=0
        )
    if TYPE == "int4":
        first = int4_as_e4m3((raw >> 4) & 0x0F0F0F0F)
        second = int4_as_e4m3(raw & 0x0F0F0F0F)
    else:
        first = e2m1_as_e4m3(raw & 0x0F0F0F0F)
        second = e2m1_as_e4m3((raw >> 4) & 0x0F0F0F0F)
    left = apart(first) | (apart(second) << 8)
    right = apart(first >> 16) | (apart(second >> 16) << 8)
    made = tl.join(left, right).reshape(BLOCK_R, 2 * BLOCK_W)
    target = out + far * (2 * W) + wide[None, :]
    if EVEN_R and EVEN_W:
        tl.store(target, made)
    else:
        tl.store(target, made, mask=(rows < R)[:, None] & (wide < 2 * W)[None, :])


@triton.jit
def e2m1_as_e4m3(codes):
    """Bytes that hold an e2m1 code each -> e4m3: exponents are 6 apart, and 0.5, which is subnormal, is 0x30."""
    magnitude = codes & 0x07070707
    normal = ((magnitude >> 1) | (magnitude >> 2)) & 0x01010101
    some = normal | (magnitude & 0x01010101)
    return some * 0x30 + ((magnitude & (normal * 7)) << 2) | (((codes >> 3) & 0x01010101) << 7)


@triton.jit
def int4_as_e4m3(codes):
    """Bytes that hold value + 8 each -> e4m3: 1 is 0x38, 2 and 3 0x40 and 0x44, from 4 on 0x40 + 2 * magnitude."""
    negative = ((codes >> 3) & 0x01010101) ^ 0x01010101
    magnitude = ((codes ^ (negative * 7)) & 0x07070707) + negative
    from_4 = ((magnitude >> 2) | (magnitude >> 3)) & 0x01010101
    from_2 = from_4 | ((magnitude >> 1) & 0x01010101)
    some = from_2 | (magnitude & 0x01010101)
    odd = (magnitude & 0x01010101) & (from_4 ^ 0x01010101) & from_2
    return some * 0x38 + from_2 * 8 + (odd << 2) + ((magnitude & (from_4 * 15)) << 1) | (negative << 7)


@triton.jit
def apart(word):
    """The low two bytes of a word, a byte apart."""
    low = word & 0xFFFF
    return (low | (low << 8)) & 0x00FF00FF
