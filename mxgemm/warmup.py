"""Everything that first calls do, done before them: compiling, loading, planning, the steady call's C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import steady
from mxgemm.arguments import as_int, shown
from mxgemm.device import default_device
from mxgemm.experts import grouped_gemm
from mxgemm.gemm import gemm
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.quantize import quantize

SIZES: Final = tuple(sorted({size for power in range(14) for size in (2**power, 2**power + 1)}))
"""Values of M by default: 1, 2, 3, 4, 5, 8, 9, ... 8192, 8193. Kernels are chosen and compiled for ranges of M that end
or begin there, so that afterwards no M compiles anything, by the shipped tables."""

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Warmed:
    """One kind of call that needs nothing compiled any more.

    Attributes:
        m: rows of A.
        n: rows of the weight.
        k: elements of a row.
        seconds: that the call took, until the device had finished it.
        experts: weights of a stack, 0 for one weight.
    """

    m: int
    n: int
    k: int
    seconds: float
    experts: int = 0


def warmup(
    weights: MXTensor | Iterable[MXTensor | Size],
    m: Iterable[int] | None = None,
    *,
    a_dtype: torch.dtype = torch.bfloat16,
    a_format: ActivationFormat = "e2m1",
    scale_rounding: ScaleRounding = "even",
    bias_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | None = None,
    progress: Callable[[int, int, Warmed], None] | None = None,
) -> list[Warmed]:
    """Make calls of the given kinds once, with zeros: kernels are compiled, loaded and planned for afterwards.

    A call is of the same kind where A is contiguous and everything named here is equal. Weights that differ in their
    bytes alone are of one kind, and the first of them is taken.

    Args:
        weights: a weight as it will be multiplied (after ``prepare()``, on its device), or several; or sizes (M, N, K),
            for which a weight of zeros is prepared here. Of a stack (E, N, K) the calls are those of
            :func:`mxgemm.grouped_gemm`, without ``gather``; of a layer there is ``MXExperts.warmup``.
        m: rows of A to warm for each weight, by default :data:`SIZES`; sizes bring their own.
        a_dtype: dtype of A.
        a_format: as in ``gemm``.
        scale_rounding: as in ``gemm``.
        bias_dtype: dtype of the bias; None for none.
        out_dtype: as in ``gemm``.
        device: for sizes; by default the GPU if there is one.
        progress: called after each call with how many are done, how many there are, and the call.

    Returns:
        the calls in the order in which they were made.

    Raises:
        TypeError: a weight that is neither, a number that is no integer, a dtype of A or of the bias that is none of
            bf16, fp16 and fp32, or a ``progress`` that is no function.
        ValueError, RouteUnavailable, RuntimeError: as ``gemm`` says of such a call; a size that is negative; or the
            current stream is captured into a graph, which would keep the work.
    """
    for name, dtype in (("a_dtype", a_dtype), ("bias_dtype", bias_dtype)):
        if dtype not in FLOAT_DTYPES and not (name == "bias_dtype" and dtype is None):
            raise TypeError(f"{name}: got {shown(dtype)}, want torch.bfloat16, torch.float16 or torch.float32")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: got {shown(progress)}, want a function of (done, total, call)")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("warmup: called while a graph is captured, want a call before the capture")
    rows = [_size("m", value) for value in (SIZES if m is None else m)]
    calls = list(_calls(weights, rows, device))
    options: dict[str, Any] = {"a_format": a_format, "scale_rounding": scale_rounding, "out_dtype": out_dtype}
    done: list[Warmed] = []
    for count, weight in calls:
        *stack, n, k = weight.shape
        start = time.monotonic()
        a = torch.zeros(count, k, dtype=a_dtype, device=weight.device)
        bias = None if bias_dtype is None else torch.zeros(*stack, n, dtype=bias_dtype, device=weight.device)
        if stack:
            grouped_gemm(a, weight, _even(count, stack[0], weight.device), bias=bias, **options)
        else:
            gemm(a, weight, bias=bias, **options)
            steady.settle(a, weight, bias, None, (a_format, scale_rounding, out_dtype, None))
        if weight.device.type == "cuda":
            torch.cuda.synchronize(weight.device)
        done.append(Warmed(count, n, k, time.monotonic() - start, *stack))
        if progress is not None:
            progress(len(done), len(calls), done[-1])
    return done


def _calls(
    weights: MXTensor | Iterable[MXTensor | Size], rows: list[int], device: torch.device | str | None
) -> Iterator[tuple[int, MXTensor]]:
    seen = set()
    made: dict[tuple[int, int], MXTensor] = {}
    for i, one in enumerate([weights] if isinstance(weights, MXTensor) else weights):
        if isinstance(one, MXTensor):
            if len(one.shape) not in (2, 3):
                raise ValueError(f"weights[{i}]: got shape {one.shape}, want (N, K), or (E, N, K) of experts")
            counts = rows
        elif isinstance(one, tuple) and len(one) == 3:
            count, n, k = (_size(f"weights[{i}]", value) for value in one)
            counts = [count]
            if (n, k) not in made:
                made[n, k] = quantize(
                    torch.zeros(n, k, dtype=torch.bfloat16, device=device or default_device())
                ).prepare()
            one = made[n, k]
        else:
            raise TypeError(f"weights[{i}]: got {shown(one)}, want an MXTensor or a size (M, N, K)")
        for count in counts:
            kind = (count, one.shape, one.format, one.device, *_form(one))
            if kind not in seen:
                seen.add(kind)
                yield count, one


def _even(rows: int, experts: int, device: torch.device) -> Tensor:
    """Return offsets that divide rows among experts."""
    return (torch.arange(experts + 1, dtype=torch.int64, device=device) * rows // experts).to(torch.int32)


def _form(weight: MXTensor) -> tuple[object, ...]:
    data, scales, layout, kind, _ = weight.operand()
    return layout, kind, data.stride(), scales.stride(), data.data_ptr() % 16, scales.data_ptr() % 16


def _size(name: str, value: object) -> int:
    size = as_int(name, value)
    if size < 0:
        raise ValueError(f"{name}: got {size}, want at least 0")
    return size
