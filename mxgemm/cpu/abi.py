"""The struct of one call, as ``kernels/call.h`` has it: field for field, eight bytes each.

Python's library alone, for ``check.py`` reads it without importing torch.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import Final

DTYPES: Final = {"bfloat16": 0, "float16": 1, "float32": 2}
FORMATS: Final = {"e2m1": 0, "e4m3": 1, "e5m2": 2, "bf16": 3}
METHODS: Final = {"rows": 0, "panels": 1}


class Scales(ctypes.Structure):
    """Scale bytes and how they lie."""

    _fields_ = (
        ("bytes", c_void_p),
        *((name, c_int64) for name in ("row", "column", "order", "columns")),
    )


class Call(ctypes.Structure):
    """One product."""

    _fields_ = (
        *((name, c_int64) for name in ("m", "n", "k")),
        ("a", c_void_p),
        *((name, c_int64) for name in ("a_row", "a_column", "a_dtype", "a_format", "addend")),
        ("a_scales", Scales),
        ("b", c_void_p),
        *((name, c_int64) for name in ("b_row", "b_column", "b_preshuffled")),
        ("b_scales", Scales),
        ("bias", c_void_p),
        *((name, c_int64) for name in ("bias_stride", "bias_dtype")),
        ("out", c_void_p),
        *((name, c_int64) for name in ("out_row", "out_column", "out_dtype")),
        ("out_scales", c_void_p),
        *((name, c_int64) for name in ("out_scales_row", "method", "threads")),
        ("scratch", c_void_p),
    )


def declare(library: ctypes.CDLL) -> None:
    """Say what the functions of a library take and return.

    Raises:
        OSError: it was built for another struct.
    """
    library.mx_variant.argtypes, library.mx_variant.restype = (), ctypes.c_char_p
    library.mx_call_bytes.argtypes, library.mx_call_bytes.restype = (), c_int64
    library.mx_use_team.argtypes, library.mx_use_team.restype = (c_void_p,), None
    for name in ("mx_scratch_bytes", "mx_decode_scratch_bytes"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.POINTER(Call),), c_int64
    for name in ("mx_gemm", "mx_decode", "mx_round", "mx_encode"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.POINTER(Call),), None
    if library.mx_call_bytes() != ctypes.sizeof(Call):
        raise OSError(f"mx_call has {library.mx_call_bytes()} bytes in the library, {ctypes.sizeof(Call)} here")
