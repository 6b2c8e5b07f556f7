"""What Triton's interpreter (3.9) computes otherwise than hardware, done by hand there; see docs/lab-notes.md."""

import triton
import triton.language as tl


@triton.jit
def widen(x, INTERPRETED: tl.constexpr):
    """bf16, fp16 or fp32 -> fp32, exactly. The interpreter decodes bf16's subnormals wrongly, so there bits move."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def decode_for_dot(packed, scale, FORMAT: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """Element bytes ``[R, K/pack]`` and scale bytes ``[R, K/32]`` -> fp32 ``[R, K]``, exactly; 255 gives NaN.

    For the interpreter, whose ``dot_scaled`` sends bf16 through fp16 and decodes e5m2's subnormals wrongly.
    """
    if FORMAT == "e2m1":
        code = tl.join(packed & 15, packed >> 4).reshape(R, K).to(tl.int32)
        # A code is a tiny float: at the top of an fp16 it is worth 2**-14 of itself.
        half, factor = ((code & 7) << 9) | ((code & 8) << 12), 16384.0
    elif FORMAT == "e4m3":
        code = packed.to(tl.int32)
        half, factor = ((code & 0x7F) << 7) | ((code & 0x80) << 8), 256.0
    else:
        half, factor = packed.to(tl.int32) << 8, 1.0
    value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * factor
    if FORMAT == "e4m3":
        value = tl.where((half & 0x3F80) == 0x3F80, float("nan"), value)
    exponent = scale.to(tl.int32)
    bits = tl.where(exponent == 0, 1 << 22, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
    power = tl.broadcast_to(bits[:, :, None], (R, K // 32, 32)).reshape(R, K)
    return value * power.to(tl.float32, bitcast=True)


@triton.jit
def dot_mx(
    x, x_scale, w, w_scale, acc, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INTERPRETED: tl.constexpr, TRANSPOSED: tl.constexpr = False,
):  # fmt: skip
    """``acc[BLOCK_M, BLOCK_N] += decode(x) @ decode(w).T`` by the scaled dot; both operands' bytes are row-major.

    ``TRANSPOSED``: ``acc[BLOCK_N, BLOCK_M] += decode(w) @ decode(x).T``.
    """
    if INTERPRETED and (A_FORMAT == "e5m2" or B_FORMAT == "e5m2"):
        left = decode_for_dot(x, x_scale, A_FORMAT, BLOCK_M, BLOCK_K)
        right = decode_for_dot(w, w_scale, B_FORMAT, BLOCK_N, BLOCK_K)
        acc = tl.dot(right, left.T, acc) if TRANSPOSED else tl.dot(left, right.T, acc)
    elif TRANSPOSED:
        acc = tl.dot_scaled(w, w_scale, B_FORMAT, x.T, x_scale, A_FORMAT, acc)
    else:
        acc = tl.dot_scaled(x, x_scale, A_FORMAT, w.T, w_scale, B_FORMAT, acc)
    return acc
