"""AMDGPU code objects: sections, symbols, kernel descriptors, metadata (LLVM, AMDGPUUsage, "Code Object")."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from gfx950emu.msgpack import unpack

SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
NT_AMDGPU_METADATA: Final = 32
USER_SGPRS: Final = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
"""What the bits of kernel_code_properties enable, in register order, with the SGPRs that each takes."""


@dataclass(frozen=True)
class Section:
    """An ELF section header."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int


class KernelDescriptor:
    """The 64 bytes that the command processor reads (AMDGPUUsage, "Kernel Descriptor")."""

    def __init__(self, raw: bytes, address: int) -> None:
        self.lds, self.scratch, self.kernarg_size = struct.unpack_from("<III", raw, 0)
        (entry_offset,) = struct.unpack_from("<q", raw, 16)
        self.rsrc3, self.rsrc1, self.rsrc2 = struct.unpack_from("<III", raw, 44)
        self.properties, preload = struct.unpack_from("<HH", raw, 56)
        self.entry = address + entry_offset
        self.user_sgprs = (self.rsrc2 >> 1) & 31
        self.workgroup_ids = [bool((self.rsrc2 >> (7 + axis)) & 1) for axis in range(3)]
        self.workgroup_info = bool((self.rsrc2 >> 10) & 1)
        self.round_mode = (self.rsrc1 >> 12) & 15
        self.denormal_mode = (self.rsrc1 >> 16) & 15
        self.dx10_clamp, self.ieee, self.fp16_overflow = (bool(self.rsrc1 >> bit & 1) for bit in (21, 23, 26))
        self.accum_offset = ((self.rsrc3 & 63) + 1) * 4
        self.preload_dwords, self.preload_offset = preload & 127, preload >> 7

    def user_layout(self) -> list[tuple[str, int, int]]:
        """Return (name, first SGPR, count) of what is in SGPRs when a wave starts."""
        first, out = 0, []
        for bit, (name, count) in enumerate(USER_SGPRS):
            if self.properties >> bit & 1:
                out.append((name, first, count))
                first += count
        if self.preload_dwords:
            out.append(("preload", first, self.preload_dwords))
        return out


class Elf:
    """A 64-bit little-endian ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise ValueError(f"not an ELF file: it starts with {data[:4]!r}; a code object is wanted, not a bundle")
        self.data = data
        (table,) = struct.unpack_from("<Q", data, 0x28)
        entry_size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        raw = [struct.unpack_from("<IIQQQQI", data, table + i * entry_size) for i in range(count)]
        self.sections = [
            Section(self._text(raw[names][4] + name), kind, address, offset, size, link)
            for name, kind, _flags, address, offset, size, link in raw
        ]
        self.symbols = dict(self._symbols())
        self.metadata = self._metadata()

    def offset_of(self, address: int) -> int:
        """Return where in the file an address lies."""
        for s in self.sections:
            if s.kind != SHT_NOBITS and s.address and s.address <= address < s.address + s.size:
                return s.offset + address - s.address
        raise ValueError(f"address 0x{address:x} is in no section")

    def descriptors(self) -> dict[str, KernelDescriptor]:
        """Return the kernels' descriptors by name."""
        found = {}
        for name, address in self.symbols.items():
            if name.endswith(".kd"):
                at = self.offset_of(address)
                found[name.removesuffix(".kd")] = KernelDescriptor(self.data[at : at + 64], address)
        return found

    def _symbols(self) -> list[tuple[str, int]]:
        found = []
        for s in self.sections:
            if s.kind in (SHT_SYMTAB, SHT_DYNSYM):
                for at in range(s.offset, s.offset + s.size, 24):
                    name, _info, _other, section, value, _size = struct.unpack_from("<IBBHQQ", self.data, at)
                    if name and section:
                        found.append((self._text(self.sections[s.link].offset + name), value))
        return found

    def _metadata(self) -> dict[str, Any]:
        for s in self.sections:
            at = s.offset
            while s.kind == SHT_NOTE and at + 12 <= s.offset + s.size:
                name_size, size, kind = struct.unpack_from("<III", self.data, at)
                name = self.data[at + 12 : at + 12 + name_size].rstrip(b"\0")
                start = at + 12 + (name_size + 3 & ~3)
                if name == b"AMDGPU" and kind == NT_AMDGPU_METADATA:
                    found: dict[str, Any] = unpack(self.data[start : start + size])[0]
                    return found
                at = start + (size + 3 & ~3)
        return {}

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode("utf8", "replace")
