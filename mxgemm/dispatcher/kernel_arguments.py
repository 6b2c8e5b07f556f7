"""How a compiled kernel wants its arguments in memory, read from the compiler's own description of it.

One table serves everybody who launches the kernel: the C shim has it in its generated header, Python packs by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_FIELD: Final = re.compile(r"\.(offset|size|value_kind):\s+(\w+)")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    Attributes:
        name: whose value it takes; None: zero bytes.
        offset: in the argument segment, in bytes.
        size: in bytes.
    """

    name: str | None
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ArgumentTable:
    """The argument segment of a kernel.

    Attributes:
        arguments: in the order of the kernel's parameters.
        size: of the segment in bytes, up to the last of them.
    """

    arguments: tuple[Argument, ...]
    size: int

    def pack(self, values: Mapping[str, int]) -> bytes:
        """Return the argument segment for addresses and integers by name."""
        segment = bytearray(self.size)
        for argument in self.arguments:
            if argument.name is not None:
                value = values[argument.name].to_bytes(argument.size, "little")
                segment[argument.offset : argument.offset + argument.size] = value
        return bytes(segment)

    def unpack(self, segment: bytes) -> dict[str, int]:
        """Return what :meth:`pack` was given."""
        return {
            argument.name: int.from_bytes(segment[argument.offset : argument.offset + argument.size], "little")
            for argument in self.arguments
            if argument.name is not None
        }

    def c_rows(self) -> str:
        """Return the rows of the C table: offset, size, and which value (``VALUE_A``, ...), named ones only."""
        return ", ".join(f"{{{a.offset}, {a.size}, VALUE_{a.name.upper()}}}" for a in self.arguments if a.name)


def read_arguments(assembly: str, names: Sequence[str]) -> ArgumentTable:
    """Read the table of the one kernel in AMDGPU assembly (AMDGPUUsage, "Code Object V5 Metadata").

    Hidden arguments, which the compiler declares when it cannot rule out their use, follow the others; the HIP runtime
    fills them, and they are not part of the table.

    Args:
        assembly: as the compiler prints it, its metadata included.
        names: of the leading arguments; those after them are null.

    Raises:
        ValueError: the kernel has fewer arguments.
    """
    block = re.search(r"^\s+- \.agpr_count.*?\.args:\n(.*?)^\s{4}\.group_segment", assembly, re.S | re.M)
    if block is None:
        raise ValueError("the assembly has no kernel metadata")
    every = [dict(_FIELD.findall(entry)) for entry in re.split(r"^\s+- ", block[1], flags=re.M)[1:]]
    found = [entry for entry in every if not entry["value_kind"].startswith("hidden_")]
    if len(found) < len(names):
        raise ValueError(f"arguments: the kernel takes {len(found)}, want {len(names)} or more")
    named = [*names, *([None] * (len(found) - len(names)))]
    arguments = tuple(
        Argument(name, int(entry["offset"]), int(entry["size"])) for name, entry in zip(named, found, strict=True)
    )
    return ArgumentTable(arguments, max(argument.offset + argument.size for argument in arguments))
