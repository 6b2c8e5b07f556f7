"""The struct of one call, as ``kernels/call.h`` has it: field for field, eight bytes each.

Python's library alone, for ``check.py`` reads it without importing torch.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes import c_double, c_int64, c_long, c_void_p
from typing import Final

DTYPES: Final = {"bfloat16": 0, "float16": 1, "float32": 2}
FORMATS: Final = {"e2m1": 0, "e4m3": 1, "e5m2": 2, "bf16": 3}
METHODS: Final = {"rows": 0, "panels": 1, "tiles": 2}


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
        *((name, c_int64) for name in ("out_scales_row", "method", "threads", "alike")),
        ("scratch", c_void_p),
    )


class SwiGLU(ctypes.Structure):
    """The activation of gated experts, as ``kernels/swiglu.h`` has it."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "columns")),
        *((name, c_void_p) for name in ("x", "out")),
        ("interleaved", c_int64),
        *((name, c_double) for name in ("alpha", "limit", "offset")),
        ("threads", c_int64),
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
    library.mx_swiglu.argtypes, library.mx_swiglu.restype = (ctypes.POINTER(SwiGLU),), None
    if library.mx_call_bytes() != ctypes.sizeof(Call):
        raise OSError(f"mx_call has {library.mx_call_bytes()} bytes in the library, {ctypes.sizeof(Call)} here")


def methods_of(a_format: str) -> tuple[str, ...]:
    """Return the methods that take a format of A: panels are of integers."""
    return tuple(name for name in METHODS if name != "panels" or a_format == "e2m1")


def permit_matrix_unit() -> bool:
    """Ask Linux to let this process use the registers of the matrix unit (AMX); say whether it does.

    For all threads of the process and its forked children; another program has to ask again. x86-64 alone has it.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    arch_prctl, ask, tile_data = 158, 0x1023, 18
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = c_long
    return bool(syscall(c_long(arch_prctl), c_long(ask), c_long(tile_data)) == 0)
