"""The build cache, whatever lies in it, whoever may write to it, whoever builds at the same time and is killed."""

import ctypes
import errno
import hashlib
import json
import logging
import multiprocessing
import os
import pwd
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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


NAMES = ("with space", "with\nnewline", "quote'\"`$(touch x)", "*?[a-f]", "\u00e9\u4e2d", "-rf", "x" * 200, "\udcff")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_cache_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path / name / "c"))
    first = build_cache.cached({}, "kernel.so", compile_good, "x")
    leftover = first.parent.with_name(f"{first.parent.name}.dead.partial")
    leftover.mkdir()
    truncated(3)(first)
    assert build_cache.cached({}, "kernel.so", compile_good, "x") == first
    assert not leftover.exists()
    assert shared_library.load(first).answer() == 42
    assert not build_cache._told


def test_the_cache_is_found_without_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, "relative")
    assert build_cache.folder() == tmp_path / "relative"
    monkeypatch.delenv(build_cache.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build_cache.folder() == tmp_path / "xdg" / "mxgemm"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert build_cache.folder() == tmp_path / "home" / ".cache" / "mxgemm"
    monkeypatch.setenv("HOME", "")
    with pytest.raises(build_cache.CacheUnusable, match="no home folder; name a folder in MXGEMM_CACHE"):
        build_cache.folder()
    monkeypatch.delenv("HOME")
    assert build_cache.folder().is_absolute()
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as for a number that no user has
    with pytest.raises(build_cache.CacheUnusable, match="no home folder; name a folder in MXGEMM_CACHE"):
        build_cache.folder()
    file = build_cache.cached({}, "x.bin", write, "x")
    assert file.read_bytes() == b"built"
    assert build_cache.cached_bytes({}, "x.bin", lambda: b"made", "x") == b"made"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_still_serves_what_is_in_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = build_cache.cached({"a": 1}, "x.bin", build_two, "x")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cache))

    monkeypatch.setattr(build_cache.files, "locked", read_only)
    assert build_cache.cached({"a": 1}, "x.bin", build_two, "x") == file
    assert caplog.text == ""
    with pytest.raises(OSError, match="Read-only file system"):  # nor can the temporary directory be
        build_cache.cached({"b": 1}, "x.bin", build_two, "x")
    assert build_cache.cached_bytes({"b": 1}, "x.bin", lambda: CONTENT, "x") == CONTENT
    assert caplog.text.count("Read-only file system") == 1


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tiny / "cache"))
    small = build_cache.cached({"small": 1}, "x.bin", write, "x")
    made: list[int] = []

    def large() -> bytes:
        made.append(1)
        return CONTENT * 20

    assert [build_cache.cached_bytes({"large": 1}, "x.bin", large, "x") for _ in range(2)] == [CONTENT * 20] * 2
    assert len(made) == 1, "what was made is not lost with the disk"
    file = build_cache.cached(
        {"large": 2}, "x.bin", lambda folder: (folder / "x.bin").write_bytes(CONTENT * 20) and None, "x"
    )
    assert file.read_bytes() == CONTENT * 20
    assert tiny not in file.parents
    assert caplog.text.count("No space left on device") == 1
    assert build_cache.cached({"small": 1}, "x.bin", lambda _: pytest.fail("built again"), "x") == small
    assert [path.name for path in (tiny / "cache").iterdir()] == [small.parent.name], "nothing half made is left"


def test_an_error_of_the_build_is_its_own(cache: Path) -> None:
    calls: list[Path] = []

    def fail(folder: Path) -> None:
        calls.append(folder)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "some-compiler")

    with pytest.raises(FileNotFoundError, match="some-compiler"):
        build_cache.cached({}, "x.bin", fail, "x")
    assert len(calls) == 1
    assert not build_cache._told


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_a_file_size_limit_everywhere() -> None:
    script = """
from mxgemm import build_cache
assert build_cache.cached_bytes({}, "x", lambda: b"x" * 5000, "x") == b"x" * 5000
try:
    build_cache.cached({}, "x", lambda folder: (folder / "x").write_bytes(b"x" * 5000), "x")
except OSError as error:
    print(error)
"""
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120, preexec_fn=limit_files)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout


def build_in_pieces(folder: Path) -> None:
    with (folder / "x.bin").open("wb") as file:
        for at in range(0, len(CONTENT), 100):
            file.write(CONTENT[at : at + 100])
            file.flush()
            time.sleep(0.0005)


def build_pieces() -> None:
    build_cache.cached({}, "x.bin", build_in_pieces, "x")


KILLED = 20


def test_builders_killed_at_any_moment(cache: Path) -> None:
    rng = random.Random(0)
    for _ in range(KILLED):
        worker = FORK.Process(target=build_pieces)
        worker.start()
        time.sleep(rng.uniform(0, 0.08))
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        for place in cache.glob("?" * 32):  # whatever has its final name is whole
            assert (place / "x.bin").read_bytes() == CONTENT
            shutil.rmtree(place)
    file = build_cache.cached({}, "x.bin", build_in_pieces, "x")
    assert file.read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == [file.parent.name]


def test_leftovers_of_dead_builders_go_and_those_of_living_ones_stay(cache: Path, tmp_path: Path) -> None:
    build_cache.cached({"other": 0}, "x.bin", write, "x")
    dead = cache / f"{build_cache.digest({'dead': 1})}.abc.partial"
    dead.mkdir()
    foreign = cache / "notes.partial"
    foreign.mkdir()
    started = tmp_path / "started"
    worker = FORK.Process(target=hang, args=(started,))
    worker.start()
    while not started.exists():
        time.sleep(0.01)
    (alive,) = cache.glob(f"{build_cache.digest({})}.*.partial")
    build_cache.cached({"other": 1}, "x.bin", write, "x")
    assert (dead.exists(), alive.exists(), foreign.exists()) == (False, True, True)
    worker.kill()
    worker.join()
    build_cache.cached({"other": 2}, "x.bin", write, "x")
    assert not alive.exists()


def test_a_survivor_of_a_killed_builder_writes_into_no_other_build(cache: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    late = "import sys, time; open(sys.argv[2], 'w'); time.sleep(1); open(sys.argv[1], 'wb').write(b'late')"

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-c", late, folder / "x.bin", started], stderr=subprocess.DEVNULL)

    def build_slowly(folder: Path) -> None:
        build_two(folder)
        time.sleep(2)  # while the survivor writes

    builder = FORK.Process(target=lambda: build_cache.cached({}, "x.bin", build, "x"))
    builder.start()
    while not started.exists():
        time.sleep(0.01)
    builder.kill()
    builder.join()
    file = build_cache.cached({}, "x.bin", build_slowly, "x")
    assert file.read_bytes() == CONTENT
    assert build_cache.cached({}, "x.bin", lambda _: pytest.fail("built again"), "x") == file


def build_other() -> None:
    build_cache.cached({}, "x.bin", write, "x")


def test_a_child_forked_while_something_is_built_stops_nobody() -> None:
    building, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> None:
        building.set()
        go_on.wait()
        raise RuntimeError("no")

    def fails() -> None:
        with pytest.raises(RuntimeError):
            build_cache.cached({}, "x.bin", build, "x")

    builder = threading.Thread(target=fails)
    builder.start()
    building.wait()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        go_on.set()
        builder.join()
        other = FORK.Process(target=build_other)
        other.start()
        other.join(timeout=20)
        assert other.exitcode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def use_and_damage(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        key = {"k": rng.randrange(3)}
        assert build_cache.cached_bytes(key, "x.bin", lambda: CONTENT, "x") == CONTENT
        if rng.random() < 0.3:
            place = build_cache.folder() / build_cache.digest(key) / rng.choice(("x.bin", build_cache.MANIFEST))
            try:
                os.truncate(place, rng.randrange(60))
            except OSError:
                continue


def test_processes_that_build_use_and_damage_at_once_get_what_they_asked_for(cache: Path) -> None:
    workers = [FORK.Process(target=use_and_damage, args=(seed, 60)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not list(cache.glob("*.partial"))
    assert not list(cache.glob("*.lock"))


def test_a_private_cache_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()
    script = """
import os, sys, time
from mxgemm import build_cache
def build(folder): (folder / "x").write_bytes(b"x")
first = build_cache.cached({}, "x", build, "x")
assert build_cache.cached({}, "x", None, "x") == first
child = os.fork()
if child == 0:
    other = build_cache.cached({}, "x", build, "x")
    assert other != first
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert first.read_bytes() == b"x", "a child's end takes nothing from its parent"
"""
    environment = {**os.environ, "MXGEMM_CACHE": str(tmp_path / "file" / "c"), "TMPDIR": str(tmp_path / "tmp")}
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the build cache cannot be used") <= 1 + done.stderr.count("Not a directory")
    assert list((tmp_path / "tmp").iterdir()) == []
