"""``mxgemm.checkpoints.open``: a checkpoint as a mapping of names to tensors, each read when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

import torch
from torch import Tensor

from mxgemm.arguments import as_int, as_path, check_type, one_of
from mxgemm.checkpoints import gguf
from mxgemm.checkpoints.base import Entry, Format, Kind
from mxgemm.checkpoints.compressed_tensors import CompressedTensors
from mxgemm.checkpoints.dense import Dense
from mxgemm.checkpoints.gpt_oss import GptOss
from mxgemm.checkpoints.quark import Quark
from mxgemm.checkpoints.scheme import Given, Scheme, agreed, check_given
from mxgemm.checkpoints.store import Store, Stored, open_safetensors
from mxgemm.checkpoints.torchao import TorchAO
from mxgemm.files import FileError
from mxgemm.mx.formats import ACTIVATION_FORMATS, BLOCK, SCALE_ROUNDINGS, ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor

FORMATS: Final[dict[str, Format]] = {
    each.name: each
    for each in (
        *(Quark(), CompressedTensors(), TorchAO(swizzled=False), TorchAO(swizzled=True), GptOss(), gguf.Gguf()),
        Dense(),
    )
}
"""Every format, in the order in which they look at a checkpoint."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Checkpoint(Mapping[str, MXTensor | Tensor]):
    """The parameters of a model on disk, by the names that the model without quantisation has.

    ``checkpoint[name]`` reads one parameter: an :class:`mxgemm.MXTensor` where it is in an MX format, else a
    ``torch.Tensor``, mapped from the file where the file allows it. Nothing is kept, so that one is in memory at a time
    as long as the caller keeps one. Threads and forked processes may share it.

    Attributes:
        path: the file or folder.
        format: name of its format.
        config: what ``config.json`` holds; None without one.
    """

    def __init__(self, store: Store, format: Format, entries: Mapping[str, Entry], given: Given) -> None:
        self.path, self.format, self.config = store.path, format.name, store.config
        self._entries, self._store, self._format, self._given = dict(entries), store, format, given

    @property
    def entries(self) -> Mapping[str, Entry]:
        """What is known of every parameter without reading it: kind, shape, type, scheme, by name."""
        return MappingProxyType(self._entries)

    def __getitem__(self, name: str) -> MXTensor | Tensor:
        """Read a parameter.

        Raises:
            KeyError: there is none of this name.
            FileError: the file changed since, or holds bytes that mean nothing.
            TypeError: it is quantised in a way that is not MX; :meth:`dequantize` may decode it.
        """
        entry = self.entries[name]
        if entry.kind == "mx":
            return self._format.decode(entry, self._store)
        if entry.kind == "tensor":
            return self._store.read(entry.parts[0])
        raise TypeError(f"{name}: is {entry.note}, which is not MX; see Checkpoint.dequantize")

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # Mapping's own would read it

    __eq__ = object.__eq__  # nor are all tensors read to compare two
    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def dequantize(self, name: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Read a parameter as plain numbers: MX tensors decoded, floating-point tensors converted, ggml's types too.

        Raises:
            KeyError, FileError: as reading it.
            TypeError: another dtype than bf16, fp16 and fp32; a type that nobody here decodes; no floating point.
        """
        if dtype not in FLOAT_DTYPES:
            raise TypeError(f"dtype: got {dtype}, want torch.bfloat16, torch.float16 or torch.float32")
        entry = self.entries[name]
        if entry.kind == "foreign":
            if not isinstance(self._store, gguf.GgufStore):
                raise TypeError(f"{name}: is {entry.note}, which is not MX")
            return gguf.dequantize(entry, self._store).to(dtype)
        value = self[name]
        if isinstance(value, MXTensor):
            return value.dequantize(dtype)
        if not value.is_floating_point():
            raise TypeError(f"{name}: is {value.dtype}, want floating point")
        return value.to(dtype)

    def part(self, name: str, rows: slice | None = None, columns: slice | None = None) -> MXTensor:
        """Read a part of an MX weight (N, K), as a process that holds a slice of it does.

        Of Quark's and compressed-tensors' files no other bytes are read; other formats are decoded whole first.

        Args:
            name: of the weight.
            rows: from and to which row; None for all.
            columns: from and to which element of each row, both multiples of 32; None for all.

        Raises:
            KeyError, FileError: as reading it.
            TypeError: it is not e2m1 in MX blocks.
            ValueError: it is no matrix, or the part is empty, has a step, cuts a block or reaches beyond.
        """
        entry = self.entries[name]
        if entry.kind != "mx" or entry.type != "e2m1":
            raise TypeError(f"{name}: is {entry.note or entry.type}, want an MX weight of e2m1")
        if len(entry.shape) != 2:
            raise ValueError(f"{name}: got shape {list(entry.shape)}, want (N, K)")
        n, k = entry.shape
        own = _bounds("rows", rows, n, 1), _bounds("columns", columns, k, BLOCK)
        return self._format.decode_part(entry, self._store, *own)

    def stored(self, name: str) -> Tensor:
        """Read the one stored tensor of a parameter that is not MX, as it is: bytes of a ggml type, or a tensor.

        Raises:
            KeyError, FileError: as reading it.
        """
        return self._store.read(self.entries[name].parts[0])

    def description(self, name: str) -> Stored:
        """Return dtype, shape and file of the first stored tensor of a parameter, unread."""
        return self._store.tensors[self.entries[name].parts[0]]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors."""
        return self._store.files

    @property
    def fields(self) -> Mapping[str, tuple[Any, Any, Any]]:
        """Key and value metadata of a GGUF file: value, type, type of elements; {} of others."""
        return self._store.fields if isinstance(self._store, gguf.GgufStore) else {}

    def stored_as(self, format: str = "quark") -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors as files of a format hold them, one parameter in memory at a time.

        With "quark" these are the names of ``mxgemm.nn.MXLinear``: ``weight`` ``[N, K/2]``, ``weight_scale``
        ``[N, K/32]``, so that ``load_state_dict(dict(checkpoint.stored_as()))`` loads any checkpoint.

        Raises:
            ValueError: another format, or one that cannot hold a parameter.
            TypeError, FileError: as reading a parameter.
        """
        target = FORMATS[one_of("format", format, FORMATS)]
        for name in self.entries:
            value = self[name]
            if isinstance(value, MXTensor):
                yield from target.encode(name, value.row_major()).items()
            else:
                yield name, value

    @property
    def a_format(self) -> ActivationFormat:
        """What activations are rounded to, for ``mxgemm.gemm(a_format=)``.

        Raises:
            ValueError: the files do not say, or say several.
        """
        return self._scheme().a_format  # type: ignore[return-value]

    @property
    def scale_rounding(self) -> ScaleRounding:
        """How their block scales are chosen, for ``mxgemm.gemm(scale_rounding=)``; "even" for bf16, which has none.

        Raises:
            ValueError: the files do not say, or say several.
        """
        scheme = self._scheme()
        if scheme.a_format == "bf16":
            return "even"
        if scheme.scale_rounding is None:
            raise ValueError(
                f"scale_rounding: {self.path} says {scheme.says}; want open(path, scale_rounding=), one of "
                f"{', '.join(SCALE_ROUNDINGS)}"
            )
        return scheme.scale_rounding

    def _scheme(self) -> Scheme:
        schemes = {name: entry.scheme for name, entry in self.entries.items() if entry.kind == "mx"}
        found = {(scheme.a_format, scheme.scale_rounding): scheme for scheme in schemes.values()}
        if not found:
            raise ValueError(f"a_format: {self.path} has no MX tensor")
        if len(found) > 1:
            listed = ", ".join(str(a_format) for a_format, _ in found)
            raise ValueError(f"a_format: {self.path} has layers of {listed}; want entries[name].scheme of each")
        (scheme,) = found.values()
        if scheme.a_format is None:
            raise ValueError(
                f"a_format: {self.path} says {scheme.says}; want open(path, a_format=), one of "
                f"{', '.join(ACTIVATION_FORMATS)}"
            )
        return scheme

    def __repr__(self) -> str:
        counts = {kind: sum(entry.kind == kind for entry in self.entries.values()) for kind in KINDS}
        held = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"Checkpoint({str(self.path)!r}, {self.format}: {held or 'empty'})"


def _bounds(name: str, given: slice | None, length: int, unit: int) -> slice:
    if given is None:
        return slice(0, length)
    check_type(name, given, slice, "a slice")
    start = 0 if given.start is None else as_int(name, given.start)
    stop = length if given.stop is None else as_int(name, given.stop)
    if given.step is not None or not 0 <= start < stop <= length or start % unit or stop % unit:
        units = f" in multiples of {unit}" if unit > 1 else ""
        raise ValueError(f"{name}: got {start}:{stop}, want a part of 0:{length}{units}, without a step")
    return slice(start, stop)


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    a_format: ActivationFormat | None = None,
    scale_rounding: ScaleRounding | None = None,
    scale_bias: int | None = None,
) -> Checkpoint:
    """Open a checkpoint: headers and ``config.json`` are read and checked, tensors when they are asked for.

    What the files say of activations is in the result; the arguments say what the files do not, and may not contradict
    them.

    Args:
        path: a folder with ``model.safetensors`` or ``model.safetensors.index.json`` and, as a rule, ``config.json``;
            one safetensors file; or a GGUF file.
        format: one of :data:`FORMATS`, where nothing says which.
        a_format: of activations: "e2m1", "e4m3" or "bf16".
        scale_rounding: of their scales: "even", "floor", "ceil" or "rceil".
        scale_bias: of compressed-tensors' scale bytes, 127 or (before version 0.14) 125.

    Raises:
        FileError: a file that is missing or damaged, or whose parts do not belong together; the message names file and
            tensor.
        ValueError: an argument that is wrong, contradicts the files, or is needed.
        ImportError: safetensors or gguf is missing.
    """
    source = as_path("path", path).absolute()  # to be found whatever the process's folder is later
    given = check_given(a_format, scale_rounding, scale_bias)
    if format is not None:
        one_of("format", format, FORMATS)
    if not source.exists():
        raise FileError(f"{source}: there is no such file or folder")
    store: Store = gguf.open_gguf(source) if source.suffix == gguf.SUFFIX else open_safetensors(source)
    chosen = _format_of(store, format)
    entries: dict[str, Entry] = {}
    for entry in chosen.entries(store, given):
        if entry.name in entries:
            raise store.error(entry.parts[0], f"is a second {entry.name}")
        if entry.kind == "mx":
            entry = replace(entry, scheme=agreed(entry.scheme, given, str(source), entry.name))
        entries[entry.name] = entry
    return Checkpoint(store, chosen, entries, given)


def _format_of(store: Store, named: str | None) -> Format:
    found = next((each for each in FORMATS.values() if each.detects(store)), None)
    if named is None:
        if found is not None:
            return found
        method = store.quantization.get("quant_method")
        wanted = ", ".join(FORMATS)
        if method is not None:
            raise FileError(f"{store.path}: quantization_config: got quant_method {method!r}, want one of {wanted}")
        raise ValueError(f"format: {store.path} does not say what its bytes are; want format=, one of {wanted}")
    if found is not None and not named.startswith(found.name):
        raise ValueError(f"format: got {named}, but {store.path} says {found.name}; leave it out")
    return FORMATS[named] if found is None else found
