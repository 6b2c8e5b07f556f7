"""Route ``w4_mma``: MXFP4 weights for up to 32 rows of A on Hopper, in CUDA C++.

Weights are read as they lie, row-major or preshuffled, or in the fragment order that ``prepare()`` made; A is rounded
in registers, or by a launch of its own that the other overlaps; every E8M0 scale is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.cuda import w4_mma
from mxgemm.cuda.operands import ARCH, FORMS, ROUND_POINTERS, ROUND_THREADS, fragments, round_constants
from mxgemm.cuda.w4_mma import MmaConfig, mma_refusal
from mxgemm.cuda.w4_mma_choice import ranked
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import ElementFormat
from mxgemm.mx.fragments import code_bytes, fragment_parts
from mxgemm.mx.layouts import FRAGMENTS, Layout, fragment_refusal
from mxgemm.mx.prepared import WeightForm, only_e2m1
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, KernelStep, Place, Program, fixed, joined
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.fold_forms import FP8_FOLD, FP8_FOLD_COMPACT, folded_bytes

if TYPE_CHECKING:
    from mxgemm.cuda.launch import Kernel

MAX_TUNED: Final = 48
"""Configurations that tuning builds and measures."""


def _refusal(fmt: ElementFormat, n: int, k: int) -> Refusal | None:
    return only_e2m1(fmt, n, k) or fragment_refusal(n, k)


FRAGMENT_ORDER: Final = WeightForm(
    "fragments",
    archs=(ARCH,),
    memory="fast",
    refusal=_refusal,
    make=lambda weight: fragment_parts(weight.data, weight.scales),
    layout=Layout(FRAGMENTS, FRAGMENTS),
    alone=True,
)
"""Codes and scales in fragment order in place of the row-major ones: as many bytes."""


class W4MMA(Route):
    """Round A, decode the weight, multiply by ``mma.sync``, add the warps' sums: one kernel, or two."""

    name = "w4_mma"
    takes = "bf16, fp16 or fp32 A of up to 32 rows, any a_format; an e2m1 weight in any layout, prepared or not"
    config_type = MmaConfig
    forms = (FRAGMENT_ORDER,)
    reads_fragments = True
    fitted = True
    alike = (FORMS, ("", FP8_FOLD_COMPACT.kind))

    def missing(self, machine: Machine) -> Refusal | None:
        """A Hopper GPU, and a compiler for it."""
        if machine.arch != ARCH:
            return Refusal("arch", machine.arch, f"{ARCH}: its bf16 arithmetic and mma.sync", "machine")
        from mxgemm.hip.build import compiler_missing

        return compiler_missing(machine.arch)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Float activations of few rows and an MXFP4 weight."""
        return mma_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[MmaConfig]:
        """Return the best guess."""
        return list(islice(_ranked(problem), 1))

    def candidates(self, problem: Problem) -> Sequence[MmaConfig]:
        """Return the better guesses; each is a build of its own."""
        return list(islice(_ranked(problem), MAX_TUNED))

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.cuda.w4_mma.mma_refusal`."""
        assert isinstance(config, MmaConfig)
        return mma_refusal(problem, config)

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Build the kernel, unless it is in the cache, and return the launcher, which loads it on its first call.

        Raises:
            BuildError: the compiler refuses the source; the message has its output.
        """
        assert isinstance(config, MmaConfig)
        from mxgemm.cuda.launch import KERNELS
        from mxgemm.hip.build import build

        build(w4_mma.SOURCE, arch=problem.arch, defines=w4_mma.defines(problem, config), folder=KERNELS)
        if not config.a_before:
            return _Launch(problem, config)
        build(w4_mma.ROUND_SOURCE, arch=problem.arch, defines=w4_mma.round_defines(problem, config), folder=KERNELS)
        return _RoundingLaunch(problem, config)


def _ranked(problem: Problem) -> Iterator[MmaConfig]:
    """Yield the configurations of :func:`mxgemm.cuda.w4_mma_choice.ranked` so that they overlap what comes before.

    That is quicker wherever it was measured but for some launches that round A, and up to a fifth of a short call. They
    are ranked for the next power of two of rows, at least two, so that few kernels do for all M.
    """
    for config in ranked(replace(problem, m=max(2, 1 << (problem.m - 1).bit_length()))):
        overlapping = replace(config, overlap=True)
        if mma_refusal(problem, overlapping) is None:
            yield overlapping


class _Launch:
    """The one launch of a problem, on one device: a plan has no other."""

    def __init__(self, problem: Problem, config: MmaConfig) -> None:
        self._problem, self._config = problem, config
        self._kernel: Kernel | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        self._multiply(operands, 0)

    def _multiply(self, operands: Operands, rounded: int) -> None:
        kernel = self._kernel
        if kernel is None:
            kernel = self._kernel = self._load(operands.a.device)
        bias, out = operands.bias, operands.out
        weight = addresses(self._problem, operands.b, operands.b_scales, operands.derived)
        kernel.launch(operands.a.data_ptr(), rounded, *weight, 0 if bias is None else bias.data_ptr(), out.data_ptr())

    def program(self, operands: Operands) -> Program | None:
        """Describe the launch on such operands, once there has been one."""
        step = self._step(operands, fixed(0))
        return None if step is None else Program((step,))

    def _step(self, operands: Operands, rounded: Place) -> KernelStep | None:
        if self._kernel is None:
            return None
        weight = addresses(self._problem, operands.b, operands.b_scales, operands.derived)
        bias = fixed(0) if operands.bias is None else BIAS
        return self._kernel.step(A, rounded, *map(fixed, weight), bias, OUT)

    def _load(self, device: torch.device) -> Kernel:
        from mxgemm.cuda.launch import Kernel, function

        p, c = self._problem, self._config
        loaded = function(w4_mma.SOURCE, w4_mma.KERNEL, device, w4_mma.defines(p, c))
        return Kernel(
            loaded,
            w4_mma.grid(p, c),
            w4_mma.block(c),
            w4_mma.POINTERS,
            constants=w4_mma.constants(p),
            shared_bytes=w4_mma.shared_bytes(p, c),
            overlap=c.overlap or c.a_before,
            cluster=(c.splits, 1, 1) if c.splits > 1 else None,
        )


class _RoundingLaunch(_Launch):
    """A launch that rounds A, and the one that overlaps it."""

    def __init__(self, problem: Problem, config: MmaConfig) -> None:
        super().__init__(problem, config)
        self._nbytes = w4_mma.rounded_bytes(problem, config)
        self._rounding: Kernel | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch both on the current stream of the operands' device."""
        a, kernel = operands.a, self._rounding
        if kernel is None:
            kernel = self._rounding = self._load_rounding(a.device)
        with workspace.take(self._nbytes, a.device) as arena:
            rounded = arena.memory.data_ptr()
            kernel.launch(a.data_ptr(), rounded)
            self._multiply(operands, rounded)

    def program(self, operands: Operands) -> Program | None:
        """Describe both launches."""
        if self._rounding is None:
            return None
        steps = self._rounding.step(A, SCRATCH), self._step(operands, SCRATCH)
        return joined(steps, scratch_bytes=self._nbytes)

    def _load_rounding(self, device: torch.device) -> Kernel:
        from mxgemm.cuda.launch import Kernel, function

        p, c = self._problem, self._config
        loaded = function(w4_mma.ROUND_SOURCE, w4_mma.ROUND_KERNEL, device, w4_mma.round_defines(p, c))
        block, constants = (ROUND_THREADS, 1, 1), round_constants(p)
        return Kernel(loaded, w4_mma.round_grid(p), block, ROUND_POINTERS, constants=constants, overlap=c.overlap)


def addresses(problem: Problem, b: Tensor, b_scales: Tensor, derived: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return where the kernel finds codes and scales: the weight's own, or those in fragment order."""
    p = problem
    if not fragments(p) or p.weight_layout == FRAGMENTS:
        return b.data_ptr(), b_scales.data_ptr()
    at = derived[0].data_ptr() + folded_bytes(p.n, p.k) if p.derived == FP8_FOLD.kind else derived[1].data_ptr()
    return at, at + code_bytes(p.n, p.k)
