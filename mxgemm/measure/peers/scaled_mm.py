"""The vendor's fp8 GEMM with a scale a row: a bound for whatever multiplies in fp8, but other numbers than MXFP4."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.errors import Refusal
from mxgemm.measure.contender import BEFOREHAND
from mxgemm.measure.oracle import Exact, Oracle
from mxgemm.measure.peers.base import Peer
from mxgemm.mx.tensor import MXTensor

ARCHS: Final = ("sm_90", "sm_100", "gfx950")
FAST_ACCUMULATION_K: Final = 2880
"""Past it the fast way leaves the norm gate on full fp8 operands: 2.04e-3 at K = 4096, 2.39e-3 at 7168, on an H200."""
_E4M3_MAX: Final = 448.0


class ScaledMM(Peer):
    """``torch._scaled_mm``, both operands e4m3 with one fp32 scale a row."""

    name = "scaled_mm_fp8"
    statement = (
        f"fp8 e4m3 with one fp32 scale a row on both sides, both quantised {BEFOREHAND}; fast accumulation"
        f" up to K = {FAST_ACCUMULATION_K}; judged by the product of its own fp8 operands: a bound for fp8, not MXFP4's"
        " numbers"
    )
    accumulate_bits = 13

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """Row-wise fp8 needs a GPU that has it."""
        arch = machine_of(device).arch
        return None if arch in ARCHS else Refusal("arch", arch, f"one of {', '.join(ARCHS)}", "machine")

    def refuses(self, m: int, n: int, k: int) -> Refusal | None:
        """The vendor's kernel takes N and K in sixteens."""
        return None if n % 16 == 0 and k % 16 == 0 else Refusal("(N, K)", (n, k), "multiples of 16")

    def traffic_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes of fp8 operands, a fp32 scale for each of their rows, and the bf16 result."""
        return (m + n) * (k + 4) + 2 * m * n

    def activations(self, a: Tensor) -> Any:
        """Quantise A row by row."""
        return rowwise(a)

    def load(self, weight: MXTensor) -> Any:
        """Dequantise, and quantise row by row."""
        return rowwise(weight.dequantize(torch.bfloat16))

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply."""
        (left, left_scale), (right, right_scale) = a, loaded
        return torch._scaled_mm(
            left,
            right.t(),
            scale_a=left_scale,
            scale_b=right_scale.view(1, -1),
            out_dtype=torch.bfloat16,
            use_fast_accum=left.shape[1] <= FAST_ACCUMULATION_K,
        )

    def exact(self, oracle: Oracle, a: Any, loaded: Any) -> Exact:
        """Return the fp8 operands that it multiplies."""
        rows, columns = oracle.rows, oracle.columns

        def values(operand: Any, picked: Tensor) -> Any:
            picked = picked.to(operand[0].device)
            data = operand[0].view(torch.uint8)[picked].view(torch.float8_e4m3fn)
            return (data.double() * operand[1][picked].double()).cpu().numpy()

        return Exact.of(values(a, rows), values(loaded, columns))


def rowwise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[rows, K]`` to e4m3 with one fp32 scale a row ``[rows, 1]``."""
    scale = x.abs().amax(1, keepdim=True).float().clamp(min=2.0**-100) / _E4M3_MAX
    return (x.float() / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn), scale
