"""Packed operands as e4m3 in scratch: every code exactly, and the product that follows, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from evidence.scaled_compile import problem_of
from mxgemm import ABBlock, BBlock, RowCol
from mxgemm.scaled import oracle
from mxgemm.scaled.choice import ROUTES
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.plan import stored
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.unpack_mm import product_of, unpack_call, unpacked
from mxgemm.triton.launch import Launcher
from tests.cases import skip_without_kernels
from tests.scaled.cases import PACKED, ids, make
from tests.scaled.test_scaled_mm import double


@pytest.mark.parametrize("rows, k", [(1, 16), (5, 272), (33, 2112), (16, 2048)])
@pytest.mark.parametrize("fmt", ["int4", "e2m1"])
def test_every_code_is_its_value(fmt: str, rows: int, k: int) -> None:
    """Into poisoned memory between guards, of rows that lie further apart than they are long."""
    skip_without_kernels("cpu")
    bytes_ = torch.arange(rows * (k // 2 + 4), dtype=torch.int64).mul(37).to(torch.uint8).view(rows, k // 2 + 4)
    packed = bytes_[:, : k // 2]
    memory = torch.full((rows * k + 128,), 0x7F, dtype=torch.uint8)
    out = memory[64:-64]
    Launcher(unpack_call(rows, k, fmt, packed.stride(0)))(packed.view(torch.int32), out.view(torch.int32))
    assert memory[:64].eq(0x7F).all()
    assert memory[-64:].eq(0x7F).all()
    want = oracle.element_values(packed.contiguous().numpy(), fmt)
    got = oracle.element_values(out.view(rows, k).numpy(), "e4m3")
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want)) or fmt == "int4"


@pytest.mark.parametrize("pair", PACKED, ids=ids)
def test_products_in_the_interpreter(pair: tuple) -> None:
    skip_without_kernels("cpu")
    for shape, scale in (((3, 24, 160), ""), ((3, 24, 160), "e4m3")):
        case = make(pair, *shape, scale=scale, bias=True)
        case.check(mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, bias=case.bias, route="unpack_mm"))


def on_hopper(pair: tuple, m: int, n: int, k: int) -> QuantProblem:
    from mxgemm.scaled.schemes import described

    name, sizes = described(pair[0])
    return problem_of(
        {"scheme": name, "sizes": sizes, "a": pair[1], "b": pair[2], "arch": "sm_90", "m": m, "n": n, "k": k}
    )


@pytest.mark.parametrize("pair", [PACKED[0], PACKED[2], PACKED[4]], ids=ids)
def test_what_the_vendors_product_is_given(pair: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr(torch, "_scaled_mm", double)
    problem = on_hopper(pair, 132, 144, 1024)
    assert product_of(problem).name == "scaled_mm"
    case = make(pair, 132, 144, 1024)
    tensors: list[Any] = []
    for side, operand in (("a", case.a), ("b", case.b)):
        data, scales, _ = parts(side, operand)
        tensors += [stored(data), scales]
    made = ROUTES["unpack_mm"].bind(problem)(Operands(*tensors, None, torch.empty(0)))
    assert made is not None
    case.check(made)


def test_groups_that_the_vendor_lacks_are_our_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert product_of(on_hopper(PACKED[3], 256, 7168, 2048)).name == "triton"
    assert product_of(on_hopper(PACKED[2], 5, 7168, 2048)).name == "triton"
    assert product_of(on_hopper(PACKED[2], 64, 2112, 7168)).name == "triton"  # as of fp8: the vendor's splits no K
    assert product_of(on_hopper(PACKED[2], 64, 7168, 2048)).name == "scaled_mm"
    fp8 = unpacked(on_hopper(PACKED[4], 8, 144, 1024))
    assert (fp8.a_format, fp8.b_format, fp8.strides.b) == ("e4m3", "e4m3", (1024, 1))


def test_refusals_name_what_is_wanted() -> None:
    skip_without_kernels("cpu")
    route = ROUTES["unpack_mm"]
    for field, pair, k in (
        ("b.format", (RowCol(), "e4m3", "e4m3"), 512),
        ("scheme", (BBlock(1, 32, "e8m0"), "bf16", "e2m1"), 512),
        ("k", (ABBlock(), "e2m1", "e2m1"), 520),
    ):
        refusal = route.can_implement(on_hopper(pair, 8, 144, k))
        assert refusal is not None
        assert refusal.field == field
    assert route.missing(mxgemm.device.KNOWN_MACHINES["gfx942"]) is not None
