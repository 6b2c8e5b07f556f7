"""The one rounding of a result."""

import triton
import triton.language as tl


@triton.jit
def round_to(value, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """fp32 -> ``dtype``, to nearest even.

    GPUs do this in one instruction. Triton's interpreter (3.9) rounds bf16 half up and loses the carry into the
    exponent, so there the bits are rounded by hand.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        return tl.where(value == value, rounded, quiet_nan).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return value.to(dtype)
