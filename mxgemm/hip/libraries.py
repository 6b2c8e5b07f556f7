"""Find a shared library: the copy that this process has open already goes first, then files, then the loader's path."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch


def rocm_folder() -> Path:
    """Return where ROCm is installed, or would be: ``ROCM_PATH`` or ``/opt/rocm``."""
    return Path(os.environ.get("ROCM_PATH") or "/opt/rocm")


def cuda_folder() -> Path:
    """Return where CUDA is installed, or would be: ``CUDA_HOME``, ``CUDA_PATH`` or ``/usr/local/cuda``."""
    return Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")


def torch_folders(nvidia_package: str = "*") -> list[Path]:
    """Return where torch's wheels keep libraries: ``torch/lib``, and ``nvidia/<package>/lib`` beside torch."""
    torch_folder = Path(torch.__file__).parent
    return [torch_folder / "lib", *sorted((torch_folder.parent / "nvidia").glob(f"{nvidia_package}/lib"))]


def open_library(stem: str, folders: Iterable[Path], versions: Iterable[str]) -> tuple[ctypes.CDLL, str]:
    """Open a library, whichever version is found first, and return it with the name it was opened by.

    Two copies of a GPU's run-time library in one process know nothing of each other: a loaded one goes first.

    Args:
        stem: such as "libamdhip64".
        folders: looked into before the loader's own path.
        versions: suffixes to ask the loader for, as in "libamdhip64.so.7".

    Raises:
        OSError: none is found, or none can be opened; the text has every attempt and its reason.
    """
    named = [f"{stem}.so.{version}" for version in versions]
    attempts = [*_loaded(stem), *_files(stem, folders), *named, f"{stem}.so"]
    reasons = []
    for attempt in attempts:
        try:
            return ctypes.CDLL(attempt), attempt
        except OSError as error:  # the loader's text names the file, unless it could be read
            reasons.append(str(error) if attempt in str(error) else f"{attempt}: {error}")
    raise OSError("; ".join(reasons))


def _named(stem: str) -> str:
    """Return a pattern for the file names of a library; wheels put a hash behind the stem."""
    return rf"{re.escape(stem)}(?:-[0-9a-f]{{6,}})?\.so[.\d]*"


def _loaded(stem: str) -> list[str]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux: nothing is known of what is loaded
        return []
    return list(dict.fromkeys(re.findall(rf"\s(/\S*/{_named(stem)})$", maps, flags=re.MULTILINE)))


def _files(stem: str, folders: Iterable[Path]) -> list[str]:
    matches = re.compile(_named(stem)).fullmatch
    return [
        str(path) for folder in folders for path in sorted(folder.glob(f"{stem}*"), reverse=True) if matches(path.name)
    ]
