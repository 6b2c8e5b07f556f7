"""Routes into AITER, end to end against a double of its functions: layouts, padding, order, strides, fresh results."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import notices, plan, workspace
from mxgemm.aiter import installed
from mxgemm.aiter.f4gemm import KERNELS, PREFIX
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip import shuffle as hip_shuffle
from mxgemm.mx import layouts
from mxgemm.routes import ROUTES, Operands, ck_gemm
from mxgemm.routes.ck_gemm import CKGemmConfig
from mxgemm.routes.fused_asm import FusedAsmConfig
from mxgemm.routing import tables
from tests import aiter_double
from tests.cases import DEVICES, Case, make, run_route, skip_without_kernels

GFX950 = KNOWN_MACHINES["gfx950"]
PREPARED = ("preshuffled", "shuffled")
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 256]
CK_KERNEL = "a4w4_blockscale_256x64x128x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8_2x2_intrawave_v3"
LEADERBOARD = [(4, 2880, 512), (16, 2112, 1024), (32, 4096, 512), (32, 2880, 512), (64, 1024, 2048), (256, 768, 1536)]
"""The six shapes; on a CPU the interpreter gets them cut in N and K."""


def kernel(tile: str) -> str:
    return f"{PREFIX}BpreShuffle_{tile}"


@pytest.fixture(params=["filled", "returned"])
def aiter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    yield aiter_double.install(monkeypatch, tmp_path, request.param)
    aiter_double.forget()


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[aiter_double.State]:
    yield aiter_double.install(monkeypatch, tmp_path, "returned")
    aiter_double.forget()


@pytest.fixture
def hip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """HIP's shuffle where there is no GPU to build it for: the same contract, from the formulas."""
    calls: list[tuple[int, ...]] = []
    real = hip_shuffle.shuffle_scales_into

    def shuffled(scales: Tensor, out: Tensor) -> Tensor:
        calls.append(tuple(out.shape))
        if out.is_cuda:
            return real(scales, out)
        assert out.is_contiguous()
        assert out.data_ptr() % 16 == 0
        assert scales.stride(1) == 1
        rows = layouts.round_up(scales.shape[0], 32)
        assert out.shape[0] >= rows
        assert out.shape[1] == scales.shape[1]
        out[:rows] = layouts.shuffle_scales(scales)[:rows]
        return out

    monkeypatch.setattr(hip_shuffle, "shuffle_scales_into", shuffled)
    monkeypatch.setattr(ck_gemm, "_hip_refusal", lambda problem: None)
    return calls


def poisoned(device: str) -> None:
    skip_without_kernels(device)
    with workspace.take(1 << 22, torch.empty(0, device=device).device) as arena:
        arena.memory.fill_(255)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", EDGES)
def test_fused_asm(aiter: aiter_double.State, device: str, m: int) -> None:
    poisoned(device)
    case = make(m, 96, 512, device=device)
    config = FusedAsmConfig(kernel("32x128"))
    case.check(run_route("fused_asm", case, layout=PREPARED, config=config, machine=GFX950))
    assert aiter.calls == [f"asm {KERNELS[config.kernel].symbol}"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", EDGES)
@pytest.mark.slow
def test_ck_gemm_with_aiters_own_pick(
    aiter: aiter_double.State, hip: list[tuple[int, ...]], device: str, m: int
) -> None:
    poisoned(device)
    case = make(m, 256, 512, device=device)
    shuffle = "hip" if aiter.form == "returned" else "triton"
    out = run_route("ck_gemm", case, layout=PREPARED, config=CKGemmConfig("", shuffle), machine=GFX950)
    assert out.shape == (m, 256)
    case.check(out)
    assert aiter.calls == (["gemm_a4w4", "asm "] if aiter.form == "filled" else ["asm "])
    assert len(hip) == (shuffle == "hip")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", [1, 33, 65])
@pytest.mark.parametrize("shuffle", ["triton", "hip"])
@pytest.mark.parametrize("name", [kernel("64x128"), CK_KERNEL], ids=["f4gemm", "ck"])
def test_ck_gemm_with_a_named_kernel(
    newest: aiter_double.State, hip: list[tuple[int, ...]], device: str, m: int, shuffle: str, name: str
) -> None:
    poisoned(device)
    case = make(m, 96, 512, device=device)
    case.check(run_route("ck_gemm", case, layout=PREPARED, config=CKGemmConfig(name, shuffle), machine=GFX950))
    assert len(newest.calls) == 1
    assert newest.calls[0].endswith(KERNELS[name].symbol if name in KERNELS else name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m,n,k", LEADERBOARD)
def test_leaderboard_shapes(newest: aiter_double.State, device: str, m: int, n: int, k: int) -> None:
    poisoned(device)
    if device == "cpu":
        n, k = 32 * (n // 320), min(k, 1024)
    case = make(m, n, k, device=device, octaves=1)
    for name in ("fused_asm", "ck_gemm"):
        case.check(run_route(name, case, layout=PREPARED, machine=GFX950))


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_major_weight_takes_the_kernel_without_preshuffle(newest: aiter_double.State, device: str) -> None:
    poisoned(device)
    case = make(256, 256, 512, device=device)
    case.check(run_route("fused_asm", case, layout=("row_major", "shuffled"), machine=GFX950))
    assert "noBpreShuffle_256x256" in newest.calls[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale_rounding", ["even", "floor", "rceil"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes_and_scale_rules(
    newest: aiter_double.State, device: str, scale_rounding: str, dtype: torch.dtype
) -> None:
    poisoned(device)
    case = make(33, 64, 256, device=device, a_dtype=dtype, scale_rounding=scale_rounding, octaves=2)
    case.check(run_route("fused_asm", case, layout=PREPARED, scale_rounding=scale_rounding, machine=GFX950))


@pytest.fixture
def on_gfx950(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The public call takes its device for a gfx950; a table of ours lets AITER pick for (33, 256, 512)."""
    row = {"m": 33, "n": 256, "k": 512, "route": "ck_gemm", "config": {"shuffle": "triton"}, "grade": "predicted"}
    head = {"kind": tables.KIND, "version": tables.VERSION, "arch": "gfx950", "sources": {"test": {}}}
    (tmp_path / "own.json").write_text(json.dumps(head | {"rows": [row | {"source": "test"}]}))
    monkeypatch.setenv(tables.TABLES_VARIABLE, str(tmp_path / "own.json"))
    monkeypatch.setattr(plan, "machine_of", lambda device: GFX950)
    tables.from_environment.cache_clear()
    plan.clear_plans()
    yield
    tables.from_environment.cache_clear()
    plan.clear_plans()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reuses", [False, True])
@pytest.mark.parametrize("m,n,route", [(33, 256, "ck_gemm"), (64, 256, "ck_gemm"), (3, 96, "fused_asm")])
@pytest.mark.slow
def test_the_public_call(
    aiter: aiter_double.State, on_gfx950: None, device: str, m: int, n: int, route: str, reuses: bool
) -> None:
    """Batches, strides, ``out``, and results that alias nothing, whoever allocates them and does so once."""
    poisoned(device)
    aiter.reuses_output = reuses
    k = 512
    case = make(m, n, k, device=device, octaves=2)
    weight = case.weight.prepare("gfx950")
    first = mxgemm.gemm(case.a, weight, route=route)
    case.check(first)
    kept = first.clone()
    second = mxgemm.gemm(2 * case.a, weight, route=route)
    assert torch.equal(first, kept)
    assert torch.equal(second, 2 * first)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    wide = torch.full((m, n + 32), torch.nan, dtype=torch.bfloat16, device=device)
    returned = mxgemm.gemm(case.a, weight, out=wide[:, :n], route=route)
    assert returned.data_ptr() == wide.data_ptr()
    assert torch.equal(wide[:, :n], first)
    assert wide[:, n:].isnan().all()
    strided = torch.empty(m, 2 * k, dtype=case.a.dtype, device=device)
    strided[:, ::2] = case.a
    batched = mxgemm.gemm(strided[:, ::2].unsqueeze(0), weight, route=route)
    assert batched.shape == (1, m, n)
    assert torch.equal(batched[0], first)
    if route == "fused_asm":
        assert aiter.calls[0] == f"asm {KERNELS[kernel('32x128')].symbol}"
    else:
        assert aiter.calls[0] == ("gemm_a4w4" if aiter.form == "filled" else "asm ")
    transposed = torch.empty(n, m, dtype=torch.bfloat16, device=device).t()
    with pytest.raises(mxgemm.RouteUnavailable, match="strides of out"):
        mxgemm.gemm(case.a, weight, out=transposed, route="fused_asm")


@pytest.mark.parametrize("m", [5, 32, 33])
@pytest.mark.parametrize("shuffle", ["triton", "hip"])
@pytest.mark.parametrize("tuned", ["", KERNELS[kernel("32x128")].symbol, CK_KERNEL], ids=["heuristic", "asm", "ck"])
@pytest.mark.slow
def test_a_library_that_reuses_its_output_gives_results_that_last(
    aiter: aiter_double.State, hip: list[tuple[int, ...]], tuned: str, shuffle: str, m: int
) -> None:
    poisoned("cpu")
    aiter.reuses_output = True
    if tuned:
        aiter.tuned[m, 256, 512] = {"kernelName": tuned, "splitK": 0}
    cases = [make(m, 256, 512, octaves=2, seed=seed) for seed in range(3)]
    config = CKGemmConfig("", shuffle)
    outs = [run_route("ck_gemm", case, layout=PREPARED, config=config, machine=GFX950) for case in cases]
    for case, out in zip(cases, outs, strict=True):
        case.check(out)
    assert len({out.untyped_storage().data_ptr() for out in outs}) == 3


def test_a_tuned_kernel_of_ck_that_cannot_be_named(
    newest: aiter_double.State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``gemm_a4w4`` would take it and return memory of its own, so another kernel is taken, and said so."""
    source = tmp_path / "aiter" / installed.SOURCE
    source.write_text(source.read_text().replace(', splitK=0, kernelName="")', ", splitK=0)"))
    aiter_double.forget()
    newest.tuned[33, 256, 512] = {"kernelName": CK_KERNEL, "splitK": 0}
    poisoned("cpu")
    notices._said.clear()
    case = make(33, 256, 512)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        case.check(run_route("ck_gemm", case, layout=PREPARED, config=CKGemmConfig("", "triton"), machine=GFX950))
    assert [call.split()[0] for call in newest.calls] == ["asm"]
    assert "cannot be told to take" in caplog.text


def test_the_router_takes_them_where_aiter_is(newest: aiter_double.State) -> None:
    for (m, n, k), route in {(16, 2112, 7168): "fused_asm", (64, 7168, 2048): "ck_gemm"}.items():
        answer = mxgemm.explain(m, n, k, device="gfx950", prepared=True)
        assert answer.route == route, answer
        assert answer.grade == "measured"
    assert newest.calls == []
    assert mxgemm.explain(64, 7168, 2048, device="gfx950").route != "ck_gemm"


@pytest.mark.parametrize(
    "tuned",
    [
        {"kernelName": KERNELS[kernel("256x256")].symbol, "splitK": 2},
        {"kernelName": "_ZN5aiter9some_tileE", "splitK": 0},
        {"kernelName": KERNELS[f"{PREFIX}noBpreShuffle_256x256"].symbol, "splitK": 0},
        {"kernelName": KERNELS[kernel("128x512")].symbol, "splitK": 0},
    ],
)
def test_a_tuned_row_that_breaks_the_contract_is_not_followed(
    aiter: aiter_double.State, caplog: pytest.LogCaptureFixture, tuned: dict[str, object]
) -> None:
    poisoned("cpu")
    aiter.tuned[33, 256, 512] = tuned
    case = make(33, 256, 512)
    notices._said.clear()
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for _ in range(2):
            case.check(run_route("ck_gemm", case, layout=PREPARED, config=CKGemmConfig("", "triton"), machine=GFX950))
    assert [call.split()[0] for call in aiter.calls] == ["asm", "asm"]
    assert caplog.text.count("tuned row") == 1


def test_hip_is_said_to_be_missing_once(
    newest: aiter_double.State, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned("cpu")
    monkeypatch.setattr(ck_gemm, "_hip_refusal", lambda problem: "no compiler for gfx950")
    notices._said.clear()
    case = make(33, 256, 512)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for _ in range(2):
            case.check(run_route("ck_gemm", case, layout=PREPARED, machine=GFX950))
    assert caplog.text.count("no compiler for gfx950") == 1
    problem = problem_of(case)
    refusal = ROUTES["ck_gemm"].check_config(problem, CKGemmConfig(shuffle="hip"))
    assert "no compiler for gfx950" in str(refusal)
    assert all(config.shuffle != "hip" for config in ROUTES["ck_gemm"].configs(problem))


def problem_of(case: Case, **changes: object) -> mxgemm.problem.Problem:
    m, n = case.ref.shape
    k = case.weight.shape[1]
    strides = mxgemm.problem.Strides(a=(k, 1), b=(k // 2, 1), b_scales=(layouts.round_up(k // 32, 8), 1), out=(n, 1))
    values = {"weight_layout": "preshuffled", "scale_layout": "shuffled", "strides": strides} | changes
    return mxgemm.problem.Problem.of(m, n, k, GFX950, **values)


@pytest.mark.gpu
@pytest.mark.parametrize("name,n", [("fused_asm", 96), ("ck_gemm", 96)])
def test_two_streams_share_no_scratch(newest: aiter_double.State, name: str, n: int) -> None:
    cases = [make(33, n, 512, device="cuda", seed=seed) for seed in range(2)]
    streams = [torch.cuda.Stream() for _ in cases]
    outs = []
    for case, stream in zip(cases, streams, strict=True):
        with torch.cuda.stream(stream):
            outs.append(run_route(name, case, layout=PREPARED, machine=GFX950))
    torch.cuda.synchronize()
    for case, out in zip(cases, outs, strict=True):
        case.check(out)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fused_asm", "ck_gemm"])
def test_scratch_under_graph_capture(newest: aiter_double.State, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A replay quantises anew into the graph's own memory, whatever ran on the arena in between."""

    def bind(symbol: str, *, preshuffled: bool) -> installed.AsmCall:
        del symbol, preshuffled

        def copy(data: Tensor, b: Tensor, scales: Tensor, b_scales: Tensor, out: Tensor) -> None:
            out.view(torch.uint8)[:, : data.shape[1]].copy_(data)
            out.view(torch.uint8)[:, data.shape[1] :].copy_(scales.flatten()[:1])

        return copy

    monkeypatch.setattr(installed, "bind_asm", bind)
    case = make(32, 160, 512, device="cuda")
    weight = case.weight.prepare("gfx950", keep=False)
    out = torch.zeros(32, 160, dtype=torch.bfloat16, device="cuda")
    config = FusedAsmConfig(kernel("32x128")) if name == "fused_asm" else CKGemmConfig(kernel("32x128"), "triton")
    launch = ROUTES[name].bind(problem_of(case), config)
    operands = Operands(case.a, None, weight.data, weight.scales, None, out)
    launch(operands)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(operands)
    case.a.mul_(3)
    with workspace.take(1 << 24, case.a.device) as arena:
        arena.memory.fill_(255)
    graph.replay()
    quantized = mxgemm.quantize(case.a)
    assert torch.equal(out.view(torch.uint8)[:, :256], quantized.data)
    assert (out.view(torch.uint8)[:, 256:] == quantized.scales[0, 0]).all()
