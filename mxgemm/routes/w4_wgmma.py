"""Route ``w4_wgmma``: MXFP4 weights for more than a few rows of A on Hopper, in CUDA C++, any ``a_format``.

A launch rounds A to its format as bf16; another, which overlaps it, decodes weights to bf16 in registers for the tensor
cores of warpgroups. Every E8M0 scale is exact. Weights are read as they lie, row-major or preshuffled, or in the
fragment order that ``prepare()`` made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from mxgemm.cuda import w4_wgmma
from mxgemm.cuda.lazy import Lazy
from mxgemm.cuda.operands import ARCH, FORMS, ROUND_POINTERS, ROUND_THREADS, round_constants
from mxgemm.cuda.w4_wgmma import WgmmaConfig, wgmma_refusal
from mxgemm.cuda.w4_wgmma_choice import candidates
from mxgemm.cuda.warpgroups import block, constants, grid
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Route
from mxgemm.routes.fold_forms import FP8_FOLD_COMPACT
from mxgemm.routes.prepared_a import PreparedA
from mxgemm.routes.w4_mma import addresses

MAX_TUNED: Final = 48
"""Configurations that tuning builds and measures."""


class W4Wgmma(Route):
    """Round A, decode the weight, multiply by ``wgmma``: two kernels, of which the second overlaps the first."""

    name = "w4_wgmma"
    takes = "bf16, fp16 or fp32 A, any a_format; an e2m1 weight in any layout, prepared or not"
    config_type = WgmmaConfig
    reads_fragments = True
    fitted = True
    alike = (FORMS, ("", FP8_FOLD_COMPACT.kind))

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, and a compiler for it."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its products of warpgroups", "machine")
        from mxgemm.hip.build import compiler_missing

        return compiler_missing(machine.arch)

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
        return launches(problem, config).build(problem.machine)


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


def launches(p: Problem, c: WgmmaConfig) -> PreparedA:
    """Return both launches of a problem: what rounds A, and the product."""
    (source, macros), (round_source, round_macros) = instances(p, c)
    return PreparedA(
        Lazy(
            (round_source, w4_wgmma.ROUND_KERNEL),
            round_macros,
            (w4_wgmma.round_grid(p, c), (ROUND_THREADS, 1, 1)),
            ROUND_POINTERS,
            round_constants(p),
        ),
        Lazy(
            (source, w4_wgmma.KERNEL),
            macros,
            (grid(p, c), block(c)),
            w4_wgmma.POINTERS,
            constants(p),
            w4_wgmma.shared_bytes(c),
            c.splits,
        ),
        w4_wgmma.rounded_bytes(p, c),
        lambda o: addresses(p, o.b, o.b_scales, o.derived),
    )
