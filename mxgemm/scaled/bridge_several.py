"""Several problems by route ``bridge``, in one launch of the bridge's kernel for several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.mx.freshness import mark_written
from mxgemm.scaled import bridge
from mxgemm.scaled.bridge_kernels import kernel_of
from mxgemm.scaled.plan import stored
from mxgemm.scaled.table import Row


def multiply_several(rows: Sequence[Row], outs: Sequence[Tensor | None]) -> list[Tensor] | None:
    """Multiply problems that the route takes; None where no one kernel is for all of them, or none may be waited for.

    Problems without elements need no kernel: C of one without K is zeros.
    """
    full = [row for row in rows if row.problem.m and row.problem.k]
    kernels = {kernel_of(row.problem, several=True) for row in full}
    devices = {row.operands[0].device for row in rows}
    if len(kernels) != 1 or len(devices) != 1:
        return None
    if next(iter(devices)).type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None  # the library waits for its kernel
    (config,) = kernels
    if isinstance(config, Refusal):
        return None
    from mxgemm.dispatcher.several import Call

    made, calls = [], []
    for row in rows:
        p = row.problem
        a, a_scales, b, b_scales = (stored(tensor) for tensor in row.operands)
        assert a is not None
        assert b is not None
        result = (torch.empty if p.k else torch.zeros)((p.m, p.n), dtype=p.out_dtype, device=a.device)
        made.append(result)
        if p.m and p.k:
            left, right, c, left_scales, right_scales = bridge.arguments_of(config, a, a_scales, b, b_scales, result)
            calls.append(Call(left, right, c, left_scales, right_scales))
    bridge.library_of(config).run_several(calls, timed=False)
    results = []
    for row, one, given in zip(rows, made, outs, strict=True):
        shaped = one.view(*row.leading, row.problem.n)
        results.append(shaped if given is None else given.copy_(shaped))
        if given is not None:
            mark_written(given)
    return results
