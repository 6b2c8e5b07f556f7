"""``mxgemm.quant_gemm`` on a GPU: every scheme, format, layout and odd size, by each route that takes it."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from mxgemm.errors import Refusal
from mxgemm.scaled.choice import ROUTES
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.plan import planned
from mxgemm.scaled.problem import Options
from tests.scaled.cases import PACKED, PAIRS, Case, column_major, grouped, ids, make, problems

pytestmark = pytest.mark.gpu

SHAPES = ((1, 1, 32), (33, 2112, 96), (33, 40, 2880), (130, 200, 416), (5, 2880, 1056), (300, 272, 4096))


def refusal_and_bits(route: str, case: Case) -> tuple[Refusal | None, int]:
    a, b = parts("a", case.a), parts("b", case.b)
    problem, _ = planned(a[0], a[1], b[0], b[1], Options(case.scheme, a[2], b[2]))
    return ROUTES[route].refusal(problem), ROUTES[route].accumulate_bits(problem)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_every_scheme_by_triton(pair: tuple) -> None:
    for shape in SHAPES:
        case = make(pair, *shape, seed=sum(shape), bias=shape[0] == 5).to("cuda")
        _, bits = refusal_and_bits("triton", case)
        out = mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, bias=case.bias, route="triton")
        assert case.judge(out, bits).passed, (shape, case.judge(out, bits))


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_every_scheme_by_the_vendors_product(pair: tuple) -> None:
    taken = 0
    for shape in ((1, 16, 128), (33, 2112, 384), (36, 144, 2944), (4, 2880, 1024), (256, 272, 640)):
        case = make(pair, *shape, seed=sum(shape)).to("cuda")
        refusal, bits = refusal_and_bits("scaled_mm", case)
        if refusal is None:
            taken += 1
            out = mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, route="scaled_mm")
            assert case.judge(out, bits).passed, (shape, case.judge(out, bits))
    if not taken:
        pytest.skip(f"not this scheme on this GPU: {refusal}")


@pytest.mark.parametrize("pair", PACKED, ids=ids)
def test_packed_operands_as_e4m3(pair: tuple) -> None:
    """By the vendor's product where it takes the groups, by our own where not, as M = 5 and 130 of groups."""
    for shape in ((1, 16, 128), (33, 2112, 384), (36, 144, 2944), (5, 2880, 1056), (256, 272, 4096), (130, 200, 416)):
        for scale in ("", "e4m3"):
            case = make(pair, *shape, seed=sum(shape), scale=scale).to("cuda")
            _, bits = refusal_and_bits("unpack_mm", case)
            out = mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme, route="unpack_mm")
            assert case.judge(out, bits).passed, (shape, case.judge(out, bits))


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_a_column_major_operand(pair: tuple) -> None:
    case = make(pair, 40, 72, 288).to("cuda")
    _, bits = refusal_and_bits("triton", case)
    for a, b in ((case.a, column_major(case.b)), (column_major(case.a), case.b)):
        case.check(mxgemm.quant_gemm(a, b, scheme=case.scheme), bits)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_groups(pair: tuple) -> None:
    rows = (0, 1, 33, 0, 150, 7)
    a, b, offsets, cases = grouped(pair, rows, 136, 384, tail=3)
    out = mxgemm.quant_gemm_grouped(a.to("cuda"), b.to("cuda"), offsets.cuda(), scheme=pair[0])
    _, bits = refusal_and_bits("triton", make(pair, 16, 16, 384).to("cuda"))
    start = 0
    for case, count in zip(cases, rows, strict=True):
        if count:
            case.check(out[start : start + count], bits)
        start += count
    assert out[start:].eq(0).all()


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_problems_of_their_own_sizes(pair: tuple) -> None:
    cases = [case.to("cuda") for case in problems(pair)]
    outs = mxgemm.quant_gemm_grouped([c.a for c in cases], [c.b for c in cases], scheme=pair[0], route="triton")
    for case, out in zip(cases, outs, strict=True):
        assert tuple(out.shape) == case.ref.shape
        if out.numel():
            _, bits = refusal_and_bits("triton", case)
            case.check(out, bits)


def test_a_graph_takes_other_offsets_at_a_replay() -> None:
    pair = PAIRS[2]
    rows, others = (20, 5, 40), (1, 60, 4)
    a, b, offsets, _ = grouped(pair, rows, 64, 256)
    a, b, live = a.to("cuda"), b.to("cuda"), offsets.cuda()
    mxgemm.quant_gemm_grouped(a, b, live, scheme=pair[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mxgemm.quant_gemm_grouped(a, b, live, scheme=pair[0])
    live.copy_(torch.tensor(others).cumsum(0))
    graph.replay()
    assert torch.equal(out, mxgemm.quant_gemm_grouped(a, b, live.clone(), scheme=pair[0]))


@pytest.mark.parametrize("pair", [PAIRS[7], PAIRS[12]], ids=ids)
def test_runs_agree_to_the_bit(pair: tuple) -> None:
    case = make(pair, 16, 96, 4096).to("cuda")
    first = mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme)
    assert all(torch.equal(first, mxgemm.quant_gemm(case.a, case.b, scheme=case.scheme)) for _ in range(20))


def test_every_code_of_fp8() -> None:
    """NaN stays NaN and infinity infinite, in whatever the matrix unit multiplies."""
    for fmt in ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"):
        dtype = mxgemm.scaled.formats.FORMATS[fmt].dtype
        a = torch.zeros(256, 128, dtype=torch.uint8, device="cuda")
        a[:, 0] = torch.arange(256)
        b = torch.ones(16, 128, device="cuda").to(dtype)
        for scheme in (mxgemm.RowCol(), mxgemm.ABlock(128)):
            shape = (256,) if scheme == mxgemm.RowCol() else (256, 1)
            left = mxgemm.QuantTensor(a, torch.ones(shape, device="cuda"), fmt)
            right = mxgemm.QuantTensor(b, torch.ones(16, device="cuda")) if shape == (256,) else b
            out = mxgemm.quant_gemm(left, right, scheme=scheme, out_dtype=torch.float32, route="triton")
            value = a.view(dtype).float().cpu()[:, :1].expand(256, 16)
            torch.testing.assert_close(out.cpu(), value, rtol=0, atol=0, equal_nan=True)
