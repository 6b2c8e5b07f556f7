"""``mxgemm.grouped_gemm`` against float64, by every route that runs here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mxgemm
from tests.cases import spread
from tests.experts.cases import CPU_ROUTES, Grouped, ends, need, stack

BY_TRITON = pytest.param("triton", marks=pytest.mark.slow)
ROUTES = [*CPU_ROUTES, BY_TRITON]


def case(a_format: str, counts: tuple[int, ...] = (3, 0, 19, 1, 0), *, fmt: str = "e2m1", tail: int = 2) -> Grouped:
    rows = sum(counts) + tail
    dtype = {"e2m1": torch.bfloat16, "e4m3": torch.float16, "bf16": torch.float32}[a_format]
    w = stack(len(counts), 40, 160, fmt)
    return Grouped(spread(rows, 160, dtype, octaves=3), w, ends(*counts), a_format)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_rows_in_groups(route: str, a_format: str) -> None:
    need(route)
    one = case(a_format)
    one.check(one.run(route=route))
    one.bias = torch.randn(5, 40).half()
    one.check(one.run(route=route, out_dtype=torch.float32))


@pytest.mark.parametrize("route", ROUTES)
def test_gathered_rows_repeated_and_absent_ones(route: str) -> None:
    need(route)
    one = case("e2m1")
    one.gather = torch.randint(0, 25, (27,), dtype=torch.int32)
    one.gather[[0, 5, 26]] = torch.tensor([-1, 25, 2**30], dtype=torch.int32)
    out = one.run(route=route)
    assert out.shape == (27, 40)
    one.check(out)
    assert out[[0, 5]].isnan().all()
    assert out[26].eq(0).all(), "a row of no expert, whatever it gathers"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("counts", [(33, 0, 0), (0, 0, 40), (0, 0, 0)], ids=["first", "last", "none"])
def test_all_rows_to_one_expert_or_to_none(route: str, counts: tuple[int, ...]) -> None:
    need(route)
    one = case("bf16", counts)
    one.check(one.run(route=route))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("offsets", [(4, 6, 5, 9, 9, 12), (-3, 2, 2**31 - 1, 5, 0, -(2**31))])
def test_offsets_that_leave_the_rows_are_cut_off(route: str, offsets: tuple[int, ...]) -> None:
    need(route)
    one = case("e2m1")
    one.offsets = torch.tensor(offsets, dtype=torch.int32)
    one.check(one.run(route=route))


@pytest.mark.parametrize("route", ["reference", BY_TRITON])
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_weights_of_other_formats(route: str, fmt: str) -> None:
    need(route)
    one = case("bf16", fmt=fmt)
    one.check(one.run(route=route))


@pytest.mark.parametrize("route", ROUTES)
def test_quantised_rows_strided_operands_and_out(route: str) -> None:
    need(route)
    one = case("e2m1")
    want = one.run(route=route)
    quantised = mxgemm.quantize(one.a)
    assert torch.equal(mxgemm.grouped_gemm(quantised, one.w, one.offsets, route=route), want)
    wide = torch.zeros(25, 320, dtype=one.a.dtype)
    wide[:, ::2] = one.a
    room = torch.full((40, 25), 7.0, dtype=torch.bfloat16)
    out = room.T
    offsets = torch.stack((one.offsets, one.offsets), 1)[:, 0]
    assert mxgemm.grouped_gemm(wide[:, ::2], one.w, offsets, out=out, route=route) is out
    assert torch.equal(out, want)


def numpys_rows_stand_alone() -> bool:
    """Say whether a row of numpy's product has the same bits wherever it stands; its library chooses by the CPU."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, dtype=np.float32) for shape in ((64, 128), (128, 64)))
    order = random.permutation(64)
    return np.array_equal(a[order] @ b, (a @ b)[order])


@pytest.mark.parametrize("route, most", [(CPU_ROUTES[0], 70), pytest.param("triton", 48, marks=pytest.mark.slow)])
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_a_row_does_not_depend_on_the_others(route: str, most: int, a_format: str) -> None:
    """To the bit: alone, among many of its expert, and wherever it stands.

    By Triton within one height of tiles: its interpreter multiplies by numpy, which has another order for another.
    """
    need(route)
    if route == "reference":
        pytest.skip("torch's own product adds in another order for another number of rows")
    if route == "triton" and not numpys_rows_stand_alone():
        pytest.skip(
            "numpy's own product, which the interpreter takes, has another order for a row in another place here"
        )
    w, a = stack(3, 72, 352), spread(most, 352, torch.bfloat16, octaves=3)

    def product(rows: torch.Tensor) -> torch.Tensor:
        offsets = ends(0, len(rows), 0)
        return mxgemm.grouped_gemm(rows, w, offsets, a_format=a_format, out_dtype=torch.float32, route=route)

    whole = product(a)
    for count in (1, 5, 17, 33):
        assert torch.equal(product(a[:count]), whole[:count]), count
    order = torch.randperm(most)
    assert torch.equal(product(a[order]), whole[order])


@pytest.mark.parametrize("route", CPU_ROUTES)
def test_nothing_to_multiply(route: str) -> None:
    w = stack(3, 8, 32)
    assert mxgemm.grouped_gemm(torch.zeros(0, 32), w, ends(0, 0, 0), route=route).shape == (0, 8)
    empty = mxgemm.MXTensor.wrap(torch.zeros(2, 8, 0, dtype=torch.uint8), torch.zeros(2, 8, 0, dtype=torch.uint8))
    bias = torch.randn(2, 8)
    out = mxgemm.grouped_gemm(torch.zeros(5, 0), empty, torch.tensor([1, 3, 4], dtype=torch.int32), bias=bias)
    zero = torch.zeros(8)
    want = torch.stack((zero, bias[0], bias[0], bias[1], zero))
    assert torch.equal(out, want.bfloat16())
