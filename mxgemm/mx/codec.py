"""The arithmetic of quantising and decoding, on rows of tensors: torch code, byte for byte the same on every device.

Scales come from integer arithmetic on fp32 bits (no float log2, which is wrong beside powers of two, and no
subnormal that a GPU could flush); elements are rounded to nearest, ties to even, and saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from mxgemm.mx.formats import BLOCK, E2M1, E8M0_NAN, ElementFormat

_CHUNK_ELEMENTS: Final = 1 << 21  # bounds the temporaries of quantize and dequantize to a few tens of MB
_FP32_INF_BITS: Final = 0x7F800000
_FP32_MAGNITUDE: Final = 0x7FFFFFFF
_FP8_DTYPES: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def encode_rows(x: Tensor, fmt: ElementFormat, addend: int) -> tuple[Tensor, Tensor]:
    """Quantise ``[rows, K]`` to row-major bytes and scales; ``addend`` is the scale rule's."""
    rows, k = x.shape
    blocks = x.to(torch.float32).reshape(rows, k // BLOCK, BLOCK)
    # Integer maximum of the magnitude bits: NaN (above Inf) wins, and no comparison can flush a subnormal.
    amax = (blocks.view(torch.int32) & _FP32_MAGNITUDE).amax(-1) if k else blocks.new_empty(rows, 0).int()
    not_finite = amax >= _FP32_INF_BITS
    exponent = (((amax + addend) >> 23) - fmt.emax).clamp_(min=0)
    reciprocal = ((254 - exponent) << 23).view(torch.float32)  # exact: finite blocks have exponent <= 253
    codes = _round(blocks * reciprocal.unsqueeze(-1), fmt)
    codes.masked_fill_((not_finite | (amax == 0)).unsqueeze(-1), 0)
    scales = exponent.masked_fill_(not_finite, E8M0_NAN).to(torch.uint8)
    codes = codes.view(rows, k)
    return (codes[:, 0::2] | codes[:, 1::2] << 4 if fmt.pack == 2 else codes), scales


def decode_rows(data: Tensor, scales: Tensor, fmt: ElementFormat) -> Tensor:
    """Decode row-major bytes ``[rows, K/pack]`` and scales ``[rows, K/32]`` to fp32 ``[rows, K]``."""
    rows, k = data.shape[0], data.shape[1] * fmt.pack
    values = _decode_e2m1(data) if fmt is E2M1 else data.view(_FP8_DTYPES[fmt.name]).to(torch.float32)
    values = values.view(rows, k // BLOCK, BLOCK)
    return values.mul_(decode_scales(scales).unsqueeze(-1)).view(rows, k)


def decode_scales(scales: Tensor) -> Tensor:
    """Decode E8M0 bytes to fp32: byte 0 is the subnormal 2**-127, byte 255 is NaN."""
    exponent = scales.to(torch.int32)
    bits = exponent << 23
    bits.masked_fill_(exponent == 0, 1 << 22)
    bits.masked_fill_(exponent == E8M0_NAN, _FP32_INF_BITS | 1 << 22)
    return bits.view(torch.float32)


Decoder = Callable[[Tensor, Tensor, ElementFormat, Tensor], bool]
"""Fill the last argument with the values of bytes and scales as :func:`decode_rows` takes them, or return False."""

_decoders: Final[dict[str, Decoder]] = {}


def register_decoder(device_type: str, decoder: Decoder) -> None:
    """Have a kernel of a device decode; kernels lie above this room, which must not import them."""
    _decoders[device_type] = decoder


def decode_into(data: Tensor, scales: Tensor, fmt: ElementFormat, out: Tensor) -> None:
    """Decode as :func:`decode_rows` into bf16, fp16 or fp32 ``[rows, K]``, by a kernel of the device if it has one."""
    decoder = _decoders.get(data.device.type)
    if decoder is None or not decoder(data, scales, fmt, out):
        for part in row_chunks(*out.shape):
            out[part] = decode_rows(data[part], scales[part], fmt)


def row_chunks(rows: int, k: int, elements: int = _CHUNK_ELEMENTS) -> Iterator[slice]:
    """Cut ``rows`` rows of ``k`` elements into slices of about ``elements`` elements, at least a row each."""
    step = max(1, elements // max(k, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _round(scaled: Tensor, fmt: ElementFormat) -> Tensor:
    if fmt is not E2M1:
        # Clamp first: torch's cast to e5m2 overflows to infinity.
        return scaled.clamp_(-fmt.max, fmt.max).to(_FP8_DTYPES[fmt.name]).view(torch.uint8)
    magnitude = scaled.abs().clamp_(max=E2M1.max)
    bits = magnitude.view(torch.int32)
    # From 1 up, a code is the exponent and the first mantissa bit; the carry of rounding counts on by itself.
    normal = ((bits + 0x1FFFFF + ((bits >> 22) & 1)) >> 22) - 252
    code = torch.where(magnitude < 1.0, torch.round(magnitude * 2).to(torch.int32), normal)
    return (code | ((scaled.view(torch.int32) >> 28) & 8)).to(torch.uint8)


def _decode_e2m1(data: Tensor) -> Tensor:
    # A code is a tiny float: moved to the top of an fp16 its value is 2**-14 of what it means, subnormals included.
    pair = torch.stack((data & 15, data >> 4), dim=-1).to(torch.int16)
    bits = ((pair & 7) << 9) | ((pair & 8) << 12)
    return bits.view(torch.float16).to(torch.float32).mul_(2.0**14).view(data.shape[0], -1)
