"""The folder in which a conversion works, beside what it makes: its own, locked, and gone or whole in the end.

What is written there is whole or not there under its name, so that a killed conversion goes on where it was; what it
makes gets its own name by one rename, when all of it is on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from mxgemm.files import FileError, locked, sync

SUFFIX: Final = ".partial"
_UNFINISHED: Final = ".unfinished"
_LOCK: Final = ".lock"


def folder_of(target: Path) -> Path:
    """Return the folder in which ``target`` is made."""
    return target.with_name(target.name + SUFFIX)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make a folder and have it alone; what a killed process had not finished is removed.

    Raises:
        FileError: another process has it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = locked(folder.with_name(folder.name + _LOCK), wait=False)
        free = lock.__enter__()
    except OSError as error:
        raise FileError(f"{folder}: cannot be made ({error.strerror or error})") from error
    try:
        if not free:
            raise FileError(f"{folder}: another process is at work in it")
        for path in folder.glob(f"*{_UNFINISHED}"):
            path.unlink()
        yield
    finally:
        if free and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        lock.__exit__(None, None, None)


@contextmanager
def written_whole(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Give a new file, open, and its path, and put it in the place of ``path`` once the block has ended.

    Raises:
        OSError: as writing to it; then ``path`` is as it was.
    """
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            yield file, unfinished
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file.

    Raises:
        OSError: as writing to it.
    """
    with open(source, "rb") as given, written_whole(path) as (file, _):
        shutil.copyfileobj(given, file, 1 << 20)


def finish(made: Path, target: Path) -> None:
    """Give what was made its own name.

    Raises:
        OSError: there is something of that name meanwhile.
    """
    os.rename(made, target)
    sync(target.parent)
