"""Route ``ck_gemm``: Triton quantises A, a HIP kernel shuffles its scales, AITER's ``gemm_a4w4`` multiplies.

``gemm_a4w4`` picks a kernel from AITER's tuned table or by its heuristic. A kernel that our own table row names goes
straight to the entry point that ``gemm_a4w4`` would hand it to, which wants no padded output. So does AITER's own pick
where ``gemm_a4w4`` takes no output: what it returns may be a buffer that it writes again. The HIP shuffle is one launch
more than the Triton kernel that shuffles as it quantises; that one takes its place where HIP cannot be built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.aiter import installed
from mxgemm.aiter.f4gemm import K_STEP, KERNELS, PREFIX, SCALE_ROWS, F4GemmKernel, guess, of_symbol
from mxgemm.aiter.operands import QuantizeA, aiter_missing, aiter_refusal, named_refusal
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.layouts import SCALE_PAD_ROWS, round_up
from mxgemm.notices import say_once
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands, Route

CK_PREFIX: Final = "a4w4_blockscale_"
PICK_N: Final = 256
"""Without a tuned row, AITER's heuristic takes tiles that are wrong for an N that this does not divide."""


@dataclass(frozen=True, slots=True)
class CKGemmConfig(Config):
    """Which kernel, and what shuffles the scales of A.

    Attributes:
        kernel: "" lets AITER's ``gemm_a4w4`` pick; or one of ``mxgemm.aiter.f4gemm.KERNELS``, or a CK kernel's name.
        shuffle: "hip", "triton" (in the quantising launch), or "auto": HIP where it can be built.
    """

    kernel: str = ""
    shuffle: str = "auto"


class CKGemm(Route):
    """Quantise, shuffle, AITER's gemm_a4w4."""

    name = "ck_gemm"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; an e2m1 weight after prepare(); bf16 result, no bias'
    config_type = CKGemmConfig

    def missing(self, machine: Machine) -> Refusal | None:
        """A gfx950 with AITER."""
        return aiter_missing(machine, lambda: installed.refusal("gemm_a4w4"))

    def can_implement(self, problem: Problem) -> Refusal | None:
        """MXFP4 times a prepared MXFP4 weight into bf16."""
        refusal = aiter_refusal(problem)
        if refusal:
            return refusal
        if problem.weight_layout != "preshuffled":
            needed = "preshuffled: call prepare() on the weight, once"
            return Refusal("weight_layout", problem.weight_layout, needed)
        if self.configs(problem):
            return None
        # AITER may not be left to pick for this size, and this release cannot be told what to take.
        return self.check_config(problem, CKGemmConfig(_guess(problem).name))

    def configs(self, problem: Problem) -> Sequence[CKGemmConfig]:
        """Return AITER's own pick where it is sure to be right, then a tile of ours."""
        kernels = ("", _guess(problem).name)
        configs = [CKGemmConfig(kernel, shuffle) for kernel in kernels for shuffle in ("auto", "triton")]
        return [config for config in configs if self.check_config(problem, config) is None]

    def candidates(self, problem: Problem) -> Sequence[CKGemmConfig]:
        """Return AITER's pick and every f4gemm kernel, with either shuffle; CK's names are AITER's to know."""
        del problem
        return [CKGemmConfig(kernel, shuffle) for kernel in ("", *KERNELS) for shuffle in ("hip", "triton")]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Refuse a kernel that is wrong for this size or that this AITER cannot be told, and HIP without a compiler."""
        assert isinstance(config, CKGemmConfig)
        if config.shuffle not in ("auto", "hip", "triton"):
            return Refusal("shuffle", config.shuffle, '"auto", "hip" or "triton"')
        if config.shuffle == "hip":
            reason = _hip_refusal(problem)
            if reason:
                return Refusal("shuffle", "hip", f'"triton": {reason}', "installation")
        if not config.kernel:
            return _pick_refusal(problem)
        if config.kernel.startswith(CK_PREFIX):
            return installed.refusal("gemm_a4w4_blockscale")
        kernel = KERNELS.get(config.kernel)
        if kernel is None:
            known = f'"", one of mxgemm.aiter.f4gemm.KERNELS ({PREFIX}...) or a CK kernel ({CK_PREFIX}...)'
            return Refusal("kernel", config.kernel, known)
        return named_refusal(problem, kernel) or installed.refusal("gemm_a4w4_asm")

    def fills_output(self, problem: Problem, config: Config) -> bool:
        """Everywhere but where ``gemm_a4w4`` wants more rows than the output has."""
        assert isinstance(config, CKGemmConfig)
        whole = problem.m % SCALE_ROWS == 0 or not installed.pick_takes_output()
        return bool(config.kernel) or whole or _own_pick(problem) is not None

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher. Imports AITER."""
        assert isinstance(config, CKGemmConfig)
        own = KERNELS.get(config.kernel) if config.kernel else _own_pick(problem)
        # CK's kernels, and those that AITER may pick, get what its own shuffle makes: rows padded to 256.
        rows = own.scale_rows(problem.m) if own else round_up(problem.m, SCALE_PAD_ROWS)
        prepare = _Scales(problem, rows, hip=config.shuffle != "triton" and _hip_or_tell(problem))
        if own:
            multiply = installed.bind_asm(own.symbol, preshuffled=True)
        elif config.kernel:
            multiply = installed.bind_blockscale(config.kernel)
        else:
            multiply = _bind_pick(problem)

        def launch(operands: Operands) -> None:
            with workspace.take(prepare.nbytes, operands.a.device) as arena:
                data, scales = prepare(operands.a, arena.memory)
                multiply(data, operands.b, scales, operands.b_scales, operands.out)

        def launch_padded(operands: Operands) -> Tensor:
            rows = round_up(problem.m, SCALE_ROWS)
            out = torch.empty(rows, problem.n, dtype=torch.bfloat16, device=operands.a.device)
            launch(operands._replace(out=out))
            return out[: problem.m]

        return launch if self.fills_output(problem, config) else launch_padded


class _Scales:
    """Quantise A and shuffle its scales, in one launch or in two, in scratch that the caller holds."""

    def __init__(self, problem: Problem, rows: int, *, hip: bool) -> None:
        self.quantize = QuantizeA(problem, rows, shuffled=not hip)
        self.hip, self.shape = hip, (rows, problem.k // 32)

        self.nbytes = self.quantize.nbytes + hip * rows * (problem.k // 32)

    def __call__(self, a: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bytes of ``a`` and its shuffled scales, in ``memory`` (uint8, ``nbytes`` of it)."""
        data, scales = self.quantize(a, memory)
        if not self.hip:
            return data, scales
        from mxgemm.hip import shuffle

        shuffled = memory[self.quantize.nbytes : self.nbytes].view(self.shape)
        shuffle.shuffle_scales_into(scales, shuffled)
        return data, shuffled


def _bind_pick(problem: Problem) -> installed.AsmCall:
    """Bind ``gemm_a4w4``, or what it would call, so that it writes into an output of ours."""
    if installed.pick_takes_output():
        return installed.bind_pick()
    row = installed.tuned_row(problem.m, problem.n, problem.k)
    symbol = row[0] if row else ""
    if symbol.startswith(CK_PREFIX):
        return installed.bind_blockscale(symbol)
    return installed.bind_asm(symbol, preshuffled=True)


def _pick_refusal(problem: Problem) -> Refusal | None:
    if problem.n % PICK_N or problem.k <= K_STEP:
        value = f'"" for (N, K) = ({problem.n}, {problem.k})'
        needed = f"a kernel's name: what AITER picks may need N % {PICK_N} == 0 and K > {K_STEP}"
        return Refusal("kernel", value, needed)
    return None if installed.pick_takes_output() else installed.refusal("gemm_a4w4_asm")


def _guess(problem: Problem) -> F4GemmKernel:
    found = guess(problem.m, problem.n, problem.k, problem.machine.cu_count)
    assert found is not None, "the smallest tile takes whatever any does"
    return found


def _own_pick(problem: Problem) -> F4GemmKernel | None:
    """Return a kernel to take in place of AITER's tuned row where that row breaks its own kernel's contract."""
    row = installed.tuned_row(problem.m, problem.n, problem.k)
    if row is None:
        return None
    symbol, log2_splits = row
    reason = _row_refusal(problem, symbol, log2_splits)
    if reason is None:
        return None
    found = _guess(problem)
    say_once(f"AITER's tuned row for {problem} names {symbol} ({reason}); using {found.name}")
    return found


def _row_refusal(problem: Problem, symbol: str, log2_splits: int) -> Refusal | None:
    if log2_splits:
        splits = 1 << log2_splits
        return Refusal("splits of K", splits, "none", words=f"{splits} splits of K, added as bf16")
    if symbol.startswith(CK_PREFIX):
        unnamed = None if installed.pick_takes_output() else installed.refusal("gemm_a4w4_blockscale")
        words = "a kernel of CK, which this release cannot be told to take"
        return replace(unnamed, words=words) if unnamed else None
    kernel = of_symbol(symbol)
    if kernel is None or not kernel.preshuffled:
        words = "not one of the kernels for preshuffled weights that are known"
        return Refusal("kernel", symbol, "one of mxgemm.aiter.f4gemm.KERNELS", words=words)
    return kernel.broken(problem.m, problem.n, problem.k)


def _hip_refusal(problem: Problem) -> Refusal | None:
    from mxgemm.hip import shuffle

    return shuffle.refusal(problem.machine)


def _hip_or_tell(problem: Problem) -> bool:
    reason = _hip_refusal(problem)
    if reason:
        say_once(f"ck_gemm shuffles scales in the Triton kernel, not in HIP: {reason}")
    return reason is None
