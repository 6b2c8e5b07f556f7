"""GEMM of operands of two types, in every memory order, with scales by groups of K: CK's aquant, abquant and bquant.

A scale covers ``ROWS`` rows of its operand (0: all) and ``GROUP`` elements of K (0: all). fp32, fp8 and bf8 scales
multiply the sums of their group, E8M0 scales of B multiply its elements. int4 and fp4 become the type that the matrix
instruction multiplies (``COMPUTE``), exactly: int4 and fp4 are in fp8 and bf8, and fp4 and e5m2 in bf16.
"""

import triton
import triton.language as tl

from mxgemm.triton.kernels.block_order import contiguous_on_xcd
from mxgemm.triton.kernels.epilogue import store_tile
from mxgemm.triton.kernels.interpreted import widen
from mxgemm.triton.kernels.load_operand import clamped_rows, load_packed
from mxgemm.triton.kernels.quant_gemm import as_float8

BLOCK = tl.constexpr(32)


@triton.jit(do_not_specialize=["M", "K_BLOCKS"])
def group_quant_gemm_kernel(
    a, b, a_scales, b_scales, out, M, N, K_BLOCKS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, COMPUTE: tl.constexpr, A_COLUMN: tl.constexpr, B_ROW: tl.constexpr,
    A_SCALE: tl.constexpr, A_ROWS: tl.constexpr, A_GROUP: tl.constexpr, A_K_SLOWEST: tl.constexpr,
    B_SCALE: tl.constexpr, B_ROWS: tl.constexpr, B_GROUP: tl.constexpr, B_K_SLOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PROGRAMS: tl.constexpr,
    WIDE: tl.constexpr, XCDS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = round(sum over groups of scales * A @ B)``, fp32 sums.

    K is passed in blocks of 32. Types: "int4" (even k in the high nibble), "e2m1" (in the low one), "e4m3", "e5m2",
    "e4m3fnuz", "e5m2fnuz", "bf16"; scales: those of fp8, "fp32", "e8m0", "none". ``A_COLUMN``: memory is ``[K, M]``;
    ``B_ROW``: ``[K, N]``, otherwise ``[N, K]``. ``EVEN``: N and K fill the tile, M too where ``A_COLUMN``.
    ``PROGRAMS``: the most programs that are launched, each of which then takes several tiles; 0: one a tile.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    if EVEN:
        K_BLOCKS = tl.multiple_of(K_BLOCKS, BLOCK_K // BLOCK)
        if A_COLUMN:
            M = tl.multiple_of(M, BLOCK_M)
    if PROGRAMS > 0:
        first = contiguous_on_xcd(tl.program_id(0), tl.minimum(tiles, PROGRAMS), XCDS)
        for tile in range(first, tiles, PROGRAMS):
            group_quant_tile(
                tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS, A_TYPE, B_TYPE, COMPUTE, A_COLUMN, B_ROW, A_SCALE,
                A_ROWS, A_GROUP, A_K_SLOWEST, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_M, BLOCK_N, BLOCK_K, EVEN,
                WIDE, INTERPRETED,
            )  # fmt: skip
    else:
        tile = contiguous_on_xcd(tl.program_id(0), tiles, XCDS)
        group_quant_tile(
            tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS, A_TYPE, B_TYPE, COMPUTE, A_COLUMN, B_ROW, A_SCALE,
            A_ROWS, A_GROUP, A_K_SLOWEST, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_M, BLOCK_N, BLOCK_K, EVEN,
            WIDE, INTERPRETED,
        )  # fmt: skip


@triton.jit
def group_quant_tile(
    tile, a, b, a_scales, b_scales, out, M, N, K_BLOCKS,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, COMPUTE: tl.constexpr, A_COLUMN: tl.constexpr, B_ROW: tl.constexpr,
    A_SCALE: tl.constexpr, A_ROWS: tl.constexpr, A_GROUP: tl.constexpr, A_K_SLOWEST: tl.constexpr,
    B_SCALE: tl.constexpr, B_ROWS: tl.constexpr, B_GROUP: tl.constexpr, B_K_SLOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute and store tile ``tile`` of the result; tiles go down the columns, so neighbours share columns of B."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    pm = tile % tiles_m
    pn = tile // tiles_m
    K = K_BLOCKS * BLOCK
    whole = K if EVEN else K // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, whole, BLOCK_K):
        acc = group_quant_step(
            acc, a, b, a_scales, b_scales, pm, pn, k, M, N, K, A_TYPE, B_TYPE, COMPUTE, A_COLUMN, B_ROW, A_SCALE,
            A_ROWS, A_GROUP, A_K_SLOWEST, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, False,
            WIDE, INTERPRETED,
        )  # fmt: skip
    if not EVEN:
        if whole < K:  # the one step that needs masks along K
            acc = group_quant_step(
                acc, a, b, a_scales, b_scales, pm, pn, whole, M, N, K, A_TYPE, B_TYPE, COMPUTE, A_COLUMN, B_ROW,
                A_SCALE, A_ROWS, A_GROUP, A_K_SLOWEST, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_M, BLOCK_N, BLOCK_K,
                False, True, WIDE, INTERPRETED,
            )  # fmt: skip
    if A_SCALE != "none" and A_GROUP == 0:
        acc *= load_group_scale(a_scales, pm, 0, M, K, A_SCALE, A_ROWS, 0, False, BLOCK_M, WIDE, INTERPRETED)[:, None]
    if B_SCALE != "none" and B_GROUP == 0:
        acc *= load_group_scale(b_scales, pn, 0, N, K, B_SCALE, B_ROWS, 0, False, BLOCK_N, WIDE, INTERPRETED)[None, :]
    store_tile(acc, out, out, M, N, pm, pn, N, 1, 0, False, BLOCK_M, BLOCK_N, False, EVEN, WIDE, INTERPRETED)


@triton.jit
def group_quant_step(
    acc, a, b, a_scales, b_scales, pm, pn, k, M, N, K,
    A_TYPE: tl.constexpr, B_TYPE: tl.constexpr, COMPUTE: tl.constexpr, A_COLUMN: tl.constexpr, B_ROW: tl.constexpr,
    A_SCALE: tl.constexpr, A_ROWS: tl.constexpr, A_GROUP: tl.constexpr, A_K_SLOWEST: tl.constexpr,
    B_SCALE: tl.constexpr, B_ROWS: tl.constexpr, B_GROUP: tl.constexpr, B_K_SLOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
    WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add the block of K that starts at ``k``, within one group of each operand whose scales multiply sums."""
    x = load_stored(a, pm, k, M, K, A_TYPE, A_COLUMN, BLOCK_M, BLOCK_K, EVEN and A_COLUMN, TAIL, WIDE)
    w = load_stored(b, pn, k, N, K, B_TYPE, B_ROW, BLOCK_N, BLOCK_K, EVEN, TAIL, WIDE)
    x = as_computed(x, A_TYPE, COMPUTE, INTERPRETED)
    w = as_computed(w, B_TYPE, COMPUTE, INTERPRETED)
    if A_COLUMN:
        x = x.T
    if B_SCALE == "e8m0":
        tl.static_assert(not B_ROW, "E8M0 scales are for B in [N, K]")
        w = times_e8m0(
            w, b_scales, pn, k, N, K, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_N, BLOCK_K, COMPUTE, WIDE, INTERPRETED
        )
    if not B_ROW:
        w = w.T
    A_BY_GROUP: tl.constexpr = A_SCALE != "none" and A_GROUP > 0
    B_BY_GROUP: tl.constexpr = B_SCALE != "none" and B_SCALE != "e8m0" and B_GROUP > 0
    if A_BY_GROUP or B_BY_GROUP:
        # Scales come first. Behind the product their load would be a branch between a matrix instruction and what
        # reads its sums, and of the two ways through it LLVM counts wait states on one only.
        if A_BY_GROUP:
            scales_of_a = load_group_scale(
                a_scales, pm, k, M, K, A_SCALE, A_ROWS, A_GROUP, A_K_SLOWEST, BLOCK_M, WIDE, INTERPRETED
            )
        if B_BY_GROUP:
            scales_of_b = load_group_scale(
                b_scales, pn, k, N, K, B_SCALE, B_ROWS, B_GROUP, B_K_SLOWEST, BLOCK_N, WIDE, INTERPRETED
            )
        part = tl.dot(x, w)
        if A_BY_GROUP:
            part *= scales_of_a[:, None]
        if B_BY_GROUP:
            part *= scales_of_b[None, :]
        acc += part
    else:
        acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def load_stored(
    operand, tile, k, ROWS, K, TYPE: tl.constexpr, K_SLOWEST: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Stored values ``[BLOCK_R, BLOCK_K / pack]``, or ``[BLOCK_K, BLOCK_R / pack]`` where K is slowest; 0 past K."""
    PACK: tl.constexpr = 2 if TYPE == "e2m1" or TYPE == "int4" else 1
    if K_SLOWEST:
        columns = clamped_rows(tile, ROWS // PACK, BLOCK_R // PACK, EVEN, WIDE)
        row = k + tl.arange(0, BLOCK_K)
        rows = row.to(tl.int64) if WIDE else row
        pointers = operand + rows[:, None] * (ROWS // PACK) + columns[None, :]
        if TAIL:
            values = tl.load(pointers, mask=(row < K)[:, None], other=0)
        else:
            values = tl.load(pointers)
    else:
        values = load_packed(
            operand, tile, k, ROWS, K, K // PACK, 1, False, PACK, BLOCK_R, BLOCK_K, EVEN, TAIL, WIDE, ""
        )
    return values


@triton.jit
def as_computed(raw, TYPE: tl.constexpr, COMPUTE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Stored values as the type that the matrix instruction multiplies, packed ones along the last dimension.

    The interpreter multiplies fp32 instead.
    """
    if TYPE == "int4":
        first, second = raw >> 4, raw & 15
        number = (interleave(first, second).to(tl.int32) - 8).to(tl.float32)
        return number if INTERPRETED else small_integer_to_float8(number, COMPUTE)
    elif TYPE == "e2m1":
        code = interleave(raw & 15, raw >> 4).to(tl.int32)
        return from_e2m1(code, COMPUTE, INTERPRETED)
    elif TYPE == "bf16":
        return widen(raw, INTERPRETED) if INTERPRETED else raw
    elif COMPUTE == "bf16":  # e5m2 is the upper half of an fp16
        number = (raw.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
        return number if INTERPRETED else number.to(tl.bfloat16)
    else:
        return as_float8(raw, TYPE, INTERPRETED)


@triton.jit
def interleave(first, second):
    """``[R, C]`` and ``[R, C]`` -> ``[R, 2C]``, in turn."""
    return tl.join(first, second).reshape(first.shape[0], 2 * first.shape[1])


@triton.jit
def small_integer_to_float8(number, TYPE: tl.constexpr):
    """Integers of up to 3 significant bits, as fp32 -> one of the fp8 types, by their bits: nothing is rounded."""
    MANTISSA: tl.constexpr = 3 if TYPE == "e4m3" or TYPE == "e4m3fnuz" else 2
    BIAS: tl.constexpr = (7 if MANTISSA == 3 else 15) + (1 if TYPE == "e4m3fnuz" or TYPE == "e5m2fnuz" else 0)
    bits = number.to(tl.int32, bitcast=True)
    magnitude = ((bits & 0x7FFFFFFF) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA)
    code = tl.where(number == 0, 0, magnitude | ((bits >> 24) & 0x80))
    return as_float8(code.to(tl.uint8), TYPE, False)


@triton.jit
def from_e2m1(code, COMPUTE: tl.constexpr, INTERPRETED: tl.constexpr):
    """e2m1 codes as e4m3, e4m3fnuz or bf16, by their bits: exponent and mantissa move together but for 0 and 0.5."""
    magnitude = code & 7
    if COMPUTE == "bf16" or INTERPRETED:
        bits = tl.where(magnitude < 2, magnitude * 0x3F00, (magnitude << 6) + 0x3F00) | ((code & 8) << 12)
        if INTERPRETED:
            value = (bits << 16).to(tl.float32, bitcast=True)
        else:
            value = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        HALF: tl.constexpr = 0x30 if COMPUTE == "e4m3" else 0x38
        bits = tl.where(magnitude < 2, magnitude * HALF, (magnitude << 2) + HALF) | ((code & 8) << 4)
        bits = tl.where(magnitude == 0, 0, bits)  # FNUZ has no -0: its byte is NaN
        value = as_float8(bits.to(tl.uint8), COMPUTE, False)
    return value


@triton.jit
def times_e8m0(
    w, scales, tile, k, ROWS, K, ROWS_A_SCALE: tl.constexpr, GROUP: tl.constexpr, K_SLOWEST: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, COMPUTE: tl.constexpr, WIDE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``w[BLOCK_R, BLOCK_K]`` times the power of two of each row and group of K."""
    COLUMNS: tl.constexpr = BLOCK_K // GROUP if GROUP < BLOCK_K else 1
    groups = tl.cdiv(K, GROUP)
    row = clamped_rows(tile, ROWS, BLOCK_R, False, WIDE) // ROWS_A_SCALE
    group = tl.minimum(k // GROUP + tl.arange(0, COLUMNS), groups - 1)  # past K every element is 0
    if K_SLOWEST:
        offsets = row[:, None] + group[None, :] * tl.cdiv(ROWS, ROWS_A_SCALE)
    else:
        offsets = row[:, None] * groups + group[None, :]
    power = power_of_two(tl.load(scales + offsets))
    product = widen(w, INTERPRETED).reshape(BLOCK_R, COLUMNS, BLOCK_K // COLUMNS) * power[:, :, None]
    product = product.reshape(BLOCK_R, BLOCK_K)
    return product if INTERPRETED else product.to(tl.bfloat16)


@triton.jit
def power_of_two(byte):
    """E8M0 bytes -> fp32: 2^(byte - 127), of 255 NaN."""
    exponent = byte.to(tl.int32)
    bits = tl.where(exponent == 0, 1 << 22, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_group_scale(
    scales, tile, k, ROWS, K, TYPE: tl.constexpr, ROWS_A_SCALE: tl.constexpr, GROUP: tl.constexpr,
    K_SLOWEST: tl.constexpr, BLOCK_R: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """fp32 scales ``[BLOCK_R]`` of a tile's rows in the group of K that ``k`` is in."""
    row = clamped_rows(tile, ROWS, BLOCK_R, False, WIDE)
    row = row * 0 if ROWS_A_SCALE == 0 else row // ROWS_A_SCALE
    if GROUP == 0:
        offsets = row
    elif K_SLOWEST:
        offsets = row + (k // GROUP) * tl.cdiv(ROWS, ROWS_A_SCALE)
    else:
        offsets = row * tl.cdiv(K, GROUP) + k // GROUP
    value = tl.load(scales + offsets)
    return value if TYPE == "fp32" else as_float8(value, TYPE, INTERPRETED).to(tl.float32)
