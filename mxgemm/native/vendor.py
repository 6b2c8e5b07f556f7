"""Products of e4m3, with a base a row or without, and of bf16, asked of cublasLt directly: its choice is made once.

torch describes operands and asks the library for an algorithm at every call, which takes longer than the launch. Here
both are done when a plan is made.

Numbers are those of the library's header (``cublasLt.h``; a scale a row is CUDA 12.9's and later).
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
_ROW_SCALES_FROM: Final = 120900
"""The first version with a scale a row."""

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
_PREFERRED_REDUCTIONS: Final = 3
_PREFERRED_ALIGNMENTS: Final = (5, 6, 7, 8)
_REDUCED_IN_FLOAT: Final = 2
_POINTER: Final = ctypes.c_void_p
_ONE_AND_ZERO: Final = (ctypes.c_float(1), ctypes.c_float(0))
_ONE, _ZERO = (ctypes.byref(number) for number in _ONE_AND_ZERO)


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
        self.version = int(self._library.cublasLtGetVersion())

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
        VendorError: torch has loaded none.
    """
    return _Library()


@cache
def _handle(device: torch.device) -> Any:
    handle = _POINTER()
    with torch.cuda.device(device):
        library()("Create", ctypes.byref(handle))
    return handle


class _Descriptions:
    """Layouts and descriptions of a product by one weight, for as long as somebody may launch it."""

    def __init__(self, product: VendorProduct, weight_base: int) -> None:
        n, m, k = product.n, product.m, product.k
        self._product, self._weight_base = product, weight_base
        self.a = _layout(product.dtype, k, n, k)
        self.b = _layout(product.dtype, k, m, k)
        self.out = _layout(product.out_dtype, n, m, n)
        self.products: list[Any] = []
        self.free: list[Any] = []
        """Those that no call of :func:`run` is using now."""
        weakref.finalize(self, _destroy, [self.a, self.b, self.out], self.products).atexit = False
        self.free += [self.another() for _ in range(DESCRIPTIONS)]

    def another(self) -> Any:
        """Return one more description; a thread that finds none free makes its own."""
        product = self._product
        description = _description(product)
        self.products.append(description)
        # Addresses that are not fixed are written again by each call.
        if product.scaled:
            _set(description, _A_SCALE_POINTER, _POINTER(self._weight_base))
            _set(description, _B_SCALE_POINTER, _POINTER(self._weight_base))
        if product.bias_dtype is not None:
            _set(description, _BIAS_POINTER, _POINTER(self._weight_base))
        return description


class VendorProduct:
    """``out[m, n] = a[m, k] @ weight[n, k].T + bias``, all contiguous, sums in fp32.

    Of e4m3, each operand may be times a base of its row; of bf16 there are none.
    """

    def __init__(
        self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, bias_dtype: torch.dtype | None,
        *, fast: bool = False, alignment: int = 16, bases: bool = True, place: int = 0,
    ) -> None:  # fmt: skip
        """Note what is multiplied.

        Args:
            m: rows of ``a``.
            n: rows of ``weight``.
            k: elements of a row.
            dtype: of both: e4m3 or bf16.
            out_dtype: of the result.
            bias_dtype: of the bias, None for none.
            fast: let the tensor cores keep the sums of e4m3 for all of K.
            alignment: bytes that operands and result in bf16 begin at a multiple of; those in e4m3 at 16.
            bases: operands in e4m3 have a base a row.
            place: of the algorithms that the library names, the quickest by its own estimate first, the one to take;
                of fewer, the last.
        """
        self.m, self.n, self.k, self.dtype, self.out_dtype, self.alignment = m, n, k, dtype, out_dtype, alignment
        self.bias_dtype, self.fast, self.place = bias_dtype, fast, place
        self.scaled = bases and dtype == torch.float8_e4m3fn
        self._chosen: tuple[bytes, int] | None = None
        self.pattern: Any = None
        """What ``mxgemm.native.vendor_kernel`` has understood of it: None before it looked, False for nothing."""

    def step(
        self, device: torch.device, weight: Place, weight_base: int, a: Place, base: Place | None, bias: Place | None,
        out: Place, memory: Place,
    ) -> ProductStep:  # fmt: skip
        """Return the product by a weight, described for ``mxgemm.native``.

        Args:
            device: of the operands.
            weight: its elements.
            weight_base: address of its bases, fp32 ``[n]``; 0 for none.
            a: activations.
            base: their bases, fp32 ``[m]``; None for none.
            bias: ``[n]``.
            out: the result.
            memory: workspace, of the step's ``memory_bytes``.

        Raises:
            VendorError: the library refuses.
        """
        made = _Descriptions(self, weight_base)
        if self._chosen is None:
            self._chosen = _choose(device, made, None if self.scaled else self.alignment, self.place)
        algorithm, memory_bytes = self._chosen
        return ProductStep(
            handle=_handle(device).value,
            layouts=(made.a.value or 0, made.b.value or 0, made.out.value or 0),
            descriptions=tuple(description.value or 0 for description in made.products),
            a=weight,
            b=a,
            b_scale=base,
            bias=bias,
            out=out,
            memory=memory,
            memory_bytes=memory_bytes,
            algorithm=algorithm,
            owner=made,
            a_scale=weight_base,
        )


def run(step: ProductStep, weight: int, a: int, base: int, bias: int, out: int, memory: int, stream: int) -> None:
    """Multiply, as ``source/program.h`` does, with addresses in place of places; from any thread.

    Raises:
        VendorError: the library refuses.
    """
    made: _Descriptions = step.owner  # type: ignore[assignment]
    try:
        description = made.free.pop()
    except IndexError:
        description = made.another()
    try:
        if step.b_scale is not None:
            _set(description, _B_SCALE_POINTER, _POINTER(base))
        if step.bias is not None:
            _set(description, _BIAS_POINTER, _POINTER(bias))
        library()(
            "Matmul", _POINTER(step.handle), description, _ONE, _POINTER(weight), made.a, _POINTER(a), made.b, _ZERO,
            _POINTER(out), made.out, _POINTER(out), made.out, step.algorithm,
            _POINTER(memory if step.memory_bytes else 0), ctypes.c_size_t(step.memory_bytes), _POINTER(stream),
        )  # fmt: skip
    finally:
        made.free.append(description)


def _choose(device: torch.device, made: _Descriptions, alignment: int | None, place: int) -> tuple[bytes, int]:
    """Ask for algorithms; with an alignment for operands that lie so, whose partial sums are added in fp32 alone.

    Without, as torch asks for e4m3 with a scale a row: of the library's own alignment, and of any way to add sums.
    """
    preference, most = _POINTER(), ctypes.c_size_t(MAX_MEMORY_BYTES)
    ask = library()
    ask("MatmulPreferenceCreate", ctypes.byref(preference))
    try:
        ask("MatmulPreferenceSetAttribute", preference, _PREFERRED_MEMORY, ctypes.byref(most), ctypes.c_size_t(8))
        wanted: dict[int, int] = {}
        if alignment is not None:
            wanted = {_PREFERRED_REDUCTIONS: _REDUCED_IN_FLOAT, **dict.fromkeys(_PREFERRED_ALIGNMENTS, alignment)}
        for attribute, value in wanted.items():
            number = ctypes.c_uint32(value)
            ask("MatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(number), ctypes.c_size_t(4))
        named, count = (_Chosen * (place + 1))(), ctypes.c_int()
        ask(
            "MatmulAlgoGetHeuristic", _handle(device), made.products[0], made.a, made.b, made.out, made.out, preference,
            place + 1, named, ctypes.byref(count),
        )  # fmt: skip
    finally:
        ask("MatmulPreferenceDestroy", preference)
    usable = [one for one in named[: count.value] if not one.state]
    if not usable:
        raise VendorError("cublasLt: it has no algorithm for this product")
    chosen = usable[-1]
    return bytes(chosen.algorithm), int(chosen.memory_bytes)


def _layout(dtype: torch.dtype, rows: int, columns: int, step: int) -> Any:
    layout = _POINTER()
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(step)
    library()("MatrixLayoutCreate", ctypes.byref(layout), _DTYPES[dtype], *sizes)
    return layout


def _description(product: VendorProduct) -> Any:
    if product.scaled and library().version < _ROW_SCALES_FROM:
        raise VendorError(
            f"cublasLt: got version {library().version}, want {_ROW_SCALES_FROM}, which has a scale a row"
        )
    description = _POINTER()
    library()("MatmulDescCreate", ctypes.byref(description), _COMPUTE_FLOAT, _FLOAT)
    _set(description, _TRANSPOSE_A, ctypes.c_int(_TRANSPOSED))
    if product.dtype == torch.float8_e4m3fn:
        _set(description, _FAST, ctypes.c_int8(product.fast))
    if product.scaled:
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
