"""What surrounds a call in torch changes no bit of its result: every state times every public function and route."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mxgemm
from mxgemm import ambient
from mxgemm.dispatcher.jit import quant_gemm
from tests.cases import cpu_route, skip_without_kernels, spread

M, N, K = 5, 48, 256


class SeenByDispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenByFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
        assert read() == value, "a call left the setting changed"
    finally:
        write(before)


def attribute(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    return setting(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        with attribute(torch.utils.deterministic, "fill_uninitialized_memory", True):
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def float32_precision(name: str) -> AbstractContextManager[None]:
    return setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, name)


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("autocast bf16", "default dtype fp64", "precision medium", "deterministic", "function mode"):
            stack.enter_context(STATES[name]())
        yield


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast bf16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast fp16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default dtype fp64": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default dtype fp16": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float16),
    "default device": lambda: default_device("meta"),
    "device context": lambda: torch.device("meta"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "forward-mode level": forward_ad.dual_level,
    "anomaly mode": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "deterministic": deterministic,
    "precision medium": lambda: float32_precision("medium"),
    "precision high": lambda: float32_precision("high"),
    "tf32 of CUDA": lambda: attribute(torch.backends.cuda.matmul, "allow_tf32", True),
    "bf16 reduction": lambda: attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "dispatch mode": SeenByDispatch,
    "function mode": SeenByFunction,
    "several at once": everything,
}  # fmt: skip

if hasattr(torch.backends, "fp32_precision"):
    STATES["precision of oneDNN"] = lambda: attribute(torch.backends.mkldnn.matmul, "fp32_precision", "bf16")
    STATES["precision of all"] = lambda: attribute(torch.backends, "fp32_precision", "tf32")


class Calls:
    """Every public function, by name, on operands whose block scales differ, so that the order of sums shows."""

    def __init__(self, device: str = "cpu") -> None:
        self.a = spread(M, K, torch.bfloat16).to(device)
        self.wide = spread(M, K, torch.float32, octaves=12, seed=3).to(device)
        self.b = spread(N, K, seed=1).to(device)
        self.bias = spread(1, 64, seed=2)[0, :N].to(device)
        self.w = mxgemm.quantize(self.b)
        self.gfx950 = self.w.prepare("gfx950")
        self.alone = self.w.prepare("gfx950", keep=False)
        self.sm_90 = mxgemm.quantize(spread(N, K, octaves=2, seed=1).to(device)).prepare("sm_90")
        assert made(self.sm_90)[0].dtype == torch.uint8
        self.b8 = mxgemm.quantize(self.b, format="e4m3")
        self.q = mxgemm.quantize(self.a, format="e4m3")

    def run(self) -> dict[str, tuple[Tensor, ...]]:
        """Return every call's results."""
        return {name: call() for name, call in self.calls().items()}

    def calls(self) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
        fp32, bias = torch.float32, self.bias
        compiled = self.a.device.type == "cpu" and cpu_route() != "reference"
        kernels = ("cpu_native", "cpu_dequant_mm") if compiled else ()
        out = torch.empty(M, N, dtype=torch.float32, device=self.a.device)
        found: dict[str, Callable[[], tuple[Tensor, ...]]] = {
            "gemm": lambda: (mxgemm.gemm(self.a, self.w, out_dtype=fp32),),
            "gemm, fp32 A, bias": lambda: (mxgemm.gemm(self.wide, self.w, bias=bias),),
            "gemm out": lambda: (mxgemm.gemm(self.a, self.w, out=out, out_dtype=fp32).clone(),),
            "gemm prepared": lambda: (mxgemm.gemm(self.a, self.gfx950, out_dtype=fp32),),
            "gemm of bytes": lambda: (mxgemm.gemm(self.a, self.w.data, self.w.scales, out_dtype=torch.float16),),
            "gemm_mx": lambda: (mxgemm.gemm_mx(self.q, self.w, bias=bias, out_dtype=fp32),),
            "operator": lambda: (torch.ops.mxgemm.gemm(self.a, self.w.data, self.w.scales),),
        }
        for fmt in ("e2m1", "e4m3", "bf16"):
            found[f"reference {fmt}"] = lambda fmt=fmt: (
                mxgemm.gemm(self.wide, self.w, a_format=fmt, out_dtype=fp32, route="reference"),
            )
        for route, fmt, weight in (
            ("a16wfp4", "e2m1", self.w), ("w4a16", "bf16", self.w), ("fp8_fold", "e2m1", self.sm_90),
            ("dequant_mm", "e2m1", self.w), ("dequant_mm", "bf16", self.w),
            *((name, fmt, self.w) for name in kernels for fmt in ("e2m1", "e4m3", "bf16")),
        ):  # fmt: skip
            for dtype in (torch.bfloat16, torch.float32):
                found[f"{route} {fmt} {dtype}"] = lambda route=route, fmt=fmt, weight=weight, dtype=dtype: (
                    mxgemm.gemm(self.a, weight, a_format=fmt, out_dtype=dtype, route=route),
                )
        found["gemm_mx route"] = lambda: (mxgemm.gemm_mx(self.q, self.w, out_dtype=fp32, route="gemm_mx"),)
        for fmt in ("e2m1", "e4m3", "e5m2"):
            found[f"quantize {fmt}"] = lambda fmt=fmt: parts(mxgemm.quantize(self.wide, format=fmt))
            found[f"dequantize {fmt}"] = lambda fmt=fmt: (mxgemm.quantize(self.wide, format=fmt).dequantize(),)
        found["dequantize layouts"] = lambda: (mxgemm.dequantize(self.alone, dtype=torch.bfloat16),)
        found["prepare gfx950"] = lambda: made(self.w.prepare("gfx950"))
        found["prepare sm_90"] = lambda: made(self.w.prepare("sm_90"))
        found["prepare sm_90 folded"] = lambda: made(self.sm_90.prepare("sm_90"))
        found["row_major"] = lambda: parts(self.alone.row_major())
        found["to"] = lambda: made(self.gfx950.clone())
        found["dispatcher"] = lambda: (quant_gemm(self.q.data, self.b8.data, self.q.scales, self.b8.scales, "e4m3"),)
        return found


def changed(found: dict[str, tuple[Tensor, ...]], want: dict[str, tuple[Tensor, ...]]) -> list[str]:
    """Name the calls whose results differ in a bit or in their dtype."""
    return [
        name
        for name, tensors in want.items()
        for got, right in zip(found[name], tensors, strict=True)
        if got.dtype != right.dtype or not torch.equal(got.view(torch.uint8), right.view(torch.uint8))
    ]


def made(weight: mxgemm.MXTensor) -> tuple[Tensor, ...]:
    assert weight.prepared is not None
    return weight.prepared.tensors


def parts(x: Any) -> tuple[Tensor, ...]:
    return x.data, x.scales


@pytest.fixture(scope="module")
def calls() -> Calls:
    skip_without_kernels("cpu")
    return Calls()


@pytest.fixture(scope="module")
def plain(calls: Calls) -> dict[str, tuple[Tensor, ...]]:
    return calls.run()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.slow
def test_no_state_changes_a_bit(state: str, calls: Calls, plain: dict[str, tuple[Tensor, ...]]) -> None:
    with STATES[state]():
        found = calls.run()
    assert changed(found, plain) == []


def test_calls_after_a_state_are_the_same(calls: Calls, plain: dict[str, tuple[Tensor, ...]]) -> None:
    """Scratch and plans made in inference mode, or under a default device, serve calls outside of it."""
    mxgemm.plan.clear_plans()
    mxgemm.workspace.clear()
    with torch.inference_mode(), torch.device("meta"):
        calls.run()
    assert changed(calls.run(), plain) == []


def test_below_an_operator_that_writes_no_tangent_is_asked_for() -> None:
    """torch before 2.13 leaves derivatives behind there, and asserts; who entered has been checked."""
    x = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(2))
        assert ambient.has_tangent(dual)
        assert not ambient.has_tangent(x)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            assert not ambient.has_tangent(x)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "state", [*(name for name in STATES if not name.startswith("autocast")), "cuda bf16", "cuda fp16"]
)
def test_no_state_changes_a_bit_on_a_gpu(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses products in deterministic mode
    calls = Calls("cuda")
    want = calls.run()
    dtypes = {"cuda bf16": torch.bfloat16, "cuda fp16": torch.float16}
    with torch.autocast("cuda", dtype=dtypes[state]) if state in dtypes else STATES[state]():
        found = calls.run()
    assert changed(found, want) == []


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 2112, 7168), (64, 256, 16384), (4, 2880, 512), (1024, 4096, 4096)], ids=str)
def test_the_sums_of_bf16_products_on_a_gpu(shape: tuple[int, int, int]) -> None:
    """Where cuBLAS splits K, its switch for adding the parts in bf16 is at torch's default, whatever is set."""
    m, n, k = shape
    a, w = spread(m, k, torch.bfloat16).cuda(), mxgemm.quantize(spread(n, k, seed=1).cuda())
    want = mxgemm.gemm(a, w, a_format="bf16", route="dequant_mm")
    with attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False):
        assert torch.equal(mxgemm.gemm(a, w, a_format="bf16", route="dequant_mm"), want)


def test_the_states_are_not_idle(calls: Calls) -> None:
    """The control: a plain product of the same operands does change."""
    left, right = calls.wide, calls.b
    with STATES["autocast bf16"]():
        assert (left @ right.T).dtype == torch.bfloat16
    with STATES["function mode"](), STATES["default dtype fp64"]():
        assert torch.ones(1).dtype == torch.float64


def test_a_mode_meets_one_operator(calls: Calls) -> None:
    with SeenByDispatch() as mode:
        mxgemm.gemm(calls.a, calls.w)
        mxgemm.gemm_mx(calls.q, calls.w)
        mxgemm.dequantize(mxgemm.quantize(calls.a))
    ours = [name for name in mode.seen if name.startswith("mxgemm")]
    assert ours == [f"mxgemm.{name}.default" for name in ("gemm", "gemm", "quantize", "dequantize")]
    assert not any("mm" in name.removeprefix("mxgemm.") for name in mode.seen if name not in ours)


def test_threads_leave_the_settings_of_the_process_alone() -> None:
    """Eight threads, one precision: every result is the plain one, and the setting is there when all are done."""
    a, w = spread(64, K, torch.bfloat16), mxgemm.quantize(spread(N, K, seed=1))
    want = mxgemm.gemm(a, w, out_dtype=torch.float32)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(25):
            if not torch.equal(mxgemm.gemm(a, w, out_dtype=torch.float32), want):
                wrong.append(number)

    with float32_precision("medium"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.get_float32_matmul_precision() == "medium"
    assert wrong == []


def test_who_enters_second_keeps_the_default_when_the_first_leaves() -> None:
    with float32_precision("medium"):
        first, second = ambient.plain_products("cpu"), None
        with first:
            second = ambient.plain_products("cpu")  # at this moment the setting is the default, by the first's doing
            second.__enter__()
        assert not ambient._changed("cpu")
        second.__exit__(None, None, None)
        assert ambient._changed("cpu")


def test_a_child_does_not_wait_for_its_parents_threads() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ambient.plain_products("cpu"):
            held.set()
            done.wait()

    with float32_precision("medium"):
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            kept = bool(ambient._changed("cpu"))  # the thread that would put it back is not here
            with ambient.plain_products("cpu"):
                os._exit(0 if kept else 1)
        status = os.waitpid(child, 0)[1]
        done.set()
        holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_nothing_is_done_where_nothing_is_set() -> None:
    with ambient.plain_products("cpu") as entered:
        assert entered is None
