"""What a checkpoint format is to the rest: names and bytes to MX tensors, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from mxgemm.checkpoints.scheme import NOTHING, Given, Rule, Scheme
from mxgemm.checkpoints.store import Slices, Store
from mxgemm.files import FileError
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.tensor import MXTensor

Kind = Literal["mx", "tensor", "foreign"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter of a checkpoint, unread.

    Attributes:
        name: of the parameter, as the model without quantisation has it.
        kind: "mx"; "tensor", stored as it is; or "foreign": quantised in a way that is not MX.
        shape: logical: ``(N, K)``, ``(E, N, K)`` or any.
        type: element format, dtype, or the foreign type's name.
        parts: names of the stored tensors.
        nbytes: of them.
        layout: how the bytes lie, in words.
        scheme: of an "mx" entry.
        note: why it is "foreign".
        argument: what the format needs to decode it.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    type: str
    parts: tuple[str, ...]
    nbytes: int
    layout: str = ""
    scheme: Scheme = NOTHING
    note: str = ""
    argument: Any = None


class Format(ABC):
    """A way to store MX tensors in files; stateless.

    Attributes:
        name: as ``mxgemm convert --to`` takes it.
        rows_as_stored: both parts of a weight are stored as rows, ``[N, K/2]`` and ``[N, K/32]``, so that a slice of it
            is a slice of each.
    """

    name: str
    rows_as_stored: bool = False

    @abstractmethod
    def detects(self, store: Store) -> bool:
        """Say whether a checkpoint is of this format, by its metadata."""

    @abstractmethod
    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield what the checkpoint holds.

        Raises:
            FileError: tensors that do not belong together, or metadata that makes no sense.
            ValueError: an argument is needed.
        """

    @abstractmethod
    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Read an "mx" entry.

        Raises:
            FileError: bytes that mean nothing.
        """

    def decode_part(self, entry: Entry, store: Store, rows: slice, columns: slice) -> MXTensor:
        """Read rows and columns of an "mx" entry (N, K): no more of the files where rows lie in them as such.

        Raises:
            FileError: bytes that mean nothing.
        """
        packed, blocks = (slice(columns.start // unit, columns.stop // unit) for unit in (2, BLOCK))
        if self.rows_as_stored:
            data, scales = entry.parts
            wanted = {data: (rows, packed), scales: (rows, blocks)}
            part = Slices(store.path, store.tensors, store.config, store.metadata, store.headers, store.files, wanted)
            return self.decode(entry, part)
        whole = self.decode(entry, store).row_major()
        return MXTensor.wrap(whole.data[rows, packed].clone(), whole.scales[rows, blocks].clone())

    @abstractmethod
    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Return the stored tensors of a row-major weight; on the meta device, their shapes.

        Raises:
            ValueError: this format cannot hold it.
        """

    def rules(self, config: Mapping[str, Any]) -> Iterator[Rule]:
        """Yield what a ``quantization_config`` says of linear layers; the first rule that fits a module holds.

        Raises:
            ValueError: it makes no sense.
        """
        del config
        return iter(())

    def stored_rules(self, store: Store) -> list[Rule]:
        """Return the rules of a checkpoint.

        Raises:
            FileError: its ``quantization_config`` makes no sense.
        """
        try:
            return list(self.rules(store.quantization))
        except ValueError as error:
            raise FileError(f"{store.path}: quantization_config: {error}") from error

    def excluded(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield regular expressions of modules that are not quantised, matched from the beginning of a name.

        Raises:
            ValueError: as of :meth:`rules`.
        """
        del config
        return iter(())

    def quantization_config(self, schemes: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any] | None:
        """Return the ``quantization_config`` of a checkpoint.

        Args:
            schemes: of every "mx" parameter, by name.
            plain: modules that stay as they are.

        Raises:
            ValueError: schemes that this format cannot say.
        """
        del schemes, plain
        return None

    def metadata(self, schemes: Mapping[str, Scheme], plain: Sequence[str], dtype: str | None) -> dict[str, str]:
        """Return the text fields of every file's header; ``plain`` are the other tensors, ``dtype`` the model's."""
        del schemes, plain, dtype
        return {"format": "pt"}


def plain_entry(name: str, store: Store) -> Entry:
    """Return the entry of a tensor that is stored as it is."""
    stored = store.tensors[name]
    return Entry(name, "tensor", stored.shape, str(stored.dtype).removeprefix("torch."), (name,), stored.nbytes)


def mx_entry(
    name: str, data: str, scales: str, store: Store, scheme: Scheme, *, layout: str = "", argument: Any = None
) -> Entry:
    """Return the entry of packed e2m1 bytes ``[..., K/2]``, uint8, and scales ``[..., K/32]``, uint8 or E8M0.

    Raises:
        FileError: they do not belong together.
    """
    found, its = store.tensors[data], store.tensors.get(scales)
    if its is None:
        raise store.error(data, f"has no {scales} beside it")
    for part, stored, types in ((data, found, ("U8",)), (scales, its, ("U8", "F8_E8M0"))):
        if stored.type not in types:
            raise store.error(part, f"got dtype {stored.type}, want {' or '.join(types)}")
    if not found.shape or found.shape[-1] * 2 % BLOCK:
        raise store.error(data, f"got shape {list(found.shape)}, want whole blocks of {BLOCK} in the last dimension")
    shape = (*found.shape[:-1], found.shape[-1] * 2)
    want = [*shape[:-1], shape[-1] // BLOCK]
    if list(its.shape) != want:
        raise store.error(scales, f"got shape {list(its.shape)}, want {want} for {data} {list(found.shape)}")
    return Entry(
        name, "mx", shape, "e2m1", (data, scales), found.nbytes + its.nbytes, layout, scheme, argument=argument
    )  # fmt: skip


def foreign_entry(name: str, parts: Sequence[str], store: Store, note: str) -> Entry:
    """Return the entry of a tensor that is quantised in another way."""
    stored = store.tensors[parts[0]]
    size = sum(store.tensors[part].nbytes for part in parts)
    return Entry(name, "foreign", stored.shape, stored.type, tuple(parts), size, note=note)
