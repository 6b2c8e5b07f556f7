"""Builds are made once, kept by everything that decides them, and survive whatever happens to the cache."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import threading
from pathlib import Path

import pytest

from mxgemm import build_cache
from mxgemm.errors import BuildError
from mxgemm.hip import build, code_object, compilers
from tests.hip.test_compilers import CLANG, command, needs_clang

SOURCE = "preshuffle_weight.hip"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache, and a compiler that writes down each of its runs."""
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "log"
    path = command(tmp_path / "bin" / "cc", f'echo "$@" >> "{file}"\nexec {CLANG} "$@"')
    monkeypatch.setenv(compilers.HIPCC_VARIABLE, str(path))
    monkeypatch.setattr(build_cache, "_in_memory", {})
    monkeypatch.setattr(build_cache, "_told", [])
    return file


def runs(log: Path) -> int:
    return sum(SOURCE in line for line in log.read_text().splitlines())


def cached_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache").glob("*/preshuffle_weight.hsaco")
    return file


@needs_clang
def test_one_build_whoever_asks(log: Path) -> None:
    assert build.compiler_refusal("gfx950") is None
    images: list[bytes] = []

    def ask() -> None:
        images.append(build.build(SOURCE, arch="gfx950"))

    process = multiprocessing.get_context("fork").Process(target=build.build, args=(SOURCE,), kwargs={"arch": "gfx950"})
    threads = [threading.Thread(target=ask) for _ in range(2)]
    process.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.join()
    assert process.exitcode == 0
    assert images[0] == images[1]
    assert code_object.inspect(images[0]).arch == "gfx950"
    assert runs(log) == 1


@needs_clang
def test_everything_that_decides_the_result_is_in_the_key(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(build.KERNELS, kernels)
    monkeypatch.setattr(build, "KERNELS", kernels)
    first = build.build(SOURCE, arch="gfx950")
    assert build.build(SOURCE, arch="gfx950", defines={"UNUSED": 1}) == first
    assert code_object.inspect(build.build(SOURCE, arch="gfx942")).arch == "gfx942"
    header = kernels / "portable.h"  # included by a header of the source
    header.write_text(header.read_text() + "// changed\n")
    build.build(SOURCE, arch="gfx950")
    assert runs(log) == 4
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "+-DUNUSED")  # clang reads further flags from it
    build.build(SOURCE, arch="gfx950")
    assert runs(log) == 5


@needs_clang
@pytest.mark.parametrize("damage", ["truncated", "one bit", "no manifest", "no file"])
def test_a_damaged_file_is_built_again(
    log: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    image = build.build(SOURCE, arch="gfx950")
    file = cached_file(tmp_path)
    if damage == "truncated":
        file.write_bytes(image[:1000])
    elif damage == "one bit":
        file.write_bytes(image[:5000] + bytes([image[5000] ^ 1]) + image[5001:])
    elif damage == "no manifest":
        (file.parent / "manifest.json").unlink()
    else:
        file.unlink()
    with caplog.at_level(logging.WARNING, "mxgemm"):
        assert build.build(SOURCE, arch="gfx950") == image
        assert build.build(SOURCE, arch="gfx950") == image
    assert runs(log) == 2
    assert caplog.text.count("is damaged: building it again") == 1


@needs_clang
def test_a_cache_that_cannot_be_written(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path / "file"))
    compilers._find.cache_clear()
    with caplog.at_level(logging.WARNING, "mxgemm"):
        images = [build.build(SOURCE, arch="gfx950") for _ in range(3)]
        images.append(build.build(SOURCE, arch="gfx950", defines={"UNUSED": 1}))
    assert len(set(images)) == 1
    assert runs(log) == 2
    assert caplog.text.count("cannot be used") == 1


@needs_clang
def test_a_slow_build_says_so_once(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compilers.find("gfx950")
    monkeypatch.setattr(build_cache, "SLOW_SECONDS", -1.0)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        build.build(SOURCE, arch="gfx950")
        build.build(SOURCE, arch="gfx950")
    assert caplog.text.count(f"built {SOURCE} for gfx950") == 1


@needs_clang
def test_the_compilers_words_are_in_the_error(log: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"(?s)preshuffle_weight.hip:\d+:\d+: error: .*constexpr u32 THREADS"):
        build.build(SOURCE, arch="gfx950", defines={"THREADS": 7})
    assert not list((tmp_path / "cache").glob("*/*.hsaco"))
    sources = "fused_gemm.hip, mx_gemm.hip, preshuffle_weight.hip, shuffle_scales.hip"
    with pytest.raises(ValueError, match=f"source: got 'none.hip', want one of {sources}"):
        build.build("none.hip", arch="gfx950")


@needs_clang
def test_a_compiler_for_something_else_is_caught(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = 'for each; do shift; set -- "$@" "$(echo "$each" | sed s/gfx950/gfx942/)"; done'
    other = command(tmp_path / "bin" / "other", f'{replaced}\nexec {CLANG} "$@"')
    monkeypatch.setenv(compilers.HIPCC_VARIABLE, str(other))
    with pytest.raises(BuildError, match="the code object is for gfx942; this device is gfx950"):
        build.build(SOURCE, arch="gfx950")


@needs_clang
@pytest.mark.parametrize("source", ["preshuffle_weight.hip", "shuffle_scales.hip"])
def test_sources_have_no_warnings(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compilers.HIPCC_VARIABLE, raising=False)
    found = compilers.find("gfx950")
    assert isinstance(found, compilers.Compiler)
    flags = (*found.flags, "-Wall", "-Wextra", "-Werror")
    compilers._run(found.path, list(flags), source, build.texts_of(source))


@pytest.mark.parametrize("source", ["preshuffle_weight.hip", "shuffle_scales.hip"])
def test_sources_build_as_cuda(source: str) -> None:
    reason = build.compiler_refusal("sm_90")
    if reason:
        pytest.skip(str(reason))
    code = code_object.inspect(build.build(source, arch="sm_90"))
    amd = {"preshuffle_weight.hip": 32, "shuffle_scales.hip": 40}[source]
    assert code.arch == "sm_90"
    assert {kernel.kernarg_bytes for kernel in code.kernels.values()} == {amd}
