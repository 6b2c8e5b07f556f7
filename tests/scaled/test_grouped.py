"""``mxgemm.quant_gemm_grouped``: rows in groups, and problems of their own sizes, by the reference and by Triton."""

from __future__ import annotations

import pytest

import mxgemm
from tests.cases import skip_without_kernels
from tests.scaled.cases import PAIRS, grouped, ids, problems

BY_TRITON = (0, 4, 5, 9, 11, 14)
"""Pairs whose groups run in the interpreter too: every kind of scale and of conversion."""
RUNS = [pytest.param(pair, "reference", id=ids(pair)) for pair in PAIRS]
RUNS += [pytest.param(PAIRS[i], "triton", id=f"triton-{ids(PAIRS[i])}", marks=pytest.mark.slow) for i in BY_TRITON]


@pytest.mark.parametrize("pair, route", RUNS)
def test_rows_in_groups(pair: tuple, route: str) -> None:
    if route == "triton":
        skip_without_kernels("cpu")
    rows = (0, 1, 20, 0, 35)
    a, b, offsets, cases = grouped(pair, rows, 24, 160, tail=2)
    out = mxgemm.quant_gemm_grouped(a, b, offsets, scheme=pair[0], route=route)
    start = 0
    for case, count in zip(cases, rows, strict=True):
        if count:
            case.check(out[start : start + count])
        start += count
    assert out[start:].eq(0).all()


@pytest.mark.parametrize("pair, route", RUNS)
def test_problems_of_their_own_sizes(pair: tuple, route: str) -> None:
    if route == "triton":
        skip_without_kernels("cpu")
    cases = problems(pair)
    outs = mxgemm.quant_gemm_grouped([c.a for c in cases], [c.b for c in cases], scheme=pair[0], route=route)
    for case, out in zip(cases, outs, strict=True):
        assert tuple(out.shape) == case.ref.shape
        if out.numel():
            case.check(out)
