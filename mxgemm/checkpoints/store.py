"""The tensors of safetensors files by name: what is there is read at once, a tensor when it is asked for.

Files are read by the ``safetensors`` package, which maps them into memory and checks what their headers say. Pages that
were read stay in memory as long as their mapping, so a file is opened anew after every :data:`KEPT_BYTES`: what is read
through one opening, and not held by anybody, is no more. Each thread has its own, and a pickle has none.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.files import FileError, read_json, shown

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
CONFIG: Final = "config.json"
PICKLES: Final = (".bin", ".pt", ".pth")
KEPT_BYTES: Final = 1 << 24
"""Read through one opening of a file: small tensors share one, for the header is read at each (20,000 names: 20 ms)."""

_DTYPES: Final[dict[str, torch.dtype | None]] = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32},
    **{"I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "C64": torch.complex64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    "F8_E8M0": getattr(torch, "float8_e8m0fnu", None),
}
SAFETENSORS_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items() if dtype is not None}
"""What a safetensors header calls a dtype."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file, unread.

    Attributes:
        dtype: torch's.
        shape: as stored.
        file: that holds it.
        type: what the file's format calls its type.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    type: str

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.dtype.itemsize * int(torch.Size(self.shape).numel())


class _Opening(threading.local):
    """A thread's open file: which, as it was then, the handle, and how many bytes may still be read through it.

    One value, exchanged whole: a read may interrupt a read of the same thread.
    """

    slot: tuple[object, Any, int] = (None, None, 0)


@dataclass(eq=False)
class Store:
    """All tensors of a checkpoint.

    Attributes:
        path: the file or folder.
        tensors: by name, in the order of the files.
        config: what ``config.json`` holds; None without one.
        metadata: text fields in the headers of the files; of several with one name the first.
        headers: the same, file by file.
        files: that hold tensors.
    """

    path: Path
    tensors: dict[str, Stored]
    config: dict[str, Any] | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    headers: tuple[dict[str, str], ...] = ()
    files: tuple[Path, ...] = ()
    _opening: _Opening = field(default_factory=_Opening, init=False, repr=False)

    def read(self, name: str) -> Tensor:
        """Return a tensor, mapped from its file: memory is used as its bytes are.

        Raises:
            FileError: the file is no longer what it was.
        """
        stored = self.tensors[name]
        try:
            tensor: Tensor = self._handle(stored).get_tensor(name)
        except FileError:
            raise
        except Exception as error:  # safetensors' own, or torch's of a file that shrank
            raise self.error(name, f"cannot be read ({error})") from error
        if (tensor.dtype, tuple(tensor.shape)) != (stored.dtype, stored.shape):
            raise self.error(name, "is not what it was when the checkpoint was opened")
        return tensor

    def _handle(self, stored: Stored) -> Any:
        """Return the open file, the one on the disk: to read what was cut off a mapped one would end the process."""
        wanted = stored.file, _stamp(stored.file)
        key, handle, left = self._opening.slot
        if key != wanted or left < stored.nbytes:
            handle, left = _opened(stored.file), KEPT_BYTES
        self._opening.slot = wanted, handle, left - stored.nbytes
        return handle

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opening"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opening=_Opening())

    def error(self, name: str, reason: str) -> FileError:
        """Return an error about a tensor, which names its file."""
        stored = self.tensors.get(name)
        return FileError(f"{self.path if stored is None else stored.file}: {name}: {reason}")

    @property
    def quantization(self) -> dict[str, Any]:
        """``quantization_config`` of ``config.json``, or of a part of it, as multimodal models have; {} without one."""
        for holder in (self.config or {}, (self.config or {}).get("text_config")):
            if isinstance(holder, dict):
                for key in ("quantization_config", "compression_config"):
                    found = holder.get(key)
                    if isinstance(found, dict):
                        return found
        return {}


@dataclass(eq=False)
class Slices(Store):
    """A store of which some tensors are read in part.

    Attributes:
        wanted: rows and columns of matrices, by name.
    """

    wanted: Mapping[str, tuple[slice, slice]] = field(default_factory=dict)

    def read(self, name: str) -> Tensor:
        """Return a tensor, or the wanted part of it: no other bytes of the file are read.

        Raises:
            FileError: the file is no longer what it was.
        """
        if name not in self.wanted:
            return super().read(name)
        stored, (rows, columns) = self.tensors[name], self.wanted[name]
        try:
            part = self._handle(stored).get_slice(name)
            if tuple(part.get_shape()) != stored.shape:
                raise self.error(name, "is not what it was when the checkpoint was opened")
            tensor: Tensor = part[rows, columns]
        except FileError:
            raise
        except Exception as error:  # safetensors' own, or torch's of a file that shrank
            raise self.error(name, f"cannot be read ({error})") from error
        if tensor.dtype != stored.dtype:
            raise self.error(name, "is not what it was when the checkpoint was opened")
        return tensor.contiguous()


def open_safetensors(path: Path) -> Store:
    """Return the tensors of a safetensors file, or of a folder with one, or with several and their index.

    Raises:
        FileError: there is nothing such, or a file, the index or ``config.json`` is damaged or contradicts another.
        ImportError: the safetensors package is missing.
    """
    names = _index(path) if path.is_dir() else {}
    files = sorted(set(names.values())) if names else [_single(path)]
    tensors: dict[str, Stored] = {}
    headers: list[dict[str, str]] = []
    for file in files:
        with _opened(file) as opened:
            headers.append(opened.metadata() or {})
            for name, stored in _listed(opened, file):
                if name in tensors:
                    raise FileError(f"{file}: {name}: is in {tensors[name].file.name} too")
                tensors[name] = stored
    for name, file in names.items():
        if name not in tensors or tensors[name].file != file:
            raise FileError(f"{path / INDEX}: {name}: is not in {file.name}, where the index has it")
    metadata = {key: value for header in reversed(headers) for key, value in header.items()}
    return Store(path, tensors, read_config(path), metadata, tuple(headers), tuple(files))


def read_config(path: Path) -> dict[str, Any] | None:
    """Return what ``config.json`` in a folder, or beside a file, holds; None without one.

    Raises:
        FileError: it cannot be read, or is no object.
    """
    config = (path if path.is_dir() else path.parent) / CONFIG
    if not config.exists():
        return None
    document = read_json(config)
    if not isinstance(document, dict):
        raise FileError(f"{config}: got {type(document).__name__}, want an object")
    return document


def require_safetensors() -> None:
    """Check that safetensors files can be read.

    Raises:
        ImportError: the package is missing; the message says how to get it.
    """
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError("checkpoints need safetensors: pip install 'mxgemm[checkpoints]'") from error


def check_regular(file: Path) -> os.stat_result:
    """Check that a file is one that can be mapped, and return what the system says of it.

    Raises:
        FileError: there is none, or it is a folder, a pipe or a device.
    """
    try:
        status = os.stat(file)
    except (OSError, ValueError) as error:
        raise FileError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{file}: is no regular file")
    return status


def _stamp(file: Path) -> tuple[int, ...]:
    status = check_regular(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _opened(file: Path) -> Any:
    require_safetensors()
    from safetensors import safe_open

    check_regular(file)
    try:
        return safe_open(os.fspath(file), "pt")
    except Exception as error:  # safetensors' own, OSError
        raise FileError(f"{file}: no safetensors file that can be read ({error})") from error


def _listed(opened: Any, file: Path) -> Iterator[tuple[str, Stored]]:
    for name in opened.keys():  # noqa: SIM118  # no dict
        part = opened.get_slice(name)
        kind = part.get_dtype()
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise FileError(f"{file}: {name}: got dtype {kind}, want one that torch {torch.__version__} has")
        yield name, Stored(dtype, tuple(part.get_shape()), file, kind)


def _index(folder: Path) -> Mapping[str, Path]:
    """Return the file of each tensor that the index of a folder lists; {} without an index."""
    index = folder / INDEX
    if not index.exists():
        return {}
    document = read_json(index)
    listed = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise FileError(f"{index}: weight_map: got {shown(listed)}, want an object of names and files")
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise FileError(f"{index}: {name}: got {shown(file)}, want the name of a safetensors file beside the index")
    return {name: folder / file for name, file in listed.items()}


def _single(path: Path) -> Path:
    if not path.is_dir():
        if path.suffix in PICKLES:
            raise FileError(f"{path}: is a pickle, which may run code as it is read; want safetensors or GGUF")
        return path
    if (path / SINGLE).exists():
        return path / SINGLE
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise FileError(f"{path}: has {len(found)} safetensors files and no {INDEX}; want the path of one of them")
    held = " (pickles are not read)" if any(p.suffix in PICKLES for p in path.iterdir()) else ""
    raise FileError(f"{path}: has neither {INDEX} nor a safetensors file{held}")
