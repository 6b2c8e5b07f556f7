"""The fp8 product of ``torch._scaled_mm`` with a base a row, asked of cublasLt directly: its choice is made once.

torch describes operands and asks the library for an algorithm at every call, which takes longer than the launch. Here
both are done when a plan is made; the result is compared with torch's, bit for bit, before it is used.

Numbers are those of the library's header (``cublasLt.h``, CUDA 12.9 and later, which have a scale a row).
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from mxgemm.native.program import Place, ProductStep

MAX_MEMORY_BYTES: Final = 32 << 20
"""Workspace that torch gives the library on Hopper, so that it chooses alike."""
DESCRIPTIONS: Final = 4
"""Threads that may run one product at once before others take the way of Python."""
_LEAST_VERSION: Final = 120900

_DTYPES: Final = {torch.float8_e4m3fn: 28, torch.bfloat16: 14, torch.float16: 2, torch.float32: 0}
_FLOAT: Final = 0
_COMPUTE_FLOAT: Final = 68
_TRANSPOSED: Final = 1
_ROW_SCALES: Final = 3
_EPILOGUE_BIAS: Final = 4
# cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t.
_TRANSPOSE_A: Final = 3
_EPILOGUE: Final = 7
_BIAS_POINTER: Final = 8
_A_SCALE_POINTER: Final = 17
_B_SCALE_POINTER: Final = 18
_FAST: Final = 25
_BIAS_DTYPE: Final = 26
_A_SCALE_MODE: Final = 31
_B_SCALE_MODE: Final = 32
_PREFERRED_MEMORY: Final = 1
_POINTER: Final = ctypes.c_void_p


class VendorError(RuntimeError):
    """The library is not there, is too old, or refuses."""


class _Chosen(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_ubyte * 64),
        ("memory_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Library:
    """cublasLt, the one that torch has loaded."""

    def __init__(self) -> None:
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise VendorError(f"cublasLt: {error}") from error
        paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libcublasLt.so" in line}
        if len(paths) != 1:
            raise VendorError(f"cublasLt: got {len(paths)} in this process, want the one that torch multiplies by")
        self._library = ctypes.CDLL(paths.pop())
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        version = self._library.cublasLtGetVersion()
        if version < _LEAST_VERSION:
            raise VendorError(f"cublasLt: got version {version}, want {_LEAST_VERSION}, which has a scale a row")

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise VendorError(f"cublasLt{name}: status {status}")

    def address(self, name: str) -> int:
        """Return where a function is."""
        return ctypes.cast(getattr(self._library, f"cublasLt{name}"), _POINTER).value or 0


@cache
def library() -> _Library:
    """Return the library.

    Raises:
        VendorError: torch has loaded none that knows scales of rows.
    """
    return _Library()


@cache
def _handle(device: torch.device) -> Any:
    handle = _POINTER()
    with torch.cuda.device(device):
        library()("Create", ctypes.byref(handle))
    return handle


class _Descriptions:
    """Layouts and descriptions of a product, for as long as somebody may launch it."""

    def __init__(self, product: VendorProduct) -> None:
        n, m, k = product.n, product.m, product.k
        self.a = _layout(torch.float8_e4m3fn, k, n, k)
        self.b = _layout(torch.float8_e4m3fn, k, m, k)
        self.out = _layout(product.out_dtype, n, m, n)
        self.products = [_description(product) for _ in range(DESCRIPTIONS)]
        weakref.finalize(self, _destroy, [self.a, self.b, self.out], self.products).atexit = False


class VendorProduct:
    """``out[m, n] = (a[m, k] * base of its row) @ (weight[n, k] * base of its row).T + bias``, all contiguous."""

    def __init__(
        self, m: int, n: int, k: int, out_dtype: torch.dtype, bias_dtype: torch.dtype | None, *, fast: bool
    ) -> None:
        """Note the sizes; ``fast`` lets the tensor cores keep the sums for all of K."""
        self.m, self.n, self.k, self.out_dtype, self.bias_dtype, self.fast = m, n, k, out_dtype, bias_dtype, fast
        self._chosen: tuple[bytes, int] | None = None

    def step(
        self, device: torch.device, weight: int, weight_base: int, a: Place, base: Place, bias: Place | None,
        out: Place, memory: Place,
    ) -> ProductStep:  # fmt: skip
        """Return the product by a weight, described for ``mxgemm.native``.

        Args:
            device: of the operands.
            weight: address of its elements, e4m3 ``[n, k]``.
            weight_base: address of its bases, fp32 ``[n]``.
            a: activations.
            base: their bases.
            bias: ``[n]``.
            out: the result.
            memory: workspace, of :meth:`memory_bytes`.

        Raises:
            VendorError: the library refuses.
        """
        made = _Descriptions(self)
        for description in made.products:
            _set(description, _A_SCALE_POINTER, ctypes.c_void_p(weight_base))
            _set(description, _B_SCALE_POINTER, ctypes.c_void_p(weight_base))  # another one at each call
            if self.bias_dtype is not None:
                _set(description, _BIAS_POINTER, ctypes.c_void_p(weight_base))
        if self._chosen is None:
            self._chosen = _choose(device, made)
        algorithm, memory_bytes = self._chosen
        return ProductStep(
            handle=_handle(device).value,
            layouts=(made.a.value or 0, made.b.value or 0, made.out.value or 0),
            descriptions=tuple(description.value or 0 for description in made.products),
            a=Place(0, weight),
            b=a,
            b_scale=base,
            bias=bias,
            out=out,
            memory=memory,
            memory_bytes=memory_bytes,
            algorithm=algorithm,
            owner=made,
        )


def run(step: ProductStep, a: int, base: int, bias: int, out: int, memory: int, stream: int) -> None:
    """Multiply, as ``source/program.h`` does, with addresses in place of places.

    Raises:
        VendorError: the library refuses.
    """
    description = _POINTER(step.descriptions[0])
    _set(description, _B_SCALE_POINTER, _POINTER(base))
    if step.bias is not None:
        _set(description, _BIAS_POINTER, _POINTER(bias))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    layout_a, layout_b, layout_out = (_POINTER(layout) for layout in step.layouts)
    algorithm = (ctypes.c_ubyte * 64).from_buffer_copy(step.algorithm)
    library()(
        "Matmul", _POINTER(step.handle), description, ctypes.byref(one), _POINTER(step.a.add), layout_a, _POINTER(a),
        layout_b, ctypes.byref(zero), _POINTER(out), layout_out, _POINTER(out), layout_out, ctypes.byref(algorithm),
        _POINTER(memory if step.memory_bytes else 0), ctypes.c_size_t(step.memory_bytes), _POINTER(stream),
    )  # fmt: skip


def _choose(device: torch.device, made: _Descriptions) -> tuple[bytes, int]:
    preference, most = _POINTER(), ctypes.c_size_t(MAX_MEMORY_BYTES)
    ask = library()
    ask("MatmulPreferenceCreate", ctypes.byref(preference))
    try:
        ask("MatmulPreferenceSetAttribute", preference, _PREFERRED_MEMORY, ctypes.byref(most), ctypes.c_size_t(8))
        chosen, count = _Chosen(), ctypes.c_int()
        ask(
            "MatmulAlgoGetHeuristic", _handle(device), made.products[0], made.a, made.b, made.out, made.out, preference,
            1, ctypes.byref(chosen), ctypes.byref(count),
        )  # fmt: skip
    finally:
        ask("MatmulPreferenceDestroy", preference)
    if not count.value or chosen.state:
        raise VendorError("cublasLt: it has no algorithm for this product")
    return bytes(chosen.algorithm), int(chosen.memory_bytes)


def _layout(dtype: torch.dtype, rows: int, columns: int, step: int) -> Any:
    layout = _POINTER()
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(step)
    library()("MatrixLayoutCreate", ctypes.byref(layout), _DTYPES[dtype], *sizes)
    return layout


def _description(product: VendorProduct) -> Any:
    description = _POINTER()
    library()("MatmulDescCreate", ctypes.byref(description), _COMPUTE_FLOAT, _FLOAT)
    _set(description, _TRANSPOSE_A, ctypes.c_int(_TRANSPOSED))
    _set(description, _FAST, ctypes.c_int8(product.fast))
    _set(description, _A_SCALE_MODE, ctypes.c_int(_ROW_SCALES))
    _set(description, _B_SCALE_MODE, ctypes.c_int(_ROW_SCALES))
    if product.bias_dtype is not None:
        _set(description, _EPILOGUE, ctypes.c_int(_EPILOGUE_BIAS))
        _set(description, _BIAS_DTYPE, ctypes.c_int(_DTYPES[product.bias_dtype]))
    return description


def _set(description: Any, attribute: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    library()("MatmulDescSetAttribute", description, attribute, ctypes.byref(value), size)


def _destroy(layouts: list[Any], descriptions: list[Any]) -> None:
    for layout in layouts:
        library()("MatrixLayoutDestroy", layout)
    for description in descriptions:
        library()("MatmulDescDestroy", description)
