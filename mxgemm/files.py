"""The one reader of JSON and the one writer of results: neither takes anything on trust.

Reading: a regular file of bounded size, UTF-8, of bounded depth, no name twice in an object; a pipe never hangs it.
Writing: beside the target first, then put in its place by a rename, so that a reader sees the old file or the new one,
whole; through a symlink to what it names, with the mode of the file that was there. What mxgemm did not write is
replaced by request only. Locks are ``flock``: they end with the process that holds them, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import reprlib
import secrets
import stat
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Name = str | os.PathLike[str]

READ_LIMIT: Final = 64 << 20
"""Bytes of the largest file that is read: the largest table that comes with mxgemm has a third of a megabyte."""
DEPTH_LIMIT: Final = 32
"""Levels of objects and lists in a document; those of mxgemm have six."""
DIGITS_LIMIT: Final = 18
"""Of an integer: what is longer is no size, count or time, and is read as an infinite number."""
_HEAD: Final = 4096
"""Bytes at the start of a file in which its mark must be."""


class FileError(ValueError):
    """A file that cannot be read or written as asked; the message names it and says why."""


def read_bytes(path: Name, limit: int = READ_LIMIT) -> bytes:
    """Read a regular file.

    Raises:
        FileError: there is none, it is a folder, a pipe or a device, it is larger than ``limit``, or cannot be read.
    """
    try:
        _require_regular(path, os.stat(path))  # before it is opened: opening a device may do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            _require_regular(path, os.fstat(descriptor))
            data = file.read(limit + 1)
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise FileError(f"{_printable(path)}: cannot be read ({_reason(error)})") from error
    if len(data) > limit:
        raise FileError(f"{_printable(path)}: over {limit} bytes, which is the most that is read")
    return data


def read_json(path: Name, limit: int = READ_LIMIT) -> Any:
    """Read a JSON document; a byte order mark is skipped. What its fields hold is for ``fields.py`` to check.

    NaN, infinities and what is too large for a double come as floats that are not finite, so that whoever checks a
    field can name it.

    Raises:
        FileError: as :func:`read_bytes`; not UTF-8; not JSON; nested too deeply; a name twice in one object.
    """
    data = read_bytes(path, limit)
    try:
        text = data.decode("utf-8-sig")
        document = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        if "\\u" in text:  # an escaped half of a surrogate pair is no character, and cannot be printed
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise FileError(f"{_printable(path)}: not JSON that is read: more than {DEPTH_LIMIT} levels deep") from None
    except ValueError as error:
        raise FileError(f"{_printable(path)}: not JSON ({error})") from error
    layer, depth = [document], 0
    while layer := [item for item in layer if isinstance(item, (dict, list))]:
        depth += 1
        if depth > DEPTH_LIMIT:
            raise FileError(f"{_printable(path)}: not JSON that is read: more than {DEPTH_LIMIT} levels deep")
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
    return document


@dataclass(frozen=True, slots=True)
class Mark:
    """How a file that mxgemm wrote is told from anybody else's: by its first bytes.

    Attributes:
        what: such a file is, in words.
        pattern: regular expression, found in the first 4096 bytes.
    """

    what: str
    pattern: bytes

    def __str__(self) -> str:
        return self.what

    def marks(self, head: bytes) -> bool:
        """Say whether a file with these first bytes is one; an empty file is anybody's."""
        return not head or re.search(self.pattern, head) is not None


def json_mark(kind: str) -> Mark:
    """Return the mark of JSON documents that say ``"kind": kind`` near their start, as all of mxgemm's do."""
    return Mark(
        f'JSON with "kind": "{kind}"', rb'\A(?:\xef\xbb\xbf)?\s*\{[^\0]*"kind"\s*:\s*"%b"' % re.escape(kind).encode()
    )


def check_writable(path: Name, mark: Mark, *, force: bool = False) -> None:
    """Find out before the work whether :func:`write` will be able to: a folder that is missing is made, a file tried.

    Raises:
        FileError: as :func:`write`.
    """
    target = _target(path, mark, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = _partial(target.parent)
        os.close(descriptor)
        partial.unlink()
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({_reason(error)})") from error


def write(path: Name, data: str | bytes, mark: Mark, *, force: bool = False) -> Path:
    """Write a file whole or not at all, and return its path.

    Args:
        path: a new file, an empty one, one that ``mark`` knows, or a symlink to such; missing folders are made.
        data: what it shall hold; text as UTF-8.
        mark: of files of this kind.
        force: replace a file that ``mark`` does not know.

    Raises:
        FileError: it is no regular file, mxgemm did not write it and ``force`` is not set, or the folder or disk does
            not take it. The file that was there is as it was.
    """
    target = _target(path, mark, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, _encoded(data))
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({_reason(error)})") from error
    return Path(path)


def save(path: Name, data: str | bytes, mark: Mark, *, force: bool = False) -> Path:
    """Write as :func:`write` what took work to get: where that fails, it is kept in another place.

    Raises:
        FileError: as :func:`write`; the message says where the data is: in the temporary directory, or, for text that
            cannot be written there either, on standard output.
    """
    try:
        return write(path, data, mark, force=force)
    except FileError as error:
        raise FileError(f"{error}; {rescue(Path(path).name, data)}") from error


def rescue(name: str, data: str | bytes) -> str:
    """Keep what could not be written to its place, and say where: the temporary directory, else standard output."""
    path = None
    try:
        descriptor, path = tempfile.mkstemp(prefix="mxgemm-", suffix=f"-{name[-100:]}")
        with open(descriptor, "wb") as file:
            file.write(_encoded(data))
    except OSError as error:
        if path is not None:
            Path(path).unlink(missing_ok=True)
        lost = f"nor can the temporary directory ({_reason(error)})"
        if isinstance(data, bytes):
            return lost
        sys.stdout.write(data)
        sys.stdout.flush()
        return f"{lost}: it is on standard output"
    return f"it is in {path}"


def save_json(path: Name, document: Any, kind: str, *, force: bool = False) -> Path:
    """Save a document that says ``"kind": kind``, as :func:`save`.

    Raises:
        FileError: as :func:`save`.
    """
    return save(path, json_text(document), json_mark(kind), force=force)


def json_text(document: Any) -> str:
    """Return a document as the files of mxgemm hold it; numbers that are not finite, which JSON lacks, become null."""
    try:
        return json.dumps(document, indent=1, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_without_nan(document), indent=1, allow_nan=False) + "\n"


def sync(path: Path) -> None:
    """Have the disk keep a file, or what a folder lists, whatever happens to the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system on which a folder cannot be synchronised
            raise
    finally:
        os.close(descriptor)


_locks: Final[set[int]] = set()
"""Descriptors of the lock files that this process has open."""
_no_fork: Final = threading.Lock()


@contextmanager
def locked(path: Name, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that one thread of one process has at a time, and remove its file afterwards.

    A child that is forked meanwhile does not hold it, neither by living on nor by leaving this block.

    Args:
        path: of the lock's own file, which is made.
        wait: until it is free; otherwise the block gets False, and no lock, where it is not.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    descriptor = _acquire(path, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor in _locks:  # not in a child that was forked inside
            os.unlink(path)  # while it is held: who waits for it finds the name gone, and opens it anew
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough where a child has the file open too
            _close(descriptor)


def _acquire(path: Name, wait: bool) -> int | None:
    while True:
        with _no_fork:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            _locks.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:  # whoever held it has removed it
            pass
        except BlockingIOError:
            _close(descriptor)
            return None
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def _close(descriptor: int) -> None:
    _locks.discard(descriptor)
    os.close(descriptor)


def _in_child() -> None:
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()
    _no_fork.release()


os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_in_child)

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _require_regular(path: Name, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise FileError(f"{_printable(path)}: is {kind}, want a regular file")


def _target(path: Name, mark: Mark, force: bool) -> Path:
    """Return the file to write, symlinks followed, once it is known to be new or one that may be replaced."""
    try:
        found = os.stat(Path(path))  # "" is the folder here
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise FileError(f"{_printable(path)}: cannot be written ({_reason(error)})") from error
    _require_regular(path, found)
    if not force and not mark.marks(_head(path)):
        raise FileError(f"{path}: is there already and is not {mark}, as mxgemm writes it here; --force replaces it")
    return Path(os.path.realpath(path))


def _head(path: Name) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({_reason(error)}), so nobody knows what is in it") from error


def is_partial(path: Path) -> bool:
    """Say whether a file is one that was being written when its process ended, by its name."""
    return path.name.startswith(".mxgemm-") and path.suffix == ".partial"


def _partial(folder: Path) -> tuple[int, Path]:
    """Open a new file with the mode that a new file gets here."""
    path = folder / f".mxgemm-{secrets.token_hex(8)}.partial"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path


def _replace(target: Path, data: bytes) -> None:
    descriptor, partial = _partial(target.parent)
    try:
        with open(descriptor, "wb") as file:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(target.parent)


def _encoded(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{shown(twice)} twice in one object")
    return made


class _Huge(float):
    """An integer with more digits than anything that is read has; prints as the start of it."""

    __slots__ = ("text",)
    text: str

    def __repr__(self) -> str:
        return f"{self.text[:8]}... ({len(self.text)} digits)"


def _integer(text: str) -> int | float:
    if len(text) <= DIGITS_LIMIT:
        return int(text)
    huge = _Huge(math.inf)
    huge.text = text
    return huge


_short: Final = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: Any) -> str:
    """Return a value as a message shows it: its repr, cut where it is long."""
    return _short.repr(value)


def _printable(path: Name) -> str:
    name = str(path)
    return name if name.isprintable() else repr(name)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
