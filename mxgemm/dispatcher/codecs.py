"""Numbers to the bytes that a kernel reads, and back: fp8 and bf8 in an architecture's flavour, fp4, int4, bf16, E8M0.

Encoding is exact or refused. Inputs of a check are drawn from a grid that the format holds, so a value that is not in
the format is a mistake of the caller, never something to round: a rounded input would move the reference with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mxgemm.dispatcher.arch import fp8_is_ocp
from mxgemm.mx.formats import E2M1_VALUES, E8M0_BIAS, E8M0_NAN

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

PACK: Final = {"fp8": 1, "bf8": 1, "fp4": 2, "int4": 2, "bf16": 1}
"""Elements in a stored value: a byte, of bf16 two bytes."""
BITS: Final = {"fp8": 8, "bf8": 8, "fp4": 4, "int4": 4, "bf16": 16}
RESULTS: Final = {"fp16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}
"""How numpy holds a result; it has no bf16, so these are bits."""

_STORED: Final = {
    ("fp8", True): torch.float8_e4m3fn,
    ("bf8", True): torch.float8_e5m2,
    ("fp8", False): torch.float8_e4m3fnuz,
    ("bf8", False): torch.float8_e5m2fnuz,
}
_ELSEWHERE: Final = {"fp4": "float4_e2m1fn_x2", "int4": "int4", "bf16": "bfloat16"}


def check_real(name: str, values: Any) -> None:
    """Refuse an array of something other than real numbers, which numpy and torch would coerce and lose part of.

    Args:
        name: of the argument.
        values: a numpy array or a torch tensor.

    Raises:
        TypeError: its elements are complex, text, dates or objects.
    """
    if isinstance(values, torch.Tensor):
        real = not values.dtype.is_complex
    else:
        # ml_dtypes' numbers are of kind V as far as numpy knows, and torch's names for them begin with "float".
        real = values.dtype.kind in "biuf" or values.dtype.name.startswith(("float", "bfloat"))
    if not real:
        raise TypeError(f"{name}: got {str(values.dtype).removeprefix('torch.')}, want real numbers")


def storage_name(dtype: str, arch: str) -> str:
    """Return the name that torch and ml_dtypes give a type's values on an architecture, ``float8_e4m3fn`` for one.

    Raises:
        ValueError: ``dtype`` is none of ``fp8``, ``bf8``, ``fp4``, ``int4``, ``bf16``.
    """
    if dtype in _ELSEWHERE:
        return _ELSEWHERE[dtype]
    if dtype not in PACK:
        raise ValueError(f"dtype: got {dtype!r}, want one of {', '.join(PACK)}")
    return str(_STORED[dtype, fp8_is_ocp(arch)]).removeprefix("torch.")


def raw_dtype(dtype: str) -> np.dtype[Any]:
    """Return the unsigned integers that hold a type's stored values."""
    return np.dtype(np.uint16 if dtype == "bf16" else np.uint8)


@cache
def code_values(dtype: str, arch: str) -> Float32:
    """Return the value of every code: ``[256]`` for fp8 and bf8, ``[16]`` for fp4 and int4, ``[65536]`` for bf16."""
    name = storage_name(dtype, arch)
    if dtype == "fp4":
        return np.asarray(E2M1_VALUES, dtype=np.float32)
    if dtype == "int4":
        return np.arange(16, dtype=np.float32) - 8
    if dtype == "bf16":
        return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    codes = torch.arange(256, dtype=torch.uint8, device="cpu").view(getattr(torch, name))
    values: Float32 = codes.float().numpy()
    return values


@cache
def _grid(dtype: str, arch: str) -> tuple[Float32, Bytes]:
    values = code_values(dtype, arch)
    finite = np.flatnonzero(np.isfinite(values))
    grid, first = np.unique(values[finite], return_index=True)  # -0 is 0: the lower code, the positive zero, stands
    return grid, finite[first].astype(raw_dtype(dtype))


def encode(values: NDArray[Any], dtype: str, arch: str) -> Bytes:
    """Return the stored values of numbers that the format holds exactly.

    Args:
        values: ``[rows, k]`` numbers, as they are to lie in memory.
        dtype: ``fp8``, ``bf8``, ``fp4``, ``int4`` (value = nibble - 8) or ``bf16``.
        arch: whose fp8: OCP on gfx950, FNUZ on gfx942.

    Returns:
        uint8 ``[rows, k]``; ``[rows, k / 2]`` for fp4 (the even k in the low nibble) and int4 (the even k in the HIGH
        nibble, as CK's kernels have it); uint16 ``[rows, k]`` for bf16.

    Raises:
        ValueError: a value is not in the format (the first few are named), or a packed one has an odd k.
        TypeError: the values are no real numbers.
    """
    check_real("values", np.asarray(values))
    grid, codes = _grid(dtype, arch)
    flat = np.asarray(values, dtype=np.float64)
    place = np.minimum(np.searchsorted(grid, flat), len(grid) - 1)
    wrong = grid[place] != flat
    if wrong.any():
        some = ", ".join(f"{value:g}" for value in np.unique(flat[wrong])[:4])
        raise ValueError(f"values: got {some}, want values that {storage_name(dtype, arch)} holds exactly")
    encoded: Bytes = codes[place]
    if PACK[dtype] == 1:
        return encoded
    if encoded.shape[-1] % 2:
        raise ValueError(f"values: got {encoded.shape[-1]} along k, want an even number: {dtype} packs two in a byte")
    even, odd = encoded[..., 0::2], encoded[..., 1::2]
    packed: Bytes = even << np.uint8(4) | odd if dtype == "int4" else even | odd << np.uint8(4)
    return packed


def decode(data: Bytes, dtype: str, arch: str) -> Float32:
    """Return the values of stored ones, ``[rows, k]``."""
    table = code_values(dtype, arch)
    if PACK[dtype] == 1:
        return table[data]
    low, high = data & 0xF, data >> 4
    nibbles = np.stack([high, low] if dtype == "int4" else [low, high], axis=-1)
    return table[nibbles.reshape(*data.shape[:-1], -1)]


def decode_result(out: NDArray[Any], c: str) -> NDArray[np.float64]:
    """Return a result's values: ``fp16`` as it is, ``bf16`` from its bits."""
    return out.astype(np.float64) if c == "fp16" else code_values("bf16", "gfx950")[out].astype(np.float64)


def round_result(product: Float32, c: str) -> NDArray[Any]:
    """Round fp32 sums once, to nearest even, to ``fp16`` or to the bits of ``bf16``; beyond the range is infinity."""
    if c == "fp16":
        with np.errstate(over="ignore"):
            return product.astype(np.float16)
    rounded: NDArray[Any] = torch.from_numpy(product).to(torch.bfloat16).view(torch.uint16).numpy()
    return rounded


def decode_scales(scales: NDArray[Any], dtype: str, arch: str) -> Float32:
    """Return the values of scales: ``fp32`` as they are, ``e8m0``, ``fp8`` and ``bf8`` from their bytes."""
    if dtype == "fp32":
        return scales.astype(np.float32, copy=False)
    return decode_e8m0(scales) if dtype == "e8m0" else code_values(dtype, arch)[scales]


def encode_e8m0(scales: NDArray[Any]) -> Bytes:
    """Return the E8M0 bytes of powers of two.

    Raises:
        ValueError: a scale is no power of two from 2^-127 to 2^127.
        TypeError: the scales are no real numbers.
    """
    check_real("scales", np.asarray(scales))
    exact = np.asarray(scales, dtype=np.float64)
    fraction, exponent = np.frexp(exact)
    byte = exponent - 1 + E8M0_BIAS
    wrong = (fraction != 0.5) | (byte < 0) | (byte >= E8M0_NAN)
    if wrong.any():
        some = ", ".join(f"{value:g}" for value in np.unique(exact[wrong])[:4])
        raise ValueError(f"scales: got {some}, want powers of two from 2^-127 to 2^127")
    return byte.astype(np.uint8)


def decode_e8m0(scales: Bytes) -> Float32:
    """Return the values of E8M0 bytes; 255 is NaN."""
    values = np.ldexp(1.0, scales.astype(np.int32) - E8M0_BIAS)
    decoded: Float32 = np.where(scales == E8M0_NAN, np.nan, values).astype(np.float32)
    return decoded
