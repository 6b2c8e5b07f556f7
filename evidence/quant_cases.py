"""Operands of the dispatcher's operations, with what they are worth exactly, and how a result is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mxgemm.mx import oracle
from mxgemm.mx.accuracy import Accuracy, compare

FP8: Final = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
Array = NDArray[Any]


@dataclass(frozen=True)
class Operands:
    """What an operation multiplies.

    Attributes:
        a: bytes of A ``[M, K]``, or ``[M, K/2]`` where two are packed.
        b: bytes of B ``[N, K]`` or ``[N, K/2]``.
        a_scales: E8M0 bytes ``[M, K/32]``, or fp32 ``[M]`` or ``[1]``.
        b_scales: E8M0 bytes ``[N, K/32]``, or fp32 ``[N]`` or ``[1]``.
        a64: what A is worth, scales included, float64 ``[M, K]``.
        b64: what B is worth, float64 ``[N, K]``.
    """

    a: Array
    b: Array
    a_scales: Array
    b_scales: Array
    a64: Array
    b64: Array

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """A, B, the scales of A, those of B."""
        return self.a, self.b, self.a_scales, self.b_scales

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.a64.shape[0], self.b64.shape[0], self.a64.shape[1]

    def exact(self) -> Array:
        """Return the exact product, float64 ``[M, N]``."""
        return oracle.matmul(self.a64, self.b64)

    def fp32_reference(self) -> Array:
        """Return the product summed in fp32 and rounded to fp16, as the bridge's numpy reference defines it."""
        with np.errstate(over="ignore"):
            product: Array = (self.a64.astype(np.float32) @ self.b64.astype(np.float32).T).astype(np.float16)
        return product

    def judge(self, out: Array, accumulate_bits: int = 24) -> Accuracy:
        """Judge a result, fp16 ``[M, N]``."""
        return compare(torch.from_numpy(out), self.exact(), self.a64, self.b64, accumulate_bits)


def operands(kind: str, scale: str, m: int, n: int, k: int, seed: int = 0) -> Operands:
    """Draw operands whose scales all differ.

    Args:
        kind: element type: "e2m1", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz".
        scale: "block" for an E8M0 byte per 32 elements, "row" for an fp32 per row, "tensor" for one fp32.
        m: rows of A.
        n: rows of B.
        k: elements of a row.
        seed: of the draw.
    """
    generator = np.random.default_rng(seed)
    a, b = _elements(generator, kind, m, k), _elements(generator, kind, n, k)
    scales = [_scales(generator, scale, rows, k) for rows in (m, n)]
    worth = [scale_values * values for (_, values), (_, scale_values) in zip((a, b), scales, strict=True)]
    return Operands(a[0], b[0], scales[0][0], scales[1][0], *worth)


def decode_elements(data: Array, kind: str) -> Array:
    """Return what element bytes are worth without their scales, float64."""
    if kind == "e2m1":
        values = oracle.code_values("e2m1")
        pairs = np.stack([values[data & 15], values[data >> 4]], axis=-1)
        return pairs.reshape(data.shape[0], -1)
    decoded: Array = torch.from_numpy(data).view(FP8[kind]).double().numpy()
    return decoded


def _elements(generator: np.random.Generator, kind: str, rows: int, k: int) -> tuple[Array, Array]:
    if kind == "e2m1":
        data = generator.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    else:
        drawn = torch.from_numpy(generator.standard_normal((rows, k), dtype=np.float32))
        data = drawn.to(FP8[kind]).view(torch.uint8).numpy()
    return data, decode_elements(data, kind)


def _scales(generator: np.random.Generator, scale: str, rows: int, k: int) -> tuple[Array, Array]:
    if scale == "block":
        exponents = generator.integers(120, 129, (rows, k // 32), dtype=np.uint8)
        return exponents, np.exp2(exponents.astype(np.float64) - 127).repeat(32, axis=1)
    factors = np.exp2(generator.uniform(-4, 2, 1 if scale == "tensor" else rows)).astype(np.float32)
    return factors, factors.astype(np.float64)[:, None]
