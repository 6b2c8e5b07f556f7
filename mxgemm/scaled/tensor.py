"""QuantTensor: stored elements, their scales, and what the elements are. Where the scales are, the scheme says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mxgemm.arguments import shown
from mxgemm.memory import check_memory
from mxgemm.mx.parts import describe
from mxgemm.scaled.formats import BY_DTYPE, SCALE_DTYPES, quant_format

_SCALES = tuple(dict.fromkeys(dtype for dtypes in SCALE_DTYPES.values() for dtype in dtypes))


@dataclass(frozen=True, eq=False)
class QuantTensor:
    """An operand of :func:`mxgemm.quant_gemm`: elements ``[..., K]`` and the scales that they are multiplied by.

    It is no ``torch.Tensor``. Both parts may have any strides, but packed elements must lie along K.

    Attributes:
        data: fp8 or bf16 ``[..., K]`` of torch's dtype or (fp8) uint8; packed e2m1 or int4 ``[..., K/2]``, uint8 or
            ``float4_e2m1fn_x2``.
        scales: fp32; E8M0 bytes (uint8 or ``float8_e8m0fnu``); beside int4 also ``float8_e4m3fn`` or ``float8_e5m2``.
            Their shape is the scheme's.
        format: "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1", "int4" or "bf16"; "" for what the dtype says.

    Raises:
        TypeError: a part of a wrong type or dtype.
        ValueError: an unknown format, none where the dtype says none, or parts on different devices.
    """

    data: Tensor
    scales: Tensor
    format: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.data, Tensor):
            raise TypeError(f"data: got {shown(self.data)}, want a tensor of stored elements")
        if not isinstance(self.scales, Tensor) or self.scales.dtype not in _SCALES:
            raise TypeError(f"scales: got {describe(self.scales)}, want fp32, E8M0 bytes, or fp8 beside int4")
        if self.format == "":
            object.__setattr__(self, "format", format_of("data", self.data))
        fmt = quant_format(self.format)
        if self.data.dtype not in fmt.dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in fmt.dtypes)
            raise TypeError(f"data: got {describe(self.data)}, want a tensor of {wanted} for format {fmt.name}")
        check_memory("data", self.data)
        check_memory("scales", self.scales)
        if self.data.device != self.scales.device:
            raise ValueError(f"scales: got device {self.scales.device}, want {self.data.device} like data")

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape ``[..., K]``."""
        *rows, columns = self.data.shape or (0,)
        return (*rows, columns * quant_format(self.format).pack)

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self.data.device

    def to(self, device: torch.device | str) -> QuantTensor:
        """Return a copy on a device, itself if it is there. Strides are kept."""
        if self.device == torch.device(device):
            return self
        return QuantTensor(self.data.to(device), self.scales.to(device), self.format)


def format_of(argument: str, data: Tensor) -> str:
    """Return the format that a tensor's dtype says.

    Raises:
        TypeError: it says none.
    """
    found = BY_DTYPE.get(data.dtype)
    if found is None:
        raise TypeError(
            f"{argument}: got {describe(data)}, want an fp8, fp4 or bf16 tensor, or a QuantTensor that names its format"
        )
    return found
