"""Operands for the tests of ``quant_gemm``: drawn bytes, scales that all differ, and the exact product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mxgemm
from mxgemm.mx import oracle as mx_oracle
from mxgemm.mx.accuracy import Accuracy, compare
from mxgemm.scaled import ABBlock, ABlock, BBlock, QuantTensor, RowCol, TensorWise, oracle
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.schemes import Scheme
from mxgemm.scaled.validation import scale_name

PAIRS: tuple[tuple[Scheme, str, str], ...] = (
    (TensorWise(), "e4m3", "e4m3"),
    (TensorWise(), "e5m2", "e4m3"),
    (RowCol(), "e4m3", "e4m3"),
    (RowCol(), "e5m2", "e5m2"),
    (RowCol(), "e4m3fnuz", "e5m2fnuz"),
    (ABlock(128), "e4m3", "e4m3"),
    (ABlock(32), "int4", "e5m2"),
    (ABBlock(), "e4m3", "e4m3"),
    (ABBlock(128, 1, 128), "e5m2", "e4m3"),
    (ABBlock(32, 128, 64), "e2m1", "e2m1"),
    (BBlock(1, 128), "e4m3", "e4m3"),
    (BBlock(16, 96), "e4m3", "int4"),
    (BBlock(1, 32, "e8m0"), "bf16", "bf16"),
    (BBlock(1, 128, "e8m0"), "bf16", "e5m2"),
    (BBlock(4, 64, "e8m0"), "bf16", "e2m1"),
)
"""A scheme with formats that it multiplies: each format and each kind of group once at least."""

PACKED: tuple[tuple[Scheme, str, str], ...] = (
    (ABlock(128), "int4", "e4m3"),
    (ABlock(32), "int4", "e5m2"),
    (ABBlock(), "e2m1", "e2m1"),
    (ABBlock(32, 128, 64), "e2m1", "e2m1"),
    (BBlock(1, 128), "e4m3", "int4"),
    (BBlock(128, 128), "e5m2", "int4"),
    (BBlock(16, 96), "e4m3", "int4"),
)
"""Those with a packed operand: of groups that the vendor's product takes on Hopper, and others."""


def ids(pair: tuple[Scheme, str, str]) -> str:
    scheme, a, b = pair
    return "-".join([scheme.name, *map(str, scheme.groups), a, b] + (["e8m0"] if scheme.b_powers else []))


def draw(rows: tuple[int, ...], k: int, fmt: str, generator: torch.Generator) -> Tensor:
    """Finite elements from all over the format's range of magnitudes, fewer at its ends."""
    if fmt == "bf16":
        return torch.randn(*rows, k, generator=generator).to(torch.bfloat16)
    if FORMATS[fmt].pack == 2:
        return torch.randint(0, 256, (*rows, k // 2), generator=generator, dtype=torch.uint8)
    dtype = FORMATS[fmt].dtype
    assert dtype is not None
    return (torch.randn(*rows, k, generator=generator) * 4).to(dtype)


def draw_scales(shape: tuple[int, ...], name: str, generator: torch.Generator) -> Tensor:
    """Scales of which no two need be equal."""
    if name == "e8m0":
        return torch.randint(120, 135, shape, generator=generator, dtype=torch.uint8)
    values = torch.exp2(torch.rand(shape, generator=generator) * 8 - 4)
    return values if name == "fp32" else values.to({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name])


@dataclass
class Case:
    """One multiplication with its exact operands and result."""

    scheme: Scheme
    a: QuantTensor | Tensor
    b: QuantTensor | Tensor
    a64: np.ndarray
    b64: np.ndarray
    bias: Tensor | None = None

    @property
    def ref(self) -> np.ndarray:
        bias = None if self.bias is None else self.bias.double().cpu().numpy()
        return mx_oracle.matmul(self.a64, self.b64, bias)

    def judge(self, out: Tensor, bits: int = 24) -> Accuracy:
        return compare(out.reshape(self.ref.shape), self.ref, self.a64, self.b64, bits)

    def check(self, out: Tensor, bits: int = 24) -> None:
        """Assert both gates of the numbers' contract."""
        accuracy = self.judge(out, bits)
        assert accuracy.passed, accuracy

    def to(self, device: str) -> Case:
        bias = None if self.bias is None else self.bias.to(device)
        return replace(self, a=self.a.to(device), b=self.b.to(device), bias=bias)


def raw(tensor: Tensor) -> np.ndarray:
    """Stored elements or scales as the oracle takes them."""
    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    return tensor.contiguous().view(torch.uint8).numpy() if tensor.element_size() == 1 else tensor.numpy()


def worth(operand: QuantTensor | Tensor, fmt: str, scheme: Scheme, side: str) -> np.ndarray:
    """What a two-dimensional operand is worth, in float64."""
    kind = scheme.a_kind if side == "a" else scheme.b_kind
    group = (1, scheme.a_group) if side == "a" else scheme.b_group
    if isinstance(operand, Tensor):
        return oracle.operand(raw(operand), fmt, None, "fp32", kind, group)
    scales = operand.scales
    return oracle.operand(raw(operand.data), fmt, raw(scales), scale_name(scales), kind, group)


def make(
    pair: tuple[Scheme, str, str], m: int, n: int, k: int, *, seed: int = 0, scale: str = "", bias: bool = False
) -> Case:
    """Draw a case; ``scale`` names how the scales of an int4 operand are stored."""
    scheme, a_format, b_format = pair
    generator = torch.Generator().manual_seed(seed * 7919 + m * 31 + n * 7 + k)
    operands: list[QuantTensor | Tensor] = []
    for fmt, rows, shape, powers in (
        (a_format, m, scheme.a_scale_shape((m,), k), False),
        (b_format, n, scheme.b_scale_shape(n, k), scheme.b_powers),
    ):
        data = draw((rows,), k, fmt, generator)
        if shape is None:
            operands.append(data)
            continue
        name = "e8m0" if powers else scale if scale and fmt == "int4" else "fp32"
        operands.append(QuantTensor(data, draw_scales(shape, name, generator), fmt))
    a, b = operands
    added = torch.randn(n, generator=generator) if bias else None
    return Case(scheme, a, b, worth(a, a_format, scheme, "a"), worth(b, b_format, scheme, "b"), added)


def column_major(operand: QuantTensor | Tensor) -> QuantTensor | Tensor:
    """The same operand with its rows along memory's fast dimension, scales too."""

    def turned(tensor: Tensor) -> Tensor:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor

    if isinstance(operand, Tensor):
        return turned(operand)
    return QuantTensor(turned(operand.data), turned(operand.scales), operand.format)


def grouped(
    pair: tuple[Scheme, str, str], rows: tuple[int, ...], n: int, k: int, *, tail: int = 0
) -> tuple[QuantTensor | Tensor, QuantTensor | Tensor, Tensor, list[Case]]:
    """Rows of A in groups, ``tail`` more behind them, the matrices of B, the offsets, and a case for each group."""
    scheme, _, b_format = pair
    whole = make(pair, sum(rows) + tail, n, k, seed=1)
    parts = [make(pair, 1, n, k, seed=2 + g) for g in range(len(rows))]
    offsets = torch.tensor(rows).cumsum(0).to(torch.int32)
    cases = []
    for g, part in enumerate(parts):
        start = sum(rows[:g])
        cases.append(replace(part, a64=whole.a64[start : start + rows[g]]))
    if isinstance(parts[0].b, Tensor):
        return whole.a, torch.stack([part.b for part in parts]), offsets, cases
    scales = torch.stack([part.b.scales for part in parts])
    data = torch.stack([part.b.data for part in parts])
    return (
        whole.a,
        QuantTensor(data, scales.flatten() if scheme.b_kind == "tensor" else scales, b_format),
        offsets,
        cases,
    )


def problems(pair: tuple[Scheme, str, str]) -> list[Case]:
    """Problems of their own sizes: empty, tiny and larger ones."""
    sizes = ((1, 1, 32), (0, 40, 64), (33, 72, 288), (5, 16, 96), (70, 130, 416))
    return [make(pair, *size, seed=i) for i, size in enumerate(sizes)]


def unpacked_product(case: Any) -> Callable[[], Tensor]:
    """fp4 by fp4, both made e4m3 by a launch each, then multiplied."""
    a, b = (
        mxgemm.quantize_for(x, mxgemm.ABBlock(), side, format="e2m1")
        for side, x in (("a", case.a), ("b", case.weight.dequantize()))
    )
    return lambda: mxgemm.quant_gemm(a, b, scheme=mxgemm.ABBlock(), route="unpack_mm")
