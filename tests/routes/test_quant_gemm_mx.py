"""Quantise once, then multiply: the chain in Triton's interpreter, what it is given, and when it is chosen."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES
from mxgemm.routes.quant_gemm_mx import quantized_problem, quantizing_call
from mxgemm.triton.quantize import MAX_COLUMNS, MAX_ROWS
from mxgemm.triton.tile_config import TileConfig
from tests.cases import DEVICES, make, run_route, skip_without_kernels

ROUTE = ROUTES["quant_gemm_mx"]
SMALL = TileConfig(block_m=32, block_n=32, block_k=256)
PREPARED = ("preshuffled", "shuffled")


def problem(m: int = 1024, n: int = 7168, k: int = 2048, *, prepared: bool = True, **options: object) -> Problem:
    layout = {"weight_layout": "preshuffled", "scale_layout": "shuffled"} if prepared else {}
    strides = Strides(a=(k, 1), b=(k // 2, 1), b_scales=(-(-k // 256) * 8 if prepared else k // 32, 1), out=(n, 1))
    return Problem.of(m, n, k, KNOWN_MACHINES["gfx950"], strides=strides, **layout, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [PREPARED, ("row_major", "row_major")], ids=str)
@pytest.mark.parametrize("m, n, k", [(1, 16, 64), (33, 48, 320)], ids=str)
def test_the_chain(m: int, n: int, k: int, layout: tuple[str, str], device: str) -> None:
    skip_without_kernels(device)
    scale_rounding = "ceil" if m == 1 else "even"
    bias = torch.randn(n, device=device)
    case = make(m, n, k, device=device, bias=bias, scale_rounding=scale_rounding)
    case.check(run_route("quant_gemm_mx", case, layout=layout, scale_rounding=scale_rounding, bias=bias, config=SMALL))


@pytest.mark.parametrize("device", DEVICES)
def test_k_split_behind_it(device: str) -> None:
    skip_without_kernels(device)
    case = make(17, 32, 1024, device=device)
    split = TileConfig(block_m=16, block_n=32, block_k=256, split_k=4)
    case.check(run_route("quant_gemm_mx", case, layout=PREPARED, config=split))


@pytest.mark.parametrize(
    "field, options",
    [
        ("a", {"a_quantized": True, "a_dtype": torch.uint8}),
        ("a_format", {"a_format": "e4m3"}),
        ("a_format", {"a_format": "bf16"}),
        ("m", {"m": MAX_ROWS + 1}),
        ("k", {"k": MAX_COLUMNS + 256}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, object]) -> None:
    refusal = ROUTE.can_implement(problem(**options))  # type: ignore[arg-type]
    assert refusal is not None
    assert refusal.field == field


def test_a_wide_a_is_quantised_in_its_own_strides() -> None:
    wide = problem(64, 32, 512)
    strides = Strides(a=(1024, 2), b=wide.strides.b, b_scales=wide.strides.b_scales, out=(32, 1))  # type: ignore[union-attr]
    wide = Problem.of(64, 32, 512, wide.machine, strides=strides, a_dtype=torch.float32)
    call = quantizing_call(wide)
    assert call.scalars == (64, 512, 1024, 2, 256, 16)
    left = quantized_problem(wide)
    assert left.strides is not None
    assert (left.strides.a, left.strides.a_scales, left.a_dtype) == ((256, 1), (16, 1), torch.uint8)


def test_the_tile_that_is_bound_by_the_matrix_unit() -> None:
    (square,) = ROUTE.configs(problem())
    assert square == TileConfig(block_m=128, block_n=128, block_k=256)
    assert ROUTE.configs(problem(m=17))[0].block_m == 16  # type: ignore[attr-defined]
    for wanted in (problem(), problem(prepared=False), problem(k=96, n=33, prepared=False)):
        for config in ROUTE.configs(wanted):
            assert ROUTE.check_config(wanted, config) is None


@pytest.mark.parametrize(
    "size, route",
    [((1024, 7168, 2048), "quant_gemm_mx"), ((4096, 8192, 8192), "quant_gemm_mx"), ((128, 8192, 8192), "a16wfp4")],
    ids=str,
)
def test_large_m_without_aiter(size: tuple[int, int, int], route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mxgemm.triton import support

    monkeypatch.setattr(support, "triton_version", lambda: (3, 6))
    assert mxgemm.explain(*size, device="gfx950", prepared=True).route == route
