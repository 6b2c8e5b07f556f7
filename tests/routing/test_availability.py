"""What is missing on a machine and what does not fit a call are two answers; what is missing is said once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm import notices
from mxgemm.aiter import direct, installed
from mxgemm.cpu import build as cpu_build
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.errors import Refusal, Refused, by_reason
from mxgemm.hip import build, shuffle
from mxgemm.measure import doctor
from mxgemm.mx.formats import E2M1
from mxgemm.mx.layouts import Layout, padded_scale_shape
from mxgemm.mx.prepared import WeightForm, wanted_on
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routing import router, tables
from mxgemm.triton import quantize, support
from tests import aiter_double, torch_mx_double
from tests.command import output

MACHINES = KNOWN_MACHINES | {arch: Machine(arch, 64, arch) for arch in ("sm_75", "sm_89", "gfx90a")}
TRITON_ROUTES = {"a16wfp4", "w4a16", "gemm_mx", "quant_gemm_mx", "dequant_mm"}
ACTIVATIONS = [("e2m1", False), ("e4m3", False), ("bf16", False), ("e2m1", True), ("e5m2", True)]


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """triton 3.6, no AITER, a HIP compiler, no interpreter, the CPU's kernels; and nothing was said yet."""
    monkeypatch.setattr(support, "triton_version", lambda: (3, 6))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(build, "compiler_refusal", lambda arch: None)
    monkeypatch.setattr(cpu_build, "library", lambda: None)
    absent = Refusal("aiter", "not installed", installed.INSTALL, "installation")
    monkeypatch.setattr(installed, "find", cache(lambda: absent))
    monkeypatch.delenv(direct.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(notices, "_said", {})
    yield
    aiter_double.forget()


def problem(
    machine: Machine,
    form: WeightForm | None,
    a_format: str = "e2m1",
    quantized: bool = False,
    size: tuple[int, int, int] = (64, 1024, 1024),
) -> Problem:
    m, n, k = size
    layout = Layout() if form is None or form.layout is None else form.layout
    derived = "" if form is None or form.layout is not None else form.kind
    columns = padded_scale_shape(n, k)[1] if layout.scales == "shuffled" else k // 32
    return Problem.of(
        m, n, k, machine, a_format=a_format, a_quantized=quantized, weight_layout=layout.data,
        a_dtype=torch.uint8 if quantized else torch.bfloat16, scale_layout=layout.scales, derived=derived,
        strides=replace(contiguous_strides(n, k, E2M1, columns), a_scales=(k // 32, 1)),
    )  # fmt: skip


def calls(machine: Machine) -> list[Problem]:
    forms = (None, wanted_on(machine.arch))
    sizes = (64, 1024, 1024), (16, 1024, 1024)  # a route may be for few rows alone
    return [problem(machine, form, *given, size) for size in sizes for form in forms for given in ACTIVATIONS]


@pytest.mark.parametrize("aiter", [False, True], ids=["no aiter", "aiter"])
@pytest.mark.parametrize("arch", MACHINES)
def test_a_route_that_misses_nothing_takes_something_and_one_that_does_takes_nothing(
    arch: str, aiter: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if aiter:
        monkeypatch.undo()
        monkeypatch.setattr(build, "compiler_refusal", lambda arch: None)
        monkeypatch.setattr(cpu_build, "library", lambda: None)
        monkeypatch.setattr(support, "triton_version", lambda: (3, 9))
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        aiter_double.install(monkeypatch, tmp_path)
    machine = MACHINES[arch]
    for route in ROUTES.values():
        missing = route.missing(machine)
        answers = [route.refusal(call) for call in calls(machine)]
        if missing:
            assert missing.missing
            assert set(answers) == {missing}
        else:
            assert None in answers, f"{route.name} is said to be available on {arch} and takes nothing"
            assert not any(answer.missing for answer in answers if answer), answers
        assert route.takes


@pytest.mark.parametrize(
    "arch, triton, available",
    [
        ("sm_90", (3, 6), {*TRITON_ROUTES, "fp8_fold", "w4_fp8", "w4_mma", "w4_wgmma", "reference"}),
        ("sm_100", (3, 6), {*TRITON_ROUTES, "reference"}),
        ("gfx950", (3, 6), {*TRITON_ROUTES, "hip_fused", "hip_mx", "reference"}),
        ("gfx950", (3, 5), {*TRITON_ROUTES - {"dequant_mm"}, "hip_fused", "hip_mx", "reference"}),
        ("gfx950", (3, 4), {*TRITON_ROUTES - {"dequant_mm"}, "hip_fused", "hip_mx", "reference"}),
        ("gfx950", (3, 3), {"hip_fused", "hip_mx", "reference"}),
        ("sm_90", (3, 5), {"w4_fp8", "w4_mma", "w4_wgmma", "reference"}),
        ("gfx942", (3, 6), {"w4a16", "dequant_mm", "reference"}),
        ("gfx942", (3, 9), {*TRITON_ROUTES, "reference"}),
        ("gfx1250", (3, 6), {"a16wfp4", "gemm_mx", "quant_gemm_mx", "dequant_mm", "reference"}),
        ("cpu", (3, 9), {"cpu_native", "cpu_dequant_mm", "reference"}),
        ("sm_90", None, {"w4_fp8", "w4_mma", "w4_wgmma", "reference"}),
    ],
)
def test_doctor(
    arch: str, triton: tuple[int, int] | None, available: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "triton_version", lambda: triton)
    monkeypatch.setattr(doctor, "machine_of", lambda device: MACHINES[arch])
    found = doctor.examine()
    assert {route.name for route in found.routes if route.missing is None} == available
    assert [route.name for route in found.routes] == list(ROUTES)
    for route in found.routes:
        assert route.missing is None or route.missing.about in ("machine", "installation")


@pytest.mark.parametrize(
    "arch, made", [("sm_90", "fp8_fold"), ("gfx950", "preshuffled, scales shuffled"), ("cpu", "nothing")]
)
def test_doctors_command(arch: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "machine_of", lambda device: MACHINES[arch])
    monkeypatch.setenv("COLUMNS", "400")
    text = output("doctor")
    lines = text.splitlines()
    routes = doctor.examine().routes
    said = [line.removeprefix("missing ") for line in lines if line.startswith("missing ")]
    assert said == by_reason(Refused(route.name, route.missing) for route in routes if route.missing)
    assert not any("prepare()" in line or "a_format" in line or "quantised" in line for line in said), said
    for route in routes:
        (line,) = [line for line in lines if line.startswith(f"{route.name} ")]
        assert route.takes in line
        assert ("missing" if route.missing else "available") in line
    (line,) = [line for line in lines if "prepare() makes of a weight" in line]
    assert made in line


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("arch", KNOWN_MACHINES)
def test_explain_tells_what_is_missing_from_what_does_not_fit(arch: str, prepared: bool) -> None:
    answer = mxgemm.explain(64, 1024, 1024, device=arch, prepared=prepared)
    here, _, others = str(answer).partition("  missing here\n")[2].partition("  not for this call\n")
    for refused in answer.refusals:
        refusal = refused.refusal
        assert refusal.missing == (ROUTES[refused.route].missing(KNOWN_MACHINES[arch]) is not None)
        assert refused.route in (here if refusal.missing else others)
        assert f": {refusal.reason}" in (here if refusal.missing else others)
        assert f": {refusal.reason}" not in (others if refusal.missing else here)
    if arch in ("sm_90", "sm_100", "gfx950"):
        assert "w4a16: a_format is e2m1" in others
        assert "gemm_mx: a is torch.bfloat16" in others
    names = {answer.route, *answer.also_possible, *(refused.route for refused in answer.refusals)}
    assert names == set(ROUTES)


@pytest.mark.parametrize(
    "options, arch, said",
    [
        ({}, "gfx950", "row-major, as loose tensors"),
        ({"scale_layout": "shuffled"}, "gfx950", "row-major, scales shuffled, as loose tensors"),
        ({"prepared": True}, "gfx950", "prepared (preshuffled, scales shuffled)"),
        ({"prepared": True}, "sm_90", "prepared (fp8_fold)"),
        ({"derived": "fp8_fold_compact"}, "sm_90", "prepared (fp8_fold_compact)"),
        ({"prepared": True}, "cpu", "row-major: prepare() makes nothing of it on cpu"),
        (
            {"prepared": True, "scale_layout": "shuffled"},
            "sm_100",
            "row-major, scales shuffled: prepare() makes nothing of it on sm_100",
        ),
    ],
)
def test_explain_says_which_weight_it_assumed(options: dict[str, object], arch: str, said: str) -> None:
    answer = mxgemm.explain(64, 1024, 1024, device=arch, **options)  # type: ignore[arg-type]
    assert answer.weight == said
    assert f"\n  weight    {said}\n" in str(answer)


def own_table(folder: Path, rows: list[dict[str, object]]) -> list[Path]:
    head = {"kind": tables.KIND, "version": 1, "arch": "gfx950", "sources": {"t": {"title": "own"}}}
    common = {"m": 64, "n": 1024, "k": 1024, "grade": "measured", "source": "t"}
    path = folder / "own.json"
    path.write_text(json.dumps(head | {"rows": [common | row for row in rows]}))
    return [path]


def no_triton_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "triton_version", lambda: None)
    monkeypatch.setattr(support, "triton_failure", lambda: "OSError: libtriton.so: undefined symbol")


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal("compiler", "missing", "cc", "installation", "no C compiler builds the CPU's kernels")
    monkeypatch.setattr(cpu_build, "library", lambda: refusal)


Setup = Callable[[pytest.MonkeyPatch], None]


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "triton_version", lambda: None)
    refusal = Refusal("compiler", "missing", "NVRTC or nvcc", "installation")
    monkeypatch.setattr(build, "compiler_refusal", lambda arch: refusal)


def nothing_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing(monkeypatch)
    no_triton_that_works(monkeypatch)


@pytest.mark.parametrize(
    "arch, prepared, setup, chosen, said",
    [
        *[
            (
                "gfx950",
                prepared,
                (3, minor),
                "a16wfp4",
                f"a16wfp4: waves_per_eu is 3; needs at most 0 with triton 3.{minor}",
            )
            for prepared in (False, True)
            for minor in (4, 5)
        ],
        ("gfx950", False, (3, 3), "reference", "a16wfp4: triton is 3.3; needs triton >= 3.4 (pip install"),
        ("gfx950", False, (3, 3), "reference", "hip_fused: weight_layout is row_major; needs preshuffled"),
        ("gfx950", True, (3, 3), "hip_fused", "a16wfp4: triton is 3.3; needs triton >= 3.4 (pip install"),
        ("gfx950", True, None, "hip_fused", "triton is not installed; needs triton >= 3.4 (pip install"),
        ("gfx950", True, no_triton_that_works, "hip_fused", "cannot be imported (OSError: libtriton.so: undefined"),
        ("gfx950", True, nothing, "reference", "hip_fused: compiler is missing"),
        ("gfx950", True, (3, 5), "a16wfp4", "aiter is not installed; needs amd-aiter"),
        (
            "sm_90",
            True,
            nothing,
            "reference",
            "triton is not installed; needs triton >= 3.6 (pip install",
        ),
        ("sm_100", False, None, "reference", "triton is not installed"),
        (
            "sm_90",
            True,
            nothing_that_works,
            "reference",
            "cannot be imported (OSError: libtriton.so: undefined",
        ),
        ("gfx942", False, (3, 6), "dequant_mm", "a16wfp4: triton is 3.6; needs triton >= 3.9 on gfx942"),
        ("gfx950", True, (3, 6), "a16wfp4", "ck_gemm: aiter is not installed"),  # a table row takes its place
        ("cpu", False, no_compiler, "reference", "cpu_native: no C compiler"),
    ],
)
def test_what_is_missing_is_said_once(
    arch: str,
    prepared: bool,
    setup: tuple[int, int] | Setup | None,
    chosen: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if callable(setup):
        setup(monkeypatch)
    else:
        monkeypatch.setattr(support, "triton_version", lambda: setup)
    form = wanted_on(arch) if prepared else None
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for m in (64, 64, 65, 64):
            call = problem(MACHINES[arch], form, size=(m, 3072, 1536))
            choice = router.choose(call, tables=())
            assert choice.route.name == chosen
            router.tell(choice, call)
    assert caplog.text.count(said) == 1, caplog.text
    assert f"using {chosen} on {arch}; " in caplog.text
    assert "arch is" not in caplog.text


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "gfx950"])
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_nothing_is_said_where_nothing_is_missing(
    arch: str,
    activations: tuple[str, bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither that another machine would have more routes, nor that other calls take others."""
    monkeypatch.undo()
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.setattr(support, "triton_version", lambda: (3, 6))
    aiter_double.install(monkeypatch, tmp_path)
    if arch == "gfx950":
        torch_mx_double.install(monkeypatch, "2.10", hip="7.0.2")
    for form in (None, wanted_on(arch)):
        call = problem(MACHINES[arch], form, *activations)
        router.tell(router.choose(call, tables=()), call)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "route, row, said",
    [
        ("fused_asm", {"config": {"launch": "direct"}}, "AITER's code objects is missing"),
        ("ck_gemm", {"config": {"shuffle": "hip"}}, 'shuffle is hip; needs "triton": no compiler'),
        ("a16wfp4", {"config": {"tile": 3}}, "got field 'tile'"),
        ("quantum", {}, "quantum: route is not in this release"),
    ],
)
@pytest.mark.parametrize("forced", [False, True])
def test_a_row_that_cannot_be_used_here_is_said_although_another_configuration_serves(
    route: str,
    row: dict[str, object],
    said: str,
    forced: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.setattr(shuffle, "refusal", lambda machine: "no compiler")
    aiter_double.install(monkeypatch, tmp_path)
    paths = own_table(tmp_path, [{"route": route, **row}, {"m": 65, "route": "a16wfp4", "us": 1.0}])
    call = problem(MACHINES["gfx950"], wanted_on("gfx950"))
    name = route if forced and route in ROUTES else None
    choice = router.choose(call, route=name, tables=paths)
    assert choice.route.name == (name or "a16wfp4")
    router.tell(choice, call)
    router.tell(choice, call)
    assert caplog.text.count(said) == (0 if forced and name is None and route in ROUTES else 1)


def test_the_last_resort_of_a_gpu_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything is here, and no other route takes a strided view of a shuffled operand."""
    call = problem(MACHINES["gfx950"], wanted_on("gfx950"))
    assert call.strides is not None
    call = replace(call, strides=replace(call.strides, b=(1024, 1)))
    choice = router.choose(call, tables=())
    assert choice.route.name == "reference"
    router.tell(choice, call)
    assert "using reference on gfx950; a16wfp4: strides of b is (1024, 1)" in caplog.text


def test_quantising_without_triton_on_a_gpu_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quantize, "machine_of", lambda device: MACHINES["sm_90"])
    device = torch.device("cuda", 0)
    assert quantize.available(device)
    assert not quantize.available(torch.device("cpu"))
    assert caplog.text == ""
    monkeypatch.setattr(support, "triton_version", lambda: (3, 5))
    assert not any(quantize.available(device) for _ in range(3))
    assert caplog.text.count("on sm_90; triton is 3.5; needs triton >= 3.6") == 1


def test_of_many_threads_one_speaks(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: notices.say_once(f"reason {i % 5}"), range(4000)))
    assert sorted(record.message for record in caplog.records) == [f"reason {i}" for i in range(5)]
