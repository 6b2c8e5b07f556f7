"""The build cache, whatever lies in it, whoever may write to it, whoever builds at the same time and is killed."""

import ctypes
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mxgemm import build_cache, shared_library

FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).resolve().parent.parent
SOMEBODY = 12345


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(build_cache, "_told", [])
    monkeypatch.setattr(build_cache, "_in_memory", {})
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "x.bin").write_bytes(b"built")


def test_a_file_is_built_once_and_found_again() -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        write(folder)

    first = build_cache.cached({"source": "a"}, "x.bin", build, "x")
    assert first.read_bytes() == b"built"
    assert build_cache.cached({"source": "a"}, "x.bin", build, "x") == first
    assert len(calls) == 1
    assert build_cache.cached({"source": "b"}, "x.bin", build, "x") != first


def test_a_failed_build_leaves_nothing_and_is_tried_again(cache: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("compiler said no")

    with pytest.raises(RuntimeError, match="compiler said no"):
        build_cache.cached({}, "x.bin", fail, "x")
    with pytest.raises(FileNotFoundError, match="wrote no x.bin"):
        build_cache.cached({}, "x.bin", lambda folder: None, "x")
    assert list(cache.iterdir()) == []
    assert build_cache.cached({}, "x.bin", write, "x").read_bytes() == b"built"


def test_a_slow_build_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cache, "SLOW_SECONDS", -1.0)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        build_cache.cached({}, "x.bin", write, "the kernel")
        build_cache.cached({}, "x.bin", write, "the kernel")
    assert [record.message.split(" in ")[0] for record in caplog.records] == ["built the kernel"]


def build_slowly(log: Path) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        write(folder)

    build_cache.cached({}, "x.bin", build, "x")


def test_processes_that_build_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [FORK.Process(target=build_slowly, args=(log,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(log.read_text().split()) == 1


def hang(started: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        started.touch()
        time.sleep(60)

    build_cache.cached({}, "x.bin", build, "x")


def test_a_killed_builder_lets_go_of_its_lock(tmp_path: Path) -> None:
    started = tmp_path / "started"
    worker = FORK.Process(target=hang, args=(started,))
    worker.start()
    while not started.exists():
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    file = build_cache.cached({}, "x.bin", write, "x")
    assert sorted(path.name for path in file.parent.iterdir()) == ["manifest.json", "x.bin"]


CONTENT = os.urandom(5000)


def build_two(folder: Path) -> None:
    (folder / "x.bin").write_bytes(CONTENT)
    (folder / "beside.json").write_text("{}")


def flipped(at: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[at] ^= 1 << at % 8
        file.write_bytes(data)

    return damage


def truncated(size: int) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, size)


def manifest_of(file: Path) -> Path:
    return file.parent / build_cache.MANIFEST


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_link(file: Path) -> None:
    other = file.parent.parent / "other"
    file.rename(other)
    file.symlink_to(other)


def another_size_in_manifest(file: Path) -> None:
    document = json.loads(manifest_of(file).read_text())
    document["files"]["x.bin"]["size"] += 1
    manifest_of(file).write_text(json.dumps(document))


DAMAGES: dict[str, Callable[[Path], object]] = {
    **{f"{size} bytes": truncated(size) for size in (0, 1, 4096, 4999)},
    **{f"byte {at} flipped": flipped(at) for at in (0, 1234, 4999)},
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "no file": lambda file: file.unlink(),
    "a folder": replace_by_folder,
    "a link to the same": replace_by_link,
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "no manifest": lambda file: manifest_of(file).unlink(),
    "an empty manifest": lambda file: manifest_of(file).write_text(""),
    "half a manifest": lambda file: truncated(60)(manifest_of(file)),
    "another manifest": lambda file: manifest_of(file).write_text('{"kind": "other"}'),
    "a deep manifest": lambda file: manifest_of(file).write_text("[" * 100_000),
    "a manifest of nothing": lambda file: manifest_of(file).write_text(
        '{"kind": "mxgemm-build", "version": 1, "files": {}}'
    ),
    "a size that is not": another_size_in_manifest,
    "a file beside it gone": lambda file: (file.parent / "beside.json").unlink(),
    "a file beside it changed": lambda file: (file.parent / "beside.json").write_text("{ }"),
    "a file for the folder": lambda file: (shutil.rmtree(file.parent), file.parent.write_text("x")),
    "a link for the folder": lambda file: (
        file.parent.rename(file.parent.parent / "moved"),
        file.parent.symlink_to("moved"),
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_what_is_not_as_it_was_built_is_built_again(damage: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = build_cache.cached({}, "x.bin", build_two, "the kernel")
    DAMAGES[damage](file)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for _ in range(2):
            again = build_cache.cached({}, "x.bin", build_two, "the kernel")
            assert (again, again.read_bytes(), again.is_symlink()) == (file, CONTENT, False)
            assert build_cache.cached_bytes({}, "x.bin", lambda: pytest.fail("built a third time"), "x") == CONTENT
    assert [record.message for record in caplog.records] == [f"{file} is damaged: building it again (the kernel)"]
    assert not list(cache.glob("*.partial"))


def test_a_folder_is_made_for_its_owner_alone(cache: Path) -> None:
    before = os.umask(0)
    try:
        file = build_cache.cached({}, "x.bin", build_two, "x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, file.parent)] == [0o700, 0o700]
    assert not any(path.stat().st_mode & 0o022 for path in file.parent.iterdir())
    assert build_cache.cached({}, "x.bin", lambda _: pytest.fail("built again"), "x") == file


def planted(cache: Path, key: str, witness: Path) -> Path:
    """Put a library with a constructor, and a manifest that vouches for it, where a build is looked for."""
    folder = cache / key
    folder.mkdir(parents=True)
    library = folder / "kernel.so"
    code = f'#include <fcntl.h>\n__attribute__((constructor)) void run(void) {{ open("{witness}", O_CREAT, 0600); }}\n'
    subprocess.run([compiler(), "-x", "c", "-shared", "-fPIC", "-o", library, "-"], input=code, text=True, check=True)
    data = library.read_bytes()
    figures = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    document = {"kind": "mxgemm-build", "version": 1, "files": {"kernel.so": figures}}
    (folder / build_cache.MANIFEST).write_text(json.dumps(document))
    return library


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler: none of cc, gcc, clang is on PATH")
    return found


def compile_good(folder: Path) -> None:
    code = "int answer(void) { return 42; }\n" + "static const char padding[300000] = {1};\n"
    code += "const char *keep(void) { return padding; }\n"
    target = folder / "kernel.so"
    subprocess.run([compiler(), "-x", "c", "-shared", "-fPIC", "-o", target, "-"], input=code, text=True, check=True)


STRANGERS: dict[str, Callable[[Path], object]] = {
    "everybody may write the cache": lambda place: place.parent.chmod(0o777),
    "the group may write the cache": lambda place: place.parent.chmod(0o770),
    "the cache is another user's": lambda place: os.chown(place.parent, SOMEBODY, SOMEBODY),
    "everybody may write above it": lambda place: place.parent.parent.chmod(0o777),
    "everybody may write the folder": lambda place: place.chmod(0o777),
    "everybody may write the file": lambda place: (place / "kernel.so").chmod(0o666),
    "the folder is another user's": lambda place: os.chown(place, SOMEBODY, SOMEBODY),
    "the file is another user's": lambda place: os.chown(place / "kernel.so", SOMEBODY, -1),
}


@pytest.mark.parametrize("who", list(STRANGERS))
def test_what_somebody_else_may_have_put_there_is_never_used(
    who: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if "another user" in who and os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    witness = tmp_path / "witness"
    place = planted(cache, build_cache.digest({"k": 1}), witness).parent
    cache.chmod(0o700)
    assert shared_library.load(place / "kernel.so")
    assert witness.exists(), "the planted library does what it is for"
    witness.unlink()
    STRANGERS[who](place)
    with caplog.at_level(logging.WARNING, "mxgemm"):
        files = [build_cache.cached({"k": 1}, "kernel.so", compile_good, "x") for _ in range(2)]
    assert files[0] == files[1]
    assert ctypes.CDLL(str(shutil.copy(files[0], tmp_path / "own.so"))).answer() == 42
    assert not witness.exists()
    of_cache = "cache" in who or "above" in who
    assert caplog.text.count("the build cache cannot be used") == of_cache
    assert caplog.text.count("is damaged: building it again") == (not of_cache)
    assert (files[0].parent.parent != cache) == of_cache
    assert files[0].parent.parent.stat().st_mode & 0o777 == 0o700
    if of_cache:
        assert (place / "kernel.so").exists(), "what is not ours is left alone"
        assert any(reason in caplog.text for reason in ("by others", "belongs to user 12345", "everybody may exchange"))


def test_a_folder_above_that_everybody_writes_is_fine_where_it_is_sticky(cache: Path) -> None:
    cache.parent.chmod(0o1777)
    assert build_cache.cached({}, "x.bin", build_two, "x").parent.parent == cache
    assert not build_cache._told


def test_a_truncated_library_raises_where_the_loader_would_die(cache: Path, tmp_path: Path) -> None:
    file = build_cache.cached({}, "kernel.so", compile_good, "x")
    assert shared_library.load(file).answer() == 42
    bare = tmp_path / "bare"
    bare.mkdir()
    copy = shutil.copy(file, bare / "kernel.so")  # with no manifest beside it
    script = f"""
import ctypes, os, sys
from pathlib import Path
from mxgemm import shared_library
path, whole = Path({str(copy)!r}), Path({str(copy)!r}).read_bytes()
refused = 0
for size in [*range(0, 70), *range(70, len(whole) - 40000, len(whole) // 150)]:
    cut = path.with_name(f"cut{{size}}.so")
    cut.write_bytes(whole[:size])
    try:
        shared_library.load(cut)
    except OSError as error:
        assert str(cut) in str(error), error
        refused += 1
print(refused)
assert shared_library.load(path).answer() == 42
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout) > 150


def test_a_library_that_changed_since_it_was_built_is_not_loaded(cache: Path) -> None:
    file = build_cache.cached({}, "kernel.so", compile_good, "x")
    flipped(200_000)(file)
    with pytest.raises(OSError, match="damaged: it is not what was built; build it again"):
        shared_library.load(file)
    truncated(0)(file)
    with pytest.raises(OSError, match="damaged"):
        shared_library.load(file)
    with pytest.raises(OSError, match=r"none\.so"):
        shared_library.load(file.with_name("none.so"))
    assert shared_library.load(build_cache.cached({}, "kernel.so", compile_good, "x")).answer() == 42
