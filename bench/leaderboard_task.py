"""The leaderboard task amd-mxfp4-mm: its shapes, inputs, reference and tolerance, in this library's own code.

A submission is called with ``(A, B, B_q, B_shuffle, B_scale_sh)`` and returns ``C[m, n]`` in bf16:

* ``A [m, k]`` and ``B [n, k]``: bf16, N(0, 1);
* ``B_q [n, k/2]``: B quantised to MXFP4, row-major; ``B_shuffle``: the same bytes, preshuffled;
* ``B_scale_sh``: its E8M0 scales, shuffled and padded (``mxgemm.mx.layouts`` has both orders).

Shapes, seeds and tolerance are those of gpu-mode/reference-kernels, problems/amd_202602/mxfp4-mm, commit f83cb92.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

import mxgemm
from mxgemm.mx import layouts
from mxgemm.mx.tensor import MXTensor

RTOL: Final = 1e-2
ATOL: Final = 1e-2

Data = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One problem: ``C[m, n] = A[m, k] @ B[n, k].T`` on data drawn from ``seed``."""

    m: int
    n: int
    k: int
    seed: int

    def __post_init__(self) -> None:
        for name, value, multiple in (("m", self.m, 1), ("n", self.n, 16), ("k", self.k, 64)):
            if value < 1 or value % multiple:
                raise ValueError(f"{name}: got {value}, want a positive multiple of {multiple}")

    def __str__(self) -> str:
        return f"m {self.m}, n {self.n}, k {self.k}, seed {self.seed}"


TESTS: Final = (
    Case(8, 2112, 7168, 124),
    Case(16, 3072, 1536, 6635),
    Case(64, 3072, 1536, 45),
    Case(256, 2880, 512, 78),
)
BENCHMARKS: Final = (
    Case(4, 2880, 512, 4565),
    Case(16, 2112, 7168, 15),
    Case(32, 4096, 512, 457),
    Case(32, 2880, 512, 54),
    Case(64, 7168, 2048, 687),
    Case(256, 3072, 1536, 7856),
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a submission gets, and the result that it must return."""

    data: Data
    expected: Tensor


def combine_seeds(public: int, secret: int) -> int:
    """Pair a published seed with a secret one (Cantor's pairing): large wherever the secret is large."""
    total = public + secret
    return total * (total + 1) // 2 + public


def make_inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the operands of a case, in fresh memory, and compute the result from them.

    Args:
        case: sizes and seed; the same seed gives the same bytes on one kind of device.
        device: where everything lies.
    """
    generator = torch.Generator(device).manual_seed(case.seed)
    a = torch.randn((case.m, case.k), dtype=torch.bfloat16, device=device, generator=generator)
    b = torch.randn((case.n, case.k), dtype=torch.bfloat16, device=device, generator=generator)
    weight = mxgemm.quantize(b)
    expected = reference(a, weight)
    shuffled = layouts.preshuffle_weight(weight.data)
    scales = layouts.shuffle_scales(weight.scales)
    return Inputs((a, b, _as_fp4(weight.data), _as_fp4(shuffled), _as_e8m0(scales)), expected)


def reference(a: Tensor, weight: MXTensor) -> Tensor:
    """Return what the task asks for: A quantised by the even rule, times the weight, rounded to bf16 once."""
    return mxgemm.gemm(a, weight, route="reference")


def disagreement(got: object, expected: Tensor) -> str | None:
    """Say how a result differs from the expected one beyond the tolerance on any element, or None.

    NaNs and infinities of either sign must be at the same places.
    """
    if not isinstance(got, Tensor):
        return f"result: got {type(got).__name__}, want a tensor"
    if got.shape != expected.shape:
        return f"result: got shape {tuple(got.shape)}, want {tuple(expected.shape)}"
    if got.device != expected.device:
        return f"result: got device {got.device}, want {expected.device}"
    if got.dtype != torch.bfloat16:
        return f"result: got {got.dtype}, want torch.bfloat16"
    x, want = got.detach().float(), expected.float()
    wrong = (x - want).abs() > ATOL + RTOL * want.abs()
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong |= special(x) != special(want)
    count = int(wrong.count_nonzero())
    if not count:
        return None
    row, column = (int(index) for index in wrong.nonzero()[0])
    return (
        f"{count} of {wrong.numel()} elements differ by more than {ATOL} + {RTOL} |want|; the first at "
        f"({row}, {column}): got {float(x[row, column])}, want {float(want[row, column])}"
    )


def _as_fp4(packed: Tensor) -> Tensor:
    """View bytes as torch's packed fp4, where torch has it (the task's dtype)."""
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    return packed if dtype is None else packed.view(dtype)


def _as_e8m0(scales: Tensor) -> Tensor:
    dtype = getattr(torch, "float8_e8m0fnu", None)
    return scales if dtype is None else scales.view(dtype)
