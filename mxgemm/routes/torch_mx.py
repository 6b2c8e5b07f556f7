"""Torch's own product of MXFP4 operands: which calls this torch has for a machine, and the rules that each states.

The rules are those of torch's ``ScaledBlas.cpp`` and of the pull requests that brought the calls: 151360
(``_scaled_mm``, 2.8), 165528 (``scaled_mm``, 2.10), 190290 (``SWIZZLE_32_8``, after 2.13). Its main branch has had that
last order under a recipe of its own as well (``BlockWiseBlk32Ue8m0_32_8_EXT``, commit 0174dfab): what a build has is
read from its enums, and what its libraries then refuse from its errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.layouts import round_up, row_major_scales, shuffle_scales, swizzle_scales

HIP_WITH_FP4: Final = (7, 0)
HIP_WITH_32_8: Final = (7, 13)

RECIPE: Final = "BlockWise1x32"
RECIPE_32_8: Final = "BlockWiseBlk32Ue8m0_32_8_EXT"

_REFUSALS: Final = re.compile(
    r"swizzle"  # scale_a must not be swizzled; swizzle_a and swizzle_b must both be NO_SWIZZLE; must use SWIZZLE_32_4_4
    r"|requires BlockWise|Invalid scaling configuration"  # another recipe, or none of those that it knows
    r"|is only supported (on|for)"  # Block-wise scaling .. on gfx950; Float4_e2m1fn_x2 .. for ROCm 7.0 and above
    r"|BLAS_STATUS_NOT_SUPPORTED|could not find valid hipblaslt solution",  # hipBLASLt has no kernel for it
    re.IGNORECASE,
)

Product = Callable[[Tensor, Tensor, Tensor, Tensor, "Tensor | None", torch.dtype], Tensor]
"""A ``[M, K/2]``, B ``[N, K/2]``, their scales, a bias ``[N]`` or None, the result's dtype; fresh ``[M, N]``."""


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One way to ask torch for the product.

    Attributes:
        name: as a configuration names it.
        scale_layout: of both operands' scales.
        rows: M and N are multiples of it; M is padded.
        columns: K is a multiple of it.
        scale_rows: rows of scales are padded to a multiple of it.
        scale_columns: columns of scales, likewise.
        out_dtypes: of the result.
        multiply: the call.
    """

    name: str
    scale_layout: str
    rows: int
    columns: int
    scale_rows: int
    scale_columns: int
    out_dtypes: tuple[torch.dtype, ...]
    multiply: Product

    def scale_shape(self, rows: int, k: int) -> tuple[int, int]:
        """Shape of the scales of ``rows`` rows and ``k`` elements."""
        return round_up(rows, self.scale_rows), round_up(k // BLOCK, self.scale_columns)

    def scales(self, given: Tensor, layout: str, rows: int, k: int) -> Tensor:
        """Return scales as this call reads them, flat: the given bytes where they lie so, else a copy.

        Args:
            given: uint8 of ``mxgemm.mx.layouts.scale_shape``.
            layout: theirs.
            rows: logical rows.
            k: elements along the contraction.
        """
        shape = self.scale_shape(rows, k)
        if layout != self.scale_layout:
            plain = row_major_scales(given, layout, rows, k // BLOCK)
            given = {"shuffled": shuffle_scales, "swizzled_32_4_4": swizzle_scales}.get(self.scale_layout, _same)(plain)
        if self.scale_layout == "row_major" and tuple(given.shape) != shape:
            padded = torch.zeros(shape, dtype=torch.uint8, device=given.device)
            padded[:rows, : k // BLOCK] = given
            given = padded
        return given.reshape(-1)[: shape[0] * shape[1]]  # of shuffled scales, whose padding to 256 rows is at the end


def calls_of(machine: Machine) -> tuple[TorchCall, ...] | Refusal:
    """Return the calls that this torch has for a machine, the fastest first; or what is missing."""
    if machine.arch not in ("gfx950", "sm_100"):
        return Refusal("arch", machine.arch, "gfx950 or sm_100, which torch has this product for", "machine")
    if not hasattr(torch, "float4_e2m1fn_x2") or not hasattr(torch, "float8_e8m0fnu"):
        return Refusal("torch", torch.__version__, "2.8 or newer, with the dtypes of MXFP4", "installation")
    swizzles = getattr(getattr(functional, "SwizzleType", None), "__members__", {})
    if machine.arch == "sm_100":
        if torch.version.cuda is None or "SWIZZLE_32_4_4" not in swizzles:
            return Refusal("torch", torch_build(), "a build for CUDA with SwizzleType.SWIZZLE_32_4_4", "installation")
        return (SWIZZLE_32_4_4,)
    hip = version_of(torch.version.hip)
    if hip is None or hip < HIP_WITH_FP4:
        return Refusal("torch", torch_build(), f"a build for ROCm {_dotted(HIP_WITH_FP4)} or newer", "installation")
    if not swizzles:
        return (PADDED,)
    if hip < HIP_WITH_32_8:
        return (NO_SWIZZLE,)
    recipes = getattr(getattr(functional, "ScalingType", None), "__members__", {})
    newer = ((SWIZZLE_32_8, "SWIZZLE_32_8" in swizzles), (RECIPE_OF_32_8, RECIPE_32_8 in recipes))
    return (*(call for call, known in newer if known), NO_SWIZZLE)


def is_unsupported(error: Exception) -> bool:
    """Say whether an error of a call is torch's word that this build, or its BLAS, does not have the call.

    True of NotImplementedError (``TORCH_CHECK_NOT_IMPLEMENTED``), and of the texts by which torch refuses recipes,
    orders of scales and machines, or says that hipBLASLt has no kernel. A device's error, memory that ran out, and what
    torch says of shapes, strides and dtypes are faults, and False.
    """
    if isinstance(error, (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", ()))):  # 2.8 lacks the latter
        return False
    return isinstance(error, NotImplementedError) or _REFUSALS.search(str(error)) is not None


def _functional(swizzle: str, recipe: str = RECIPE) -> Product:
    def multiply(
        a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        of: Any = functional
        kind, order = of.ScalingType[recipe], of.SwizzleType[swizzle]
        with plain_products(a.device.type):
            return of.scaled_mm(  # type: ignore[no-any-return]
                *(_fp4(a), _fp4(b).t(), _e8m0(a_scales), kind, _e8m0(b_scales), kind),
                swizzle_a=order, swizzle_b=order, bias=bias, output_dtype=dtype,
            )  # fmt: skip

    return multiply


def _private(
    a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    with plain_products(a.device.type):
        return torch._scaled_mm(
            _fp4(a), _fp4(b).t(), scale_a=_e8m0(a_scales), scale_b=_e8m0(b_scales), bias=bias, out_dtype=dtype
        )


def _fp4(data: Tensor) -> Tensor:
    return data.view(torch.float4_e2m1fn_x2)


def _e8m0(scales: Tensor) -> Tensor:
    return scales.view(torch.float8_e8m0fnu)


def _same(scales: Tensor) -> Tensor:
    return scales


_HALVES: Final = (torch.bfloat16, torch.float16)
SWIZZLE_32_8: Final = TorchCall(
    "swizzle_32_8", "shuffled", 32, 64, 32, 8, _HALVES, _functional("SWIZZLE_32_8")
)  # fmt: skip
RECIPE_OF_32_8: Final = TorchCall(
    "recipe_32_8", "shuffled", 32, 64, 32, 8, _HALVES, _functional("SWIZZLE_32_4_4", RECIPE_32_8)
)  # fmt: skip
NO_SWIZZLE: Final = TorchCall("no_swizzle", "row_major", 32, 64, 1, 1, _HALVES, _functional("NO_SWIZZLE"))
PADDED: Final = TorchCall("padded", "row_major", 16, 128, 128, 4, (torch.bfloat16,), _private)
SWIZZLE_32_4_4: Final = TorchCall(
    "swizzle_32_4_4", "swizzled_32_4_4", 16, 64, 128, 4, (torch.bfloat16,), _functional("SWIZZLE_32_4_4")
)  # fmt: skip


def version_of(text: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a version, None where it has none."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def torch_build() -> str:
    """Say which torch this is, and for what it was built."""
    its = (("ROCm", torch.version.hip), ("CUDA", torch.version.cuda))
    return f"{torch.__version__} for {next((f'{name} {version}' for name, version in its if version), 'CPUs')}"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
