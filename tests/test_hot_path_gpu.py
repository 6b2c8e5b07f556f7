"""Steady calls on a GPU: C takes them, with the bits of Python, whatever threads, streams, graphs and devices do."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import plan, steady, workspace
from mxgemm.hip import loaded
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import module
from mxgemm.problem import Config
from mxgemm.routes.fp8_fold import FoldConfig
from mxgemm.routing import router
from mxgemm.triton import launch
from mxgemm.triton.tile_config import TileConfig

pytestmark = pytest.mark.gpu

KINDS = {
    "one launch": ("a16wfp4", None, 4, False),
    "w4a16": ("w4a16", None, 33, False),
    "split K": ("a16wfp4", TileConfig(block_k=256, split_k=4), 8, False),
    "split K, one launch": ("a16wfp4", TileConfig(block_k=256, split_k=4, one_launch=True), 8, False),
    "w4_mma": ("w4_mma", None, 4, True),
    "w4_mma, A rounded before": ("w4_mma", None, 32, True),
    "w4_wgmma": ("w4_wgmma", None, 48, True),
    "w4_wgmma, a row-major weight": ("w4_wgmma", None, 65, False),
    "w4_fp8": ("w4_fp8", None, 48, True),
    "w4_fp8, compact": ("w4_fp8", None, 65, True),
    "fp8_fold": ("fp8_fold", FoldConfig(), 65, True),
    "fp8_fold, compact": ("fp8_fold", FoldConfig(), 65, True),
    "fp8_fold, a bias in fp32": ("fp8_fold", FoldConfig(), 65, True),
    "fp8_fold, a bias in fp32, many rows": ("fp8_fold", FoldConfig(), 1100, True),
    "fp8_fold, bases last": ("fp8_fold", FoldConfig(bases_last=True), 65, True),
    "fp8_fold, bases last, compact": ("fp8_fold", FoldConfig(bases_last=True, place=1), 65, True),
    "fp8_fold, bases last, a bias in fp32": ("fp8_fold", FoldConfig(bases_last=True, place=7), 65, True),
    "dequant_mm, decoded at each call": ("dequant_mm", None, 65, False),
    "dequant_mm, A as it is": ("dequant_mm", None, 48, True),
}
N, K = 1024, 2048


class Case:
    """One call, of a route and configuration."""

    def __init__(self, kind: str, device: str = "cuda", bias: bool = False, m: int | None = None) -> None:
        route, self.config, rows, prepared = KINDS[kind]
        self.route = route
        self.a_format = "bf16" if route == "w4a16" or kind.endswith("as it is") else "e2m1"
        values = torch.randn(N, K, device=device)
        if kind.endswith("as it is"):
            values[0, :32] *= 2.0**40  # a weight that does not fold is prepared as bf16
        self.w = mxgemm.quantize(values)
        if prepared:
            self.w = self.w.prepare(memory="compact" if kind.endswith("compact") else "fast")
        self.a = torch.randn(m or rows, K, dtype=torch.bfloat16, device=device)
        in_fp32 = "in fp32" in kind
        bias_dtype = torch.float32 if in_fp32 else torch.bfloat16
        self.bias = torch.randn(N, device=device).to(bias_dtype) if bias or in_fp32 else None

    def __call__(self, a: Tensor | None = None, **options: Any) -> Tensor:
        x = self.a if a is None else a
        return mxgemm.gemm(x, self.w, bias=self.bias, route=self.route, a_format=self.a_format, **options)  # type: ignore[arg-type]

    def settled(self, **options: Any) -> Case:
        """Make the plan, with the case's configuration, and let C know it."""
        bind = router.choose
        if self.config is not None:
            patched = partial(_configured, bind, self.config)
            plan.choose, held = patched, plan.choose  # type: ignore[assignment, attr-defined]
            try:
                self(**options)
            finally:
                plan.choose = held  # type: ignore[attr-defined]
        else:
            self(**options)
        with torch.cuda.device(self.a.device):
            named = self.a_format, "even", torch.bfloat16, self.route
            steady.settle(self.a, self.w, self.bias, options.get("out"), named)
        return self

    def by_c(self, a: Tensor | None = None, out: Tensor | None = None) -> Tensor | None:
        assert steady.quick is not None
        named = self.a_format, "even", torch.bfloat16, self.route
        return steady.quick(self.w, self.a if a is None else a, self.bias, out, *named)


def _configured(bind: Callable[..., Any], config: Config, *arguments: Any, **options: Any) -> Any:
    return dataclasses.replace(bind(*arguments, **options), config=config)


@pytest.fixture(autouse=True)
def _native() -> None:
    if module.load(MXTensor, steady.Known, vars(plan)) is None:
        pytest.skip("no compiler for the steady call")
    plan.clear_plans()


@contextmanager
def python_only() -> Iterator[None]:
    held, steady.quick = steady.quick, None
    try:
        yield
    finally:
        steady.quick = held


def by_python(case: Case, *arguments: Any, **options: Any) -> Tensor:
    with python_only():
        return case(*arguments, **options)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_c_and_python_agree(kind: str, bias: bool) -> None:
    case = Case(kind, bias=bias).settled()
    out = torch.full((len(case.a), N), torch.nan, dtype=torch.bfloat16, device="cuda")
    case.settled(out=out)
    for _ in range(3):
        want = by_python(case)
        first, second = case.by_c(), case.by_c()
        assert first is not None
        assert second is not None
        assert first.data_ptr() != second.data_ptr()
        out.fill_(torch.nan)
        assert case.by_c(out=out) is out
        for result in (first, second, out, case()):
            assert torch.equal(result, want)
        case.a.copy_(torch.randn_like(case.a))  # nothing of A is kept
        assert not torch.equal(case(), want)
    case.a[0, :32] *= 2.0**24  # a row that does not fold
    case.a[1, 5] = torch.nan
    assert torch.equal(case().view(torch.int16), by_python(case).view(torch.int16))
    aligned = case()
    memory = torch.empty(case.a.numel() + 1, dtype=torch.bfloat16, device="cuda")
    moved = memory[1:].view_as(case.a).copy_(case.a)
    assert case.by_c(moved) is None
    if kind.startswith("w4_fp8"):
        with pytest.raises(mxgemm.RouteUnavailable, match="multiples of 16 bytes"):
            case(moved)
    else:
        assert torch.equal(case(moved).view(torch.int16), by_python(case, moved).view(torch.int16))
    assert torch.equal(case().view(torch.int16), aligned.view(torch.int16))


def test_two_streams_and_eight_threads() -> None:
    cases = [Case(kind).settled() for kind in KINDS]
    inputs = [[torch.randn_like(case.a) for _ in range(4)] for case in cases]
    wants = [[by_python(case, a) for a in each] for case, each in zip(cases, inputs, strict=True)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    wrong: list[tuple[int, int, int]] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        with torch.cuda.stream(streams[seed % 2]):
            results = []
            for i in range(300):
                which, turn = (seed + i) % len(cases), (seed * i) % 4
                results.append((which, turn, cases[which](inputs[which][turn])))
                if len(results) == 50:
                    torch.cuda.current_stream().synchronize()
                    wrong.extend(
                        (seed, which, turn) for which, turn, y in results if not torch.equal(y, wants[which][turn])
                    )
                    results.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_replay_after_ten_thousand_calls(kind: str) -> None:
    """Two shapes, captured on a side stream, replayed alternately with other inputs; eager calls between."""
    cases = [Case(kind).settled(), Case(kind, m=3 if kind.startswith("w4_mma") else 40).settled()]
    side, graphs, outputs = torch.cuda.Stream(), [], []
    for case in cases:
        side.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            outputs.append(case())
        graphs.append(graph)
    other = Case(kind, m=7)
    other.settled()
    for _ in range(10_000 // len(KINDS)):
        other()
    for _ in range(4):
        for case, graph, y in zip(cases, graphs, outputs, strict=True):
            case.a.copy_(torch.randn_like(case.a))
            graph.replay()
            assert torch.equal(y, case())


def test_ten_thousand_calls_between_a_capture_and_its_replay() -> None:
    case, other = Case("fp8_fold").settled(), Case("fp8_fold", m=129).settled()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case()
    case.a.copy_(torch.randn_like(case.a))
    for _ in range(10_000):
        other()
    graph.replay()
    assert torch.equal(y, case())


@pytest.mark.parametrize("kind", ["one launch", "fp8_fold, compact"])  # whose first launches are Triton's
def test_a_cold_capture_names_warmup(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(kind)
    monkeypatch.setattr(launch, "_compiled", set())
    with pytest.raises(RuntimeError, match=r"mxgemm\.warmup"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        case()
    torch.cuda.synchronize()
    case()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case()
    graph.replay()
    assert torch.equal(y, case())


def test_after_a_warmup_no_m_compiles() -> None:
    w = mxgemm.quantize(torch.randn(N, K, device="cuda")).prepare()
    mxgemm.warmup(w)
    before = len(launch._compiled), len(loaded._modules)
    for m in (*range(1, 70), 100, 129, 200, 1000, 3000, 8191):
        mxgemm.gemm(torch.randn(m, K, dtype=torch.bfloat16, device="cuda"), w)
    assert (len(launch._compiled), len(loaded._modules)) == before
    assert steady.quick is not None
    assert (
        steady.quick(w, torch.randn(64, K, dtype=torch.bfloat16, device="cuda"), None, None, *_BY_DEFAULT) is not None
    )


_BY_DEFAULT = ("e2m1", "even", torch.bfloat16, None)


def test_a_profiler_of_triton_hears_of_every_launch() -> None:
    import triton

    case = Case("one launch").settled()
    assert case.by_c() is not None
    heard: list[object] = []
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(heard.append)
    try:
        assert case.by_c() is None
        case()
        assert heard
    finally:
        hook.remove(heard.append)
    assert case.by_c() is not None


def test_scratch_is_given_back_and_may_be_cleared() -> None:
    case = Case("fp8_fold").settled()
    want = by_python(case)
    mxgemm.clear_workspaces()
    for _ in range(3):
        assert torch.equal(case(), want)
    kept = [len(free) for (device, _), free in workspace._free.items() if device.type == "cuda"]
    assert kept == [1]


def test_a_thread_without_a_context() -> None:
    case = Case("one launch").settled()
    want, found = by_python(case), []
    thread = threading.Thread(target=lambda: found.append(case()))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(found[0], want)


@pytest.mark.parametrize("kind", KINDS)
def test_another_device(kind: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    case = Case(kind, device="cuda:1").settled()
    assert torch.cuda.current_device() == 0
    want = by_python(case)
    assert case.by_c() is None  # device 0 is current: Python changes it for the call
    assert torch.equal(case(), want)
    with torch.cuda.device(1):
        found = case.by_c()
        assert found is not None
        assert found.device == torch.device("cuda", 1)
        assert torch.equal(found, want)
    here = Case(kind).settled()
    assert torch.equal(here(), by_python(here))
    assert torch.equal(case(), want)
