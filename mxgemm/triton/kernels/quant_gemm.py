"""GEMM of two quantised operands with fp16 output: one family for every place where the scales can be.

``A_SCALE`` and ``B_SCALE`` say what a scale covers:

* "block": one E8M0 byte for 32 elements along K; both operands or neither (the scaled dot product of MX formats);
* "row": one fp32 for a whole row of the operand (a row of A, a column of the result for B), applied to the sums;
* "tensor": one fp32 for the whole operand, applied to the sums.

Operands are contiguous: A ``[M, K]``, B ``[N, K]``, two e2m1 to a byte along K; block scales ``[rows, K/32]``.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.epilogue import store_tile
from mxgemm.triton.kernels.interpreted import dot_mx
from mxgemm.triton.kernels.load_operand import load_packed, load_scales

BLOCK = tl.constexpr(32)


@triton.jit(do_not_specialize=["M", "K_BLOCKS"])
def quant_gemm_kernel(
    a, b, a_scales, b_scales, out, M, N, K_BLOCKS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, PROGRAMS: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr,
    SHORT_K: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(decode(a)[M, K] @ decode(b)[N, K].T)``, fp32 sums.

    K is passed in blocks of 32, so that the compiler knows how rows are aligned. ``A_TYPE``, ``B_TYPE``: "e2m1",
    "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz". ``EVEN_N``, ``EVEN_K``: N and K are multiples of the tile's, so nothing is
    masked there; M may be anything. ``PROGRAMS``: the most programs that are launched, each of which then takes several
    tiles; 0: one a tile. (The kernel does not ask how many there are: on AMD that is a hidden argument, and these
    arguments are all that a launcher has to pack.) ``WIDE``: offsets in 64 bits.
    ``SHORT_K``: sm_90's short fp8 sums are added to fp32 ones after so many elements, at most BLOCK_K; 0: at the end.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    if PROGRAMS > 0:
        first = contiguous_on_xcd(tl.program_id(0), tl.minimum(tiles, PROGRAMS), XCDS)
        for tile in range(first, tiles, PROGRAMS):
            quant_tile(
                tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS, A_TYPE, B_TYPE, A_SCALE, B_SCALE, BLOCK_M, BLOCK_N,
                BLOCK_K, EVEN_N, EVEN_K, WIDE, SHORT_K, INTERPRETED,
            )  # fmt: skip
    else:
        tile = contiguous_on_xcd(tl.program_id(0), tiles, XCDS)
        quant_tile(
            tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS, A_TYPE, B_TYPE, A_SCALE, B_SCALE, BLOCK_M, BLOCK_N,
            BLOCK_K, EVEN_N, EVEN_K, WIDE, SHORT_K, INTERPRETED,
        )  # fmt: skip


@triton.jit
def quant_tile(
    tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, A_SCALE: tl.constexpr, B_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, SHORT_K: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute and store tile ``tile`` of the result; tiles go down the columns, so neighbours share rows of B."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    pm = tile % tiles_m
    pn = tile // tiles_m
    if EVEN_K:
        K_BLOCKS = tl.multiple_of(K_BLOCKS, BLOCK_K // BLOCK)
    K = K_BLOCKS * BLOCK
    whole = K if EVEN_K else K // BLOCK_K * BLOCK_K
    # Rows of 8 scales and more start at whole words: a word costs fewer loads than its bytes (docs/lab-notes.md).
    WORDS: tl.constexpr = EVEN_K and BLOCK_K >= 256
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, whole, BLOCK_K):
        acc = quant_step(
            acc, a, b, a_scales, b_scales, pm, pn, k, M, N, K_BLOCKS, A_TYPE, B_TYPE, A_SCALE, BLOCK_M, BLOCK_N,
            BLOCK_K, EVEN_N, False, WORDS, WIDE, SHORT_K, INTERPRETED,
        )  # fmt: skip
    if not EVEN_K:
        if whole < K:  # the one step that needs masks along K
            acc = quant_step(
                acc, a, b, a_scales, b_scales, pm, pn, whole, M, N, K_BLOCKS, A_TYPE, B_TYPE, A_SCALE, BLOCK_M, BLOCK_N,
                BLOCK_K, EVEN_N, True, False, WIDE, SHORT_K, INTERPRETED,
            )  # fmt: skip
    if A_SCALE != "block":
        acc *= load_sum_scale(a_scales, pm, M, A_SCALE, BLOCK_M)[:, None]
        acc *= load_sum_scale(b_scales, pn, N, B_SCALE, BLOCK_N)[None, :]
    store_tile(acc, out, out, M, N, pm, pn, N, 1, 0, False, BLOCK_M, BLOCK_N, False, EVEN_N, WIDE, INTERPRETED)


@triton.jit
def quant_step(
    acc, a, b, a_scales, b_scales, pm, pn, k, M, N, K_BLOCKS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, A_SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr, WORDS: tl.constexpr, WIDE: tl.constexpr,
    SHORT_K: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add ``a tile @ b tile.T`` for the block of K that starts at ``k``; block scales included, others not."""
    A_PACK: tl.constexpr = 2 if A_TYPE == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B_TYPE == "e2m1" else 1
    K = K_BLOCKS * BLOCK
    a_stride = K_BLOCKS * (BLOCK // A_PACK)
    b_stride = K_BLOCKS * (BLOCK // B_PACK)
    x = load_packed(a, pm, k, M, K, a_stride, 1, False, A_PACK, BLOCK_M, BLOCK_K, False, TAIL, WIDE, "")
    w = load_packed(b, pn, k, N, K, b_stride, 1, False, B_PACK, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, "")
    if A_SCALE == "block":
        ORDER: tl.constexpr = "row_major_words" if WORDS else "row_major"
        t = load_scales(a_scales, pm, k, M, K, K_BLOCKS, 1, ORDER, BLOCK_M, BLOCK_K, False, TAIL, WIDE, "")
        s = load_scales(b_scales, pn, k, N, K, K_BLOCKS, 1, ORDER, BLOCK_N, BLOCK_K, EVEN_N, TAIL, WIDE, "")
        return dot_mx(x, t, w, s, acc, A_TYPE, B_TYPE, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRETED)
    else:
        x = as_float8(x, A_TYPE, INTERPRETED)
        w = as_float8(w, B_TYPE, INTERPRETED)
        if SHORT_K > 0:
            return tl.dot(x, w.T, acc, max_num_imprecise_acc=SHORT_K)
        else:
            return tl.dot(x, w.T, acc)


@triton.jit
def as_float8(raw, TYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """See bytes as one of the fp8 types; in Triton's interpreter, whose dot product knows no fp8, as fp32.

    The interpreter (3.9) decodes NaN and Inf as if they were numbers, so there they are put in by hand.
    """
    if TYPE == "e4m3":
        value = raw.to(tl.float8e4nv, bitcast=True)
    elif TYPE == "e5m2":
        value = raw.to(tl.float8e5, bitcast=True)
    elif TYPE == "e4m3fnuz":
        value = raw.to(tl.float8e4b8, bitcast=True)
    else:
        value = raw.to(tl.float8e5b16, bitcast=True)
    if INTERPRETED:
        value = value.to(tl.float32)
        if TYPE == "e4m3":
            value = tl.where((raw & 0x7F) == 0x7F, float("nan"), value)
        elif TYPE == "e5m2":
            value = tl.where(raw == 0x7C, float("inf"), tl.where(raw == 0xFC, -float("inf"), value))
            value = tl.where((raw & 0x7F) > 0x7C, float("nan"), value)
        else:
            value = tl.where(raw == 0x80, float("nan"), value)
    return value


@triton.jit
def load_sum_scale(scales, tile, ROWS, KIND: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """fp32 scales ``[BLOCK_ROWS]`` of a tile's sums along one side; one for all of them where ``KIND`` is "tensor"."""
    row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    if KIND == "tensor":
        row = row * 0
    return tl.load(scales + row, mask=row < ROWS, other=0.0)
