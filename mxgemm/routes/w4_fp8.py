"""Route ``w4_fp8``: MXFP4 times a weight that folds, in Hopper's fp8 units, from four bits a weight, in CUDA C++.

A launch rounds A to MXFP4 and folds each chunk of 128 of a row to e4m3; another, which overlaps it, decodes weights to
e4m3 in registers for the tensor cores of warpgroups. Sums leave these every 128 elements. Weights are read as they
lie, of what ``prepare()`` made only their rows' bases; what of A does not fold is multiplied block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from mxgemm.cuda import w4_fp8
from mxgemm.cuda.lazy import Lazy
from mxgemm.cuda.operands import ARCH, ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_fp8 import Fp8Config, fp8_refusal
from mxgemm.cuda.w4_fp8_choice import candidates
from mxgemm.cuda.warpgroups import block, constants, grid
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Route
from mxgemm.routes.prepared_a import PreparedA

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
        from mxgemm.hip.build import compiler_missing

        return compiler_missing(machine.arch)

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
        return launches(problem, config).build(problem.machine)


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


def launches(p: Problem, c: Fp8Config) -> PreparedA:
    """Return both launches of a problem: what folds A, and the product."""
    (source, macros), (fold_source, fold_macros) = instances(p, c)
    return PreparedA(
        Lazy(
            (fold_source, w4_fp8.FOLD_KERNEL),
            fold_macros,
            (w4_fp8.fold_grid(p, c), (ROUND_THREADS, 1, 1)),
            ROUND_POINTERS,
            round_constants(p),
        ),
        Lazy(
            (source, w4_fp8.KERNEL),
            macros,
            (grid(p, c), block(c)),
            w4_fp8.POINTERS,
            constants(p),
            w4_fp8.shared_bytes(c),
            c.splits,
        ),
        w4_fp8.folded_bytes(p, c),
        lambda o: (o.b.data_ptr(), o.b_scales.data_ptr(), o.derived[-1].data_ptr()),
    )
