"""What a built kernel file is for: architecture, and each kernel's arguments, registers and shared memory.

AMD code objects (LLVM, "User Guide for AMDGPU Backend": ELF header and metadata) and NVIDIA cubins are ELF files. Both
are read here, so that a file for another GPU is refused with a sentence before a driver sees it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from mxgemm.arguments import shown
from mxgemm.errors import Refusal

EM_AMDGPU: Final = 224
EM_CUDA: Final = 190
_EF_AMDGPU_MACH: Final = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"}
_SHT_NOTE: Final = 7
_SHT_NOBITS: Final = 8
_NT_AMDGPU_METADATA: Final = 32
_BUNDLES: Final = (b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
_EIATTR_CBANK_PARAM_SIZE: Final = 0x19
_SECTION_BYTES: Final = 64
_DEEPEST: Final = 16
"""Deeper than LLVM nests its metadata."""

T = TypeVar("T")


class CodeObjectError(ValueError):
    """Not a code object, a damaged one, or one for another architecture."""


class Argument(NamedTuple):
    """An explicit argument of an AMD kernel.

    Attributes:
        offset: in the segment.
        size: bytes.
        is_pointer: to global memory.
    """

    offset: int
    size: int
    is_pointer: bool


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel of a code object.

    Attributes:
        name: as ``Module.function`` takes it.
        kernarg_bytes: size of its explicit arguments, padding included.
        shared_bytes: LDS (AMD) or static shared memory (NVIDIA) of a workgroup.
        registers: vector registers of a lane, accumulation registers included; 0 for cubins, as all below.
        scratch_bytes: of a lane; above 0 something did not fit registers.
        max_threads: largest workgroup.
        arguments: the explicit ones, in order; none of a cubin.
    """

    name: str
    kernarg_bytes: int
    shared_bytes: int
    registers: int
    scratch_bytes: int
    max_threads: int
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeObject:
    """What :func:`inspect` read.

    Attributes:
        arch: "gfx950", "sm_90", ...
        target: the full target, with the features that it insists on ("gfx950:sramecc+:xnack-").
        kernels: by name.
    """

    arch: str
    target: str
    kernels: Mapping[str, KernelInfo]


def inspect(image: bytes | bytearray | memoryview) -> CodeObject:
    """Read an AMD code object or a cubin.

    Raises:
        TypeError: no bytes.
        CodeObjectError: neither, or truncated or damaged.
    """
    if not isinstance(image, bytes | bytearray | memoryview):
        raise TypeError(f"image: got {shown(image)}, want the bytes of a file")
    image = bytes(image)
    if image.startswith(_BUNDLES):
        raise CodeObjectError("image: got an offload bundle, want one code object (--no-gpu-bundle-output)")
    if image[:5] != b"\x7fELF\x02":
        raise CodeObjectError(f"image: got {len(image)} bytes that start with {image[:8]!r}, want a 64-bit ELF file")
    try:
        machine = struct.unpack_from("<H", image, 18)[0]
        if machine == EM_AMDGPU:
            return _amd(image)
        if machine == EM_CUDA:
            return _nvidia(image)
    except (struct.error, IndexError, ValueError) as error:
        raise CodeObjectError(f"image: damaged or truncated ELF file of {len(image)} bytes ({error})") from error
    raise CodeObjectError(
        f"image: got an ELF file for machine {machine}, want AMDGPU ({EM_AMDGPU}) or CUDA ({EM_CUDA})"
    )


def refusal(found: CodeObject, arch: str) -> Refusal | None:
    """Say why a code object cannot be loaded on a GPU of architecture ``arch``, or return None if it can."""
    if found.arch == arch:
        return None
    words = f"the code object is for {found.target}; this device is {arch}"
    return Refusal("code object", found.target, f"one for {arch}", "installation", words)


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int


def _sections(image: bytes) -> list[_Section]:
    segments, table = struct.unpack_from("<QQ", image, 0x20)
    segment_size, segment_count, entry, count, names = struct.unpack_from("<HHHHH", image, 0x36)
    if not count or entry < _SECTION_BYTES or table + entry * count > len(image):
        raise ValueError(f"its section table is {count} entries of {entry} bytes at byte {table}")
    raw = [struct.unpack_from("<IIQQQQII", image, table + i * entry) for i in range(count)]
    at = raw[names][4]
    ends = [offset + size for _, kind, _, _, offset, size, *_ in raw if kind != _SHT_NOBITS]
    end = max([*ends, segments + segment_size * segment_count])
    if end > len(image):
        raise ValueError(f"its parts reach to byte {end}")
    return [
        _Section(_text(image, at + name), kind, offset, size) for name, kind, _flags, _address, offset, size, *_ in raw
    ]


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


def _amd(image: bytes) -> CodeObject:
    metadata = _metadata(image)
    target = _field(metadata, "amdhsa.target", str, "").rpartition("--")[2].lstrip("-") or _machine(image)
    kernels = {}
    for kernel in _field(metadata, "amdhsa.kernels", list):
        arguments: list[Any] = _field(kernel, ".args", list, [])
        explicit = _explicit(arguments)
        name = _field(kernel, ".symbol", str).removesuffix(".kd")
        kernels[name] = KernelInfo(
            name,
            kernarg_bytes=max((at + size for at, size, _ in explicit), default=0),
            shared_bytes=_field(kernel, ".group_segment_fixed_size", int),
            registers=_field(kernel, ".vgpr_count", int),
            scratch_bytes=_field(kernel, ".private_segment_fixed_size", int),
            max_threads=_field(kernel, ".max_flat_workgroup_size", int, 0),
            arguments=explicit,
        )
    return CodeObject(target.split(":")[0], target, kernels)


def _explicit(arguments: list[Any]) -> tuple[Argument, ...]:
    kinds = [_field(argument, ".value_kind", str, "") for argument in arguments]
    return tuple(
        Argument(_field(argument, ".offset", int), _field(argument, ".size", int), kind == "global_buffer")
        for argument, kind in zip(arguments, kinds, strict=True)
        if not kind.startswith("hidden_")
    )


def _field(found: Any, name: str, kind: type[T], default: T | None = None) -> T:
    """Return a value of a metadata map, which is of a type and, if it is a number, none below 0."""
    if not isinstance(found, dict):
        raise ValueError(f"metadata: {name} is looked for in what is no map")
    value = found.get(name, default)
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise ValueError(f"metadata: {name} is {shown(value)}, not {kind.__name__}")
    return value


def _machine(image: bytes) -> str:
    """Read the architecture from the ELF header: hand-written code objects have no target in their metadata."""
    (flags,) = struct.unpack_from("<I", image, 0x30)
    return _EF_AMDGPU_MACH.get(flags & 0xFF, f"AMD GPU 0x{flags & 0xFF:02x}")


def _metadata(image: bytes) -> Any:
    for section in _sections(image):
        at = section.offset
        while section.kind == _SHT_NOTE and at + 12 <= section.offset + section.size:
            name_size, size, kind = struct.unpack_from("<III", image, at)
            start = at + 12 + (name_size + 3 & ~3)
            if kind == _NT_AMDGPU_METADATA and image[at + 12 : at + 18] == b"AMDGPU":
                return _MsgPack(image[start : start + size]).value()
            at = start + (size + 3 & ~3)
    raise ValueError("no AMDGPU metadata note")


class _MsgPack:
    """A reader of the msgpack that LLVM writes as metadata: maps, lists, text, integers, booleans."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(size), "big", signed=signed)

    def _bytes(self, size: int) -> bytes:
        raw = self._data[self._at : self._at + size]
        if len(raw) < size:
            raise ValueError("metadata ends early")
        self._at += size
        return raw

    def _key(self, depth: int) -> str:
        key = self.value(depth + 1)
        if not isinstance(key, str):
            raise ValueError(f"metadata: a key is {shown(key)}, not a text")
        return key

    def value(self, depth: int = 0) -> Any:
        """Return the next value; maps have texts as keys."""
        if depth > _DEEPEST:
            raise ValueError("metadata is nested too deep")
        kind = self._number(1)
        if kind < 0x80 or kind >= 0xE0:
            return kind if kind < 0x80 else kind - 256
        if kind < 0x90 or kind in (0xDE, 0xDF):
            return {self._key(depth): self.value(depth + 1) for _ in range(self._count(kind, 0x80, 0xDE))}
        if kind < 0xA0 or kind in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(self._count(kind, 0x90, 0xDC))]
        if kind < 0xC0 or kind in (0xD9, 0xDA, 0xDB):
            size = kind - 0xA0 if kind < 0xC0 else self._number(1 << kind - 0xD9)
            return self._bytes(size).decode()
        if kind in (0xC2, 0xC3):
            return kind == 0xC3
        if 0xCC <= kind <= 0xD3:
            return self._number(1 << (kind - 0xCC & 3), signed=kind >= 0xD0)
        raise ValueError(f"metadata holds msgpack byte 0x{kind:02x}")

    def _count(self, kind: int, small: int, large: int) -> int:
        return kind - small if kind < small + 16 else self._number(2 << kind - large)


def _nvidia(image: bytes) -> CodeObject:
    (flags,) = struct.unpack_from("<I", image, 0x30)
    # CUDA 13 (ELF ABI version 8) moved the compute capability up by a byte.
    capability = flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF
    sections = _sections(image)
    by_name = {section.name: section for section in sections}
    kernels = {}
    for section in sections:
        if section.name.startswith(".text."):
            name = section.name.removeprefix(".text.")
            shared = by_name.get(f".nv.shared.{name}")
            kernels[name] = KernelInfo(
                name,
                kernarg_bytes=_cubin_parameters(image, by_name.get(f".nv.info.{name}")),
                shared_bytes=shared.size if shared else 0,
                registers=0,
                scratch_bytes=0,
                max_threads=0,
            )
    return CodeObject(f"sm_{capability}", f"sm_{capability}", kernels)


def _cubin_parameters(image: bytes, section: _Section | None) -> int:
    """Read the size of a kernel's parameters from its ``.nv.info``: records of (form, attribute, 16 bits[, data])."""
    at, end = (section.offset, section.offset + section.size) if section else (0, 0)
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", image, at)
        if attribute == _EIATTR_CBANK_PARAM_SIZE:
            return int(value)
        at += 4 + (value if form == 4 else 0)
    return 0
