"""A weight times its powers of two, in bf16."""

import triton
import triton.language as tl

from mxgemm.triton.kernels.decode_elements import decode, decode_scale
from mxgemm.triton.kernels.epilogue import round_to


@triton.jit
def scale_weight_kernel(
    b, scales, out, N, K, stride_n, stride_k, stride_sn, stride_sk,
    TYPE: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[N, K]`` bf16, contiguous = elements ``b[N, K]`` times E8M0 ``scales[N, K/GROUP]``, rounded once to even.

    ``TYPE``: "bf16", or an fp8 type, one byte an element. Grid: blocks of rows, blocks of K.
    """
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    # A group's scale is read once where groups are whole in a block, else once an element.
    GROUPS: tl.constexpr = BLOCK_K // GROUP if BLOCK_K % GROUP == 0 else BLOCK_K
    if GROUPS == BLOCK_K:
        group = columns // GROUP
    else:
        group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    far = rows.to(tl.int64)[:, None]
    wide = columns.to(tl.int64)[None, :]
    elements = b + far * stride_n + wide * stride_k
    powers = scales + far * stride_sn + group.to(tl.int64)[None, :] * stride_sk
    target = out + far * K + wide
    if EVEN_N and EVEN_K:
        raw, exponent = tl.load(elements), tl.load(powers)
    else:
        inside = (rows < N)[:, None] & (columns < K)[None, :]
        raw = tl.load(elements, mask=inside, other=0)
        exponent = tl.load(powers, mask=(rows < N)[:, None] & (group < K // GROUP)[None, :], other=0)
    power = decode_scale(exponent, "e8m0")
    if GROUPS != BLOCK_K:
        power = tl.broadcast_to(power[:, :, None], (BLOCK_N, GROUPS, GROUP)).reshape(BLOCK_N, BLOCK_K)
    result = round_to(decode(raw, TYPE, BLOCK_N, BLOCK_K, INTERPRETED) * power, tl.bfloat16, INTERPRETED)
    if EVEN_N and EVEN_K:
        tl.store(target, result)
    else:
        tl.store(target, result, mask=inside)
