"""The sums of one tile of ``mxgemm.quant_gemm``, scales included, whatever the scheme.

Where a scale changes along K ("group"), each step of the loop lies within one group of either operand: the step's own
sum starts at zero, is scaled and added in fp32. Scales of a row or of the tensor are applied once, to the whole sum.
E8M0 scales of groups that are smaller than a step are applied to B's elements in bf16, where that is exact: they are
powers of two.

With ``SWAPPED`` the sums are kept transposed until the end: the matrix unit's many rows are then those of B.

``DOT`` is what the matrix unit multiplies: "fp8", the operands as they are; "e4m3", packed ones converted to it first,
exactly; "bf16", both converted, exactly. In Triton's interpreter it is fp32.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.decode_elements import decode, decode_scale
from mxgemm.triton.kernels.epilogue import round_to
from mxgemm.triton.kernels.load_operand import clamped_rows


@triton.jit
def scaled_sums(
    a, b, a_scales, b_scales, pm, pn, first, last, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_asm, stride_ask, stride_bsn, stride_bsk,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, DOT: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    A_SCALE_TYPE: tl.constexpr, B_SCALE_TYPE: tl.constexpr, A_GROUP_K: tl.constexpr, B_GROUP_N: tl.constexpr,
    B_GROUP_K: tl.constexpr, SWAPPED: tl.constexpr, SHORT_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """fp32 ``[BLOCK_M, BLOCK_N]``: tile (pm, pn) of ``decode(a) @ decode(b).T``, over the elements ``first``..``last``.

    Args as of ``scaled_gemm_kernel``; ``first`` is a multiple of BLOCK_K, and ``last`` too unless it is K.
    """
    rows = clamped_rows(pm, M, BLOCK_M, EVEN_M, WIDE)
    columns = clamped_rows(pn, N, BLOCK_N, EVEN_N, WIDE)
    a_rows = a + rows * stride_am
    b_rows = b + columns * stride_bn
    a_scale_rows = a_scales + rows * stride_asm
    # One scale for all columns of the tile, or one for each.
    ONE_COLUMN_GROUP: tl.constexpr = B_SCALE == "group" and B_GROUP_N % BLOCK_N == 0
    if ONE_COLUMN_GROUP:
        group = pn * BLOCK_N // B_GROUP_N
        b_scale_rows = b_scales + (group.to(tl.int64) if WIDE else group) * stride_bsn
    else:
        b_scale_rows = b_scales + columns // B_GROUP_N * stride_bsn
    whole = last if EVEN_K else first + (last - first) // BLOCK_K * BLOCK_K
    if SWAPPED:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(first, whole, BLOCK_K):
        acc = scaled_step(
            acc, a_rows, b_rows, a_scale_rows, b_scale_rows, k, K, stride_ak, stride_bk, stride_ask, stride_bsk,
            A_TYPE, B_TYPE, DOT, A_SCALE, B_SCALE, A_SCALE_TYPE, B_SCALE_TYPE, A_GROUP_K, B_GROUP_K, ONE_COLUMN_GROUP,
            SWAPPED, SHORT_K, BLOCK_M, BLOCK_N, BLOCK_K, False, WIDE, INTERPRETED,
        )  # fmt: skip
    if not EVEN_K:
        if whole < last:  # the one step that needs masks along K
            acc = scaled_step(
                acc, a_rows, b_rows, a_scale_rows, b_scale_rows, whole, K, stride_ak, stride_bk, stride_ask,
                stride_bsk, A_TYPE, B_TYPE, DOT, A_SCALE, B_SCALE, A_SCALE_TYPE, B_SCALE_TYPE, A_GROUP_K, B_GROUP_K,
                ONE_COLUMN_GROUP, SWAPPED, SHORT_K, BLOCK_M, BLOCK_N, BLOCK_K, True, WIDE, INTERPRETED,
            )  # fmt: skip
    if SWAPPED:
        acc = acc.T
    if A_SCALE == "row":
        acc *= tl.load(a_scale_rows)[:, None]
    elif A_SCALE == "tensor":
        acc *= tl.load(a_scales)
    if B_SCALE == "row":
        acc *= tl.load(b_scale_rows)[None, :]
    elif B_SCALE == "tensor":
        acc *= tl.load(b_scales)
    return acc


@triton.jit
def scaled_step(
    acc, a_rows, b_rows, a_scale_rows, b_scale_rows, k, K, stride_ak, stride_bk, stride_ask, stride_bsk,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, DOT: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    A_SCALE_TYPE: tl.constexpr, B_SCALE_TYPE: tl.constexpr, A_GROUP_K: tl.constexpr, B_GROUP_K: tl.constexpr,
    ONE_COLUMN_GROUP: tl.constexpr, SWAPPED: tl.constexpr, SHORT_K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add the block of K that starts at ``k``. Elements past K are zeros, if ``TAIL``."""
    ON_ELEMENTS: tl.constexpr = B_SCALE == "group" and B_GROUP_K % BLOCK_K != 0
    x = load_elements(a_rows, k, K, stride_ak, A_TYPE, DOT, BLOCK_K, TAIL, WIDE, INTERPRETED)
    w = load_elements(b_rows, k, K, stride_bk, B_TYPE, DOT, BLOCK_K, TAIL, WIDE, INTERPRETED)
    left = for_dot(x, A_TYPE, DOT, BLOCK_M, BLOCK_K, INTERPRETED)
    if ON_ELEMENTS:
        scale = load_powers(b_scale_rows, k, K, stride_bsk, B_GROUP_K, BLOCK_K, TAIL, WIDE)
        if ONE_COLUMN_GROUP:
            scale = tl.broadcast_to(scale, (BLOCK_N, BLOCK_K // 32))
        scale = tl.broadcast_to(scale[:, :, None], (BLOCK_N, BLOCK_K // 32, 32)).reshape(BLOCK_N, BLOCK_K)
        right = decode(w, B_TYPE, BLOCK_N, BLOCK_K, INTERPRETED) * scale
        if not INTERPRETED:
            right = right.to(tl.bfloat16)
    else:
        right = for_dot(w, B_TYPE, DOT, BLOCK_N, BLOCK_K, INTERPRETED)
    if SWAPPED:
        one, other = right, left
    else:
        one, other = left, right

    if A_SCALE == "group" or (B_SCALE == "group" and not ON_ELEMENTS):
        product = tl.dot(one, other.T)
        if A_SCALE == "group":
            scale = load_group(a_scale_rows, k // A_GROUP_K, stride_ask, A_SCALE_TYPE, WIDE)
            if ONE_COLUMN_GROUP:
                scale *= load_group(b_scale_rows, k // B_GROUP_K, stride_bsk, B_SCALE_TYPE, WIDE)
            product *= scale[None, :] if SWAPPED else scale[:, None]
        if B_SCALE == "group" and not (A_SCALE == "group" and ONE_COLUMN_GROUP):
            scale_of_b = load_group(b_scale_rows, k // B_GROUP_K, stride_bsk, B_SCALE_TYPE, WIDE)
            if ONE_COLUMN_GROUP:
                product *= scale_of_b
            else:
                product *= scale_of_b[:, None] if SWAPPED else scale_of_b[None, :]
        acc += product
    elif SHORT_K > 0:
        acc = tl.dot(one, other.T, acc, max_num_imprecise_acc=SHORT_K)
    else:
        acc = tl.dot(one, other.T, acc)
    return acc


@triton.jit
def load_powers(
    scale_rows, k, K, stride, GROUP_K: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """E8M0 scales as fp32 ``[rows, BLOCK_K/32]``, one for each 32 elements from ``k`` on; 1 past K if ``TAIL``."""
    first = k + tl.arange(0, BLOCK_K // 32) * 32
    group = first // GROUP_K
    offsets = (group.to(tl.int64) if WIDE else group) * stride
    if scale_rows.type.is_block():
        pointers = scale_rows[:, None] + offsets[None, :]
    else:
        pointers = scale_rows + offsets[None, :]
    if TAIL:
        raw = tl.load(pointers, mask=(first < K)[None, :], other=127)
    else:
        raw = tl.load(pointers)
    return decode_scale(raw, "e8m0")


@triton.jit
def load_group(scale_rows, group, stride, TYPE: tl.constexpr, WIDE: tl.constexpr):
    """The scales of one group along K of the rows that ``scale_rows`` points to, as fp32."""
    return decode_scale(tl.load(scale_rows + (tl.cast(group, tl.int64) if WIDE else group) * stride), TYPE)


@triton.jit
def load_elements(
    rows, k, K, stride, TYPE: tl.constexpr, DOT: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Elements as they are stored, ``[rows, BLOCK_K/pack]`` from element ``k`` on; past K bytes that mean zero."""
    PACK: tl.constexpr = 2 if TYPE == "e2m1" or TYPE == "int4" else 1
    inner = tl.arange(0, BLOCK_K // PACK)
    column = k // PACK + inner
    pointers = rows[:, None] + (column.to(tl.int64) if WIDE else column)[None, :] * stride
    # What the matrix unit takes as it is must come from memory as that, not by way of bytes in registers.
    if DOT == "fp8" and not INTERPRETED:
        pointers = fp8_pointers(pointers, TYPE)
    if TAIL:
        if TYPE == "int4":
            tile = tl.load(pointers, mask=(inner < (K - k) // PACK)[None, :], other=0x88)
        else:
            tile = tl.load(pointers, mask=(inner < (K - k) // PACK)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def for_dot(
    raw, TYPE: tl.constexpr, DOT: tl.constexpr, R: tl.constexpr, K: tl.constexpr, INTERPRETED: tl.constexpr
):  # fmt: skip
    """What ``DOT`` multiplies, of elements ``[R, K/pack]`` as they were loaded: ``[R, K]``."""
    if INTERPRETED:
        return decode(raw, TYPE, R, K, INTERPRETED)
    elif DOT == "fp8" or (DOT == "bf16" and TYPE == "bf16"):
        return raw
    elif DOT == "e4m3" and TYPE != "e2m1" and TYPE != "int4":
        return as_fp8(raw, TYPE)
    else:
        value = decode(raw, TYPE, R, K, INTERPRETED)
        return round_to(value, tl.float8e4nv if DOT == "e4m3" else tl.bfloat16, INTERPRETED)


@triton.jit
def as_fp8(raw, TYPE: tl.constexpr):
    """See bytes as elements of an fp8 format."""
    if TYPE == "e4m3":
        return raw.to(tl.float8e4nv, bitcast=True)
    elif TYPE == "e5m2":
        return raw.to(tl.float8e5, bitcast=True)
    elif TYPE == "e4m3fnuz":
        return raw.to(tl.float8e4b8, bitcast=True)
    else:
        return raw.to(tl.float8e5b16, bitcast=True)


@triton.jit
def fp8_pointers(pointers, TYPE: tl.constexpr):
    """See pointers to bytes as pointers to elements of an fp8 format."""
    if TYPE == "e4m3":
        return pointers.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
    elif TYPE == "e5m2":
        return pointers.to(tl.pointer_type(tl.float8e5), bitcast=True)
    elif TYPE == "e4m3fnuz":
        return pointers.to(tl.pointer_type(tl.float8e4b8), bitcast=True)
    else:
        return pointers.to(tl.pointer_type(tl.float8e5b16), bitcast=True)
