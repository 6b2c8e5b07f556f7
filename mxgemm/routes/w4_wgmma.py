"""Route ``w4_wgmma``: MXFP4 weights for more than a few rows of A on Hopper, in CUDA C++, any ``a_format``.

A launch rounds A to its format as bf16; another, which overlaps it, decodes weights to bf16 in registers for the tensor
cores of warpgroups. Every E8M0 scale is exact. Weights are read as they lie, row-major or preshuffled, or in the
fragment order that ``prepare()`` made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from mxgemm import workspace
from mxgemm.cuda import w4_wgmma
from mxgemm.cuda.operands import ARCH, ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_wgmma import WgmmaConfig, wgmma_refusal
from mxgemm.cuda.w4_wgmma_choice import candidates
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Program, fixed, joined
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.w4_mma import addresses

if TYPE_CHECKING:
    from mxgemm.cuda.launch import Kernel

MAX_TUNED: Final = 48
"""Configurations that tuning builds and measures."""


class W4Wgmma(Route):
    """Round A, decode the weight, multiply by ``wgmma``: two kernels, of which the second overlaps the first."""

    name = "w4_wgmma"
    takes = "bf16, fp16 or fp32 A, any a_format; an e2m1 weight in any layout, prepared or not"
    config_type = WgmmaConfig
    reads_fragments = True
    fitted = True

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, and a compiler for it."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its products of warpgroups", "machine")
        from mxgemm.hip.build import compiler_refusal

        lacking = compiler_refusal(machine.arch)
        return Refusal("compiler", "missing", str(lacking), "installation") if lacking else None

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Float activations and an MXFP4 weight."""
        return wgmma_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[WgmmaConfig]:
        """Return the best guess."""
        return _ranked(problem)[:1]

    def candidates(self, problem: Problem) -> Sequence[WgmmaConfig]:
        """Return the better guesses; each is a build of its own."""
        return _ranked(problem)[:MAX_TUNED]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.cuda.w4_wgmma.wgmma_refusal`."""
        assert isinstance(config, WgmmaConfig)
        return wgmma_refusal(problem, config)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Build the kernels, unless they are in the cache, and return the launcher, which loads them on its first call.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        assert isinstance(config, WgmmaConfig)
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        for source, macros in instances(problem, config):
            build(source, arch=problem.arch, defines=macros, folder=KERNELS)
        return _Launch(problem, config)


@lru_cache(maxsize=1)
def _ranked(problem: Problem) -> Sequence[WgmmaConfig]:
    """Return :func:`candidates`, which tuning asks for twice in a row."""
    return candidates(problem)


def instances(problem: Problem, config: WgmmaConfig) -> tuple[tuple[str, dict[str, int | str]], ...]:
    """Return the sources and macros of both kernels."""
    return (
        (w4_wgmma.SOURCE, w4_wgmma.defines(problem, config)),
        (w4_wgmma.ROUND_SOURCE, w4_wgmma.round_defines(problem, config)),
    )


class _Launch:
    """Both launches of a problem, on one device: a plan has no other."""

    def __init__(self, problem: Problem, config: WgmmaConfig) -> None:
        self._problem, self._config = problem, config
        self._nbytes = w4_wgmma.rounded_bytes(problem, config)
        self._kernels: tuple[Kernel, Kernel] | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, bias = operands.a, operands.bias
        rounding, multiplying = self._kernels or self._load(a.device)
        with workspace.take(self._nbytes, a.device) as arena:
            rounded = arena.memory.data_ptr()
            rounding.launch(a.data_ptr(), rounded)
            multiplying.launch(
                rounded,
                *addresses(self._problem, operands.b, operands.b_scales, operands.derived),
                0 if bias is None else bias.data_ptr(),
                operands.out.data_ptr(),
            )

    def program(self, operands: Operands) -> Program | None:
        """Describe both launches on such operands, once there have been any."""
        if self._kernels is None:
            return None
        rounding, multiplying = self._kernels
        weight = addresses(self._problem, operands.b, operands.b_scales, operands.derived)
        bias = fixed(0) if operands.bias is None else BIAS
        steps = rounding.step(A, SCRATCH), multiplying.step(SCRATCH, *map(fixed, weight), bias, OUT)
        return joined(steps, scratch_bytes=self._nbytes)

    def _load(self, device: torch.device) -> tuple[Kernel, Kernel]:
        from mxgemm.cuda.launch import Kernel, function

        p, c = self._problem, self._config
        (source, macros), (round_source, round_macros) = instances(p, c)
        rounding = Kernel(
            function(round_source, w4_wgmma.ROUND_KERNEL, device, round_macros),
            w4_wgmma.round_grid(p, c),
            (ROUND_THREADS, 1, 1),
            ROUND_POINTERS,
            constants=round_constants(p),
            overlap=True,
        )
        multiplying = Kernel(
            function(source, w4_wgmma.KERNEL, device, macros),
            w4_wgmma.grid(p, c),
            w4_wgmma.block(c),
            w4_wgmma.POINTERS,
            constants=w4_wgmma.constants(p),
            shared_bytes=w4_wgmma.shared_bytes(c),
            overlap=True,
            cluster=(c.splits, 1, 1) if c.splits > 1 else None,
        )
        self._kernels = rounding, multiplying
        return self._kernels
