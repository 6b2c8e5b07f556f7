"""Route ``scaled_mm``: A quantised by one launch, then torch's own product of MXFP4 operands (hipBLASLt, cuBLAS).

For large M where AITER is not: the weight as a checkpoint holds it, nothing prepared. Torch's product pads nothing, so
the rows of A are padded in scratch; what those rows hold reaches rows of the result that are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK, E2M1, scale_addend
from mxgemm.mx.layouts import round_up, swizzle_scales
from mxgemm.notices import say_once
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.torch_mx import TorchCall, calls_of, is_unsupported
from mxgemm.triton.quantize import MAX_COLUMNS, MAX_ROWS, quantize_rows
from mxgemm.triton.support import triton_missing

_ALIGN: Final = 256


@dataclass(frozen=True, slots=True)
class ScaledMMConfig(Config):
    """Which of torch's calls.

    Attributes:
        call: a name of ``mxgemm.routes.torch_mx``; "" for the first that takes the size.
    """

    call: str = ""


class ScaledMM(Route):
    """Quantise A, torch's product."""

    name = "scaled_mm"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; a row-major e2m1 weight; bf16 or fp16 result'
    config_type = ScaledMMConfig

    def missing(self, machine: Machine) -> Refusal | None:
        """A gfx950 or sm_100, and a torch that has the product for it."""
        calls = calls_of(machine)
        return calls if isinstance(calls, Refusal) else triton_missing(machine, "quantiser")

    def can_implement(self, problem: Problem) -> Refusal | None:
        """MXFP4 times a row-major MXFP4 weight, within what one of torch's calls takes."""
        p = problem
        if p.a_quantized or p.a_format != "e2m1":
            what = "quantised already" if p.a_quantized else p.a_format
            return Refusal("a", what, 'activations in bf16, fp16 or fp32 and a_format "e2m1"')
        if p.b_format != "e2m1":
            return Refusal("b_format", p.b_format, "e2m1")
        if p.weight_layout != "row_major":
            return Refusal("weight_layout", p.weight_layout, "row_major")
        for field, size, most in (("m", p.m, MAX_ROWS), ("k", p.k, MAX_COLUMNS)):
            if size > most:
                return Refusal(field, size, f"at most {most}, what one launch quantises")
        if p.has_bias and not p.bias_dtype == p.out_dtype == torch.bfloat16:
            return Refusal("bias", f"{p.bias_dtype} for a {p.out_dtype} result", "none, or bf16 for a bf16 result")
        if p.strides is not None and p.strides.b != (p.k // 2, 1):
            return Refusal("strides of b", p.strides.b, f"{(p.k // 2, 1)}: a contiguous weight")
        if not p.aligned:
            return Refusal("alignment", "an address that is no multiple of 16 bytes", "operands that are aligned")
        refusals = [_refusal(call, p) for call in _calls(p)]
        return contiguity_refusal(p) or (None if None in refusals else refusals[0])

    def configs(self, problem: Problem) -> Sequence[ScaledMMConfig]:
        """Return the calls that take the problem, the fastest first."""
        return [ScaledMMConfig(call.name) for call in _calls(problem) if _refusal(call, problem) is None]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Refuse a call that this torch does not have, or that does not take this size."""
        assert isinstance(config, ScaledMMConfig)
        calls = {call.name: call for call in _calls(problem)}
        if config.call and config.call not in calls:
            return Refusal("call", config.call, f'"" or one of {", ".join(calls)}', "installation")
        return _refusal(calls[config.call], problem) if config.call else None

    def fills_output(self, problem: Problem, config: Config) -> bool:
        """Return False: torch's call takes no output."""
        del problem, config
        return False

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, ScaledMMConfig)
        legal = [call for call in _calls(problem) if _refusal(call, problem) is None]
        named = [call for call in legal if call.name == config.call]
        return _Launch(problem, named + [call for call in legal if call not in named])


class _Launch:
    """The chain for one problem: the first of torch's calls, until torch says that it does not have it after all."""

    def __init__(self, problem: Problem, calls: list[TorchCall]) -> None:
        self.problem, self.calls = problem, calls
        self.addend = scale_addend(E2M1, problem.scale_rounding)

    def __call__(self, operands: Operands) -> Tensor:
        calls = self.calls  # one look: another thread may settle it meanwhile
        for call, after in zip(calls, (*calls[1:], None), strict=True):
            product = self._multiply(call, operands, after)
            if product is not None:
                self.calls = [call]  # what it raises from now on is a fault
                return product
        raise AssertionError("the last call returns or raises")

    def _multiply(self, call: TorchCall, operands: Operands, after: TorchCall | None = None) -> Tensor | None:
        """Return the product, or None where torch does not have ``call`` and there is one ``after`` it."""
        p = self.problem
        a, _, b, b_scales, bias, _, _ = operands
        rows = round_up(p.m, call.rows)
        swizzled = call.scale_layout == "swizzled_32_4_4"  # which the quantiser does not write
        shape = (p.m, p.k // BLOCK) if swizzled else call.scale_shape(rows, p.k)
        at = round_up(rows * p.k // 2, _ALIGN)
        with workspace.take(at + shape[0] * shape[1], a.device) as arena:
            data = arena.memory[: rows * p.k // 2].view(rows, p.k // 2)
            scales = arena.memory[at : at + shape[0] * shape[1]].view(shape)
            shuffled = call.scale_layout == "shuffled"
            quantize_rows(a, E2M1, self.addend, data[: p.m], scales if shuffled else scales[: p.m], shuffled=shuffled)
            left = swizzle_scales(scales) if swizzled else scales
            right = call.scales(b_scales, p.scale_layout, p.n, p.k)
            try:
                product = call.multiply(data, b, left.reshape(-1), right, bias, p.out_dtype)
            except (RuntimeError, ValueError) as error:  # a NotImplementedError is a RuntimeError
                if after is None or not is_unsupported(error):
                    raise
                # What a build supports is known by its enums and by its errors, and the enums may say more.
                reason = str(error).partition("\n")[0] or type(error).__name__
                say_once(f"torch's {call.name} refuses MXFP4 ({reason}); taking its {after.name}")
                return None
        return product[: p.m]


def _calls(problem: Problem) -> tuple[TorchCall, ...]:
    calls = calls_of(problem.machine)
    return () if isinstance(calls, Refusal) else calls


def _refusal(call: TorchCall, problem: Problem) -> Refusal | None:
    p = problem
    if p.n % call.rows:
        return Refusal("n", p.n, f"a multiple of {call.rows} for torch's {call.name}")
    if p.k % call.columns:
        return Refusal("k", p.k, f"a multiple of {call.columns} for torch's {call.name}")
    if p.out_dtype not in call.out_dtypes:
        return Refusal("out_dtype", p.out_dtype, f"{' or '.join(map(str, call.out_dtypes))} for torch's {call.name}")
    return None
