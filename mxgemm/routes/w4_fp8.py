"""Route ``w4_fp8``: MXFP4 times a weight that folds, in Hopper's fp8 units, from four bits a weight, in CUDA C++.

A launch rounds A to MXFP4 and folds each chunk of 128 of a row to e4m3; another, which overlaps it, decodes weights to
e4m3 in registers for the tensor cores of warpgroups. Sums leave these every 128 elements. Weights are read as they
lie, of what ``prepare()`` made only their rows' bases; what of A does not fold is multiplied block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from mxgemm import workspace
from mxgemm.cuda import w4_fp8
from mxgemm.cuda.operands import ARCH, ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_fp8 import Fp8Config, fp8_refusal
from mxgemm.cuda.w4_fp8_choice import candidates
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Program, fixed, joined
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route

if TYPE_CHECKING:
    from mxgemm.cuda.launch import Kernel

MAX_TUNED: Final = 48
"""Configurations that tuning builds and measures."""


class W4FP8(Route):
    """Fold A, decode the weight, multiply by fp8 ``wgmma``: two kernels, of which the second overlaps the first."""

    name = "w4_fp8"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; an e2m1 weight after prepare(), whose rows all fold'
    config_type = Fp8Config
    accumulate_bits = 13
    fitted = True
    alike = (tuple(w4_fp8.BASES),)

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, and a compiler for it."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its products of warpgroups", "machine")
        from mxgemm.hip.build import compiler_refusal

        lacking = compiler_refusal(machine.arch)
        return Refusal("compiler", "missing", str(lacking), "installation") if lacking else None

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Float activations as MXFP4, and an MXFP4 weight that folds."""
        return fp8_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[Fp8Config]:
        """Return the best guess."""
        return _ranked(problem)[:1]

    def candidates(self, problem: Problem) -> Sequence[Fp8Config]:
        """Return the better guesses; each is a build of its own."""
        return _ranked(problem)[:MAX_TUNED]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.cuda.w4_fp8.fp8_refusal`."""
        assert isinstance(config, Fp8Config)
        return fp8_refusal(problem, config)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Build the kernels, unless they are in the cache, and return the launcher, which loads them on its first call.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        assert isinstance(config, Fp8Config)
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        for source, macros in instances(problem, config):
            build(source, arch=problem.arch, defines=macros, folder=KERNELS)
        return _Launch(problem, config)


@lru_cache(maxsize=1)
def _ranked(problem: Problem) -> Sequence[Fp8Config]:
    """Return :func:`candidates`, which tuning asks for twice in a row."""
    return candidates(problem)


def instances(problem: Problem, config: Fp8Config) -> tuple[tuple[str, dict[str, int | str]], ...]:
    """Return the sources and macros of both kernels."""
    return (
        (w4_fp8.SOURCE, w4_fp8.defines(problem, config)),
        (w4_fp8.FOLD_SOURCE, w4_fp8.fold_defines(problem, config)),
    )


class _Launch:
    """Both launches of a problem, on one device: a plan has no other."""

    def __init__(self, problem: Problem, config: Fp8Config) -> None:
        self._problem, self._config = problem, config
        self._nbytes = w4_fp8.folded_bytes(problem, config)
        self._kernels: tuple[Kernel, Kernel] | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, bias = operands.a, operands.bias
        folding, multiplying = self._kernels or self._load(a.device)
        with workspace.take(self._nbytes, a.device) as arena:
            slabs = arena.memory.data_ptr()
            folding.launch(a.data_ptr(), slabs)
            multiplying.launch(
                slabs,
                operands.b.data_ptr(),
                operands.b_scales.data_ptr(),
                operands.derived[-1].data_ptr(),
                0 if bias is None else bias.data_ptr(),
                operands.out.data_ptr(),
            )

    def program(self, operands: Operands) -> Program | None:
        """Describe both launches on such operands, once there have been any."""
        if self._kernels is None:
            return None
        folding, multiplying = self._kernels
        weight = (x.data_ptr() for x in (operands.b, operands.b_scales, operands.derived[-1]))
        bias = fixed(0) if operands.bias is None else BIAS
        product = multiplying.step(SCRATCH, *map(fixed, weight), bias, OUT)
        return joined((folding.step(A, SCRATCH), product), scratch_bytes=self._nbytes)

    def _load(self, device: torch.device) -> tuple[Kernel, Kernel]:
        from mxgemm.cuda.launch import Kernel, function

        p, c = self._problem, self._config
        (source, macros), (fold_source, fold_macros) = instances(p, c)
        folding = Kernel(
            function(fold_source, w4_fp8.FOLD_KERNEL, device, fold_macros),
            w4_fp8.fold_grid(p, c),
            (ROUND_THREADS, 1, 1),
            ROUND_POINTERS,
            constants=round_constants(p),
            overlap=True,
        )
        multiplying = Kernel(
            function(source, w4_fp8.KERNEL, device, macros),
            w4_fp8.grid(p, c),
            w4_fp8.block(c),
            w4_fp8.POINTERS,
            constants=w4_fp8.constants(p),
            shared_bytes=w4_fp8.shared_bytes(c),
            overlap=True,
            cluster=(c.splits, 1, 1) if c.splits > 1 else None,
        )
        self._kernels = folding, multiplying
        return self._kernels
