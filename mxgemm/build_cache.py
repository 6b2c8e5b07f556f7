"""Built files, kept by what they were built from: a folder per key, made once however many processes ask.

A key is a digest of everything that decides the result (source, flags, architecture, compiler). Each builder works in
a folder of its own, which a rename puts in place with a manifest of sizes and digests; what is handed out has been read
and compared with it. The lock is the kernel's, so a builder that is killed lets go of it, and the next one removes what
it left. A folder or a file that another user owns or may write is never used. Where the cache cannot be used, which is
said once, what is built is kept for this process alone.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from mxgemm import files
from mxgemm.fields import document as document_of
from mxgemm.fields import each, integer, record, text
from mxgemm.files import FileError

CACHE_VARIABLE: Final = "MXGEMM_CACHE"
SLOW_SECONDS: Final = 1.0
"""A build that takes longer says so, once."""
MANIFEST: Final = "manifest.json"
"""What lies in a folder: sizes and digests, written last."""
FILE_LIMIT: Final = 1 << 30
"""Bytes of the largest file that is kept."""

_KIND: Final = "mxgemm-build"
_VERSION: Final = 1
_FILES: Final = each(record({"size": integer(0, FILE_LIMIT), "sha256": text("a digest")}))
_PARTIAL: Final = ".partial"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""A build that ends so may end well in another place."""
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

logger = logging.getLogger("mxgemm")
_in_memory: dict[str, bytes] = {}
"""What was built while the cache could not be used."""
_told: list[str] = []
"""Why it could not be."""


class CacheUnusable(OSError):
    """The cache folder cannot be used; the text says why."""


class _BuildFailed(Exception):
    """Carries what a build raised past those who look after the cache."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def folder() -> Path:
    """Return where built files are kept: ``MXGEMM_CACHE``, or ``mxgemm`` in the user's cache folder.

    Raises:
        CacheUnusable: neither is named and there is no home folder.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache_home):  # the specification of that variable says to take no other
        home = os.environ.get("HOME", os.path.expanduser("~"))
        if not os.path.isabs(home):
            raise CacheUnusable(f"there is no home folder; name a folder in {CACHE_VARIABLE}")
        cache_home = os.path.join(home, ".cache")
    return Path(cache_home) / "mxgemm"


def digest(parts: Mapping[str, Any]) -> str:
    """Return the key of a build: a digest of its parts, which must be JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def cached(parts: Mapping[str, Any], name: str, build: Callable[[Path], None], what: str) -> Path:
    """Return the file that ``build`` makes, building it unless it is there as it was built.

    Args:
        parts: everything that decides the file's contents.
        name: the file's name.
        build: writes ``<folder>/<name>`` into the folder that it is given; files beside it are kept too. It may be
            called a second time, with another folder.
        what: what is built, for the log.

    Raises:
        OSError: neither the cache folder nor the temporary directory can be written.
        FileNotFoundError: ``build`` returned without writing the file.
    """
    key = digest(parts)
    try:
        return _kept(folder(), key, name, build, what)
    except CacheUnusable as error:
        private = private_folder(os.getpid())
        _say_unusable(error, f"in {private}, which goes when this process ends")
        return _kept(private, key, name, build, what)


def cached_bytes(parts: Mapping[str, Any], name: str, make: Callable[[], bytes], what: str) -> bytes:
    """Return what ``make`` returns, from the cache or made now, and kept in memory where the cache cannot be used.

    Args:
        parts: everything that decides the result.
        name: of the file in the cache.
        make: makes it; called once.
        what: what is made, for the log.
    """
    key, made = digest(parts), list[bytes]()

    def build(partial: Path) -> None:
        if not made:
            made.append(make())
        (partial / name).write_bytes(made[0])

    if key in _in_memory:
        return _in_memory[key]
    try:
        place = _kept(folder(), key, name, build, what).parent
        found = made[0] if made else _intact(place, name)
        if found is None:
            raise CacheUnusable(f"{place} changes while it is read")
        return found
    except CacheUnusable as error:
        _say_unusable(error, "in memory")
        _in_memory[key] = made[0] if made else make()
        return _in_memory[key]


def differs(path: Path, data: bytes) -> bool:
    """Say whether a manifest beside a file records it with other contents than ``data``."""
    recorded = _manifest(path.parent).get(path.name)
    return recorded is not None and recorded != _figures(data)


def _kept(root: Path, key: str, name: str, build: Callable[[Path], None], what: str) -> Path:
    place = root / key
    try:
        _require_own(root)
        if _intact(place, name) is None:
            with files.locked(root / f"{key}.lock"):
                if _intact(place, name) is None:  # no other process built it meanwhile
                    _remove_leftovers(root, key)
                    _build(place, name, build, what)
    except _BuildFailed as failed:
        raise failed.error from failed.error.__cause__
    except CacheUnusable:
        raise
    except OSError as error:
        raise CacheUnusable(f"{error.filename or root}: {error.strerror or error}") from error
    return place / name


def _build(place: Path, name: str, build: Callable[[Path], None], what: str) -> None:
    if os.path.lexists(place):
        logger.warning("%s is damaged: building it again (%s)", place / name, what)
        _remove(place)
    started = time.monotonic()
    partial = _new_folder(place)
    try:
        try:
            build(partial)
        except OSError as error:
            raise error if error.errno in _FULL else _BuildFailed(error) from error
        if not (partial / name).is_file():
            raise _BuildFailed(FileNotFoundError(f"{what}: the build wrote no {name}"))
        _seal(partial, what)
        partial.rename(place)
        files.sync(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.monotonic() - started
    if seconds > SLOW_SECONDS:
        logger.warning("built %s in %.1f s; kept in %s", what, seconds, place)


def _seal(partial: Path, what: str) -> None:
    """Write down what was built, and have the disk keep all of it before it gets its name."""
    figures = {}
    for file in sorted(path for path in partial.iterdir() if path.is_file() and not path.is_symlink()):
        file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_BY_OTHERS)
        files.sync(file)
        figures[file.name] = _figures(file.read_bytes())
    manifest = {"kind": _KIND, "version": _VERSION, "what": what, "files": figures}
    (partial / MANIFEST).write_text(files.json_text(manifest), encoding="utf-8")
    (partial / MANIFEST).chmod(0o600)
    files.sync(partial / MANIFEST)
    files.sync(partial)


def _intact(place: Path, name: str) -> bytes | None:
    """Return a kept file's contents if all files beside it are what was built, and nobody else's; else None."""
    contents = None
    try:
        if not place.is_dir() or _refusal(os.lstat(place)):
            return None
        for file, figures in _manifest(place).items():
            if _refusal(os.lstat(place / file)):
                return None
            data = files.read_bytes(place / file, FILE_LIMIT)
            if _figures(data) != figures:
                return None
            if file == name:
                contents = data
    except (FileNotFoundError, FileError):
        return None
    return contents


def _manifest(place: Path) -> dict[str, Any]:
    """Return what is recorded of the files in a folder; nothing where nothing is, or what is there cannot be read."""
    try:
        found = files.read_json(place / MANIFEST)
        document_of(_KIND, _VERSION)(found, MANIFEST)
        _FILES(found.get("files"), MANIFEST)
    except FileError:
        return {}
    recorded: dict[str, Any] = found["files"]
    return recorded if all(name == os.path.basename(name) for name in recorded) else {}


def _figures(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _require_own(root: Path) -> None:
    """Make the cache folder if it is missing, and see that nobody else can put anything into it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    refusal = "is no folder" if not root.is_dir() else _refusal(root.stat())
    if refusal:
        raise CacheUnusable(f"{root} {refusal}")
    for above in root.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise CacheUnusable(f"{root} lies in {above}, in which everybody may exchange it (mode {mode & 0o7777:o})")


def _refusal(found: os.stat_result) -> str:
    """Say why something in the cache is not to be trusted, or return ""."""
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return "is neither a folder nor a file"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}, and this is user {os.geteuid()}"
    if found.st_mode & _BY_OTHERS:
        return f"may be written by others (mode {stat.S_IMODE(found.st_mode):o}; chmod go-w)"
    return ""


def _remove_leftovers(root: Path, key: str) -> None:
    """Remove what dead builders left: theirs are the folders whose locks are free."""
    for partial in root.glob(f"{'[0-9a-f]' * len(key)}*{_PARTIAL}"):
        owner = partial.name[: len(key)]
        if owner == key:  # whose lock is ours
            shutil.rmtree(partial, ignore_errors=True)
            continue
        with files.locked(root / f"{owner}.lock", wait=False) as free:
            if free:
                shutil.rmtree(partial, ignore_errors=True)


def _remove(place: Path) -> None:
    """Take whatever has a place's name out of the way at once, then delete it."""
    gone = _new_folder(place)
    place.rename(gone / place.name)
    shutil.rmtree(gone, ignore_errors=True)


def _new_folder(place: Path) -> Path:
    """Make a builder's own folder, mode 0700."""
    return Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=_PARTIAL, dir=place.parent))


@cache
def private_folder(process: int) -> Path:
    """Return this process's own cache, which ends with it; a forked child has another."""
    made = Path(tempfile.mkdtemp(prefix="mxgemm-"))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


def _say_unusable(error: CacheUnusable, instead: str) -> None:
    if not _told:
        logger.warning("the build cache cannot be used (%s): what is built is kept %s", error, instead)
    _told.append(str(error))
