"""The part of msgpack that AMDGPU metadata uses (LLVM, AMDGPUUsage, "Code Object V3 and Above Metadata")."""

from __future__ import annotations

import struct
from typing import Any


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Decode the value at ``at``; return it and the position after it."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind <= 0x8F:
        return _map(data, at, kind & 15)
    if kind <= 0x9F:
        return _list(data, at, kind & 15)
    if kind <= 0xBF:
        return _text(data, at, kind & 31)
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind in (0xCA, 0xCB):
        size, code = (4, ">f") if kind == 0xCA else (8, ">d")
        return struct.unpack(code, data[at : at + size])[0], at + size
    if 0xCC <= kind <= 0xD3:
        size = 1 << (kind - 0xCC & 3)
        return int.from_bytes(data[at : at + size], "big", signed=kind >= 0xD0), at + size
    sizes = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
    if kind not in sizes:
        raise ValueError(f"msgpack byte 0x{kind:02x} at {at - 1}")
    count = int.from_bytes(data[at : at + sizes[kind]], "big")
    at += sizes[kind]
    if kind <= 0xC6:
        return data[at : at + count], at + count
    if kind <= 0xDB:
        return _text(data, at, count)
    return (_list if kind <= 0xDD else _map)(data, at, count)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    return data[at : at + size].decode("utf8", "replace"), at + size


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    out = []
    for _ in range(count):
        value, at = unpack(data, at)
        out.append(value)
    return out, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    out = {}
    for _ in range(count):
        key, at = unpack(data, at)
        out[key], at = unpack(data, at)
    return out, at
