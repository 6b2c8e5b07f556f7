"""Route ``scaled_mm`` against a double of torch's calls: which call, its shape rules, layouts, padding, refusals."""

from __future__ import annotations

import logging

import pytest
import torch

import mxgemm
from mxgemm import notices
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES, scaled_mm
from mxgemm.routes.base import Launch, Operands
from mxgemm.routes.scaled_mm import ScaledMMConfig
from mxgemm.routes.torch_mx import calls_of
from tests import torch_mx_double
from tests.cases import DEVICES, Case, make, run_route, skip_without_kernels

GFX950, SM_100 = KNOWN_MACHINES["gfx950"], KNOWN_MACHINES["sm_100"]
BUILDS = {
    "padded": ("2.8", "7.0.51831-a3e329ad8", None),
    "no_swizzle": ("2.10", "7.0.51831-a3e329ad8", None),
    "swizzle_32_8": ("2.14", "7.13.0", None),
    "recipe_32_8": ("main", "7.13.0", None),
    "swizzle_32_4_4": ("2.10", None, "13.0"),
}
ASKED = {
    "padded": "_scaled_mm",
    "no_swizzle": "NO_SWIZZLE",
    "swizzle_32_8": "SWIZZLE_32_8",
    "recipe_32_8": torch_mx_double.EXTENSION,
}
ROUTE = ROUTES["scaled_mm"]


def build(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    torch_release, hip, cuda = BUILDS[call]
    torch_mx_double.install(monkeypatch, torch_release, hip=hip, cuda=cuda)


def bound(monkeypatch: pytest.MonkeyPatch, call: str) -> tuple[Launch, Case]:
    """Return a launcher by this torch's calls for the case that comes with it."""
    build(monkeypatch, call)
    case = make(33, 64, 128)
    strides = Strides(a=(128, 1), b=(64, 1), b_scales=(4, 1), out=(64, 1))
    problem = Problem.of(33, 64, 128, GFX950, strides=strides)
    return ROUTE.bind(problem, ROUTE.configs(problem)[0]), case


def operands_of(case: Case) -> Operands:
    return Operands(case.a, None, case.weight.data, case.weight.scales, None, torch.empty(0))


def machine(call: str) -> mxgemm.device.Machine:
    return SM_100 if call == "swizzle_32_4_4" else GFX950


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scales", ["row_major", "shuffled", "swizzled_32_4_4"])
@pytest.mark.parametrize("call", BUILDS)
def test_right_by_the_rules_of_each_call(monkeypatch: pytest.MonkeyPatch, call: str, scales: str, device: str) -> None:
    skip_without_kernels(device)
    build(monkeypatch, call)
    for m, n, k in ((1, 32, 128), (33, 160, 384)):  # (K / 32) % 8 != 0, N % 128 != 0
        case = make(m, n, k, device=device)
        case.check(run_route("scaled_mm", case, layout=("row_major", scales), machine=machine(call)))
    assert set(torch_mx_double.CALLS) == {ASKED.get(call, "SWIZZLE_32_4_4")}


@pytest.mark.parametrize("call", BUILDS)
def test_a_bias_and_fp16_where_the_call_has_them(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    skip_without_kernels("cpu")
    build(monkeypatch, call)
    bias = torch.randn(64).bfloat16()
    case = make(5, 64, 128, bias=bias)
    case.check(run_route("scaled_mm", case, bias=bias, machine=machine(call)))
    half = Problem.of(5, 64, 128, machine(call), out_dtype=torch.float16)
    refusal = ROUTE.can_implement(half)
    if call in ("padded", "swizzle_32_4_4"):
        assert refusal is not None
        assert refusal.field == "out_dtype"
        return
    assert refusal is None
    case = make(5, 64, 128)
    case.check(run_route("scaled_mm", case, out_dtype=torch.float16, machine=machine(call)))


def test_nan_in_rows_that_are_not_there_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    build(monkeypatch, "swizzle_32_8")
    with mxgemm.workspace.take(1 << 20, torch.device("cpu")) as arena:
        arena.memory.fill_(255)
    case = make(3, 64, 128)
    case.check(run_route("scaled_mm", case, machine=GFX950))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n": 48}, "n"),
        ({"k": 96}, "k"),
        ({"a_format": "e4m3"}, "a"),
        ({"a_quantized": True}, "a"),
        ({"b_format": "e4m3"}, "b_format"),
        ({"weight_layout": "preshuffled"}, "weight_layout"),
        ({"out_dtype": torch.float32}, "out_dtype"),
        ({"has_bias": True}, "bias"),
        ({"aligned": False}, "alignment"),
        ({"m": 1 << 27}, "m"),
    ],
)
def test_what_no_call_takes_is_refused(monkeypatch: pytest.MonkeyPatch, change: dict[str, object], field: str) -> None:
    build(monkeypatch, "swizzle_32_8")
    values = {"m": 256, "n": 64, "k": 128, **change}
    sizes = [values.pop(name) for name in ("m", "n", "k")]
    assert ROUTE.can_implement(Problem.of(256, 64, 128, GFX950)) is None
    refusal = ROUTE.can_implement(Problem.of(*sizes, GFX950, **values))  # type: ignore[arg-type]
    assert refusal is not None
    assert refusal.field == field


@pytest.mark.parametrize(
    ("arch", "release", "hip", "cuda", "field"),
    [
        ("gfx942", "2.14", "7.13.0", None, "arch"),
        ("sm_90", "2.14", None, "13.0", "arch"),
        ("gfx950", "2.14", None, "13.0", "torch"),
        ("gfx950", "2.14", "6.4.2", None, "torch"),
        ("sm_100", "2.8", None, "12.9", "torch"),
        ("sm_100", "2.14", "7.13.0", None, "torch"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, arch: str, release: str, hip: str | None, cuda: str | None, field: str
) -> None:
    torch_mx_double.install(monkeypatch, release, hip=hip, cuda=cuda)
    refusal = ROUTE.missing(mxgemm.device.Machine(arch, 1, arch))
    assert isinstance(refusal, Refusal)
    assert refusal.field == field


def test_a_torch_without_the_dtypes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, "no_swizzle")
    monkeypatch.delattr(torch, "float4_e2m1fn_x2")
    refusal = ROUTE.missing(GFX950)
    assert refusal is not None
    assert "2.8" in refusal.needed


def names() -> list[str]:
    calls = calls_of(GFX950)
    assert not isinstance(calls, Refusal)
    return [call.name for call in calls]


def test_the_newer_order_of_scales_wants_its_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_mx_double.install(monkeypatch, "2.14", hip="7.2.1")
    assert names() == ["no_swizzle"]
    torch_mx_double.install(monkeypatch, "main", hip="7.13.0")
    assert names() == ["recipe_32_8", "no_swizzle"]


REFUSALS = [
    NotImplementedError("SWIZZLE_32_8 is not supported\nby this build"),
    NotImplementedError("MXFP4 scaling supported on ROCM and CUDA+FBGEMM_GENAI only"),
    ValueError("For ROCM MX gemm, swizzle_a and swizzle_b must both be NO_SWIZZLE"),
    ValueError("scale_a must not be swizzled (NO_SWIZZLE format)"),
    ValueError("ROCm MXFP4 (below ROCm 7.13.0 at build time) requires BlockWise1x32 scales; got 5"),
    ValueError("Invalid scaling configuration for _scaled_mm_v2: unsupported recipe(s). Got mat_a.dtype=.."),
    RuntimeError("Block-wise scaling for Float8_e8m0fnu is only supported on gfx950"),
    RuntimeError("Float4_e2m1fn_x2 is only supported for ROCm 7.0 and above"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling hipblasLtMatmul with transpose_mat1 1"),
    RuntimeError("could not find valid hipblaslt solution"),
]
FAULTS = [
    torch.AcceleratorError("HIP error: an illegal memory access was encountered"),
    torch.AcceleratorError("HIP error: SWIZZLE_32_8 is only supported on another stream"),
    torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasLtMatmul"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_INVALID_VALUE when calling hipblasLtMatmulDescSetAttribute"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling hipblasLtCreate(handle)"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x64 and 128x64)"),
    ValueError("For Blockwise scaling scale_a should have 128 elements, got: 64"),
    ValueError("Matrix dimensions must be multiples of 32 for block-wise scaling"),
    ValueError("Block-wise scaling only supports BFloat16 or Half output types"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: str(error).partition("\n")[0][:40])
def test_a_call_that_is_there_by_name_only_is_left_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    skip_without_kernels("cpu")
    launch, case = bound(monkeypatch, "swizzle_32_8")
    torch_mx_double.RAISES["SWIZZLE_32_8"] = error
    monkeypatch.setattr(notices, "_said", {})
    with caplog.at_level(logging.WARNING, logger="mxgemm"):
        for _ in range(2):
            case.check(launch(operands_of(case)))
    assert torch_mx_double.CALLS == ["SWIZZLE_32_8", "NO_SWIZZLE", "NO_SWIZZLE"]
    assert caplog.text.count(str(error).partition("\n")[0]) == 1
    assert "taking its no_swizzle" in caplog.text


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: str(error)[:40])
def test_a_fault_is_raised_and_no_other_call_is_tried(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    skip_without_kernels("cpu")
    launch, case = bound(monkeypatch, "swizzle_32_8")
    torch_mx_double.RAISES["SWIZZLE_32_8"] = error
    for _ in range(2):  # and nothing is settled by it
        with pytest.raises(type(error)) as raised:
            launch(operands_of(case))
        assert raised.value is error
    assert torch_mx_double.CALLS == ["SWIZZLE_32_8"] * 2
    torch_mx_double.RAISES.clear()
    case.check(launch(operands_of(case)))


def test_a_call_that_has_served_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    launch, case = bound(monkeypatch, "swizzle_32_8")
    launch(operands_of(case))
    torch_mx_double.RAISES["SWIZZLE_32_8"] = RuntimeError("could not find valid hipblaslt solution")
    with pytest.raises(RuntimeError, match="could not find valid hipblaslt solution"):
        launch(operands_of(case))
    assert set(torch_mx_double.CALLS) == {"SWIZZLE_32_8"}


def test_the_quantiser_s_errors_are_not_torch_s_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, case = bound(monkeypatch, "swizzle_32_8")

    def broken(*_: object, **__: object) -> None:
        raise NotImplementedError("scale_a must be swizzled")

    monkeypatch.setattr(scaled_mm, "quantize_rows", broken)
    with pytest.raises(NotImplementedError, match="scale_a must be swizzled"):
        launch(operands_of(case))
    assert torch_mx_double.CALLS == []


def test_the_last_call_s_error_is_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    launch, case = bound(monkeypatch, "no_swizzle")
    torch_mx_double.RAISES["NO_SWIZZLE"] = NotImplementedError("NO_SWIZZLE is not supported")
    with pytest.raises(NotImplementedError, match="NO_SWIZZLE is not supported"):
        launch(operands_of(case))


def test_a_configuration_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    build(monkeypatch, "swizzle_32_8")
    problem = Problem.of(33, 64, 128, GFX950)
    assert [str(config) for config in ROUTE.configs(problem)] == ["call=swizzle_32_8", "call=no_swizzle"]
    case = make(33, 64, 128)
    case.check(run_route("scaled_mm", case, config=ScaledMMConfig("no_swizzle"), machine=GFX950))
    assert torch_mx_double.CALLS == ["NO_SWIZZLE"]
    refusal = ROUTE.check_config(problem, ScaledMMConfig("padded"))
    assert refusal is not None
    assert refusal.field == "call"
