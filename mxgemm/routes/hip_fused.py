"""Route ``hip_fused``: one HIP launch that quantises A in registers, multiplies by scaled MFMA and divides K.

Built on the user's machine for each weight size and configuration, by whatever compiler is there. It has not run on an
MI355X, so no rule names it and the router never falls back to it: a measured table row, ``route=`` or tuning does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.hip import fused, fused_choice
from mxgemm.hip.fused import FusedConfig, fused_refusal
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.prepared import ARCH
from mxgemm.native.program import BIAS, COUNTERS, OUT, SCRATCH, A, Program, fixed, kernel_step
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.preshuffled import PRESHUFFLED

if TYPE_CHECKING:
    from mxgemm.hip.runtime import Function

MAX_TUNED: Final = 48
"""Configurations that tuning builds and measures."""

_ARGUMENTS: Final = Layout(fused.ARGUMENTS)


class HipFused(Route):
    """Quantise, multiply and add the waves' sums in one kernel."""

    name = "hip_fused"
    takes = 'bf16 A, a_format "e2m1"; an e2m1 weight after prepare(); by name or by a table row only'
    forms = (PRESHUFFLED,)
    config_type = FusedConfig

    def missing(self, machine: Machine) -> Refusal | None:
        """A gfx950, and a compiler for it."""
        return hip_missing(machine)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Prepared e2m1 weights and bf16 activations."""
        refusal = fused_refusal(problem)
        if refusal is None and not self.configs(problem):  # it is too large; the largest block says for what
            refusal = fused_refusal(problem, FusedConfig(max(fused.BLOCKS_M), block_k=128, waves=1))
        return refusal

    def configs(self, problem: Problem) -> Sequence[FusedConfig]:
        """Return the best guess, nothing where the problem is too large for any configuration."""
        return fused_choice.candidates(problem)[:1]

    def candidates(self, problem: Problem) -> Sequence[FusedConfig]:
        """Return the better guesses; each is a build of its own."""
        return fused_choice.candidates(problem)[:MAX_TUNED]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.hip.fused.fused_refusal`."""
        assert isinstance(config, FusedConfig)
        return fused_refusal(problem, config)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Build the kernel, unless it is in the cache, and return the launcher, which loads it on its first call.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        assert isinstance(config, FusedConfig)
        from mxgemm.hip.build import build

        build(fused.SOURCE, arch=problem.arch, defines=fused.defines(problem, config))
        return _Launch(problem, config)


def hip_missing(machine: Machine) -> Refusal | None:
    """Say what scaled MFMA kernels in HIP lack on a machine, or None."""
    if machine.arch != ARCH:
        return Refusal("arch", machine.arch, f"{ARCH}: scaled MFMA and its convert to fp4", "machine")
    from mxgemm.hip.build import compiler_missing

    return compiler_missing(machine.arch)


class _Launch:
    """The one launch of a problem, on one device: a plan has no other."""

    def __init__(self, problem: Problem, config: FusedConfig) -> None:
        self._defines = fused.defines(problem, config)
        self._grid, self._block = fused.grid(problem, config), fused.block(config)
        self._sizes = (problem.m, *fused.row_bytes(problem))
        self._nbytes, self._counters = fused.workspace(problem, config)
        self._function: Function | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        if not self._nbytes:
            self._launch(operands, 0, 0)
            return
        with workspace.take(self._nbytes, operands.a.device, counters=self._counters) as arena:
            self._launch(operands, arena.memory.data_ptr(), arena.counters.data_ptr())

    def program(self, operands: Operands) -> Program | None:
        """Describe the launch on such operands, once there has been one."""
        if self._function is None:
            return None
        weight = fixed(operands.b.data_ptr()), fixed(operands.b_scales.data_ptr())
        bias = fixed(0) if operands.bias is None else BIAS
        scratch = (SCRATCH, COUNTERS) if self._nbytes else (0, 0)
        values = A, *weight, bias, OUT, *self._sizes, *scratch
        step = kernel_step(self._function.handle, self._grid, self._block, _ARGUMENTS, values)
        return Program((step,), self._nbytes, self._counters)

    def _launch(self, operands: Operands, partials: int, counters: int) -> None:
        a, _, b, b_scales, bias, out, _ = operands
        function = self._function
        if function is None:
            from mxgemm.hip.loaded import module

            function = self._function = module(fused.SOURCE, a.device, **self._defines).function(fused.KERNEL)
        pointers = (a.data_ptr(), b.data_ptr(), b_scales.data_ptr(), 0 if bias is None else bias.data_ptr())
        arguments = _ARGUMENTS.pack(*pointers, out.data_ptr(), *self._sizes, partials, counters)
        function.launch(self._grid, self._block, arguments)
