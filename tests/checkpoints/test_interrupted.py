"""Nothing is half-written and nothing done twice: kills, full disks, other processes, sources that change, memory."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from mxgemm import checkpoints
from mxgemm.checkpoints.convert import RECORD
from mxgemm.checkpoints.writer import write_safetensors
from mxgemm.files import FileError
from tests.checkpoints import made
from tests.checkpoints.layouts import ONE, SHARDS, sharded_source, skip_without
from tests.checkpoints.made import weight


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_killed_anywhere_it_goes_on_at_the_shard(tmp_path: Path) -> None:
    source = sharded_source(tmp_path / "in")
    whole = contents(checkpoints.convert(source, tmp_path / "whole", "gpt-oss", shard_bytes=2 * ONE))
    assert len([name for name in whole if name.endswith(".safetensors")]) == 3
    for stop in range(1, 10):
        out, said = tmp_path / f"out{stop}", []

        def killed(what: str, done: int, count: int, stop: int = stop) -> None:
            said.append(what)  # noqa: B023
            if len(said) == stop:  # noqa: B023
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:
            checkpoints.convert(source, out, "gpt-oss", shard_bytes=2 * ONE, watch=killed)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert not out.exists()
        with pytest.raises(FileError):
            checkpoints.open(out)
        done = {path.name: path.stat().st_ino for path in Path(f"{out}.partial").glob("*.safetensors")}
        assert len(done) == stop // 3
        checkpoints.convert(source, out, "gpt-oss", shard_bytes=2 * ONE)
        assert contents(out) == whole
        assert {name: (out / name).stat().st_ino for name in done} == done, "a finished file is written once"
        assert not list(tmp_path.glob("*.partial*"))


def test_another_conversion_is_not_gone_on_with(tmp_path: Path) -> None:
    source, out = sharded_source(tmp_path / "in"), tmp_path / "out"

    def stop(what: str, done: int, count: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.convert(source, out, "gpt-oss", shard_bytes=ONE, watch=stop)
    with pytest.raises(FileError, match=r"out.partial: is of another conversion \(order.*\); remove it to start anew"):
        checkpoints.convert(source, out, "compressed-tensors", shard_bytes=ONE)
    (tmp_path / "in" / "model.safetensors").touch()
    with pytest.raises(FileError, match=r"out.partial: is of another conversion \(source\)"):
        checkpoints.convert(checkpoints.open(tmp_path / "in"), out, "gpt-oss", shard_bytes=ONE)
    (tmp_path / "out.partial" / RECORD).write_text("{")
    with pytest.raises(FileError, match=RECORD):
        checkpoints.convert(source, out, "gpt-oss", shard_bytes=ONE)


def test_two_at_once(tmp_path: Path) -> None:
    source, out = sharded_source(tmp_path / "in"), tmp_path / "out"

    def second(what: str, done: int, count: int) -> None:
        with pytest.raises(FileError, match="out.partial: another process is at work in it"):
            checkpoints.convert(source, out, "gpt-oss")

    checkpoints.convert(source, out, "gpt-oss", watch=second)
    assert len(checkpoints.open(out)) == 6


@pytest.mark.parametrize("target", ["gpt-oss", "gguf"])
def test_a_disk_that_fills_up(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without(target)
    source, out = sharded_source(tmp_path / "in"), tmp_path / ("out.gguf" if target == "gguf" else "out")
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    for limit in (3, 5):
        monkeypatch.setattr(os, "fsync", full)
        if target == "gguf":
            calls[:] = [0] * 2  # the record's file and folder come before
        else:
            calls[:] = [0] * (5 - limit)
        with pytest.raises(
            FileError, match="No space left on device.*; . of . files are done, and the same command goes on"
        ):
            checkpoints.convert(source, out, target, shard_bytes=ONE)
        monkeypatch.undo()
        assert not out.exists()
        assert not list(Path(f"{out}.partial").glob("*.unfinished"))
    checkpoints.convert(source, out, target, shard_bytes=ONE)
    assert len(checkpoints.open(out)) == 6


def test_a_disk_that_is_too_small_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = sharded_source(tmp_path / "in")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 10}))
    with pytest.raises(FileError, match=r"out.partial: needs 0.00 GB more, and the disk has 0.00 GB free"):
        checkpoints.convert(source, tmp_path / "out", "gpt-oss")
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_source_that_breaks_on_the_way(tmp_path: Path) -> None:
    source = sharded_source(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    whole = file.read_bytes()

    def cut(what: str, done: int, count: int) -> None:
        if done == 2:
            file.write_bytes(whole[:-ONE])

    with pytest.raises(FileError, match=r"in/model.safetensors"):
        checkpoints.convert(source, tmp_path / "out", "gpt-oss", shard_bytes=ONE, watch=cut)
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_written_anew_on_the_way(tmp_path: Path) -> None:
    """With tensors of the same shapes, which no read of one would notice."""
    source = sharded_source(tmp_path / "in")

    def written(what: str, done: int, count: int) -> None:
        if (what, done) == ("l3.weight", 3):
            other = {name: weight(32, 64, seed=9) for name in SHARDS}
            made.safetensors(tmp_path / "in" / "model.safetensors", made.quark(other))

    with pytest.raises(FileError, match="in: was changed while it was read; remove .*out.partial to start anew"):
        checkpoints.convert(source, tmp_path / "out", "gpt-oss", shard_bytes=ONE, watch=written)
    assert not (tmp_path / "out").exists()


def peak_mb() -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read in /proc")
def test_memory_is_that_of_one_parameter(tmp_path: Path) -> None:
    """24 weights of 9 MB in one file: a child, whose peak begins with what it has, gets by with less than five."""
    codes, scales = np.full((2048, 4096), 0x21, np.uint8), np.full((2048, 256), 120, np.uint8)
    folder = tmp_path / "in"
    folder.mkdir()
    tensors = {}
    for i in range(24):
        tensors |= {f"l{i}.weight": torch.from_numpy(codes), f"l{i}.weight_scale": torch.from_numpy(scales)}
    write_safetensors(
        folder / "model.safetensors",
        [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()], tensors.items(), {},
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(made.quark_config()))
    source, (read, write) = checkpoints.open(folder), os.pipe()
    child = os.fork()
    if child == 0:
        before = peak_mb()
        checkpoints.convert(source, tmp_path / "out", "gpt-oss")
        os.write(write, f"{peak_mb() - before}".encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    grown = float(os.read(read, 100))
    assert grown < 45, grown
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 200e6
