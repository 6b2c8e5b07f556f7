"""Route ``hip_mx``: e2m1 times e2m1 by a HIP kernel for many rows; floats are quantised by a launch before it.

Built on the user's machine for each weight size and configuration, by whatever compiler is there. It has not run on an
MI355X, so no rule names it and the router never falls back to it: a measured table row, ``route=`` or tuning does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.hip import mx
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.mx import MXConfig, mx_refusal
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.hip_fused import hip_missing
from mxgemm.routes.preshuffled import PRESHUFFLED
from mxgemm.routes.quant_gemm_mx import float_refusal, quantized_problem, quantizing
from mxgemm.triton.support import triton_missing

if TYPE_CHECKING:
    from mxgemm.hip.runtime import Function

_pack = Layout(mx.ARGUMENTS).pack


class HipMX(Route):
    """Multiply two prepared operands; quantise A first where it comes as floats."""

    name = "hip_mx"
    takes = "large M; a prepared e2m1 weight; floats, or e2m1 with shuffled scales; by name or by a table row only"
    forms = (PRESHUFFLED,)
    config_type = MXConfig

    def missing(self, machine: Machine) -> Refusal | None:
        """A gfx950, and a compiler for it."""
        return hip_missing(machine)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Prepared e2m1 weights; A as floats, which takes Triton, or as the kernel reads it."""
        if problem.a_quantized:
            return mx_refusal(problem, self.configs(problem)[0])
        refusal = float_refusal(problem) or triton_missing(problem.machine, "quantised")
        return refusal or mx_refusal(quantized_problem(problem), self.configs(problem)[0])

    def configs(self, problem: Problem) -> Sequence[MXConfig]:
        """Return the best guess."""
        return mx.candidates(problem)[:1]

    def candidates(self, problem: Problem) -> Sequence[MXConfig]:
        """Return every block, in several orders."""
        return [replace(config, run=run) for config in mx.candidates(problem) for run in (8, 4, 16)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.hip.mx.mx_refusal`."""
        assert isinstance(config, MXConfig)
        return mx_refusal(problem if problem.a_quantized else quantized_problem(problem), config)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Build the kernel, unless it is in the cache, and return the launcher, which loads it on its first call.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        assert isinstance(config, MXConfig)
        from mxgemm.hip.build import build

        build(mx.SOURCE, arch=problem.arch, defines=mx.defines(problem, config))
        if problem.a_quantized:
            return _Launch(problem, config)
        return quantizing(problem, _Launch(quantized_problem(problem), config))


class _Launch:
    """The launch of a problem whose A is quantised, on one device: a plan has no other."""

    def __init__(self, problem: Problem, config: MXConfig) -> None:
        self._defines = mx.defines(problem, config)
        self._grid = mx.grid(problem, config)
        self._sizes = (problem.m, *mx.row_bytes(problem))
        self._function: Function | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, a_scales, b, b_scales, bias, out, _ = operands
        assert a_scales is not None
        function = self._function
        if function is None:
            from mxgemm.hip.loaded import module

            function = self._function = module(mx.SOURCE, a.device, **self._defines).function(mx.KERNEL)
        pointers = (a.data_ptr(), a_scales.data_ptr(), b.data_ptr(), b_scales.data_ptr())
        added = 0 if bias is None else bias.data_ptr()
        arguments = _pack(*pointers, added, out.data_ptr(), *self._sizes)
        function.launch(self._grid, (mx.THREADS, 1, 1), arguments)
