"""``mxgemm.quant_gemm``: every scheme and format against float64, in the reference and in Triton's interpreter."""

from __future__ import annotations

import pytest

import mxgemm
from tests.cases import skip_without_kernels
from tests.scaled.cases import PAIRS, ids, make

SHAPES = ((1, 1, 32), (33, 40, 96), (5, 17, 288), (33, 72, 160))
ROUTES = ["reference", "triton"]


def skip_unless(route: str) -> None:
    if route == "triton":
        skip_without_kernels("cpu")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_every_scheme_and_format(pair: tuple, route: str) -> None:
    skip_unless(route)
    for shape in SHAPES:
        case = make(pair, *shape, seed=sum(shape), bias=shape[0] == 5)
        out = mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, bias=case.bias, route=route)
        case.check(out)
