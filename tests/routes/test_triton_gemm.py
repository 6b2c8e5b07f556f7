"""The Triton GEMM routes, in the interpreter and on the GPU, against the oracle."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.mx import layouts
from mxgemm.problem import Options, Problem
from mxgemm.routes import ROUTES
from mxgemm.triton.scaled_dot import SCALED_DOTS, scaled_dot_of
from mxgemm.triton.tile_config import TileConfig
from tests.cases import DEVICES, OUT_DTYPES, make, run_route, skip_without_kernels, spread
from tests.marks import EXHAUSTIVE
from tests.pairwise import Case as Parameters
from tests.pairwise import cover

FORMATS = ("e2m1", "e4m3", "e5m2")
KERNELS = [
    *(("a16wfp4", a, b) for a in ("e2m1", "e4m3") for b in FORMATS),
    *(("w4a16", "bf16", b) for b in FORMATS),
    *(("gemm_mx", a, b) for a in FORMATS for b in FORMATS),
]
ROUTE = ROUTES["a16wfp4"]

GRID = {
    "kernel": KERNELS,
    "layout": [(w, s) for w in layouts.WEIGHT_LAYOUTS for s in layouts.SCALE_LAYOUTS],
    "m": [1, 2, 8, 16, 31, 33, 64, 257],
    "n": [16, 32, 48, 258, 2112, 2880],
    "k": [32, 64, 96, 128, 512, 768, 1664, 2880, 7168],
    "out_dtype": OUT_DTYPES,
    "bias": [False, True],
    "scale_rounding": ["even", "floor", "ceil", "rceil"],
}


def legal(case: Parameters) -> bool:
    """What can be preshuffled, and what the interpreter finishes in a few seconds."""
    _, _, b_format = case["kernel"]
    bytes_a_row = case["k"] // (2 if b_format == "e2m1" else 1)
    if case["layout"][0] == "preshuffled" and layouts.preshuffle_refusal(case["n"], bytes_a_row):
        return False
    if case["k"] > 2880 and case["n"] > 32:
        return False
    return case["m"] * case["n"] * case["k"] <= 4_000_000 or (case["n"] <= 48 and case["m"] <= 64)


def marked(case: Parameters) -> Any:
    """Leave what takes the interpreter seconds to `make test-all`."""
    return pytest.param(case, marks=EXHAUSTIVE) if case["m"] * case["n"] * case["k"] > 1_000_000 else case


def parameter_id(case: Parameters) -> str:
    return "-".join(str(value).replace("torch.", "").replace("'", "") for value in case.values())


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [marked(case) for case in cover(GRID, legal)], ids=parameter_id)
def test_every_pair_of_parameters(case: Parameters, device: str) -> None:
    skip_without_kernels(device)
    route, a_format, b_format = case["kernel"]
    bias = torch.randn(case["n"], device=device) if case["bias"] else None
    exact = make(
        case["m"], case["n"], case["k"], device=device, a_format=a_format, b_format=b_format, bias=bias,
        scale_rounding=case["scale_rounding"], octaves=2 if case["out_dtype"] == torch.float16 else 6,
    )  # fmt: skip
    out = run_route(
        route, exact, a_format=a_format, layout=case["layout"], bias=bias, out_dtype=case["out_dtype"],
        scale_rounding=case["scale_rounding"],
    )  # fmt: skip
    exact.check(out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("route, a_format", [("a16wfp4", "e2m1"), ("a16wfp4", "e4m3"), ("w4a16", "bf16")])
@pytest.mark.parametrize("a_dtype", OUT_DTYPES)
def test_activation_dtypes(a_dtype: torch.dtype, route: str, a_format: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(7, 40, 160, device=device, a_dtype=a_dtype, a_format=a_format)
    case.check(run_route(route, case, a_format=a_format))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "config",
    [
        TileConfig(block_m=16, block_n=16, block_k=64),
        TileConfig(block_m=32, block_n=32, block_k=256, num_warps=2, num_stages=1),
        TileConfig(block_m=64, block_n=128, block_k=64, num_warps=8, num_stages=3, cache=".cg"),
        TileConfig(block_m=32, block_n=128, block_k=128, transposed=True),
    ],
    ids=str,
)
@pytest.mark.slow
def test_other_tiles(config: TileConfig, device: str) -> None:
    skip_without_kernels(device)
    case = make(70, 80, 192, device=device)
    for layout in GRID["layout"]:
        case.check(run_route("a16wfp4", case, layout=layout, config=config))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format, b_format", [("e2m1", "e2m1"), ("e4m3", "e2m1"), ("e5m2", "e4m3")])
@pytest.mark.parametrize("split_k", [1, 2])
def test_a_transposed_tile_of_two_mx_operands(split_k: int, a_format: str, b_format: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(17, 40, 288, device=device, a_format=a_format, b_format=b_format)
    config = TileConfig(block_m=16, block_n=128, block_k=128, split_k=split_k, transposed=True)
    case.check(run_route("gemm_mx", case, a_format=a_format, config=config))


def run(case, **options) -> torch.Tensor:
    return mxgemm.gemm(case.a, case.weight, route="a16wfp4", **options)


@pytest.mark.parametrize("device", DEVICES)
def test_guard_bytes_and_poisoned_output(device: str) -> None:
    skip_without_kernels(device)
    case = make(33, 48, 96, device=device)
    memory = torch.full((35, 50), torch.nan, dtype=torch.bfloat16, device=device)
    run(case, out=memory[1:34, 1:49])
    case.check(memory[1:34, 1:49].clone())
    memory[1:34, 1:49] = torch.nan
    assert memory.isnan().all()
    # A in the middle of NaN, B and its scales in the middle of 0xFF: nothing outside may be read into a result.
    a = torch.full((35, 128), torch.nan, dtype=torch.bfloat16, device=device)
    a[1:34, 16:112] = case.a
    b, s = (torch.full((50, width), 255, dtype=torch.uint8, device=device) for width in (64, 5))
    b[1:49, 8:56], s[1:49, 1:4] = case.weight.data, case.weight.scales
    case.check(mxgemm.gemm(a[1:34, 16:112], b[1:49, 8:56], s[1:49, 1:4], route="a16wfp4"))


@pytest.mark.parametrize("device", DEVICES)
def test_one_hot_gives_the_decoded_weight(device: str) -> None:
    skip_without_kernels(device)
    w = mxgemm.quantize(spread(48, 128, seed=3)).to(device)
    eye = torch.eye(128, dtype=torch.bfloat16, device=device)
    for route, a_format in (("a16wfp4", "e2m1"), ("a16wfp4", "e4m3"), ("w4a16", "bf16")):
        out = mxgemm.gemm(eye, w, a_format=a_format, out_dtype=torch.float32, route=route)  # type: ignore[arg-type]
        assert torch.equal(out, w.dequantize().t())
    quantized = mxgemm.quantize(eye)
    out = mxgemm.gemm_mx(quantized, w, out_dtype=torch.float32, route="gemm_mx")
    assert torch.equal(out, w.dequantize().t())


@pytest.mark.parametrize("device", DEVICES)
def test_nan_blocks(device: str) -> None:
    skip_without_kernels(device)
    case = make(4, 32, 96, device=device)
    clean = run(case)
    case.a[2, 40] = torch.nan
    case.weight.scales[5, 1] = 255
    out = run(case)
    assert out[2].isnan().all()
    assert out[:, 5].isnan().all()
    keep = torch.ones(4, 32, dtype=torch.bool, device=device)
    keep[2], keep[:, 5] = False, False
    assert torch.equal(out[keep], clean[keep])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", ["transposed a", "strided a", "transposed b", "strided out", "expanded a"])
def test_strides(view: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(4, 32, 128, device=device)
    a, b, s, out = case.a, case.weight.data, case.weight.scales, None
    if view == "transposed a":
        a = a.t().contiguous().t()
    elif view == "strided a":
        a = torch.stack((a, a * 3), dim=-1)[..., 0]
    elif view == "transposed b":
        b, s = b.t().contiguous().t(), s.t().contiguous().t()
    elif view == "strided out":
        out = torch.full((32, 8), torch.nan, dtype=torch.bfloat16, device=device)[:, ::2].t()
    else:
        a = a[:1].expand(4, -1)
        case = make(4, 32, 128, device=device)
        case.a, case.a64, case.ref = a, case.a64[[0] * 4], case.ref[[0] * 4]
    case.check(mxgemm.gemm(a, b, s, out=out, route="a16wfp4"))


@pytest.mark.gpu
def test_offsets_past_32_bits() -> None:
    k, n = 64, 32
    w = mxgemm.quantize(spread(n, k)).to("cuda")
    stride = 2**31 // 8 + 64
    memory = torch.zeros(9 * stride, dtype=torch.bfloat16, device="cuda")
    a = memory.as_strided((9, k), (stride, 1))
    a.copy_(spread(9, k, torch.bfloat16))
    assert torch.equal(mxgemm.gemm(a, w, route="a16wfp4"), mxgemm.gemm(a.contiguous(), w, route="a16wfp4"))


def test_what_the_route_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Machine("gfx950", 256, "MI355X")
    assert ROUTE.refusal(Problem.of(1, 48, 96, gpu, weight_layout="preshuffled")).field == "weight_layout"  # type: ignore[union-attr]
    assert ROUTE.refusal(Problem(1, 48, 96, gpu, a_quantized=True)).field == "a"  # type: ignore[union-attr]
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: None)
    assert "pip install" in str(ROUTE.refusal(Problem(1, 48, 96, gpu)))
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 6))
    assert ROUTE.refusal(Problem(1, 48, 96, gpu)) is None
    assert "3.9" in str(ROUTE.refusal(Problem(1, 48, 96, Machine("gfx942", 304, "MI300X"))))


@pytest.mark.parametrize(
    "config, field",
    [
        (TileConfig(block_m=8), "block_m"),
        (TileConfig(block_m=512), "block_m"),
        (TileConfig(block_n=48), "block_n"),
        (TileConfig(block_n=512), "block_n"),
        (TileConfig(block_k=32), "block_k"),
        (TileConfig(block_k=64), "block_k"),
        (TileConfig(num_warps=3), "num_warps"),
        (TileConfig(num_warps=1), "num_warps"),
        (TileConfig(num_stages=0), "num_stages"),
        (TileConfig(waves_per_eu=9), "waves_per_eu"),
        (TileConfig(cache=".wt"), "cache"),
        (TileConfig(split_k=0), "split_k"),
        (TileConfig(split_k=5), "split_k"),
    ],
    ids=str,
)
def test_illegal_configurations(config: TileConfig, field: str) -> None:
    problem = Problem(16, 64, 1024, Machine("gfx950", 256, "MI355X"))
    assert ROUTE.check_config(problem, config).field == field  # type: ignore[union-attr]
    assert ROUTE.check_config(problem, TileConfig()) is None
    assert ROUTE.check_config(problem, TileConfig(split_k=4)) is None


@pytest.mark.parametrize(
    "arch, config, field",
    [
        ("sm_100", TileConfig(block_m=64, block_n=128, block_k=128), "block_m"),
        ("sm_100", TileConfig(block_m=16, block_n=64, block_k=128, transposed=True), "block_n"),
        ("sm_100", TileConfig(block_m=16, block_n=128, block_k=128, num_warps=2, transposed=True), "num_warps"),
        ("gfx1250", TileConfig(block_k=64), "block_k"),
        ("sm_120", TileConfig(block_k=32), "block_k"),
    ],
    ids=str,
)
def test_a_tile_that_would_be_decoded_without_a_word_is_refused(arch: str, config: TileConfig, field: str) -> None:
    problem = Problem(16, 256, 1024, KNOWN_MACHINES[arch])
    refusal = ROUTE.check_config(problem, config)
    assert refusal is not None
    assert refusal.field == field
    assert ROUTES["w4a16"].check_config(replace(problem, options=Options("bf16")), TileConfig(block_k=64)) is None


def test_bf16_activations_have_no_transposed_tile() -> None:
    problem = Problem(16, 256, 1024, KNOWN_MACHINES["sm_100"], Options("bf16"))
    refusal = ROUTES["w4a16"].check_config(problem, TileConfig(block_n=128, transposed=True))
    assert "bf16 on the left alone" in str(refusal)


def test_where_formats_differ_sm_120_decodes_and_any_tile_will_do() -> None:
    problem = Problem(16, 256, 1024, KNOWN_MACHINES["sm_120"], Options("e4m3"))
    assert scaled_dot_of(problem) is None
    assert scaled_dot_of(replace(problem, options=Options("e2m1"))) is SCALED_DOTS["sm_120"]
    assert ROUTE.configs(problem) == [TileConfig(block_m=16, block_k=128)]


def test_every_guess_is_legal() -> None:
    for arch in (arch for arch in KNOWN_MACHINES if arch != "cpu"):
        for m in GRID["m"]:
            for n in GRID["n"]:
                for k in GRID["k"]:
                    problem = Problem(m, n, k, KNOWN_MACHINES[arch])
                    for route in ("a16wfp4", "w4a16", "gemm_mx"):
                        for config in ROUTES[route].configs(problem):
                            assert ROUTES[route].check_config(problem, config) is None


def test_non_contiguous_shuffled_operands_go_to_another_route(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(3, 32, 128)
    data = torch.stack([layouts.preshuffle_weight(case.weight.data)] * 2, dim=1)[:, 0]
    with pytest.raises(mxgemm.RouteUnavailable, match="strides of b is .128, 1.; needs .64, 1.: a contiguous"):
        mxgemm.gemm(case.a, data, case.weight.scales, weight_layout="preshuffled", route="a16wfp4")
    case.check(mxgemm.gemm(case.a, data, case.weight.scales, weight_layout="preshuffled"))
