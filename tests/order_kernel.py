"""A kernel that writes down which tile each program takes."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd


@triton.jit
def order_kernel(order, PROGRAMS, XCDS: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(order + pid, contiguous_on_xcd(pid, PROGRAMS, XCDS))
