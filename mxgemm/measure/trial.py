"""One route on real operands, past the router: run it between guards, judge it, time it.

What ``mxgemm doctor --verify`` and ``mxgemm tune`` share. A weight comes in every form that a caller may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.measure.spread import Effort, Spread
from mxgemm.measure.timing import call_us, device_us
from mxgemm.mx.accuracy import Accuracy, judge
from mxgemm.mx.layouts import Layout, preshuffle_refusal, preshuffle_weight, shuffle_scales
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Options, Problem, Strides, matrix_strides
from mxgemm.quantize import quantize
from mxgemm.routes import Config, Operands, Route

Parts = tuple[Tensor, Tensor, tuple[Tensor, ...]]
"""Bytes and scales of a weight as a route gets them, and what is read beside them."""
Judge = Callable[[Tensor, int], Accuracy]
"""From a result and the bits of its sums to the distance from the exact one."""
SHORT_REPLAY_US: Final = 400.0
"""A graph of many lasts so long: half a microsecond of an event is little of it, and there are thousands of graphs."""
_GUARD: Final = 64
"""Elements before and behind the output that must stay as they are."""


def forms(weight: MXTensor) -> Iterator[tuple[str, MXTensor]]:
    """Yield a row-major weight in each form that ``gemm`` takes, with a name for it.

    These are the four layouts, as far as the shape allows, and what ``prepare()`` makes to be read beside the bytes.
    """
    scales = {"row_major": weight.scales, "shuffled": shuffle_scales(weight.scales)}
    data = {"row_major": weight.data}
    if preshuffle_refusal(*weight.data.shape) is None:
        data["preshuffled"] = preshuffle_weight(weight.data)
    for of_data, of_scales in product(data, scales):
        layout = Layout(of_data, of_scales)  # type: ignore[arg-type]
        name = f"{of_data}, scales {of_scales}"
        yield name, MXTensor(data[of_data], scales[of_scales], weight.format, weight.shape, layout=layout)
    prepared = weight.prepare()
    _, _, _, kind, _ = prepared.operand()
    if kind:
        yield f"prepared as {kind}", prepared


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave.

    Attributes:
        accuracy: distance from the oracle.
        us: median microseconds of a call, None where it was not timed.
        us_low: first quartile.
        us_high: third quartile.
        runs: timed calls.
    """

    accuracy: Accuracy
    us: float | None = None
    us_low: float | None = None
    us_high: float | None = None
    runs: int = 0


class Trial:
    """Operands of one multiplication, with a poisoned output between guards.

    Attributes:
        problem: as the router would see it.
    """

    def __init__(
        self,
        a: Tensor,
        weight: MXTensor,
        form: MXTensor,
        a_format: str,
        a_quantized: bool,
        *,
        copies: Sequence[Parts] = (),
        judged: Judge | None = None,
    ) -> None:
        """Set up.

        Args:
            a: bf16 ``[M, K]``.
            weight: (N, K), row-major; what the result is judged by.
            form: the same weight as the route gets it, see :func:`forms`.
            a_format: as in ``gemm``.
            a_quantized: A is quantised first, as for ``gemm_mx``.
            copies: of the form's tensors: on a GPU calls are timed in a graph, in turn on it and on these. Without
                any, single calls are.
            judged: judges results; by default ``mxgemm.mx.accuracy.judge`` does, each from the beginning.
        """
        (m, k), n = a.shape, weight.shape[0]
        self._a, self._weight = a, weight
        self._memory = torch.empty(m * n + 2 * _GUARD, dtype=torch.bfloat16, device=a.device)
        out = self._memory[_GUARD:-_GUARD].view(m, n)
        left, left_scales = a, None
        if a_quantized:
            quantized = quantize(a, format=a_format)  # type: ignore[arg-type]
            left, left_scales = quantized.data, quantized.scales
        data, scales, layout, kind, derived = form.operand()
        self._operands = Operands(left, left_scales, data, scales, None, out, derived)
        self._rotated = [self._operands, *(self._with(*copy) for copy in copies)]
        self._judged = judged or partial(_judge, a, weight, a_format)
        self.problem = Problem(
            m,
            n,
            k,
            machine_of(a.device),
            Options(a_format, weight.format.name, weight_layout=layout.data, scale_layout=layout.scales, derived=kind),
            a_quantized=a_quantized,
            a_dtype=left.dtype,
            strides=Strides(
                a=matrix_strides(left),
                b=matrix_strides(data),
                b_scales=matrix_strides(scales),
                out=(n, 1),
                a_scales=(0, 0) if left_scales is None else matrix_strides(left_scales),
            ),
        )

    def run(self, route: Route, config: Config, seconds: float) -> Outcome:
        """Bind, run once and judge; time it if it passes.

        Raises:
            RuntimeError: the route wrote beside its output; and whatever the route raises.
        """
        device = self._a.device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            launch: Callable[[Operands], Tensor | None] = route.bind(self.problem, config)
            self._memory.fill_(torch.nan)
            made = launch(self._operands)
            out = self._operands.out if made is None else made
            beside = torch.cat([self._memory[:_GUARD], self._memory[-_GUARD:]])
            if not bool(beside.isnan().all()):
                raise RuntimeError(
                    f"wrote {int((~beside.isnan()).sum())} of the {2 * _GUARD} elements around its output"
                )
            accuracy = self._judged(out, route.accumulate_bits)
            if not accuracy.passed:
                return Outcome(accuracy)
            time = self._timed(launch, device, seconds)
        return Outcome(accuracy, time.us, time.low, time.high, time.runs)

    def _with(self, data: Tensor, scales: Tensor, derived: tuple[Tensor, ...]) -> Operands:
        return self._operands._replace(b=data, b_scales=scales, derived=derived)

    def _timed(self, launch: Callable[[Operands], Tensor | None], device: torch.device, seconds: float) -> Spread:
        if len(self._rotated) > 1 and device.type == "cuda":
            calls = [partial(launch, operands) for operands in self._rotated]
            return device_us(calls, Effort(seconds), SHORT_REPLAY_US)[0]
        return call_us(lambda: launch(self._operands), device, seconds)


def _judge(a: Tensor, weight: MXTensor, a_format: str, out: Tensor, accumulate_bits: int) -> Accuracy:
    return judge(out, a, weight, a_format=a_format, accumulate_bits=accumulate_bits)
