"""Route ``fp8_fold``: a4w4 at fp8 speed on Hopper, with the numbers of the MX definition.

A is quantised to MXFP4 and folded to e4m3 with a base a row (``mxgemm.mx.fold`` says when that is exact), the weight
was folded by ``prepare()``, the vendor's fp8 GEMM applies both bases, and a last kernel recomputes the rows of A that
do not fold; it leaves at once where there are none. Nothing is read back to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from mxgemm.cuda.operands import ARCH, DTYPES
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Route
from mxgemm.routes.decode import decode_refusal, weight_slices
from mxgemm.routes.fold_chain import FoldChain
from mxgemm.routes.fold_forms import FP8_FOLD, FP8_FOLD_COMPACT, FP8_FOLD_FNUZ
from mxgemm.routes.torch_mx import torch_build, version_of
from mxgemm.triton.support import size_refusal, triton_missing

MAX_K: Final = 32768
"""A program holds whole rows of A in registers."""
PLACES: Final = 8
"""Products without bases that cublasLt 13.1 names."""
BASES_LAST_RESULTS: Final = 1 << 24
"""M N up to which they mostly pay, where no table says: the last launch passes over them (docs/lab-notes.md)."""

HIP_TORCH: Final = (2, 7)
"""The first torch whose scaled product takes a scale a row on gfx942 (pull request 144432)."""


@dataclass(frozen=True, slots=True)
class FoldConfig(Config):
    """How the product is run.

    Attributes:
        fast_accumulation: let the tensor core keep its sums for all of K, in 14 bits. Refused; tables may still say it.
        bases_last: the last launch applies the bases of rows, and the vendor's product has none. cublasLt has one
            kernel with a base a row, and several without, most of them quicker.
        place: of those that it names, its own favourite first, the one to take.
    """

    fast_accumulation: bool = False
    bases_last: bool = False
    place: int = 0


class FP8Fold(Route):
    """Quantise and fold, vendor fp8 GEMM with row and column scales, recompute what did not fold."""

    name = "fp8_fold"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; an e2m1 weight after prepare(), whose rows all fold'
    forms = (FP8_FOLD, FP8_FOLD_FNUZ, FP8_FOLD_COMPACT)
    config_type = FoldConfig
    accumulate_bits = 13

    def missing(self, machine: Machine) -> Refusal | None:
        """An sm_90, a gfx942 whose torch has the product (or the interpreter, to test it)."""
        if machine.arch not in ("sm_90", "gfx942", "cpu"):
            return Refusal("arch", machine.arch, "sm_90 or gfx942, whose fp8 products it was written for", "machine")
        if machine.arch == "gfx942" and (not torch.version.hip or (version_of(torch.__version__) or (0,)) < HIP_TORCH):
            return Refusal("torch", torch_build(), "2.7 or newer, built for ROCm", "installation")
        return triton_missing(machine)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """MXFP4 times a folded MXFP4 weight."""
        p = problem
        if p.a_quantized or p.a_format != "e2m1":
            what = "quantised already" if p.a_quantized else p.a_format
            return Refusal("a", what, 'activations in bf16, fp16 or fp32 and a_format "e2m1"')
        if p.derived not in (form.kind for form in self.forms if p.arch in (*form.archs, "cpu")):
            found = f"prepared as {p.derived}" if p.derived else "not prepared"
            return Refusal("b", found, "an MXTensor after prepare(), whose rows all fold (mxgemm.mx.fold)")
        if p.k > MAX_K:
            return Refusal("k", p.k, f"at most {MAX_K}")
        return size_refusal(problem) or decode_refusal(problem) or contiguity_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[FoldConfig]:
        """Sums in fp32."""
        few = problem.m * problem.n <= BASES_LAST_RESULTS
        return [FoldConfig(bases_last=few and _plain_refusal(problem) is None)]

    def candidates(self, problem: Problem) -> Sequence[FoldConfig]:
        """Return what ``configs`` does, and the other ways."""
        apart = [FoldConfig(bases_last=True, place=place) for place in range(PLACES)]
        first = self.configs(problem)
        others = [FoldConfig(), *apart] if _plain_refusal(problem) is None else []
        return [*first, *(one for one in others if one not in first)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Refuse fast accumulation: sums of terms of one sign would lose up to some per cent."""
        assert isinstance(config, FoldConfig)
        if config.fast_accumulation:
            return Refusal("fast_accumulation", True, "False: sums in fp32")
        refusal = _plain_refusal(problem) if config.bases_last else None
        if refusal is not None:
            return refusal
        most = PLACES - 1 if config.bases_last else 0
        return None if 0 <= config.place <= most else Refusal("place", config.place, f"0 to {most}")

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, FoldConfig)
        if not config.bases_last:
            return FoldChain(problem)
        from mxgemm.routes.fold_plain import PlainFoldChain

        return PlainFoldChain(problem, config.place)


def _plain_refusal(problem: Problem) -> Refusal | None:
    """Say why the last launch cannot apply the bases, or None."""
    if problem.machine.arch != ARCH:
        return Refusal("arch", problem.machine.arch, f"{ARCH}, for bases_last")
    if problem.derived == FP8_FOLD_COMPACT.kind and len(weight_slices(problem, 1)) > 1:
        return Refusal("n * k", problem.n * problem.k, "a weight that is decoded whole, for bases_last")
    if problem.has_bias and problem.bias_dtype not in DTYPES:
        return Refusal("bias.dtype", problem.bias_dtype, "bfloat16, float16 or float32, for bases_last")
    from mxgemm.hip.build import compiler_missing

    return compiler_missing(ARCH)
