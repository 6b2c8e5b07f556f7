"""Element formats of ``quant_gemm``: what a stored element is, and its values as torch computes them.

The small floats are those of :mod:`mxgemm.mx.formats`, with AMD's FNUZ variants (gfx942: one bias more, no infinity,
no negative zero, 0x80 is NaN). ``int4`` is CK's ``pk_int4``: two a byte, the even k in the HIGH nibble, value = nibble
- 8. ``e2m1`` is packed the other way round, the even k in the low nibble, as everywhere in this library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from mxgemm.arguments import shown
from mxgemm.mx.codec import decode_scales
from mxgemm.mx.formats import E2M1, E2M1_VALUES, E4M3, E5M2

FormatName = Literal["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1", "int4", "bf16"]
ScaleName = Literal["fp32", "e8m0", "e4m3", "e5m2"]


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One element format.

    Attributes:
        name: of the format.
        dtype: torch's dtype of it, None where torch has none.
        pack: elements of a byte along K.
        max: the largest magnitude that quantising maps to; for bf16, which holds any, 1.
        family: formats of one family multiply each other: "ocp" or "fnuz" floats, or "any".
    """

    name: FormatName
    dtype: torch.dtype | None
    pack: int
    max: float
    family: Literal["ocp", "fnuz", "any"]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of a tensor that may hold it."""
        if self.name == "bf16":
            return (torch.bfloat16,)
        return (torch.uint8,) if self.dtype is None else (torch.uint8, self.dtype)


FORMATS: Final[dict[str, QuantFormat]] = {
    f.name: f
    for f in (
        QuantFormat("e4m3", torch.float8_e4m3fn, 1, E4M3.max, "ocp"),
        QuantFormat("e5m2", torch.float8_e5m2, 1, E5M2.max, "ocp"),
        QuantFormat("e4m3fnuz", torch.float8_e4m3fnuz, 1, 240.0, "fnuz"),
        QuantFormat("e5m2fnuz", torch.float8_e5m2fnuz, 1, 57344.0, "fnuz"),
        QuantFormat("e2m1", getattr(torch, "float4_e2m1fn_x2", None), 2, E2M1.max, "any"),
        QuantFormat("int4", None, 2, 7.0, "any"),
        QuantFormat("bf16", torch.bfloat16, 1, 1.0, "any"),
    )
}
FP8: Final = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")

BY_DTYPE: Final[dict[torch.dtype, str]] = {f.dtype: f.name for f in FORMATS.values() if f.dtype is not None}
"""The format that a dtype says by itself; uint8 says none."""

_E8M0: Final = getattr(torch, "float8_e8m0fnu", None)
SCALE_DTYPES: Final[dict[ScaleName, tuple[torch.dtype, ...]]] = {
    "fp32": (torch.float32,),
    "e8m0": (torch.uint8,) if _E8M0 is None else (torch.uint8, _E8M0),
    "e4m3": (torch.float8_e4m3fn,),
    "e5m2": (torch.float8_e5m2,),
}


def quant_format(name: str, argument: str = "format") -> QuantFormat:
    """Look a format up by name.

    Raises:
        ValueError: there is none of this name; the message names ``argument``.
    """
    found = FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"{argument}: got {shown(name)}, want one of {', '.join(FORMATS)}")
    return found


def decode(data: Tensor, name: str) -> Tensor:
    """Return the values of stored elements ``[..., K/pack]`` as fp32 ``[..., K]``, exactly."""
    fmt = FORMATS[name]
    if name == "bf16":
        return data.to(torch.float32)
    if fmt.pack == 1:
        assert fmt.dtype is not None
        return data.view(fmt.dtype).to(torch.float32)
    raw = data.view(torch.uint8)
    low, high = raw & 15, raw >> 4
    if name == "int4":
        return torch.stack((high, low), dim=-1).flatten(-2).to(torch.float32) - 8
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=data.device)
    return values[torch.stack((low, high), dim=-1).flatten(-2).to(torch.int64)]


def decode_scale(scales: Tensor, name: ScaleName) -> Tensor:
    """Return scales, fp32 or bytes, as fp32."""
    if name == "fp32":
        return scales
    if name == "e8m0":
        return decode_scales(scales.view(torch.uint8))
    return scales.view(SCALE_DTYPES[name][0]).to(torch.float32)
