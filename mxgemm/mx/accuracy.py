"""Judge a result by the two gates of docs/numbers.md, against the float64 oracle.

Both must hold: the norm gate ``||out - ref|| / ||ref|| <= NORM_GATE``, and elementwise
``|out - ref| <= u * |ref| + c * 2**-24 * (|A| @ |B|.T)``, where ``u`` is the output dtype's unit roundoff and ``c`` is
:func:`element_gate`.

The norm gate is a statistical one: rounding to bf16 costs up to 2**-8 of a value and 1.7e-3 of a norm on average. Where
a few elements carry the norm, rounding the exact result can cost more than the gate, and is then the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mxgemm.mx import oracle
from mxgemm.mx.tensor import MXTensor

NORM_GATE: Final = 2e-3
OUT_BITS: Final = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 23}
LEAST_ERROR: Final = {torch.bfloat16: 0.0, torch.float16: 2.0**-25, torch.float32: 0.0}
"""Half of fp16's least subnormal; bf16 and fp32 reach below every product here."""

MAX_ROWS: Final = 256
MAX_COLUMNS: Final = 2048


def element_gate(k: int, accumulate_bits: int = 24) -> float:
    """Return how many fp32 roundoffs of ``|A| @ |B|.T`` a sum over ``k`` elements may be off by, whatever its order.

    Matrix units add blocks of 16 or more elements and truncate rather than round, so the error grows with K. The worst
    of 27,552 cases on an H200 (bench/results/gpu_matrix_h200.json): 23 at K = 512, 63 at 2880, 93 at 7168. Hopper's fp8
    units keep 13 bits of fraction of the largest of 32 products and the sum so far, which goes to fp32 every 128: there
    roundoffs are 2**-13, and 32 of them do, for each product may lose one (docs/numbers.md).
    """
    return 32.0 + k / 64.0 if accumulate_bits == 24 else 32.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Distance from the oracle.

    Attributes:
        norm: ``||out - ref|| / ||ref||``.
        element: the least constant with which every element passes the elementwise gate.
        norm_limit: the norm gate on this data.
        element_limit: the elementwise gate at this K.
        checked: elements compared; less than M * N where rows and columns were sampled.
    """

    norm: float
    element: float
    norm_limit: float
    element_limit: float
    checked: int

    @property
    def passed(self) -> bool:
        """Say whether both gates hold."""
        return self.norm <= self.norm_limit and self.element <= self.element_limit


def judge(
    out: Tensor,
    a: Tensor,
    b: MXTensor,
    *,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    bias: Tensor | None = None,
    accumulate_bits: int = 24,
    seed: int = 0,
) -> Accuracy:
    """Compare ``gemm(a, b, ...)`` with float64, on at most 256 rows and 2048 columns drawn at random.

    Args:
        out: the result, ``[M, N]``.
        a: activations ``[M, K]``.
        b: row-major weight (N, K).
        a_format: as in ``gemm``.
        scale_rounding: as in ``gemm``.
        bias: as in ``gemm``.
        accumulate_bits: of the route's sums, see ``Route.accumulate_bits``.
        seed: of the sample.
    """
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(_sample(generator, out.shape[0], MAX_ROWS))
    columns = torch.from_numpy(_sample(generator, out.shape[1], MAX_COLUMNS))
    left = a.cpu()[rows]
    if a_format == "bf16":
        left64 = left.to(torch.bfloat16).to(torch.float64).numpy()
    else:
        left64 = oracle.decode(*oracle.encode(left.float().numpy(), a_format, scale_rounding), a_format)
    weight = b.row_major()
    data, scales = weight.data[columns.to(b.device)].cpu().numpy(), weight.scales[columns.to(b.device)].cpu().numpy()
    right64 = oracle.decode(data, scales, b.format.name)
    ref = oracle.matmul(left64, right64, None if bias is None else bias.double().cpu().numpy()[columns.numpy()])
    return compare(out.cpu()[rows][:, columns], ref, left64, right64, accumulate_bits)


def compare(
    out: Tensor, ref: oracle.Float64, a64: oracle.Float64, b64: oracle.Float64, accumulate_bits: int = 24
) -> Accuracy:
    """Compare a result with the exact one, given the exact operands it was made from."""
    got = out.detach().cpu().double().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = torch.from_numpy(ref).to(out.dtype).double().numpy()
    limit = max(NORM_GATE, 1.01 * oracle.gate_norm(rounded, ref))
    element = oracle.gate_elementwise(got, ref, a64, b64, OUT_BITS[out.dtype], accumulate_bits, LEAST_ERROR[out.dtype])
    return Accuracy(oracle.gate_norm(got, ref), element, limit, element_gate(a64.shape[1], accumulate_bits), got.size)


def _sample(generator: np.random.Generator, size: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(size) if size <= most else np.sort(generator.choice(size, most, replace=False))
