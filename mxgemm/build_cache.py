"""Built files, kept by what they were built from: a folder per key, made once however many processes ask.

A key is a digest of everything that decides the result (source, flags, architecture, compiler). A finished file is
put in place by a rename, so a reader sees all of it or nothing; the lock is the kernel's (``flock``), so a builder that
is killed lets go of it and leaves at most a temporary folder, which the next builder of that key removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

CACHE_VARIABLE: Final = "MXGEMM_CACHE"
SLOW_SECONDS: Final = 1.0
"""A build that takes longer says so, once."""

logger = logging.getLogger("mxgemm")


def folder() -> Path:
    """Return where built files are kept: ``MXGEMM_CACHE``, or ``mxgemm`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mxgemm"


def digest(parts: Mapping[str, Any]) -> str:
    """Return the key of a build: a digest of its parts, which must be JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def cached(parts: Mapping[str, Any], name: str, build: Callable[[Path], None], what: str) -> Path:
    """Return the file that ``build`` makes, building it unless it is there.

    Args:
        parts: everything that decides the file's contents.
        name: the file's name.
        build: writes ``<folder>/<name>`` into the folder that it is given; files beside it are kept too.
        what: what is built, for the log.

    Raises:
        OSError: the cache folder cannot be written.
        FileNotFoundError: ``build`` returned without writing the file.
    """
    place = folder() / digest(parts)
    file = place / name
    if file.is_file():
        return file
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.is_file():  # another process built it meanwhile
            return file
        started = time.monotonic()
        partial = Path(f"{place}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            if not (partial / name).is_file():
                raise FileNotFoundError(f"{what}: the build wrote no {name}")
            shutil.rmtree(place, ignore_errors=True)  # a folder without its file: somebody removed part of the cache
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        seconds = time.monotonic() - started
        if seconds > SLOW_SECONDS:
            logger.warning("built %s in %.1f s; kept in %s", what, seconds, place)
    return file
