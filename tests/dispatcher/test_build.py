import dataclasses
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mxgemm.dispatcher import (
    BuildError,
    BuildResult,
    KernelConfig,
    Library,
    MxGemmKernelConfig,
    RowColQuantKernelConfig,
    build,
    native,
)
from tests.dispatcher.native_libraries import require_compilers
from tests.dispatcher.toolchain import HEADERS, calls, make_hipcc
from tests.marks import first_of

FIRST = MxGemmKernelConfig()
SECOND = dataclasses.replace(FIRST, datatype="fp4")
THIRD = RowColQuantKernelConfig()


class Compiler:
    """Stands in for the native source: writes a file, and remembers what it was asked for."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.version = "1"
        self.fails: set[str] = set()
        self.seconds = 0.0
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    def key(self, config: KernelConfig, arch: str) -> dict[str, Any]:
        return {"version": self.version}

    def make(self, config: KernelConfig, arch: str, folder: Path) -> Path:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            with self.log.open("a") as log:
                log.write(f"{config.name} {arch} {os.getpid()}\n")
        time.sleep(self.seconds)
        with self.lock:
            self.at_once -= 1
        if config.name in self.fails:
            raise BuildError(f"{config.name}: error: no such register")
        path = folder / f"lib_{config.name}.so"
        path.write_text(self.version)
        return path

    def built(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "cache"))
    made = Compiler(tmp_path / "log")
    monkeypatch.setattr(native, "native_key", made.key)
    monkeypatch.setattr(native, "build_native", made.make)
    return made


def test_equal_kernels_are_built_once_and_results_keep_their_places(compiler: Compiler) -> None:
    told: list[tuple[int, int, str]] = []
    results = build(
        [FIRST, SECOND, FIRST, THIRD, SECOND],
        gfx_arch="gfx950:xnack-",
        progress=lambda done, total, result: told.append((done, total, result.config.name)),
    )
    assert [result.config.name for result in results] == [c.name for c in (FIRST, SECOND, FIRST, THIRD, SECOND)]
    assert all(result.config.arch == "gfx950" for result in results)
    assert len(compiler.built()) == 3
    assert results[0].library() == results[2].library() != results[1].library()
    assert results[0].library().is_file()
    assert [entry[:2] for entry in told] == [(1, 3), (2, 3), (3, 3)]
    build([FIRST, SECOND, THIRD], gfx_arch="gfx950")
    assert len(compiler.built()) == 3
    assert build([], gfx_arch="gfx950") == []


def test_what_the_name_does_not_say_still_makes_another_kernel(compiler: Compiler) -> None:
    twice = dataclasses.replace(FIRST, k_block_per_cu=2)
    assert twice.name == FIRST.name
    one, two = build([FIRST, twice], gfx_arch="gfx950")
    assert one.library() != two.library()


def test_a_changed_source_is_never_served_stale(compiler: Compiler) -> None:
    (before,) = build([FIRST], gfx_arch="gfx950")
    compiler.version = "2"
    (after,) = build([FIRST], gfx_arch="gfx950")
    assert (before.library().read_text(), after.library().read_text()) == ("1", "2")


def test_a_failure_carries_the_compilers_words_and_stops_no_other(compiler: Compiler) -> None:
    compiler.fails = {SECOND.name}
    good, bad, also_good = build([FIRST, SECOND, THIRD], gfx_arch="gfx950")
    assert good.path
    assert also_good.path
    assert bad.path is None
    assert "no such register" in bad.error
    with pytest.raises(BuildError, match="no such register"):
        bad.library()
    compiler.fails = set()
    assert build([SECOND], gfx_arch="gfx950")[0].path  # a failure is not kept


@pytest.mark.parametrize("jobs, most", [(1, 1), (3, 3)])
def test_kernels_are_built_in_parallel(jobs: int, most: int, compiler: Compiler) -> None:
    compiler.seconds = 0.3
    build([FIRST, SECOND, THIRD], gfx_arch="gfx950", jobs=jobs)
    assert compiler.most_at_once == most


def test_two_threads_make_one_build(compiler: Compiler) -> None:
    compiler.seconds = 0.2
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(build, [FIRST], gfx_arch="gfx950") for _ in range(4)]
        paths = {future.result()[0].library() for future in waiting}
    assert len(paths) == 1
    assert len(compiler.built()) == 1


def _build_first(paths: Any) -> None:
    paths.put(str(build([FIRST], gfx_arch="gfx950")[0].library()))


def test_two_processes_make_one_build(compiler: Compiler) -> None:
    compiler.seconds = 0.3
    context = multiprocessing.get_context("fork")
    paths = context.Queue()
    workers = [context.Process(target=_build_first, args=(paths,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = {paths.get(timeout=20) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(found) == 1
    assert len(compiler.built()) == 1


def test_wrong_requests_build_nothing(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="gpu_target: got 'gfx942', want 'gfx950'"):
        build([FIRST, THIRD], gfx_arch="gfx942")
    with pytest.raises(ValueError, match="but mx_gemm_.* has gpu_target='gfx950'"):
        build([FIRST.pinned("gfx950")], gfx_arch="gfx942")
    with pytest.raises(ValueError, match="source: got 'triton', want one of native, ck_tile"):
        build([FIRST], source="triton", gfx_arch="gfx950")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="jobs: got 0"):
        build([FIRST], gfx_arch="gfx950", jobs=0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="Pass gfx_arch"):
        build([FIRST])
    assert compiler.built() == []
    assert build([FIRST.pinned("gfx950")])[0].path  # an architecture in the configuration is enough


def test_what_names_no_architecture_is_built_for_this_machine(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("mxgemm.dispatcher.build")  # the package has a function of that name
    monkeypatch.setattr(module, "detect_arch", lambda: "gfx950")
    older = RowColQuantKernelConfig(gfx_arch="gfx942", warp_tile_k=32)
    assert [result.config.arch for result in build([older, FIRST])] == ["gfx942", "gfx950"]


def test_ck_tile_compiles_once_and_shows_the_compilers_output(
    tmp_path: Path, hipcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "cache"))
    mine = make_hipcc(tmp_path / "bin")
    broken = tmp_path / "include"
    (broken / "ck_tile").mkdir(parents=True)
    (broken / "ck_tile" / "core.hpp").write_bytes(b'#error "an include tree of another release, \xff"\n')  # no UTF-8

    def make(include: Path) -> BuildResult:
        return build([THIRD], source="ck_tile", gfx_arch="gfx950", ck_include=include, hipcc=mine)[0]

    failed = make(broken)
    assert failed.path is None
    assert "an include tree of another release" in failed.error
    assert make(HEADERS).library() == make(HEADERS).library()
    assert sum("-o" in call.split() and "kernel.so" in call for call in calls(mine)) == 2


@pytest.mark.parametrize(
    "damage", first_of(["one bit", "no manifest", "0 bytes", "truncated", "no library", "everybody may write it"], 2)
)
def test_a_library_that_is_not_as_it_was_built_is_built_again_and_loads(
    damage: str, tmp_path: Path, hipcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "cache with a space"))
    mine = make_hipcc(tmp_path / "bin")

    def make() -> BuildResult:
        return build([THIRD], source="ck_tile", gfx_arch="gfx950", ck_include=HEADERS, hipcc=mine)[0]

    path = make().library()
    whole = path.read_bytes()
    if damage == "0 bytes":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "one bit":
        path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    elif damage == "no library":
        path.unlink()
    elif damage == "no manifest":
        (path.parent / "manifest.json").unlink()
    else:
        path.chmod(0o666)
    if damage in ("0 bytes", "truncated", "one bit"):
        with pytest.raises(OSError, match="damaged"):
            Library(path, make_config())
    again = make().library()
    assert (again, again.read_bytes()) == (path, whole)
    assert Library(again, make_config()).count == 1
    assert sum("-o" in call.split() and "kernel.so" in call for call in calls(mine)) == 2


def make_config() -> KernelConfig:
    return THIRD.pinned("gfx950")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("seconds", [0.3, 6.0])
def test_a_worker_ends_with_its_builder(seconds: float, tmp_path: Path) -> None:
    """Before it has imported what it needs, and after."""
    require_compilers()
    script = (
        "from pathlib import Path\n"
        "from mxgemm.dispatcher import RowColQuantKernelConfig, native\n"
        f"native._cross_compile(RowColQuantKernelConfig(), 'gfx950', Path({str(tmp_path)!r}))\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)})
    while not (workers := children_of(builder.pid)):
        assert builder.poll() is None
        time.sleep(0.02)
    time.sleep(seconds)
    builder.kill()
    builder.wait()
    deadline = time.monotonic() + 60
    while any(map(running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if seconds < 1:
        assert not list(tmp_path.glob("*.hsaco"))


def test_a_worker_of_nobody_does_nothing(tmp_path: Path) -> None:
    require_compilers()
    job = native.worker_job(THIRD.pinned("gfx950"), "gfx950", tmp_path)
    command = [sys.executable, "-m", native.WORKER, str(os.getppid())]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "that wanted these kernels has ended" in done.stderr
    assert list(tmp_path.iterdir()) == []
