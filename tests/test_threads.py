"""Calls that interleave: whatever runs between two launches of a call, its result has the bits of a serial run.

The interleaving is made, not hoped for: after every launch of a call, and in one test after every operation of torch's,
other calls run whole, on the same thread or on another. ``FORMS`` has each form of each route that launches more than
once; a route that is not there fails a test.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mxgemm
from mxgemm import plan, workspace
from mxgemm.aiter.f4gemm import PREFIX
from mxgemm.cpu.launch import Product
from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher.jit import Tile, quant_gemm
from mxgemm.hip import shuffle as hip_shuffle
from mxgemm.mx import layouts
from mxgemm.routes import ROUTES, ck_gemm, cpu_dequant_mm, decode, scaled_mm
from mxgemm.routes.ck_gemm import CKGemmConfig
from mxgemm.routes.fused_asm import FusedAsmConfig
from mxgemm.triton.launch import Launcher
from mxgemm.triton.tile_config import TileConfig
from tests import aiter_double, torch_mx_double
from tests.cases import Case, cpu_route, make, run_route, skip_without_kernels
from tests.experts.cases import layer_of_two_experts, two_experts
from tests.marks import EXHAUSTIVE
from tests.scaled.cases import unpacked_product

pytestmark = pytest.mark.slow

Call = Callable[[], Tensor]
PREPARED = ("preshuffled", "shuffled")
SPLIT = TileConfig(block_m=16, block_n=32, block_k=128, split_k=2)
ONE_LAUNCH = TileConfig(block_m=16, block_n=32, block_k=128, split_k=2, one_launch=True)
CK_KERNEL = "a4w4_blockscale_256x64x128x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8_2x2_intrawave_v3"


@dataclass(frozen=True)
class Form:
    """One way of one route through its launches.

    Attributes:
        route: its name.
        bind: from a case to a call of it.
        shape: (M, N, K).
        launches: how many of them other calls can get between: with one, shared scratch cannot be seen.
        aiter: which AITER it takes, "" for none.
    """

    route: str
    bind: Callable[[Case], Call]
    shape: tuple[int, int, int] = (3, 32, 256)
    launches: int = 2
    aiter: str = ""


def routed(route: str, **options: Any) -> Callable[[Case], Call]:
    return lambda case: lambda: run_route(route, case, **options)


def public(route: str, memory: str = "", **options: Any) -> Callable[[Case], Call]:
    def bind(case: Case) -> Call:
        weight = case.weight.prepare("sm_90", memory=memory) if memory else case.weight  # type: ignore[arg-type]
        assert weight.operand()[3].startswith("fp8_fold") == (route == "fp8_fold")
        return lambda: mxgemm.gemm(case.a, weight, route=route, **options)

    return bind


def on_aiter(route: str, config: Any) -> Callable[[Case], Call]:
    return routed(route, layout=PREPARED, config=config, machine=KNOWN_MACHINES["gfx950"])


SLICED = (2, 32, 32)  # in slices of 16 rows of B
AITER = (3, 256, 512)
F4GEMM = f"{PREFIX}BpreShuffle_32x128"
FORMS = {
    "a16wfp4, two launches": Form("a16wfp4", routed("a16wfp4", config=SPLIT)),
    "a16wfp4, one launch": Form("a16wfp4", routed("a16wfp4", config=ONE_LAUNCH), launches=1),
    "w4a16, two launches": Form("w4a16", routed("w4a16", a_format="bf16", config=SPLIT)),
    "w4a16, one launch": Form("w4a16", routed("w4a16", a_format="bf16", config=ONE_LAUNCH), launches=1),
    "gemm_mx, two launches": Form("gemm_mx", routed("gemm_mx", config=SPLIT)),
    "gemm_mx, one launch": Form("gemm_mx", routed("gemm_mx", config=ONE_LAUNCH), launches=1),
    "fp8_fold, fast": Form("fp8_fold", public("fp8_fold", "fast")),
    "fp8_fold, compact": Form("fp8_fold", public("fp8_fold", "compact"), SLICED, launches=5),
    "fp8_fold, fp32 result": Form("fp8_fold", public("fp8_fold", "fast", out_dtype=torch.float32), (3, 20, 32)),
    "dequant_mm, e2m1": Form("dequant_mm", public("dequant_mm"), SLICED),
    "dequant_mm, bf16": Form("dequant_mm", public("dequant_mm", a_format="bf16"), SLICED),
    "dequant_mm, e4m3": Form("dequant_mm", public("dequant_mm", a_format="e4m3", out_dtype=torch.float32), SLICED),
    "fused_asm": Form("fused_asm", on_aiter("fused_asm", FusedAsmConfig(F4GEMM)), AITER, aiter="returned"),
    "ck_gemm, named": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig(F4GEMM, "triton")), AITER, aiter="returned"),
    "ck_gemm, HIP": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig(F4GEMM, "hip")), AITER, 3, aiter="returned"),
    "ck_gemm, CK": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig(CK_KERNEL, "triton")), AITER, aiter="returned"),
    "ck_gemm, pick": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig("", "triton")), AITER, aiter="returned"),
    "ck_gemm, pick, HIP": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig("", "hip")), AITER, 3, aiter="returned"),
    "cpu_native, rows": Form("cpu_native", public("cpu_native"), launches=1),
    "cpu_native, panels": Form("cpu_native", public("cpu_native"), (7, 32, 256), launches=1),
    "cpu_dequant_mm": Form("cpu_dequant_mm", public("cpu_dequant_mm", a_format="e4m3"), (3, 300, 32), launches=3),
    "quant_gemm_mx": Form("quant_gemm_mx", routed("quant_gemm_mx")),
    "quant_gemm_mx, split": Form("quant_gemm_mx", routed("quant_gemm_mx", config=SPLIT), launches=3),
    "scaled_mm": Form("scaled_mm", routed("scaled_mm", machine=KNOWN_MACHINES["gfx950"]), (3, 32, 256)),
    "quant_gemm, unpacked": Form("quant_gemm", unpacked_product, launches=3),
    "experts, a product": Form("experts", two_experts),
    "experts, a layer": Form("experts", layer_of_two_experts, (3, 64, 256), launches=1),  # memory of its own in between
    "ck_gemm, padded pick": Form("ck_gemm", on_aiter("ck_gemm", CKGemmConfig("", "triton")), AITER, aiter="filled"),
}
LONG = {"experts, a layer"}
"""Half a minute in the interpreter."""
ONE_LAUNCH_ROUTES = {"reference", "hip_fused", "hip_mx"}
"""Operations of torch's on memory of the call; one HIP launch, its scratch of the call; one behind quant_gemm_mx's."""
ON_A_GPU_ALONE = {"w4_mma", "w4_wgmma", "w4_fp8"}
"""Nothing here runs them: bench/w4_mma.py calls the first from threads, on an H200; the others take scratch alike."""
LAYERS = {f"experts/{name}" for name in ("known", "launches", "program", "w4_mma", "w4_wgmma")}
ELSEWHERE = {"workspace", "cpu/elements", "native/module", "scaled/triton_gemm", "routes/fold_plain", *LAYERS}
"""The pool; conversions on a CPU and mxgemm.quant_gemm, one launch each; on a GPU alone the steady calls in C, fp8_fold
where its last launch applies bases, and layers of experts by the kernels before."""
COMPUTING = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "mm", "_scaled_mm", "copy_", "_to_copy", "add_", "ones", "constant_pad_nd")
}
DRIVERS = ["the same thread", "another thread"]


@pytest.fixture(params=[pytest.param(name, marks=EXHAUSTIVE if name in LONG else ()) for name in FORMS])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Form]:
    skip_without_kernels("cpu")
    chosen = FORMS[request.param]
    monkeypatch.setattr(decode, "SLICE_BYTES", 1)
    monkeypatch.setattr(decode, "_SLICE_ROWS", 16)
    monkeypatch.setattr(cpu_dequant_mm, "SLICE_BYTES", 1)
    if chosen.route.startswith("cpu_") and cpu_route() == "reference":
        pytest.skip("no variant of the kernels for this CPU, or no C compiler")
    if chosen.aiter:
        aiter_double.install(monkeypatch, tmp_path, chosen.aiter).reuses_output = True
        monkeypatch.setattr(ck_gemm, "_hip_refusal", lambda problem: None)

        def shuffled(scales: Tensor, out: Tensor) -> None:
            rows = layouts.round_up(scales.shape[0], 32)
            out[:rows] = layouts.shuffle_scales(scales)[:rows]

        monkeypatch.setattr(hip_shuffle, "shuffle_scales_into", shuffled)
    if chosen.route == "scaled_mm":
        torch_mx_double.install(monkeypatch, "2.14", hip="7.13.0")
    plan.clear_plans()
    workspace.clear()
    yield chosen
    aiter_double.forget()
    plan.clear_plans()


def calls_of(form: Form) -> tuple[Call, list[Call]]:
    """A call; others of its size with other data (rows that fold differently), and one that needs more scratch."""
    m, n, k = form.shape
    cases = [make(m, n, k, octaves=2, seed=seed) for seed in range(2)]
    cases[0].a[m // 2, :32] *= 2.0**12
    bound = [form.bind(case) for case in (*cases, make(3 * m, n, k, octaves=2, seed=5))]
    return bound[0], bound[1:]


@dataclass
class Between:
    """Runs ``action`` after each launch, but after none of the action's own."""

    action: Callable[[], None]
    launches: int = 0
    busy: bool = False

    def __call__(self) -> None:
        if not self.busy:
            self.busy = True
            self.launches += 1
            try:
                self.action()
            finally:
                self.busy = False

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            self()
            return result

        return wrapped


def interleave(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> Between:
    between = Between(action)
    monkeypatch.setattr(Launcher, "__call__", between.after(Launcher.__call__))
    monkeypatch.setattr(Product, "__call__", between.after(Product.__call__))
    for name in ("round_to", "decode"):
        monkeypatch.setattr(cpu_dequant_mm, name, between.after(getattr(cpu_dequant_mm, name)))
    monkeypatch.setattr(scaled_mm, "quantize_rows", between.after(scaled_mm.quantize_rows))
    monkeypatch.setattr(aiter_double, "product", between.after(aiter_double.product))
    monkeypatch.setattr(hip_shuffle, "shuffle_scales_into", between.after(hip_shuffle.shuffle_scales_into))
    return between


def on_another_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@dataclass
class Others:
    """Runs other calls whole, and keeps their results."""

    calls: list[Call]
    got: list[list[Tensor]] = field(default_factory=list)

    def __call__(self) -> None:
        self.got.append([call() for call in self.calls])


@pytest.mark.parametrize("driver", DRIVERS)
def test_whole_calls_between_launches(form: Form, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, others = calls_of(form)
    want, wanted = call(), [other() for other in others]
    want, wanted = want.clone(), [tensor.clone() for tensor in wanted]
    run = Others(others)
    between = interleave(monkeypatch, run if driver == DRIVERS[0] else lambda: on_another_thread(run))
    got = call()
    assert between.launches >= form.launches
    assert len(run.got) == between.launches
    assert torch.equal(got, want)
    assert all(torch.equal(a, b) for results in run.got for a, b in zip(results, wanted, strict=True))


def test_whole_calls_between_torchs_operations(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatch mode multiplies whenever torch allocates, multiplies or copies."""
    call, others = calls_of(form)
    want, wanted = call(), others[0]()
    run = Others(others[:1])
    between = Between(run)

    def quietly(launcher: Launcher, *tensors: Tensor) -> None:  # what triton's interpreter does with torch is its own
        before, between.busy = between.busy, True
        launch(launcher, *tensors)
        between.busy = before

    launch = Launcher.__call__
    monkeypatch.setattr(Launcher, "__call__", quietly)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket in COMPUTING and between.launches < 12:
                between()
            return result

    # A call that a mode looks at is one operator, which hides what is inside; here the inside is meant.
    for module in ("gemm", "scaled.gemm", "experts.grouped", "experts.moe"):
        monkeypatch.setattr(sys.modules[f"mxgemm.{module}"], "is_observed", lambda *_: False)
    with Mode():
        got = call()
    hidden = "cpu_native", "quant_gemm"  # whose results are not made by way of torch's dispatcher
    assert bool(run.got) is (form.route not in hidden)
    assert torch.equal(got, want)
    assert all(torch.equal(results[0], wanted) for results in run.got)


def test_shared_scratch_would_be_seen(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above, with scratch as it was: one arena a stream, for every call from its start."""
    if form.launches == 1:
        pytest.skip("one launch: nothing comes between its use of scratch")
    call, others = calls_of(form)
    want = call()
    shared = workspace.Arena(None, torch.zeros(1 << 22, dtype=torch.uint8), torch.zeros(1 << 10, dtype=torch.int32))
    monkeypatch.setattr(workspace, "take", lambda nbytes, device, counters=0: shared)
    interleave(monkeypatch, Others(others[:1]))
    assert not torch.equal(call(), want)


class Finalised:
    """An object that multiplies when it is collected."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def __del__(self) -> None:
        self.action()


@pytest.mark.parametrize("how", ["finaliser", "signal handler"])
@pytest.mark.parametrize("form", ["a16wfp4, two launches", "fp8_fold, compact"], indirect=True)
def test_calls_from_where_python_interrupts(form: Form, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, others = calls_of(form)
    want, wanted = call(), [other() for other in others]
    run = Others(others)
    if how == "finaliser":
        interleave(monkeypatch, lambda: Finalised(run).__init__(run))  # type: ignore[misc]  # dropped at once
        got = call()
    else:
        before = signal.signal(signal.SIGUSR1, lambda *_: run())
        try:
            interleave(monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
            got = call()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert len(run.got) >= form.launches
    assert torch.equal(got, want)
    assert all(torch.equal(a, b) for results in run.got for a, b in zip(results, wanted, strict=True))


def test_threads_at_once(form: Form) -> None:
    """No order is made here: four threads, each with both sizes, kernels first launched by whoever comes first."""
    call, others = calls_of(form)
    calls = [call, *others]
    wanted = [each().clone() for each in calls]
    plan.clear_plans()
    start, wrong = threading.Barrier(4), []

    def work(seed: int) -> None:
        start.wait()
        for i in range(2):
            which = (seed + i) % len(calls)
            if not torch.equal(calls[which](), wanted[which]):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_launch_that_raises_leaves_nothing_behind(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    call, _ = calls_of(form)
    want = call()

    def fail() -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    for last in range(1, form.launches + 1):
        with monkeypatch.context() as patched:
            between = interleave(patched, lambda: None)
            between.action = lambda last=last, between=between: fail() if between.launches == last else None
            with pytest.raises(KeyboardInterrupt):
                call()
        assert torch.equal(call(), want)


def test_no_route_and_no_user_of_scratch_is_forgotten() -> None:
    covered = {form.route for form in FORMS.values()} - {"experts", "quant_gemm"}
    assert covered | ONE_LAUNCH_ROUTES | ON_A_GPU_ALONE == set(ROUTES)
    package = Path(mxgemm.__file__).parent
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    users = {name.removesuffix(".py") for name, source in sources.items() if "workspace.take(" in source}
    shared = dict.fromkeys(("a16wfp4", "w4a16", "gemm_mx"), "routes/triton_gemm")
    shared |= {"cpu_native": "cpu/launch", "fp8_fold": "routes/fold_chain"}
    shared |= dict.fromkeys(("w4_wgmma", "w4_fp8"), "routes/prepared_a")
    with_scratch = (covered | ON_A_GPU_ALONE | {"hip_fused"}) - {"reference"}
    assert users - ELSEWHERE == {"experts/triton_gemm", "scaled/unpack_mm"} | {
        shared.get(route, f"routes/{route}") for route in with_scratch
    }
    assert users >= ELSEWHERE


def test_the_reference_route_takes_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(5, 48, 64)
    monkeypatch.delattr(workspace, "take")
    case.check(mxgemm.gemm(case.a, case.weight, route="reference"))


@pytest.mark.parametrize("kind, scale", [("e2m1", "block"), ("e4m3", "row")])
def test_the_dispatchers_launches(kind: str, scale: str) -> None:
    """One launch a call; what triton keeps of a running kernel is a thread's own or locked."""
    skip_without_kernels("cpu")
    from evidence.quant_cases import operands

    tile = Tile(block_m=16, block_n=32, block_k=128)
    drawn = [[torch.from_numpy(array) for array in operands(kind, scale, 5, 40, 96, seed=i).arrays] for i in range(4)]
    wanted = [quant_gemm(*tensors, kind, tile) for tensors in drawn]
    start, wrong = threading.Barrier(4), []

    def work(i: int) -> None:
        start.wait()
        for _ in range(5):
            if not torch.equal(quant_gemm(*drawn[i], kind, tile), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
