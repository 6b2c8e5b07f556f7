"""gfx950's hardware convert to e2m1, ``v_cvt_scalef32_pk_fp4_*``: two values to two nibbles of one byte of a register.

The instruction divides by its scale operand (an fp32 of which only the exponent counts), rounds to nearest even and
saturates: the same codes as ``quantize_block.element_codes``. Operand modifiers choose the byte that is written and
leave the others, so a register depends on its own last value, and the ISA wants an s_nop between such writes; clang
would add them, inline assembly must say them. An 8-bit result with pack=4 crashes Triton 3.6 and is dropped by 3.9,
hence int32 results with pack=1.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.quantize_block import BLOCK, FP32_INF_BITS, block_scales, scale_bytes

FROM_BF16_PAIRS = tl.constexpr(
    """v_cvt_scalef32_pk_fp4_bf16 $0, $1, $5
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $2, $5 op_sel:[0,0,1,0]
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $3, $5 op_sel:[0,0,0,1]
s_nop 0
v_cvt_scalef32_pk_fp4_bf16 $0, $4, $5 op_sel:[0,0,1,1]
s_nop 0"""
)
FROM_F32_PAIR = tl.constexpr("v_cvt_scalef32_pk_fp4_f32 $0, $1, $2, $3\ns_nop 0")


@triton.jit
def bf16_pair_scales(pairs, ADDEND: tl.constexpr):
    """int32 ``[R, G, 16]``, two bf16 a word -> amax as bf16 bits, exponent byte before the NaN rule, ``[R, G, 1]``."""
    magnitude = pairs & 0x7FFF7FFF
    high = tl.max(magnitude, axis=2, keep_dims=True) >> 16
    low = tl.max(magnitude & 0xFFFF, axis=2, keep_dims=True)
    amax = tl.maximum(high, low)
    # The fp32 rule on the upper half of the bits: the lower half of a bf16 is zero and cannot carry.
    return amax, tl.maximum(((amax + (ADDEND >> 16)) >> 7) - 2, 0)


@triton.jit
def quantize_e2m1_bf16_pairs(pairs, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr):
    """int32 ``[R, K/2]``, two bf16 a word -> packed codes ``[R, K/2]``, scale bytes ``[R, K/32]``, both uint8."""
    amax, exponent = bf16_pair_scales(pairs.reshape(R, K // BLOCK, BLOCK // 2), ADDEND)
    scale = tl.broadcast_to(exponent << 23, (R, K // BLOCK, BLOCK // 8)).reshape(R, K // 8)
    even, odd = tl.split(pairs.reshape(R, K // 8, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    word = tl.inline_asm_elementwise(
        FROM_BF16_PAIRS, "=&v,v,v,v,v,v", [first, second, third, fourth, scale], dtype=tl.int32, is_pure=True, pack=1
    )
    is_nan = amax >= (FP32_INF_BITS >> 16)
    return unpack_bytes(word, R, K), tl.where(is_nan, 255, exponent).to(tl.uint8).reshape(R, K // BLOCK)


@triton.jit
def quantize_e2m1_f32(x, R: tl.constexpr, K: tl.constexpr, ADDEND: tl.constexpr):
    """``[R, K]`` float -> the same, from fp32 pairs: for fp16 and fp32 input and for rows that are not words."""
    f = x.to(tl.float32)
    amax, exponent = block_scales(f.reshape(R, K // BLOCK, BLOCK), ADDEND, 2)
    scale = tl.broadcast_to(exponent << 23, (R, K // BLOCK, BLOCK // 2)).reshape(R, K // 2)
    low, high = tl.split(f.reshape(R, K // 2, 2))
    byte = tl.inline_asm_elementwise(
        FROM_F32_PAIR,
        "=&v,v,v,v",
        [low, high, scale.to(tl.float32, bitcast=True)],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return byte.to(tl.uint8), scale_bytes(amax, exponent, R, K // BLOCK)


@triton.jit
def unpack_bytes(word, R: tl.constexpr, K: tl.constexpr):
    """int32 ``[R, K/8]`` -> its bytes ``[R, K/2]``, the lowest first."""
    b0 = word.to(tl.uint8)
    b1 = (word >> 8).to(tl.uint8)
    b2 = (word >> 16).to(tl.uint8)
    b3 = (word >> 24).to(tl.uint8)
    return tl.join(tl.join(b0, b2), tl.join(b1, b3)).reshape(R, K // 2)
