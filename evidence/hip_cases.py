"""Run the fused HIP kernel in the gfx950 emulator, with the macros, grid and argument bytes that its route uses.

    run = FusedRun(case, config)        # compiles; config None is the route's own choice
    out, stats = run.launch(strict=True)
    passed, detail = run.judge(out)

A case is one of ``evidence/gfx950_cases.py``, whose data and judgement it shares. Buffers are exactly as large as the
tensors, so that an access beside one raises; scale padding holds NaN, and the output is poisoned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mxgemm
from evidence import hip_compile
from evidence.cross_compile import problem_of
from evidence.gfx950_cases import Bytes, Case, activations, judge, raw_bytes, spread
from gfx950emu import Stats, pending, run_code_object
from gfx950emu.waves import Observer
from mxgemm.hip import fused, fused_choice
from mxgemm.hip.kernarg import Layout
from mxgemm.mx import layouts
from mxgemm.problem import Problem

ROUTE = "hip_fused"
POISON = 0xFF
GUARD_BYTES = 256


def problem_of_case(case: Case) -> Problem:
    """Describe a case with contiguous operands on a gfx950."""
    return problem_of(
        case.m, case.n, case.k, "gfx950", weight_layout="preshuffled", scale_layout="shuffled",
        scale_rounding=case.rounding, out_dtype=case.out_dtype, has_bias=case.bias,
    )  # fmt: skip


class FusedRun:
    """A case, compiled, with its data.

    Attributes:
        case: what is multiplied.
        problem: the same as the route sees it.
        config: how.
        code: the code object.
        a: activations ``[M, K]``, a view into ``storage`` where rows are further apart than K.
        weight: row-major.
        bias: fp32 ``[N]`` or of the problem's bias dtype, or None.
    """

    def __init__(
        self,
        case: Case,
        config: fused.FusedConfig | None = None,
        *,
        a: Tensor | None = None,
        weight: mxgemm.MXTensor | None = None,
        row_stride: int | None = None,
        bias_dtype: torch.dtype = torch.float32,
    ) -> None:
        problem = replace(problem_of_case(case), bias_dtype=bias_dtype)
        assert problem.strides is not None
        stride = row_stride or case.k
        problem = replace(problem, strides=replace(problem.strides, a=(stride, 1)))
        self.case, self.problem = case, problem
        self.config = config or fused_choice.candidates(problem)[0]
        refusal = fused.fused_refusal(problem, self.config)
        if refusal:
            raise ValueError(str(refusal))
        self.code = hip_compile.code_object(fused.SOURCE, fused.defines(problem, self.config))
        self.a = activations(case) if a is None else a
        self.weight = mxgemm.quantize(spread(case.n, case.k, 2)) if weight is None else weight
        self.bias = torch.linspace(-4, 4, case.n).to(bias_dtype) if case.bias else None
        self._stride = stride

    def launch(
        self,
        *,
        strict: bool = False,
        guarded: bool = False,
        observer: Observer | None = None,
        poison: int = pending.POISON,
    ) -> tuple[Tensor, Stats]:
        """Run the kernel and return ``[M, N]`` and the emulator's statistics.

        Args:
            strict: see ``gfx950emu``.
            guarded: put poisoned bytes around every buffer instead of the end of memory, and check that they stay.
            observer: sees memory accesses, see ``gfx950emu.profile``.
            poison: what strict mode puts where a load is in flight.
        """
        p, size = self.problem, self.problem.out_dtype.itemsize
        arrays: dict[str, Bytes] = {
            "a": self._rows_of_a(),
            "weight": raw_bytes(layouts.preshuffle_weight(self.weight.data)),
            "scales": poisoned_padding(self.weight.scales),
            "bias": raw_bytes(self.bias) if self.bias is not None else np.zeros(16, np.uint8),
            "c": np.full(p.m * p.n * size, POISON, np.uint8),
        }
        nbytes, counters = fused.workspace(p, self.config)
        scratch: dict[str, Bytes] = {}
        if counters:
            scratch = {"partials": np.full(nbytes, POISON, np.uint8), "counters": np.zeros(4 * counters, np.uint8)}
        around = GUARD_BYTES if guarded else 0
        given = {name: np.pad(array, around, constant_values=POISON) for name, array in arrays.items()}
        pack = Layout(fused.ARGUMENTS).pack

        def arguments(addresses: Any) -> bytes:
            operands = (addresses[name] + around for name in arrays)
            sums = (addresses[name] if counters else 0 for name in ("partials", "counters"))
            segment = pack(*operands, p.m, *fused.row_bytes(p), *sums)
            return segment + bytes(-len(segment) % 16)  # the segment's alignment: scalar loads count on it

        after, stats = run_code_object(
            self.code,
            fused.KERNEL,
            fused.grid(p, self.config),
            fused.block(self.config),
            arguments,
            {**given, **scratch},
            strict=strict,
            read_only=given.keys() - {"c"},
            observer=observer,
            poison=poison,
        )
        if counters and after["counters"].any():
            raise AssertionError("the counters were not left at zero")
        out = after["c"]
        if guarded:
            if not (out[:around] == POISON).all() or not (out[-around:] == POISON).all():
                raise AssertionError("the kernel wrote beside its output")
            out = out[around:-around].copy()
        return torch.from_numpy(out).view(p.out_dtype).view(p.m, p.n), stats

    def judge(self, out: Tensor) -> tuple[bool, str]:
        """Judge a result against float64, by both gates."""
        return judge(self.case, out, self.a, self.weight, self.bias)

    def _rows_of_a(self) -> Bytes:
        if self._stride == self.case.k:
            return raw_bytes(self.a)
        # Between rows lies NaN; after the last one, memory ends.
        wide = torch.full((self.case.m, self._stride), torch.nan, dtype=self.a.dtype)
        wide[:, : self.case.k] = self.a
        return raw_bytes(wide)[: 2 * ((self.case.m - 1) * self._stride + self.case.k)]


def poisoned_padding(scales: Tensor) -> Bytes:
    """Shuffle row-major scales and fill their padding with NaN bytes, as uninitialised memory might hold."""
    shuffled = layouts.shuffle_scales(scales)
    real = layouts.shuffle_scales(torch.ones_like(scales)).bool()
    return raw_bytes(torch.where(real, shuffled, torch.full_like(shuffled, POISON)))
