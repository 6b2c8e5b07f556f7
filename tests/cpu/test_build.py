"""How the kernels are built: which compiler, which variant, what happens when it fails, dies or is not alone."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mxgemm
from mxgemm import build_cache, notices, plan
from mxgemm.cpu import abi, build, variants
from mxgemm.device import cpu_features
from mxgemm.errors import Refusal
from tests.cases import cpu_route, make

ROOT = Path(__file__).resolve().parents[2]
CALL = """
import sys, torch, mxgemm
torch.manual_seed(0)
a, w = torch.randn(3, 96), mxgemm.quantize(torch.randn(40, 96))
out = mxgemm.gemm(a, w, out_dtype=torch.float32)
same = torch.allclose(out, mxgemm.gemm(a, w, out_dtype=torch.float32, route="reference"), rtol=1e-5, atol=1e-4)
print(mxgemm.explain(3, 40, 96, device="cpu").route, same)
"""

pytestmark = pytest.mark.skipif(cpu_route() == "reference", reason="no variant for this CPU, or no C compiler")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing built, planned or said yet."""
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(variants.VARIANT_VARIABLE, raising=False)
    monkeypatch.setattr(notices, "_said", {})
    build.library.cache_clear()
    plan.clear_plans()
    yield tmp_path
    build.library.cache_clear()
    plan.clear_plans()


def best() -> variants.Variant:
    found = variants.usable()
    assert not isinstance(found, Refusal)
    return found[0]


def a_compiler(folder: Path, text: str) -> str:
    """A command that does what a shell script says; in it, "$@" are a compiler's arguments."""
    path = folder / "a compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"'{path}'"


def refusal_of_the_library() -> Refusal:
    found = build.library()
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false", "'"], ids=["none", "failing", "unreadable"])
def test_without_a_compiler_torch_serves_and_that_is_said_once(
    compiler: str, fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(build.COMPILER_VARIABLE, compiler)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for m in (3, 4):
            case = make(m, 40, 96)
            case.check(mxgemm.gemm(case.a, case.weight))
    assert caplog.text.count("using reference on cpu; cpu_native: no C compiler builds the CPU's kernels") == 1
    assert mxgemm.explain(3, 40, 96, device="cpu").route == "reference"
    with pytest.raises(mxgemm.RouteUnavailable, match="no C compiler builds"):
        mxgemm.gemm(case.a, case.weight, route="cpu_native")


@pytest.mark.slow
def test_a_library_that_computes_something_else_is_not_used(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's text has one wrong constant: what the check is for."""
    copied = fresh / "kernels"
    text = (
        f"cp -r '{build.KERNELS}' '{copied}'\nsed -i 's/18, 20, 24, 12/18, 20, 23, 12/' '{copied}'/*.h\n"
        f"exec cc $(echo \"$@\" | sed 's#{build.KERNELS}#{copied}#')"
    )
    monkeypatch.setenv(build.COMPILER_VARIABLE, a_compiler(fresh, text))
    monkeypatch.setenv(variants.VARIANT_VARIABLE, best().name)
    assert "roundoffs off" in str(refusal_of_the_library())
    assert not list((fresh / "cache").glob("*/*.so"))


@pytest.mark.slow
def test_a_library_that_dies_takes_nothing_with_it(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal = fresh / "fatal.h"
    fatal.write_text("__attribute__((constructor)) static void die(void) { __builtin_trap(); }\n")
    monkeypatch.setenv(build.COMPILER_VARIABLE, f"cc -include '{fatal}'")
    assert f"exit status {-signal.SIGILL}" in str(refusal_of_the_library())


def test_the_next_variant_serves_where_the_best_one_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    (ours,) = variants.usable(best().name)  # type: ignore[misc]
    better = variants.Variant("better", frozenset(), ("--no-such-option",))
    monkeypatch.setattr(variants, "VARIANTS", (better, ours))
    found = build.library.__wrapped__()
    assert not isinstance(found, Refusal)
    assert found.mx_variant().decode() == ours.name


def test_a_matrix_unit_that_the_system_keeps_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    (ours,) = variants.usable(best().name)  # type: ignore[misc]
    kept = variants.Variant("kept", frozenset(), ("--no-such-option",), permitted=lambda: False)
    monkeypatch.setattr(variants, "VARIANTS", (kept, ours))
    assert variants.usable() == (ours,)
    found = variants.usable("kept")
    assert isinstance(found, Refusal)
    assert "kept refused by the system" in found.reason


def test_a_refused_matrix_unit_is_said_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux's answer is a fake: this process may not have the unit's registers."""
    amx, next_best = variants.VARIANTS[:2]
    asked: list[list[int]] = []

    def refusing(*arguments: ctypes.c_long) -> int:
        asked.append([argument.value for argument in arguments])
        return -1

    monkeypatch.setattr(variants, "cpu_features", lambda: amx.needs)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with monkeypatch.context() as only, caplog.at_level(logging.WARNING, "mxgemm"):
        only.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(syscall=refusing))
        for _ in range(2):
            found = variants.usable()
            assert not isinstance(found, Refusal)
            assert found[0] == next_best
    assert asked == [[158, 0x1023, 18]] * 2
    assert caplog.text.count("the system refuses amx_bf16") == 1
    assert f"using {next_best.name}" in caplog.text


@pytest.mark.skipif("amx_tile" in cpu_features(), reason="for CPUs without a matrix unit")
def test_asking_for_a_matrix_unit_that_is_not_there() -> None:
    assert abi.permit_matrix_unit() is False


def test_the_key_has_flags_compiler_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def cached(parts: Mapping[str, Any], *_: object) -> Path:
        keys.append(build_cache.digest(parts))
        return tmp_path

    monkeypatch.setattr(build_cache, "cached", cached)
    monkeypatch.delenv(build.COMPILER_VARIABLE, raising=False)
    build.build(best())
    build.build(best(), ("-DOTHER",))
    monkeypatch.setenv(build.COMPILER_VARIABLE, a_compiler(tmp_path, 'exec cc "$@"'))
    build.build(best())
    monkeypatch.delenv(build.COMPILER_VARIABLE)
    copied = tmp_path / "kernels"
    copied.mkdir()
    for text in build.KERNELS.iterdir():
        (copied / text.name).write_text(text.read_text() + "// other\n")
    monkeypatch.setattr(build, "KERNELS", copied)
    build.build(best())
    assert len(set(keys)) == 4
    monkeypatch.undo()
    monkeypatch.setattr(build_cache, "cached", cached)
    build.build(best())
    assert keys[-1] == keys[0]


@pytest.mark.slow
def test_an_older_compiler_builds_what_it_knows(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if best().flags_for(cpu_features()) == best().flags:
        pytest.skip("this CPU has nothing besides what its variant needs")
    text = 'case "$*" in *avx512vbmi*|*avx512bf16*) exit 1;; esac\nexec cc "$@"'
    monkeypatch.setenv(build.COMPILER_VARIABLE, a_compiler(fresh, text))
    assert build.load(best()).mx_variant().decode() == best().name


@pytest.mark.slow
def test_a_damaged_library_is_built_again(fresh: Path) -> None:
    path = build.build(best())
    path.write_bytes(path.read_bytes()[:-4096])
    assert build.load(best()).mx_variant().decode() == best().name


@pytest.mark.parametrize(
    "name, words", [("none", "MXGEMM_CPU is none"), ("sse9", "one of amx_bf16, avx512_vnni, avx2")]
)
def test_the_variable(name: str, words: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variants.VARIANT_VARIABLE, name)
    assert words in str(refusal_of_the_library())


def test_another_kind_of_cpu_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "cpu_features", lambda: frozenset({"sse2"}))
    found = variants.usable()
    assert isinstance(found, Refusal)
    assert found.about == "machine"
    assert "avx2: avx2 fma" in found.reason


def started(cache: Path, **environment: str) -> subprocess.Popen[str]:
    variables = os.environ | {build_cache.CACHE_VARIABLE: str(cache), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", CALL],
        env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
def test_processes_that_build_at_once(tmp_path: Path) -> None:
    processes = [started(tmp_path / "cache") for _ in range(3)]
    for process in processes:
        out, error = process.communicate(timeout=120)
        assert out == "cpu_native True\n", error
    assert len(list((tmp_path / "cache").glob("*/kernel.so"))) == 1
    assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    waiting = a_compiler(tmp_path, f"touch '{tmp_path}/started'; sleep 60")
    process = started(tmp_path / "cache", CC=waiting)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert started(tmp_path / "cache").communicate(timeout=120)[0] == "cpu_native True\n"
    assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.slow
def test_without_a_home_folder(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    variables |= {"HOME": "", build_cache.CACHE_VARIABLE: "", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "cpu_native True\n", done.stderr
    assert "the build cache cannot be used" in done.stderr
    assert not list(tmp_path.glob("mxgemm-*"))
