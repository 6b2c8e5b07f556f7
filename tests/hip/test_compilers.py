"""Which compiler is taken, what is said where there is none, and run-time compilers through a double."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import BuildError
from mxgemm.hip import build, compilers, libraries, rtc
from mxgemm.hip.abilities import abilities
from mxgemm.hip.compilers import Compiler

CLANG = next((path for version in range(30, 19, -1) if (path := shutil.which(f"clang-{version}"))), None)
needs_clang = pytest.mark.skipif(CLANG is None, reason="no clang of version 20 or above")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(compilers.HIPCC_VARIABLE, raising=False)


def command(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    for name in ("ROCM_PATH", "CUDA_HOME"):
        monkeypatch.setenv(name, str(empty))
    monkeypatch.setattr(rtc, "find", lambda api: f"{api.library}.so: not here")


def test_nothing_here_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_installed(tmp_path, monkeypatch)
    amd, nvidia = build.compiler_refusal("gfx950"), build.compiler_refusal("sm_90")
    for part in (
        "no compiler for gfx950",
        "amdclang++ and hipcc",
        "libhiprtc.so: not here",
        "apt install clang-22 lld-22",
    ):
        assert part in str(amd)
    for part in ("no compiler for sm_90", "nvcc is neither on PATH", "libnvrtc.so: not here"):
        assert part in str(nvidia)
    with pytest.raises(BuildError, match="no compiler for gfx950"):
        build.build("shuffle_scales.hip", arch="gfx950")
    assert "it is no GPU" in str(build.compiler_refusal("cpu"))
    first, *_ = abilities(KNOWN_MACHINES["cpu"])
    assert (first.name, first.found) == ("build kernels for gfx950", "")
    assert "apt install clang-22" in str(first.missing)


@needs_clang
def test_rocms_own_compiler_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = command(tmp_path / "rocm" / "bin" / "amdclang++", f'exec {CLANG} "$@"')
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    found = compilers.find("gfx950")
    assert isinstance(found, Compiler)
    assert found.path == str(rocm)
    assert "clang version" in found.version


@needs_clang
def test_a_compiler_that_cannot_link_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = 'case "$*" in *--version*) echo "hipcc version 1";; *) echo "no lld here"; exit 1;; esac'
    command(tmp_path / "rocm" / "bin" / "hipcc", fails)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    found = compilers.find("gfx950")
    assert isinstance(found, Compiler)
    assert found.path == CLANG


@needs_clang
@pytest.mark.parametrize("knows", [True, False])
def test_arguments_are_preloaded_where_the_compiler_can(
    knows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = 'case "$*" in *preload*) echo "Unknown command line argument"; exit 1;; esac\n' * (not knows)
    monkeypatch.setenv(compilers.HIPCC_VARIABLE, str(command(tmp_path / "cc", f'{refuses}exec {CLANG} "$@"')))
    found = compilers.find("gfx950")
    assert isinstance(found, Compiler)
    assert (found.flags[-2:] == compilers.PRELOAD) is knows
    assert build.build("shuffle_scales.hip", arch="gfx950")


def test_the_named_compiler_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compilers.HIPCC_VARIABLE, str(tmp_path / "none"))
    assert "MXGEMM_HIPCC is" in str(build.compiler_refusal("gfx950"))
    body = 'case "$*" in *--version*) echo "x version 1";; *) echo "unknown target gfx950"; exit 1;; esac'
    monkeypatch.setenv(compilers.HIPCC_VARIABLE, str(command(tmp_path / "bin" / "old", body)))
    refusal = str(build.compiler_refusal("gfx950"))
    assert "unknown target gfx950" in refusal
    assert "clang-2" not in refusal


@pytest.mark.parametrize("api", [rtc.HIPRTC, rtc.NVRTC], ids=lambda api: api.prefix)
def test_run_time_compilers(api: rtc.Api, tmp_path: Path) -> None:
    cc = shutil.which("gcc") or shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler: on Debian and Ubuntu: apt install gcc")
    path, source = tmp_path / "rtc.so", Path(__file__).parent / "rtc_double.c"
    names = [f"-DPREFIX={api.prefix}", f"-DCODE={api.code}"]
    subprocess.run([cc, "-shared", "-fPIC", *names, source, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    compiler = Compiler("gfx950", str(path), "double", ("-O3",), rtc.Rtc(api, library, str(path)))
    assert compiler.rtc is not None
    assert compiler.rtc.version == "12.8"
    code = compiler.compile("a.hip", {"a.hip": "body", "b.h": "first", "c.h": "second"}, {"N": 3, "M": "x"})
    assert code == b"a.hip: body\nb.h: first\nc.h: second\n-O3\n-DM=x\n-DN=3\n"
    with pytest.raises(
        BuildError, match=r"cannot compile a.hip for gfx950:\ndouble: compilation\n1: error: as you wish"
    ):
        compiler.compile("a.hip", {"a.hip": "error"}, {})
    assert ctypes.c_int.in_dll(library, "alive").value == 0


def test_releases_of_a_run_time_compiler_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both say 7.0; what one built is not taken for the other's."""
    link, paths = tmp_path / "libhiprtc.so", []
    monkeypatch.setattr(rtc, "find", lambda api: SimpleNamespace(path=str(link), version="7.0"))
    for release in ("7.0.70000", "7.0.70002"):
        file = tmp_path / f"libhiprtc.so.{release}"
        file.touch()
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        compiler = compilers._run_time(rtc.HIPRTC, "gfx950", ())
        assert isinstance(compiler, Compiler)
        paths.append(compiler.path)
    assert [Path(path).name for path in paths] == ["libhiprtc.so.7.0.70000", "libhiprtc.so.7.0.70002"]


def test_libraries_of_other_stems_are_not_taken(tmp_path: Path) -> None:
    for name in (
        "libcudart.so.12",
        "libnvrtc-builtins.so.12.8",
        "libcuda.txt",
        "libcuda-4f2a91bc.so.1",
        "libcuda.so.1",
    ):
        (tmp_path / name).touch()
    found = [Path(path).name for path in libraries._files("libcuda", [tmp_path])]
    assert found == ["libcuda.so.1", "libcuda-4f2a91bc.so.1"]
    assert libraries._files("libnvrtc", [tmp_path]) == []
    (tmp_path / "libnone.so.0").touch()
    with pytest.raises(
        OSError, match=r"libnone\.so\.0: file too short; libnone\.so\.2: .*libnone\.so\.1: .*libnone\.so: "
    ):
        libraries.open_library("libnone", [tmp_path], ["2", "1"])


def test_a_loaded_library_goes_first(tmp_path: Path) -> None:
    (stem,) = {name for name in ("libc",) if libraries._loaded(name)}
    _, path = libraries.open_library(stem, [tmp_path], ())
    assert path in Path("/proc/self/maps").read_text(errors="replace")
