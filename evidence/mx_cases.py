"""Run the HIP kernel for many rows in the gfx950 emulator, with the macros, grid and argument bytes of its route.

    run = MXRun(case, config)           # compiles; config None is the route's own choice
    out, stats = run.launch(strict=True)
    passed, detail = run.judge(out)

A case is one of ``evidence/gfx950_cases.py``, whose data and judgement it shares. A comes quantised, as the launch
before would leave it, but for what lies in padding: NaN scales. Buffers are exactly as large as the tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mxgemm
from evidence import hip_compile
from evidence.gfx950_cases import Bytes, Case, activations, judge, raw_bytes, spread
from evidence.hip_cases import POISON, poisoned_padding, problem_of_case
from gfx950emu import Stats, run_code_object
from gfx950emu.waves import Observer
from mxgemm.hip import mx
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.mx import MXConfig
from mxgemm.mx import layouts
from mxgemm.routes import ROUTES
from mxgemm.routes.quant_gemm_mx import quantized_problem

ROUTE = "hip_mx"


class MXRun:
    """A case, compiled, with its data.

    Attributes:
        case: what is multiplied.
        problem: the same as the kernel sees it, A quantised.
        config: how.
        code: the code object.
        a: activations ``[M, K]``, before they are quantised.
        weight: row-major.
        bias: of the problem's bias dtype ``[N]``, or None.
    """

    def __init__(
        self,
        case: Case,
        config: MXConfig | None = None,
        *,
        weight: mxgemm.MXTensor | None = None,
        row_stride: int | None = None,
        bias_dtype: torch.dtype = torch.float32,
    ) -> None:
        problem = quantized_problem(replace(problem_of_case(case), bias_dtype=bias_dtype))
        assert problem.strides is not None
        self._stride = row_stride or case.k // 2
        problem = replace(problem, strides=replace(problem.strides, a=(self._stride, 1)))
        chosen = config or ROUTES[ROUTE].configs(problem)[0]
        assert isinstance(chosen, MXConfig)
        refusal = mx.mx_refusal(problem, chosen)
        if refusal:
            raise ValueError(str(refusal))
        self.case, self.problem, self.config = case, problem, chosen
        self.code = hip_compile.code_object(mx.SOURCE, mx.defines(problem, chosen))
        self.a = activations(case)
        self.quantized = mxgemm.quantize(self.a, scale_rounding=case.rounding)  # type: ignore[arg-type]
        self.weight = mxgemm.quantize(spread(case.n, case.k, 2)) if weight is None else weight
        self.bias = torch.linspace(-4, 4, case.n).to(bias_dtype) if case.bias else None

    def launch(self, *, strict: bool = False, observer: Observer | None = None) -> tuple[Tensor, Stats]:
        """Run the kernel into poisoned memory and return ``[M, N]`` and the emulator's statistics."""
        p, size = self.problem, self.problem.out_dtype.itemsize
        arrays: dict[str, Bytes] = {
            "a": self._rows_of_a(),
            "a_scales": poisoned_padding(self.quantized.scales),
            "weight": raw_bytes(layouts.preshuffle_weight(self.weight.data)),
            "scales": poisoned_padding(self.weight.scales),
            "bias": raw_bytes(self.bias) if self.bias is not None else np.zeros(16, np.uint8),
            "c": np.full(p.m * p.n * size, POISON, np.uint8),
        }
        pack = Layout(mx.ARGUMENTS).pack

        def arguments(addresses: Any) -> bytes:
            segment = pack(*(addresses[name] for name in arrays), p.m, *mx.row_bytes(p))
            return segment + bytes(-len(segment) % 16)

        after, stats = run_code_object(
            self.code, mx.KERNEL, mx.grid(p, self.config), (mx.THREADS, 1, 1), arguments, arrays,
            strict=strict, read_only=arrays.keys() - {"c"}, observer=observer,
        )  # fmt: skip
        return torch.from_numpy(after["c"]).view(p.out_dtype).view(p.m, p.n), stats

    def judge(self, out: Tensor) -> tuple[bool, str]:
        """Judge a result against float64, by both gates."""
        return judge(self.case, out, self.a, self.weight, self.bias)

    def _rows_of_a(self) -> Bytes:
        rows = np.full((self.case.m, self._stride), POISON, np.uint8)
        rows[:, : self.case.k // 2] = self.quantized.data.numpy()
        end = (self.case.m - 1) * self._stride + self.case.k // 2
        return np.array(rows.reshape(-1)[:end])
