"""What the operations with fp32 scales outside the sum share: ``rowcolquant``, ``tensor_quant``.

fp8 or bf8 operands, one main loop, one C signature; the operations differ in how far a scale reaches.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mxgemm.dispatcher.arch import bare_arch, fp8_warp_tile_k
from mxgemm.dispatcher.codecs import Float32
from mxgemm.dispatcher.config import (
    KernelConfig,
    flag_refusals,
    size_refusals,
    tile_refusals,
    wrong,
    wrong_arch,
    wrong_choice,
)
from mxgemm.dispatcher.operation import POINTER, Operation, Pointers, Problem
from mxgemm.errors import Refusal

ARCHES = ("gfx942", "gfx950")


@dataclass(frozen=True, kw_only=True)
class QuantKernelConfig(KernelConfig):
    """A kernel of ``C[m, n] = scale of A * scale of B * sum over k of A[m, k] * B[n, k]``, C in fp16.

    The default ``warp_tile_k`` is gfx950's; ``default_configs`` of the operation gives each architecture its own.

    Attributes:
        variant_key: ``fp8`` (e4m3) or ``bf8`` (e5m2): OCP on gfx950, FNUZ on gfx942.
        gfx_arch: the architecture, or None until the build pins it.
        double_smem_buffer: two buffers of LDS in CK's main loop; not part of the name.
    """

    arch_field: ClassVar[str] = "gfx_arch"
    dtype_field: ClassVar[str] = "variant_key"

    variant_key: str = "fp8"
    pipeline: str = "compv3"
    tile_m: int = 16
    tile_n: int = 64
    tile_k: int = 256
    warp_m: int = 1
    warp_n: int = 4
    warp_k: int = 1
    warp_tile_m: int = 16
    warp_tile_n: int = 16
    warp_tile_k: int = 128
    double_smem_buffer: bool = False
    gfx_arch: str | None = None

    def refusals(self, gfx_arch: str | None = None) -> tuple[Refusal, ...]:
        """Return every reason why this kernel must not be built."""
        arch = gfx_arch or self.arch
        found = wrong_choice("variant_key", self.variant_key, ("fp8", "bf8"))
        found += wrong_choice("layout", self.layout, ("rcr",))
        found += wrong_choice("pipeline", self.pipeline, ("compv3",))
        found += wrong_choice("epilogue", self.epilogue, ("cshuffle",))
        found += wrong_choice("scheduler", self.scheduler, ("intrawave",))
        found += tile_refusals(self) + flag_refusals(self)
        if arch is not None:
            found += wrong_arch("gfx_arch", arch, ARCHES)
        if arch is not None and not wrong_arch("gfx_arch", arch, ARCHES) and not size_refusals(self):
            found += self._instruction_refusals(bare_arch(arch))
        return tuple(found)

    def _instruction_refusals(self, arch: str) -> list[Refusal]:
        instruction = (self.warp_tile_m, self.warp_tile_n)
        if instruction not in ((16, 16), (32, 32)):
            return [wrong("warp_tile_m, warp_tile_n", instruction, "(16, 16) or (32, 32)", str(instruction))]
        wanted = fp8_warp_tile_k(arch, self.warp_tile_m)
        if self.warp_tile_k not in wanted:
            choices = " or ".join(map(str, wanted))
            zeros = "; CK compiles 16x16x128 there, and the kernel silently gives zeros" if arch == "gfx942" else ""
            kind = f"{self.warp_tile_m}x{self.warp_tile_n} {self.variant_key} on {arch}"
            needed = f"{choices} for {kind}, the instructions that CK has{zeros}"
            return [wrong("warp_tile_k", self.warp_tile_k, needed)]
        return []


class QuantOperation(Operation):
    """An operation whose scales multiply the sum."""

    argument_types = (*[POINTER] * 5, *[ctypes.c_int64] * 6, ctypes.c_int)
    config_type: ClassVar[type[QuantKernelConfig]]
    scale_dtype = np.dtype(np.float32)
    least_k = 1

    def default_configs(self, gfx_arch: str) -> tuple[QuantKernelConfig, ...]:
        """Return the kernel of each type with the default tile and the architecture's instruction."""
        if unknown := wrong_arch("gfx_arch", gfx_arch, ARCHES):
            raise ValueError(str(unknown[0]))
        depth = fp8_warp_tile_k(gfx_arch, 16)[0]
        kinds = [self.config_type(variant_key=key, warp_tile_k=depth) for key in ("fp8", "bf8")]
        return tuple(kind.pinned(gfx_arch) for kind in kinds)

    def arguments(self, at: Pointers, problem: Problem) -> tuple[Any, ...]:
        """Return A, B, scales of A, scales of B, C, M, N, K, the strides of packed operands, k_batch."""
        m, n, k = problem.m, problem.n, problem.k
        return (at.a, at.b, at.a_scales, at.b_scales, at.c, m, n, k, k, k, n, problem.k_batch)

    def draw_scales(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return numbers from 1/4 to 2."""
        return random.uniform(0.25, 2.0, size=shape).astype(np.float32)

    def scaled_product(self, a: Float32, b: Float32, a_scales: NDArray[Any], b_scales: NDArray[Any]) -> Float32:
        """Return the product, its rows and columns scaled; one scale serves all."""
        product: Float32 = (a @ b.T) * a_scales[:, None] * b_scales[None, :]
        return product
