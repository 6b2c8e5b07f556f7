"""``mx_gemm``: fp4 or fp8 operands, an E8M0 scale per 32 elements of K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mxgemm.dispatcher.config import (
    KernelConfig,
    choice_refusals,
    flag_refusals,
    size_refusals,
    tile_refusals,
    wrong,
    wrong_arch,
)
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.schemes import Scale, Scheme
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK

INSTRUCTION = (16, 16, 128)
"""The matrix instruction of CK's kernels for gfx950: the scaled one, 16 x 16 x 128."""
ARCHES = ("gfx950",)


@dataclass(frozen=True, kw_only=True)
class MxGemmKernelConfig(KernelConfig):
    """A kernel of ``C[m, n] = sum over k of A[m, k] * sa[m, k // 32] * B[n, k] * sb[n, k // 32]``, C in fp16.

    Attributes:
        datatype: ``fp8`` (OCP e4m3) or ``fp4`` (e2m1, two in a byte, the even k in the low nibble).
        gpu_target: the architecture, or None until the build pins it.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
        persistent: workgroups loop over tiles.
    """

    operation: ClassVar[str] = "mx_gemm"
    arch_field: ClassVar[str] = "gpu_target"
    dtype_field: ClassVar[str] = "datatype"
    flag_fields: ClassVar[tuple[str, ...]] = ("pad_m", "pad_n", "pad_k", "persistent")
    prefix: ClassVar[str] = "mx_gemm"
    variants: ClassVar[tuple[str, ...]] = ("fp8", "fp4")
    pipelines: ClassVar[tuple[str, ...]] = ("comp_async",)

    datatype: str = "fp8"
    gpu_target: str | None = None
    pipeline: str = "comp_async"
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = False
    persistent: bool = False
    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 128
    warp_m: int = 2
    warp_n: int = 2
    warp_k: int = 1
    warp_tile_m: int = 16
    warp_tile_n: int = 16
    warp_tile_k: int = 128

    @property
    def scheme(self) -> Scheme:
        """Both operands of one type, with an E8M0 scale per 32 elements of K."""
        scale = Scale("e8m0", 1, BLOCK)
        return Scheme(self.datatype, self.datatype, scale, scale)

    def flags(self) -> tuple[bool, ...]:
        """Return the paddings, and ``persistent`` only where it is on, as in CK's tile engine."""
        return (self.pad_m, self.pad_n, self.pad_k, *([] if self.persistent is False else [self.persistent]))

    def refusals(self, gfx_arch: str | None = None) -> tuple[Refusal, ...]:
        """Return every reason why this kernel must not be built."""
        arch = gfx_arch or self.arch
        found = choice_refusals(self) + tile_refusals(self) + flag_refusals(self)
        if self.several is True:
            found.append(wrong("several", True, "False: only kernels whose scales multiply sums take several problems"))
        if not size_refusals(self) and self.instruction != INSTRUCTION:
            needed = f"{INSTRUCTION}, the scaled instruction of gfx950"
            found.append(wrong("warp_tile", self.instruction, needed, str(self.instruction)))
        if arch is not None:
            other = wrong_arch("gpu_target", arch, ARCHES)
            found += [replace(why, words=f"{why}: no other has the scaled instruction") for why in other]
        return tuple(found)


class MxGemm(Operation):
    """``C[m, n] = sum over k of A[m, k] * sa[m, k // 32] * B[n, k] * sb[n, k // 32]``."""

    name = "mx_gemm"
    symbol = "dispatcher_run_mx_gemm"
    parameters = ("A", "B", "C", "scale_a", "scale_b", "M", "N", "K", "k_batch")
    size_type = "int"
    config_type = MxGemmKernelConfig
    least_k = BLOCK

    def default_configs(self, gfx_arch: str) -> tuple[MxGemmKernelConfig, ...]:
        """Return the kernel of each type with the default tile."""
        return tuple(MxGemmKernelConfig(datatype=datatype).pinned(gfx_arch) for datatype in ("fp8", "fp4"))
