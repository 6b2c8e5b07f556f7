"""Route ``fused_asm``: Triton quantises A and shuffles its scales in one launch, AITER's assembly multiplies.

The kernel is named by the table row. It is called through AITER (``gemm_a4w4_asm``), or its code object is launched
directly, which keeps AITER's Python off the path. K is never split between workgroups: AITER's splits add bf16 partial
sums with atomics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mxgemm import workspace
from mxgemm.aiter import direct, installed
from mxgemm.aiter.f4gemm import KERNELS, PREFIX, guess
from mxgemm.aiter.operands import QuantizeA, aiter_missing, aiter_refusal, named_refusal
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route


@dataclass(frozen=True, slots=True)
class FusedAsmConfig(Config):
    """Which kernel, and how it is called.

    Attributes:
        kernel: one of ``mxgemm.aiter.f4gemm.KERNELS``.
        launch: "aiter" calls its ``gemm_a4w4_asm``, "direct" launches its code object.
    """

    kernel: str = f"{PREFIX}BpreShuffle_32x128"
    launch: str = "aiter"


class FusedAsm(Route):
    """Quantise and shuffle in one pass, then AITER's f4gemm kernel."""

    name = "fused_asm"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; an e2m1 weight after prepare(); bf16 result, no bias'
    config_type = FusedAsmConfig

    def missing(self, machine: Machine) -> Refusal | None:
        """A gfx950 with AITER, or with its code objects alone: a direct launch needs no more."""
        return aiter_missing(
            machine,
            lambda: None if direct.folder() else installed.refusal("gemm_a4w4_asm"),
        )

    def can_implement(self, problem: Problem) -> Refusal | None:
        """MXFP4 times a prepared MXFP4 weight into bf16."""
        refusal = aiter_refusal(problem)
        if refusal:
            return refusal
        kernel = _guess(problem)
        if kernel is None:
            needed = "preshuffled: call prepare() on the weight, once (row-major needs M and N % 256 == 0 and K > 256)"
            return Refusal("weight_layout", problem.weight_layout, needed)
        # A folder of code objects need not have this one, or one that fits.
        return None if self.configs(problem) else self.check_config(problem, FusedAsmConfig(kernel, "direct"))

    def configs(self, problem: Problem) -> Sequence[FusedAsmConfig]:
        """Return the largest tile that fills the machine, called through AITER, then directly where possible."""
        kernel = _guess(problem)
        assert kernel is not None
        candidates = [FusedAsmConfig(kernel), FusedAsmConfig(kernel, "direct")]
        return [config for config in candidates if self.check_config(problem, config) is None]

    def candidates(self, problem: Problem) -> Sequence[FusedAsmConfig]:
        """Return every kernel, called either way."""
        del problem
        return [FusedAsmConfig(kernel, launch) for kernel in KERNELS for launch in ("aiter", "direct")]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Refuse an unknown kernel, one that this size is wrong for, and a direct launch without files for it."""
        assert isinstance(config, FusedAsmConfig)
        kernel = KERNELS.get(config.kernel)
        if kernel is None:
            return Refusal("kernel", config.kernel, f"one of mxgemm.aiter.f4gemm.KERNELS ({PREFIX}...)")
        if config.launch not in ("aiter", "direct"):
            return Refusal("launch", config.launch, '"aiter" or "direct"')
        refusal = named_refusal(problem, kernel)
        if refusal:
            return refusal
        if config.launch == "direct":
            return direct.refusal(kernel, problem.arch)
        return installed.refusal("gemm_a4w4_asm")

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher. Imports AITER unless the launch is direct."""
        assert isinstance(config, FusedAsmConfig)
        kernel = KERNELS[config.kernel]
        quantize = QuantizeA(problem, kernel.scale_rows(problem.m), shuffled=True)
        if config.launch == "direct":
            multiply = direct.bind(problem, kernel)
        else:
            multiply = installed.bind_asm(kernel.symbol, preshuffled=kernel.preshuffled)

        def launch(operands: Operands) -> None:
            a, _, b, b_scales, _, out, _ = operands
            with workspace.take(quantize.nbytes, a.device) as arena:
                data, scales = quantize(a, arena.memory)
                multiply(data, b, scales, b_scales, out)

        return launch


def _guess(problem: Problem) -> str | None:
    preshuffled = problem.weight_layout == "preshuffled"
    found = guess(problem.m, problem.n, problem.k, problem.machine.cu_count, preshuffled=preshuffled)
    return found.name if found else None
