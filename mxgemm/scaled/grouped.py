"""Several quantised products in one call: rows of A in groups, each by its own B, or any problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad, is_observed
from mxgemm.arguments import shown
from mxgemm.scaled import ops, table
from mxgemm.scaled.bridge_several import multiply_several
from mxgemm.scaled.gemm import Operand, parts, quant_gemm
from mxgemm.scaled.plan import multiply
from mxgemm.scaled.problem import Options
from mxgemm.scaled.schemes import Scheme, check_scheme


def quant_gemm_grouped(
    a: Operand | Sequence[Operand],
    b: Operand | Sequence[Operand],
    offsets: Tensor | None = None,
    *,
    scheme: Scheme,
    out: Tensor | Sequence[Tensor] | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor | list[Tensor]:
    """Multiply several quantised problems, by Triton in one launch.

    Two forms:

    * **rows in groups** (a mixture of experts): ``a`` ``[M, K]``, ``b`` ``[G, N, K]``, ``offsets`` ``[G]`` int32 on the
      same device, the end of each group: rows ``offsets[g - 1]`` (0 for the first) to ``offsets[g]`` are multiplied by
      ``b[g]``. Groups may be empty. Rows behind the last group are zeros. Nothing is read on the host: sizes may change
      from replay to replay of a graph. Offsets that decrease or pass M are cut off, and never lead out of memory.
    * **any problems**: ``a`` and ``b`` are sequences of as many operands of any sizes; without ``offsets``.

    Args:
        a: ``[M, K]`` or a sequence, as in :func:`quant_gemm`; scales as the scheme has them for the M rows.
        b: ``[G, N, K]``, with scales ``[G]`` (TensorWise), ``[G, N]`` (RowCol) or ``[G, ceil(N/n), ceil(K/k)]``; or a
            sequence.
        offsets: ends of the groups.
        scheme: of all problems.
        out: ``[M, N]`` of ``out_dtype``; or a sequence of as many tensors as there are problems.
        out_dtype: bf16, fp16 or fp32.
        route: as in :func:`quant_gemm`; "triton" and "reference" take rows in groups, and the reference waits for a
            GPU; "bridge" takes sequences, in one launch where one of its kernels is for all of them.

    Returns:
        ``[M, N]``; or a list.

    Raises:
        TypeError, ValueError, RouteUnavailable, RuntimeError: as :func:`quant_gemm`.
    """
    listed = [isinstance(operand, Sequence) for operand in (a, b)]
    if any(listed):
        if not all(listed):
            name, got = ("b", b) if listed[0] else ("a", a)
            raise TypeError(f"{name}: got {shown(got)}, want a sequence, as {'a' if listed[0] else 'b'}")
        if offsets is not None:
            raise ValueError("offsets: got a tensor beside sequences of problems, want None")
        return _problems(cast("Sequence[Operand]", a), cast("Sequence[Operand]", b), scheme, out, out_dtype, route)
    if offsets is None:
        raise TypeError("offsets: got None, want the end of each group (or pass sequences of problems)")
    if out is not None and not isinstance(out, Tensor):
        raise TypeError(f"out: got {shown(out)}, want a tensor")
    (a_data, a_scales, a_format), (b_data, b_scales, b_format) = parts("a", a), parts("b", b)
    options = Options(scheme, a_format, b_format, out_dtype, route)
    if is_observed(a_data, a_scales, b_data, b_scales, offsets, out):
        check_no_grad(**{"a": a_data, "a.scales": a_scales, "b": b_data, "b.scales": b_scales, "out": out})
        return ops.call(a_data, a_scales, b_data, b_scales, None, out, options, offsets)
    return multiply(a_data, a_scales, b_data, b_scales, None, out, options, offsets, True)


def _problems(
    a: Sequence[Operand],
    b: Sequence[Operand],
    scheme: Scheme,
    out: Any,
    out_dtype: torch.dtype,
    route: str | None,
) -> list[Tensor]:
    check_scheme(scheme)
    if len(a) != len(b):
        raise ValueError(f"b: got {len(b)} operands, want {len(a)}, as a")
    if out is not None and (not isinstance(out, Sequence) or len(out) != len(a)):
        got = f"{len(out)} tensors" if isinstance(out, Sequence) else shown(out)
        raise ValueError(f"out: got {got}, want a sequence of {len(a)} tensors")
    outs: list[Tensor | None] = [None] * len(a) if out is None else list(out)
    lefts = [parts(f"a[{i}]", operand) for i, operand in enumerate(a)]
    rights = [parts(f"b[{i}]", operand) for i, operand in enumerate(b)]
    calls = [
        (left[0], left[1], right[0], right[1], target, Options(scheme, left[2], right[2], out_dtype, route))
        for left, right, target in zip(lefts, rights, outs, strict=True)
    ]
    rows = table.table_rows(calls)
    if rows is not None and route != "bridge":
        return table.multiply_rows(rows, outs)
    if rows is not None and (made := multiply_several(rows, outs)) is not None:
        return made
    return [
        quant_gemm(left, right, scheme=scheme, out=target, out_dtype=out_dtype, route=route)
        for left, right, target in zip(a, b, outs, strict=True)
    ]
