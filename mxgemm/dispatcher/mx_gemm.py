"""``mx_gemm``: fp4 or fp8 operands, an E8M0 scale per 32 elements of K."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mxgemm.dispatcher.codecs import Float32, decode_e8m0
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
from mxgemm.mx.formats import BLOCK, E8M0_BIAS

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

    def flags(self) -> tuple[bool, ...]:
        """Return the paddings, and ``persistent`` only where it is on, as in CK's tile engine."""
        return (self.pad_m, self.pad_n, self.pad_k, *([] if self.persistent is False else [self.persistent]))

    def refusals(self, gfx_arch: str | None = None) -> tuple[Refusal, ...]:
        """Return every reason why this kernel must not be built."""
        arch = gfx_arch or self.arch
        found = wrong_choice("datatype", self.datatype, ("fp8", "fp4"))
        found += wrong_choice("layout", self.layout, ("rcr",))
        found += wrong_choice("pipeline", self.pipeline, ("comp_async",))
        found += wrong_choice("epilogue", self.epilogue, ("cshuffle",))
        found += wrong_choice("scheduler", self.scheduler, ("intrawave",))
        found += tile_refusals(self) + flag_refusals(self)
        instruction = (self.warp_tile_m, self.warp_tile_n, self.warp_tile_k)
        if not size_refusals(self) and instruction != INSTRUCTION:
            needed = f"{INSTRUCTION}, the scaled instruction of gfx950"
            found.append(wrong("warp_tile", instruction, needed, str(instruction)))
        if arch is not None:
            other = wrong_arch("gpu_target", arch, ARCHES)
            found += [replace(why, words=f"{why}: no other has the scaled instruction") for why in other]
        return tuple(found)


class MxGemm(Operation):
    """``C[m, n] = sum over k of A[m, k] * sa[m, k // 32] * B[n, k] * sb[n, k // 32]``."""

    name = "mx_gemm"
    symbol = "dispatcher_run_mx_gemm"
    argument_types = (*[POINTER] * 5, *[ctypes.c_int] * 4)
    config_type = MxGemmKernelConfig
    scale_dtype = np.dtype(np.uint8)
    least_k = BLOCK

    def default_configs(self, gfx_arch: str) -> tuple[MxGemmKernelConfig, ...]:
        """Return the kernel of each type with the default tile."""
        return tuple(MxGemmKernelConfig(datatype=datatype).pinned(gfx_arch) for datatype in ("fp8", "fp4"))

    def scale_shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return ``[m, k / 32]`` and ``[n, k / 32]``."""
        blocks = problem.k // BLOCK
        return (problem.m, blocks), (problem.n, blocks)

    def arguments(self, at: Pointers, problem: Problem) -> tuple[Any, ...]:
        """Return A, B, C, scales of A, scales of B, M, N, K, k_batch."""
        return (at.a, at.b, at.c, at.a_scales, at.b_scales, problem.m, problem.n, problem.k, problem.k_batch)

    def draw_scales(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return bytes of 1/4 to 4."""
        return random.integers(E8M0_BIAS - 2, E8M0_BIAS + 3, size=shape, dtype=np.uint8)

    def scaled_product(self, a: Float32, b: Float32, a_scales: NDArray[Any], b_scales: NDArray[Any]) -> Float32:
        """Return the product of the operands, each scaled block by block."""
        scaled_a = a * np.repeat(decode_e8m0(a_scales), BLOCK, axis=1)
        scaled_b = b * np.repeat(decode_e8m0(b_scales), BLOCK, axis=1)
        product: Float32 = scaled_a @ scaled_b.T
        return product
