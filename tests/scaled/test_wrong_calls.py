"""What ``quant_gemm`` refuses before anything is launched: the argument's name, what it got, what it wants."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import ABBlock, ABlock, BBlock, QuantTensor, RouteUnavailable, RowCol, TensorWise
from mxgemm.scaled.schemes import SCHEMES, described, scheme_of
from tests.scaled.cases import PAIRS, ids, make

CASE = make((ABBlock(), "e4m3", "e4m3"), 4, 16, 256)
A, B = CASE.a, CASE.b
FP8 = torch.zeros(4, 256).to(torch.float8_e4m3fn)


AB = ABBlock()


def fails(error: type[Exception], match: str, *operands: Any, scheme: Any = AB, **options: Any) -> None:
    with pytest.raises(error, match=match):
        mxgemm.quant_gemm(*operands, scheme=scheme, **options)


def test_operands() -> None:
    fails(TypeError, "a: got ndarray, want a QuantTensor", FP8.float().numpy(), B)
    fails(TypeError, "a: got a torch.float32 tensor", FP8.float(), B)
    fails(TypeError, r"a: got a torch.uint8 tensor .* names its format", FP8.view(torch.uint8), B)
    fails(TypeError, r"a\.scales: got none, want scales of shape \(4, 2\)", FP8, B)
    fails(ValueError, r"b\.scales: got a torch.float32 tensor.*want none", A, B, scheme=ABlock())
    fails(ValueError, "b: got K = 128, want 256", A, QuantTensor(B.data[:, :128], B.scales[:, :1]))
    fails(ValueError, r"b: got shape \(256,\)", A, QuantTensor(B.data[0], B.scales[0]))
    fails(ValueError, "b: got N = 0", A, QuantTensor(B.data[:0], B.scales[:0]))
    fails(ValueError, r"a\.scales: got shape \(4, 1\), want \(4, 2\)", QuantTensor(A.data, A.scales[:, :1]), B)
    fails(ValueError, r"b\.scales: got shape \(1, 2\), want \(16, 2\)", A, B, scheme=ABBlock(128, 1, 128))
    fails(TypeError, r"a\.scales: got a torch.uint8 tensor", QuantTensor(A.data, A.scales.to(torch.uint8)), B)
    meta = QuantTensor(B.data.to("meta"), B.scales.to("meta"))
    fails(ValueError, "device meta, want cpu", A, meta)


def test_formats() -> None:
    e5m2fnuz = torch.zeros(16, 256).to(torch.float8_e5m2fnuz)
    fails(ValueError, "b: got e5m2fnuz beside e4m3 of a, want both OCP or both FNUZ", A, e5m2fnuz, scheme=ABlock())
    fails(ValueError, "a, b: got bf16 by e4m3, want what RowCol", torch.zeros(4, 256).bfloat16(), B, scheme=RowCol())
    fails(ValueError, "want what BBlock.*fp8 by fp8 or int4", torch.zeros(4, 256).bfloat16(), B, scheme=BBlock())
    fails(ValueError, "bf16 by bf16", A, B, scheme=BBlock(1, 32, "e8m0"))
    with pytest.raises(ValueError, match="format: got 'fp8', want one of e4m3"):
        QuantTensor(A.data, A.scales, "fp8")
    with pytest.raises(
        TypeError, match="data: got a torch.float8_e4m3fn tensor.*want a tensor of uint8 or float8_e5m2"
    ):
        QuantTensor(A.data, A.scales, "e5m2")
    with pytest.raises(TypeError, match="scales: got a torch.float64 tensor"):
        QuantTensor(A.data, A.scales.double())
    with pytest.raises(TypeError, match="data: got 1, want a tensor"):
        QuantTensor(1, A.scales)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scales: got device meta, want cpu"):
        QuantTensor(A.data, A.scales.to("meta"))


def test_schemes() -> None:
    fails(TypeError, "scheme: got 'RowCol', want a TensorWise", A, B, scheme="RowCol")
    fails(TypeError, "scheme: got type", A, B, scheme=RowCol)
    for make_wrong, message in (
        (lambda: ABlock(100), "k: got 100, want a multiple of 32"),
        (lambda: ABlock(0), "k: got 0"),
        (lambda: ABBlock(128, 0, 128), "bn: got 0, want at least 1"),
        (lambda: BBlock(1, 48), "k: got 48"),
        (lambda: BBlock(1, 32, "fp16"), "scale: got 'fp16', want one of fp32, e8m0"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=message):
            make_wrong()
    with pytest.raises(TypeError, match=r"k: got 1\.5, want an int"):
        ABlock(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="k: got True"):
        ABlock(True)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_a_scheme_as_an_operators_arguments(pair: tuple) -> None:
    scheme = pair[0]
    assert scheme_of(*described(scheme)) == scheme
    assert scheme.name in SCHEMES


def test_an_operators_scheme_that_is_none() -> None:
    with pytest.raises(ValueError, match="scheme: got 'x', want one of tensor_quant"):
        scheme_of("x", [])
    with pytest.raises(ValueError, match="groups: got 1 sizes for abquant, want 3"):
        scheme_of("abquant", [128])


def test_the_rest() -> None:
    fails(ValueError, "route: got 'fast', want one of", A, B, route="fast")
    fails(TypeError, "out_dtype: got torch.float64", A, B, out_dtype=torch.float64)
    fails(ValueError, r"bias: got shape \(4,\), want \(16,\)", A, B, bias=torch.zeros(4))
    fails(TypeError, "out: got a torch.float32 tensor", A, B, out=torch.zeros(4, 16))
    fails(ValueError, r"out: got shape \(16, 4\)", A, B, out=torch.zeros(16, 4).bfloat16())
    fails(ValueError, "out: got strides", A, B, out=torch.zeros(1, 16).bfloat16().expand(4, 16))
    memory = torch.zeros(4 * 256, dtype=torch.uint8)
    a = QuantTensor(memory.view(4, 256).view(torch.float8_e4m3fn), A.scales)
    out = memory[:128].view(torch.bfloat16).view(4, 16)
    fails(ValueError, "out: shares memory with a", a, B, out=out)
    scales = torch.ones(32)
    shared = QuantTensor(torch.zeros(16, 256).to(torch.float8_e4m3fn), scales[:16])
    left = QuantTensor(FP8[:2], torch.ones(2))
    overlapping = scales.view(2, 16)
    fails(ValueError, r"out: shares memory with b\.scales", left, shared, scheme=RowCol(), out=overlapping,
          out_dtype=torch.float32)  # fmt: skip


def test_derivatives_are_refused() -> None:
    scales = torch.ones(4, 2, requires_grad=True)
    fails(RuntimeError, r"a\.scales: requires grad", QuantTensor(A.data, scales), B)
    with torch.no_grad():
        mxgemm.quant_gemm(QuantTensor(A.data, scales), B, scheme=ABBlock())
    fails(RuntimeError, "bias: requires grad", A, B, bias=torch.zeros(16, requires_grad=True))


def test_routes_that_cannot_run() -> None:
    for route, reason in (
        ("scaled_mm", "arch is cpu"),
        ("bridge", "arch is cpu; needs one of gfx950, gfx942"),
        ("mx", "E8M0 scales of B"),
        ("dequant_mm", "arch is cpu"),
    ):
        fails(RouteUnavailable, re.escape(reason), A, B, route=route)


def test_groups() -> None:
    stack = QuantTensor(torch.zeros(2, 16, 256).to(torch.float8_e4m3fn), torch.ones(2, 1, 2))
    offsets = torch.tensor([1, 4], dtype=torch.int32)

    def wrong(error: type[Exception], match: str, *operands: Any, **options: Any) -> None:
        with pytest.raises(error, match=match):
            mxgemm.quant_gemm_grouped(*operands, **{"scheme": ABBlock(), **options})

    mxgemm.quant_gemm_grouped(A, stack, offsets, scheme=ABBlock())
    wrong(TypeError, "offsets: got None", A, stack)
    wrong(TypeError, "offsets: got a torch.int64 tensor", A, stack, offsets.long())
    wrong(ValueError, r"offsets: got shape \(1,\), want \(2,\)", A, stack, offsets[:1])
    wrong(ValueError, r"b: got shape \(16, 256\), want \[G, N, K\]", A, B, offsets)
    wrong(ValueError, r"b\.scales: got shape \(2, 1, 1\), want \(2, 1, 2\)", A,
          QuantTensor(stack.data, stack.scales[:, :, :1]), offsets)  # fmt: skip
    wrong(TypeError, "b: got QuantTensor, want a sequence, as a", [A], B)
    wrong(ValueError, "b: got 2 operands, want 1, as a", [A], [B, B])
    wrong(ValueError, "offsets: got a tensor beside sequences", [A], [B], offsets)
    wrong(ValueError, "out: got 2 tensors, want a sequence of 1", [A], [B], out=[A.data, A.data])
    wrong(TypeError, "out: got list, want a tensor", A, stack, offsets, out=[])
    wrong(ValueError, "problem 1: b: got K", [A, A], [B, QuantTensor(B.data[:, :128], B.scales[:, :1])])
    wrong(TypeError, "scheme: got None", A, stack, offsets, scheme=None)
    wrong(RouteUnavailable, "arch is cpu", A, stack, offsets, route="scaled_mm")
    assert mxgemm.quant_gemm_grouped([], [], scheme=ABBlock()) == []


def test_offsets_out_of_order_stay_in_memory() -> None:
    stack = QuantTensor(torch.ones(3, 16, 256).to(torch.float8_e4m3fn), torch.ones(3), "e4m3")
    a = QuantTensor(A.data, torch.ones(1))
    for ends in ([9, 1, 3], [-5, 2, 100], [4, 4, 4]):
        offsets = torch.tensor(ends, dtype=torch.int32)
        out = mxgemm.quant_gemm_grouped(a, stack, offsets, scheme=TensorWise())
        assert out.shape == (4, 16)
