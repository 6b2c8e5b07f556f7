"""What an operation's operands are made of: a type each, and how far their scales reach and where they lie.

Everything that a kernel, its C interface, the guards and the numpy reference need to know of an operation's numbers is
here as data; the operations' files fill it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxgemm.dispatcher.codecs import Float32, decode_scales

SCALE_BYTES: Final = {"fp32": 4, "fp8": 1, "bf8": 1, "e8m0": 1}


class Extent(NamedTuple):
    """A number that a call must state: ``ceil(size / per)``.

    Attributes:
        size: "m", "n" or "k"; None: 1, whatever the sizes.
        per: what it is divided by.
    """

    size: str | None
    per: int = 1

    def of(self, m: int, n: int, k: int) -> int:
        """Return it for sizes."""
        return 1 if self.size is None else -(-{"m": m, "n": n, "k": k}[self.size] // self.per)


ONE: Final = Extent(None)


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of one operand.

    Attributes:
        dtype: ``fp32``, ``fp8``, ``bf8`` (an architecture's own bytes) or ``e8m0`` (2^(byte - 127)).
        rows: rows of A (or columns of B) that share one; 0: all of them.
        k: elements along K that share one; 0: all of them.
        k_slowest: memory is ``[groups of K, groups of rows]``; otherwise ``[groups of rows, groups of K]``.
    """

    dtype: str
    rows: int = 1
    k: int = 0
    k_slowest: bool = False

    def counts(self, rows: int, k: int) -> tuple[int, int]:
        """Return how many groups there are along the rows and along K."""
        return (-(-rows // self.rows) if self.rows else 1), (-(-k // self.k) if self.k else 1)

    def shape(self, rows: int, k: int) -> tuple[int, ...]:
        """Return the shape of the scales as they lie, the last index fastest; without groups of K a vector."""
        along_rows, along_k = self.counts(rows, k)
        if not self.k:
            return (along_rows,)
        return (along_k, along_rows) if self.k_slowest else (along_rows, along_k)

    def extent(self, size: str) -> Extent:
        """Return how many groups of rows there are, as an extent of "m" or "n"."""
        return Extent(size, self.rows) if self.rows else ONE

    def spread(self, scales: NDArray[Any], rows: int, k: int, arch: str) -> Float32:
        """Return every row's scales, fp32 ``[rows, groups of K]``."""
        values = decode_scales(scales, self.dtype, arch)
        along_rows, along_k = self.counts(rows, k)
        table = values.reshape(along_k, along_rows).T if self.k_slowest else values.reshape(along_rows, along_k)
        spread: Float32 = np.repeat(table, self.rows or rows, axis=0)[:rows]
        return spread


@dataclass(frozen=True, slots=True)
class Scheme:
    """The types of a kernel's operands, in CK's names.

    Attributes:
        a: ``fp8`` (e4m3), ``bf8`` (e5m2), ``fp4`` (e2m1), ``int4``, ``bf16``.
        b: the same of B.
        a_scale: the scales of A, or None.
        b_scale: the scales of B, or None.
        c: ``fp16`` or ``bf16``.
    """

    a: str
    b: str
    a_scale: Scale | None
    b_scale: Scale | None
    c: str = "fp16"

    @property
    def compute(self) -> str:
        """What the matrix instruction multiplies: ``fp4``, ``fp8``, ``bf8`` or ``bf16``; others are made that first.

        fp4 without E8M0 scales is made fp8, whose instruction (16x16x32) CK's kernels of that type name.
        """
        if "bf16" in (self.a, self.b):
            return "bf16"
        if self.a == self.b == "fp4":
            return "fp4" if self.multiplies_elements else "fp8"
        return self.b if self.a == "int4" else self.a

    @property
    def multiplies_elements(self) -> bool:
        """Whether scales multiply elements (E8M0); otherwise they multiply sums."""
        return "e8m0" in {scale.dtype for scale in (self.a_scale, self.b_scale) if scale}


def scaled_product(
    scheme: Scheme, a: Float32, b: Float32, a_scales: NDArray[Any] | None, b_scales: NDArray[Any] | None, arch: str
) -> Float32:
    """Return C in fp32 from decoded operands ``[m, k]`` and ``[n, k]`` and scales as they lie.

    ``sum over groups g of a_scale[m, g] * b_scale[n, g] * sum over k in g of A[m, k] * B[n, k]``; E8M0 scales multiply
    the elements instead, which is exact.
    """
    k = a.shape[1]
    left = _spread(scheme.a_scale, a_scales, a.shape[0], k, arch)
    right = _spread(scheme.b_scale, b_scales, b.shape[0], k, arch)
    if scheme.multiplies_elements:
        a, b = _times(a, left, scheme.a_scale), _times(b, right, scheme.b_scale)
        product: Float32 = a @ b.T
        return product
    groups = max(left.shape[1], right.shape[1])
    step = max(scale.k for scale in (scheme.a_scale, scheme.b_scale) if scale) or k
    total: Float32 = np.zeros((a.shape[0], b.shape[0]), np.float32)
    for group in range(groups):
        at = slice(group * step, (group + 1) * step)
        part = a[:, at] @ b[:, at].T
        total += part * left[:, group % left.shape[1], None] * right[None, :, group % right.shape[1]]
    return total


def _spread(scale: Scale | None, scales: NDArray[Any] | None, rows: int, k: int, arch: str) -> Float32:
    if scale is None or scales is None:
        return np.ones((rows, 1), np.float32)
    return scale.spread(scales, rows, k, arch)


def _times(values: Float32, scales: Float32, scale: Scale | None) -> Float32:
    if scale is None:
        return values
    return values * np.repeat(scales, scale.k or values.shape[1], axis=1)[:, : values.shape[1]]
