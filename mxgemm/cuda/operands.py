"""What the kernels for Hopper share: the operands that they take, macros that say so, where a weight's bytes lie.

``kernels/w4_operands.h`` reads weights by these strides, ``kernels/round_block.h`` A's values by these numbers of
formats and dtypes; the small launch that rounds A before the other is described here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.mx.formats import scale_addend
from mxgemm.mx.layouts import FRAGMENTS, padded_scale_shape
from mxgemm.problem import Problem, Strides, contiguous_strides

ARCH: Final = "sm_90"
CHUNK: Final = 128
"""Elements along K of four lanes: a block of 32 each."""
MAX_ELEMENTS: Final = 1 << 36
SHARED_BYTES: Final = KNOWN_MACHINES[ARCH].lds_bytes - 1024
"""What a workgroup may have: 1 KB of a multiprocessor's is the system's (CUDA C++ Programming Guide)."""

DTYPES: Final = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
"""As the kernels count them (``round_block.h``)."""
FORMATS: Final = {"bf16": 0, "e2m1": 1, "e4m3": 2}

FORMS: Final = ("fp8_fold", "bf16")
"""Prepared forms of a weight that bring the fragment order with them (``mxgemm.mx.fragments``)."""

ROUND_POINTERS: Final = Layout("PP")
"""Of a launch that rounds A: a, rounded a."""
ROUND_CONSTANTS: Final = Layout("qqii")
"""Strides of a, M, K."""
ROUND_THREADS: Final = 128
_VALUES: Final = 8
"""Of A that a lane of it rounds."""


def operand_clauses(p: Problem) -> Iterator[Refusal]:
    """Yield what is wrong with the kinds of a problem's operands for every kernel."""
    if p.a_quantized:
        yield Refusal("a", "quantised already", "bf16, fp16 or fp32 activations")
    if p.a_format not in FORMATS:
        yield Refusal("a_format", p.a_format, '"e2m1", "e4m3" or "bf16"')
    if p.a_dtype not in DTYPES:
        yield Refusal("a.dtype", p.a_dtype, "bfloat16, float16 or float32")
    if p.b_format != "e2m1":
        yield Refusal("b_format", p.b_format, "e2m1")
    if p.scale_layout not in ("row_major", "shuffled") and not fragments(p):
        yield Refusal("scale_layout", p.scale_layout, '"row_major" or "shuffled", or a weight after prepare()')
    if fragments(p) and p.n * p.k > MAX_ELEMENTS:
        yield Refusal("n * k", p.n * p.k, f"at most {MAX_ELEMENTS} in fragment order: 16 bytes are counted in 32 bits")
    if p.has_bias and p.bias_dtype not in DTYPES:
        yield Refusal("bias.dtype", p.bias_dtype, "bfloat16, float16 or float32")


def chunks(p: Problem) -> int:
    """Return the chunks of K, the last of which may be partly empty."""
    return -(-p.k // CHUNK)


def fragments(p: Problem) -> bool:
    """Say whether the weight comes in fragment order, beside its own bytes or in their place."""
    return p.derived in FORMS or p.weight_layout == FRAGMENTS


def strides_of(p: Problem) -> Strides:
    """Return the strides of the operands, those of fresh ones where the problem names none."""
    if p.strides is not None:
        return p.strides
    scale_columns = p.k // 32 if p.scale_layout == "row_major" else padded_scale_shape(p.n, p.k)[1]
    return contiguous_strides(p.n, p.k, p.b, scale_columns)


def a_vector(p: Problem) -> bool:
    """Say whether A's rows are contiguous and each begins at a multiple of 16 bytes."""
    row, column = strides_of(p).a
    return p.aligned and column == 1 and (p.m == 1 or row * p.a_dtype.itemsize % 16 == 0)


def out_vector(p: Problem) -> int:
    """Return the macro that says whether four results of a row are 4 elements side by side, aligned."""
    row, column = strides_of(p).out
    return int(p.aligned and column == 1 and (p.m == 1 or row % 4 == 0))


def weight_vector(p: Problem) -> bool:
    """Say whether a block of the weight is read by one load of 16 bytes."""
    row, column = strides_of(p).b
    tiled = p.weight_layout != "row_major"
    return fragments(p) or (p.aligned and column == 1 and (tiled or p.n == 1 or row % 16 == 0))


def macros_of_a(p: Problem) -> dict[str, int | str]:
    """Return the macros that make a kernel one for this problem's A."""
    return {
        "A_TYPE": DTYPES[p.a_dtype],
        "A_FORMAT": FORMATS[p.a_format],
        "SCALE_ADDEND": 0 if p.a is None else scale_addend(p.a, p.scale_rounding),
    }


def constants(p: Problem) -> tuple[int, ...]:
    """Return what both kernels' ``Arguments`` end with: strides of weight, scales, bias and out, sizes, dtypes."""
    s = strides_of(p)
    row, column = s.b
    if p.weight_layout == "row_major":
        weight = 16 * row, row, 16 * column, column
    else:  # tiles of 16 rows: block after block of 16 bytes, in it row after row
        weight = 8 * p.k, 16, 256, 1
    row, column = s.b_scales
    if p.scale_layout == "row_major":
        scales = 32 * row, 16 * row, row, 8 * column, 4 * column, column
    else:  # see mxgemm.mx.layouts
        scales = 32 * row, 1, 4, 256, 2, 64
    dtypes = DTYPES[p.bias_dtype] if p.has_bias else 0, DTYPES[p.out_dtype]
    return (*weight, *scales, s.bias, *s.out, p.m, p.n, p.k, *dtypes, 0)


def round_constants(p: Problem) -> bytes:
    """Return the arguments of rounding A but the pointers."""
    return ROUND_CONSTANTS.pack(*strides_of(p).a, p.m, p.k)


def round_grid(p: Problem, rows: int) -> tuple[int, int, int]:
    """Return the workgroups that round A to so many rows."""
    return -(-rounded_values(p, rows) // (_VALUES * ROUND_THREADS)), 1, 1


def round_refusal(p: Problem, rows: int) -> Refusal | None:
    """Refuse an A of which a launch cannot count the lanes."""
    if rounded_values(p, rows) >= _VALUES << 31:
        return Refusal("m * k", p.m * p.k, f"at most {_VALUES << 31}: {_VALUES} values a lane, counted in 32 bits")
    return None


def rounded_values(p: Problem, rows: int) -> int:
    """Return the values of so many rows of rounded A: whole chunks."""
    return rows * chunks(p) * CHUNK
