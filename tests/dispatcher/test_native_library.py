"""The C side of a native library, against a HIP runtime that records, refuses and fails: no kernel runs here."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from evidence.dispatcher_emulated import EmulatedLibrary
from evidence.quant_cases import Operands
from gfx950emu.hip_runtime import EmulatedHip
from mxgemm.dispatcher.execution import RUNTIME_VARIABLE
from mxgemm.dispatcher.native import argument_table
from tests.dispatcher.native_libraries import CONFIGS, SUM_SCALED, built, description, draw, environment

NAMES = ("mx-fp4", "rowcol-fp8")
FAR = (1 << 40, 2 << 40, 3 << 40, 4 << 40, 5 << 40)
"""Addresses of A, B, their scales and C that nobody follows."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return EmulatedHip.build(tmp_path_factory.mktemp("hip")).path


@pytest.fixture
def hip(runtime: Path) -> EmulatedHip:
    return EmulatedHip(runtime)


class Fresh:
    """A copy of a library, so that it starts with nothing loaded."""

    def __init__(self, name: str, factory: pytest.TempPathFactory) -> None:
        original = built(name, factory)
        self.config, self.arch = CONFIGS[name]
        self.path = Path(shutil.copytree(original.parent, factory.mktemp("fresh") / "library")) / original.name
        self.c = ctypes.CDLL(str(self.path))
        for function in ("get_kernel_name", "get_arch", "get_source", "last_error"):
            getattr(self.c, f"dispatcher_{function}").restype = ctypes.c_char_p

    def initialize(self, runtime: Path | str) -> int:
        with environment(**{RUNTIME_VARIABLE: str(runtime)}):
            return int(self.c.dispatcher_initialize())

    def error(self) -> str:
        text: bytes = self.c.dispatcher_last_error()
        return text.decode()


def silent(name: str, factory: pytest.TempPathFactory, hip: EmulatedHip) -> EmulatedLibrary:
    """Open a fresh library whose launches are recorded and do nothing."""
    fresh = Fresh(name, factory)
    library = EmulatedLibrary(fresh.path, fresh.config, hip)
    hip.on_launch(lambda launch: None)
    hip.calls()
    return library


@pytest.mark.parametrize("name", SUM_SCALED)
def test_identity_needs_no_device(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = Fresh(name, tmp_path_factory)
    assert library.c.dispatcher_get_kernel_name() == library.config.name.encode()
    assert library.c.dispatcher_get_kernel_count() == 1
    assert library.c.dispatcher_get_arch() == library.arch.encode()
    assert library.c.dispatcher_get_source() == b"native"
    assert library.error() == ""


def test_no_runtime(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    library = Fresh("rowcol-fp8", tmp_path_factory)
    assert library.initialize(tmp_path / "nothing.so") == -1
    assert "the HIP runtime could not be opened" in library.error()
    assert "nothing.so" in library.error()
    assert RUNTIME_VARIABLE in library.error()


def test_every_attempt_to_find_the_runtime_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    if ctypes.util.find_library("amdhip64"):
        pytest.skip("there is a HIP runtime here")
    library = Fresh("rowcol-fp8", tmp_path_factory)
    with environment(**{RUNTIME_VARIABLE: ""}):
        assert library.c.dispatcher_initialize() == -1
    for name in ("libamdhip64.so:", "libamdhip64.so.7:", "libamdhip64.so.6:", "libamdhip64.so.5:", RUNTIME_VARIABLE):
        assert library.error().count(name) == 1, library.error()


def test_a_failed_attempt_keeps_no_runtime(
    tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip, tmp_path: Path
) -> None:
    library = Fresh("rowcol-fp8", tmp_path_factory)
    hip.set_device("gfx950", devices=0)
    assert library.initialize(hip.path) == -1
    another = EmulatedHip.build(tmp_path)
    assert library.initialize(another.path) == 0
    assert another.modules()


def test_another_library_is_no_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    library = Fresh("rowcol-fp8", tmp_path_factory)
    assert library.initialize(ctypes.util.find_library("m") or "libm.so.6") == -1
    assert "the HIP runtime has no hipInit" in library.error()


@pytest.mark.parametrize(
    "arch, devices, says",
    [
        ("gfx950", 0, "is there an AMD GPU"),
        ("gfx942", 1, "compiled for gfx950, but device 0 is gfx942; build it with gfx_arch='gfx942'"),
        ("none", 1, "of no named architecture"),
    ],
)
def test_the_wrong_device(
    arch: str, devices: int, says: str, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip
) -> None:
    library = Fresh("rowcol-fp8", tmp_path_factory)
    before = hip.modules()
    hip.set_device(arch, devices=devices)
    assert library.initialize(hip.path) == -1
    assert says in library.error()
    assert hip.modules() == before
    hip.set_device("gfx950")
    assert library.initialize(hip.path) == 0


def test_the_real_runtime_without_a_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a process of its own, so that nothing of the runtime stays here."""
    if not ctypes.util.find_library("amdhip64"):
        pytest.skip("libamdhip64 is not installed; on Debian: apt install libamdhip64-5")
    if Path("/dev/kfd").exists():
        pytest.skip("there is an AMD device here")
    library = Fresh("rowcol-fp8", tmp_path_factory)
    code = (
        "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); c.dispatcher_last_error.restype = ctypes.c_char_p\n"
        "print(c.dispatcher_initialize(), c.dispatcher_last_error().decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library.path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("-1 "), done.stdout
    assert "is there an AMD GPU" in done.stdout


def test_running_before_initialising(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    library.library.dispatcher_cleanup()
    assert library.call_sizes("_device", FAR, (1, 64, 256)) == -1
    assert "call dispatcher_initialize first" in library.last_error()


def test_cleanup_unloads_and_initialising_again_loads(
    tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip
) -> None:
    before = hip.modules()
    library = Fresh("rowcol-fp8", tmp_path_factory)
    for _ in range(2):
        assert library.initialize(hip.path) == library.initialize(hip.path) == 0
        assert hip.modules() == before + len(description(library.path)["variants"])
        library.c.dispatcher_cleanup()
        library.c.dispatcher_cleanup()
        assert hip.modules() == before


@pytest.mark.parametrize("name", NAMES)
def test_host_entry_copies_launches_once_and_frees(
    name: str, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip
) -> None:
    library = silent(name, tmp_path_factory, hip)
    operands = draw(name, 5, 64, 256)
    seen: dict[str, bytes] = {}

    def look(launch: object) -> None:
        values = library.table.unpack(hip.launches[-1].kernarg)
        for key, size in ((key, hip.allocations()[values[key]]) for key in ("a", "b", "a_scales", "b_scales", "out")):
            seen[key] = ctypes.string_at(values[key], size)
        ctypes.memset(values["out"], 0x3C, 2 * 5 * 64)

    hip.on_launch(look)
    out = library.host(operands)
    for key in ("a", "b", "a_scales", "b_scales"):
        assert seen[key] == getattr(operands, key).tobytes(), key
    assert seen["out"] == b"\xff" * (2 * 5 * 64)  # C is not copied in
    assert (out.view(np.uint16) == 0x3C3C).all()
    calls = [call for call in hip.calls() if call != "hipGetDevice"]
    assert calls == [
        *["hipMalloc", "hipMemcpy"] * 4, "hipMalloc", "hipModuleLaunchKernel", "hipStreamSynchronize", "hipMemcpy",
        *["hipFree"] * 5,
    ]  # fmt: skip
    assert not hip.allocations()


@pytest.mark.parametrize("name", NAMES)
def test_packed_arguments_and_launch(name: str, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent(name, tmp_path_factory, hip)
    config = library.config
    m, n, k = 3 * config.tile_m - 5, 2 * config.tile_n, 2 * config.tile_k
    assert library.call_sizes("_device", FAR, (m, n, k), stream=0x77) == 0
    (launch,) = hip.launches
    values = dict(zip(("a", "b", "a_scales", "b_scales", "out"), FAR, strict=True), m=m, n=n, k_blocks=k // 32)
    variant = description(library.path)["variants"][0]
    assert launch.kernarg == argument_table(variant).pack(values)
    assert launch.grid == (3 * 2, 1, 1)
    assert launch.block == (64 * config.warp_m * config.warp_n, 1, 1)
    assert (launch.lds, launch.stream, launch.kernel) == (variant["lds"], 0x77, variant["kernel"])


@pytest.mark.parametrize(
    "shape, variant",
    [
        ((33, 64, 256), "even"),
        ((33, 65, 256), "masked"),
        ((33, 64, 288), "masked"),
        ((1 << 14, 1 << 15, 256), "even"),
        ((1 << 14, 1 << 16, 256), "wide"),  # C has 2 GiB
        ((1, 1 << 20, 1 << 11), "wide"),  # B has
        (((1 << 23) - 16, 64, 256), "even"),
        ((1 << 23, 64, 256), "wide"),  # A has
        ((1, 64, 1 << 30), "wide"),
    ],
)
def test_variant_by_size(
    shape: tuple[int, int, int], variant: str, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip
) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    assert library.call_sizes("_device", FAR, shape) == 0, library.last_error()
    assert hip.launches[-1].code == (library.path.parent / f"{variant}.hsaco").read_bytes()


def test_timing(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    time_ms = ctypes.c_float(-1)
    assert library.call_sizes("_device", FAR, (1, 64, 256), ctypes.byref(time_ms)) == 0
    assert len(hip.launches) == 20 + 50
    assert time_ms.value == pytest.approx(5.0 / 50)  # the emulated runtime's events are 5 ms apart
    hip.launches.clear()
    with environment(CK_TILE_BENCH_WARMUP="3", CK_TILE_BENCH_REPEAT="4"):
        assert library.call_sizes("_device", FAR, (1, 64, 256), ctypes.byref(time_ms)) == 0
    assert len(hip.launches) == 7
    assert time_ms.value == pytest.approx(5.0 / 4)
    assert hip.events() == 0


@pytest.mark.parametrize("which", range(5))
def test_null_pointer(which: int, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    pointers = tuple(0 if i == which else address for i, address in enumerate(FAR))
    for entry in ("", "_device"):
        assert library.call_sizes(entry, pointers, (1, 64, 256)) == -1
        assert "got a null pointer" in library.last_error()
    assert not hip.launches


@pytest.mark.parametrize(
    "name, sizes, options, result, says",
    [
        ("mx-fp4", (0, 64, 256), {}, -1, "got 0, 64, 256"),
        ("mx-fp4", (1, -3, 256), {}, -1, "got 1, -3, 256"),
        ("mx-fp4", (1, 64, 0), {}, -1, "got 1, 64, 0"),
        ("mx-fp4", (1, 64, 48), {}, -1, "K: got 48, want a multiple of 32"),
        ("rowcol-fp8", (1, 64, 48), {}, -2, "K: got 48, want a multiple of 32"),
        ("mx-fp4", (1, 64, 256), {"k_batch": 2}, -2, "k_batch: got 2, want 1"),
        ("rowcol-fp8", (1, 64, 256), {"k_batch": 0}, -2, "k_batch: got 0, want 1"),
        ("rowcol-fp8", (1, 64, 256), {"strides": (512, 256, 64)}, -2, "stride_A: got 512, want 256"),
        ("rowcol-fp8", (1, 64, 256), {"strides": (256, 256, 1)}, -2, "stride_C: got 1, want 64"),
        ("rowcol-fp8", (1, 64, (1 << 30) + 32), {}, -2, "K up to 2^30"),
        ("rowcol-fp8", (1 << 33, 64, 256), {}, -2, "under 2^31"),
        ("rowcol-fp8", (1 << 28, 64, 32), {}, -2, "more tiles than a launch can have"),
        ("mx-padded-persistent", (1 << 30, 1 << 30, 32), {}, -2, "more tiles than a launch can have"),
    ],
)
def test_refused_sizes(
    name: str, sizes: tuple[int, int, int], options: dict[str, object], result: int, says: str,
    tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip,
) -> None:  # fmt: skip
    library = silent(name, tmp_path_factory, hip)
    assert library.call_sizes("_device", FAR, sizes, **options) == result  # type: ignore[arg-type]
    assert says in library.last_error()
    assert not hip.launches
    assert not hip.allocations()


@pytest.mark.parametrize("which", range(5))
def test_an_address_off_the_alignment(which: int, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    pointers = tuple(address + 4 * (i == which) for i, address in enumerate(FAR))
    assert library.call_sizes("_device", pointers, (1, 64, 256)) == -2
    operand = ("A", "B", "the scales of A", "the scales of B", "C")[which]
    assert f": {operand}: got an address off a multiple of 16 bytes" in library.last_error()
    assert not hip.launches


def test_another_current_device(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    hip.set_device("gfx950", devices=2, current=1)
    assert library.call_sizes("_device", FAR, (1, 64, 256)) == -1
    assert "the current device is 1, but the kernel was loaded on 0" in library.last_error()


def test_initialising_survives_every_failure(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = Fresh("rowcol-fp8", tmp_path_factory)
    before = hip.modules()
    assert library.initialize(hip.path) == 0
    library.c.dispatcher_cleanup()
    steps = [call for call in hip.calls() if call != "hipModuleUnload"]
    assert len(steps) > 8
    for index, step in enumerate(steps):
        hip.fail(step, after=steps[:index].count(step), error=42)
        assert library.initialize(hip.path) == -1, step
        assert "HIP error 42" in library.error()
        assert hip.modules() == before
    assert library.initialize(hip.path) == 0


@pytest.mark.parametrize("timed", [False, True])
def test_running_survives_every_failure(
    timed: bool, tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip
) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    operands: Operands = draw("rowcol-fp8", 2, 64, 256)
    time_ms = ctypes.byref(ctypes.c_float()) if timed else None
    with environment(CK_TILE_BENCH_WARMUP="1", CK_TILE_BENCH_REPEAT="2"):
        library.host(operands, time_ms)
        steps = [call for call in hip.calls() if call != "hipEventDestroy"]
        for index, step in enumerate(steps):
            hip.fail(step, after=steps[:index].count(step), error=43)
            with pytest.raises(RuntimeError, match=r"returned -1: .*HIP error 43"):
                library.host(operands, time_ms)
            leaked = hip.allocations()
            assert len(leaked) == (step == "hipFree"), step  # what could not be freed, and nothing else
            for address in leaked:
                hip.free(address)
            assert hip.events() == 0
        library.host(operands, time_ms)


def test_the_error_text_is_the_threads_own(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    assert library.call_sizes("_device", FAR, (1, 64, 256), k_batch=7) == -2
    texts = []
    thread = threading.Thread(target=lambda: texts.append(library.last_error()))
    thread.start()
    thread.join()
    assert texts == [""]
    assert "k_batch: got 7" in library.last_error()


def test_threads_share_a_library(tmp_path_factory: pytest.TempPathFactory, hip: EmulatedHip) -> None:
    library = silent("rowcol-fp8", tmp_path_factory, hip)
    results: list[int] = []

    def work(seed: int) -> None:
        operands = draw("rowcol-fp8", 1 + seed, 64, 256, seed)
        for _ in range(10):
            library.host(operands)
            results.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40
    assert not hip.allocations()
