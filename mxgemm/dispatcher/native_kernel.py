"""From a CK-tile configuration to the Triton launch that is compiled for it: the one statement of that mapping.

| configuration | Triton |
|---|---|
| ``tile_m``, ``tile_n``, ``tile_k`` | the program's block, ``BLOCK_M``, ``BLOCK_N``, ``BLOCK_K`` (see ``block_k``) |
| ``warp_m * warp_n * warp_k`` | ``num_warps``; Triton deals the waves out over the block itself |
| ``warp_tile_m`` | ``matrix_instr_nonkdim``; the depth follows from type and architecture, checked after the build |
| ``k_block_per_cu`` above 1 | ``waves_per_eu``, so that this many workgroups fit a compute unit (four SIMDs) |
| ``persistent`` | ``PROGRAMS``: ``k_block_per_cu`` a compute unit |
| ``pad_n``, ``pad_k`` | masks in every variant; otherwise there is one without, for sizes that fill the tile |
| ``double_smem_buffer`` | ``num_stages`` 3 instead of 2 |
| ``pipeline``, ``scheduler``, ``epilogue``, ``pad_m`` | nothing: Triton schedules by itself; M may always be anything |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher.arch import bare_arch, fp8_is_ocp
from mxgemm.dispatcher.config import KernelConfig, wrong
from mxgemm.errors import Refusal
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.support import is_power_of_two

ARGUMENTS: Final = ("a", "b", "a_scales", "b_scales", "out", "m", "n", "k_blocks")
"""What the kernel is launched with, in order; k_blocks is K / 32. Triton adds two scratch pointers, which are null."""
BLOCK: Final = 32
"""K is a multiple of this in every native kernel."""
SCALES: Final = {"mx_gemm": "block", "rowcolquant": "row", "tensor_quant": "tensor"}
_TYPES: Final = {"fp4": "e2m1", "fp8": "e4m3", "bf8": "e5m2"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the code objects of a native library; the shim launches the first that fits the sizes.

    Attributes:
        name: of the variant and its files.
        even: N and K fill the tile: nothing is masked along them.
        wide: offsets in 64 bits, for operands of 2 GiB and more.
    """

    name: str
    even: bool
    wide: bool


EVEN: Final = Variant("even", even=True, wide=False)
MASKED: Final = Variant("masked", even=False, wide=False)
WIDE: Final = Variant("wide", even=False, wide=True)


def variants(config: KernelConfig) -> tuple[Variant, ...]:
    """Return the code objects that a library of this configuration holds, in the order in which they are tried."""
    padded = getattr(config, "pad_n", False) or getattr(config, "pad_k", False)
    return (MASKED, WIDE) if padded else (EVEN, MASKED, WIDE)


def native_refusals(config: KernelConfig, gfx_arch: str) -> tuple[Refusal, ...]:
    """Return why there is no native kernel of a configuration; empty if there is one."""
    found = list(config.refusals(gfx_arch))
    if found:
        return tuple(found)
    for name, least, most in (("tile_m", 16, 256), ("tile_n", 16, 256), ("tile_k", BLOCK, 1024)):
        size = getattr(config, name)
        if not is_power_of_two(size) or not least <= size <= most:
            found.append(wrong(name, size, f"a power of two from {least} to {most} (native: Triton's blocks)"))
    least = 2 if config.operation == "mx_gemm" else 1
    waves = num_warps(config)
    if not is_power_of_two(waves) or not least <= waves <= 16:
        found.append(wrong("warp_m * warp_n * warp_k", waves, f"a power of two from {least} to 16 (native)"))
    return tuple(found)


def num_warps(config: KernelConfig) -> int:
    """Return the waves of a workgroup."""
    return config.warp_m * config.warp_n * config.warp_k


def block_k(config: KernelConfig, gfx_arch: str) -> int:
    """Return the depth of the program's block: the tile's, or less, to keep Triton from another instruction.

    On gfx950 it takes the deep one, of 128 (16 rows) or 64 (32 rows), wherever the block holds it.
    """
    if bare_arch(gfx_arch) != "gfx950" or _is_deep(config, gfx_arch):
        return config.tile_k
    return min(config.tile_k, 64 if config.warp_tile_m == 16 else 32)


def element_type(config: KernelConfig, gfx_arch: str) -> str:
    """Return the type of A and B as the kernel calls it: ``e2m1``, ``e4m3``, ``e5m2``, on gfx942 ``e4m3fnuz``, ..."""
    name = _TYPES[config.dtype]
    return name if name == "e2m1" or fp8_is_ocp(gfx_arch) else f"{name}fnuz"


def persistent_programs(config: KernelConfig, gfx_arch: str) -> int:
    """Return how many programs a persistent kernel is launched with at most; 0: one a tile."""
    if not getattr(config, "persistent", False):
        return 0
    return KNOWN_MACHINES[bare_arch(gfx_arch)].cu_count * config.k_block_per_cu


def kernel_call(config: KernelConfig, gfx_arch: str, variant: Variant) -> KernelCall:
    """Return the launch of one variant; its sizes stand for all sizes that the variant takes, its grid is not one."""
    from mxgemm.triton.kernels.quant_gemm import quant_gemm_kernel

    arch = bare_arch(gfx_arch)
    machine = KNOWN_MACHINES[arch]
    kind = element_type(config, arch)
    scale = SCALES[config.operation]
    scales = torch.uint8 if scale == "block" else torch.float32
    workgroups = config.k_block_per_cu
    constants = {
        "A_TYPE": kind,
        "B_TYPE": kind,
        "A_SCALE": scale,
        "B_SCALE": scale,
        "BLOCK_M": config.tile_m,
        "BLOCK_N": config.tile_n,
        "BLOCK_K": block_k(config, arch),
        "EVEN_N": variant.even,
        "EVEN_K": variant.even,
        "PROGRAMS": persistent_programs(config, arch),
        "WIDE": variant.wide,
        "XCDS": machine.xcds,
        "SHORT_K": 0,
        "INTERPRETED": False,
    }
    options = {
        "num_warps": num_warps(config),
        "num_stages": 3 if getattr(config, "double_smem_buffer", False) else 2,
        "matrix_instr_nonkdim": config.warp_tile_m,
        "waves_per_eu": 0 if workgroups == 1 else min(8, max(1, workgroups * num_warps(config) // machine.simds)),
    }
    tensors = (torch.uint8, torch.uint8, scales, scales, torch.float16)
    sizes = (BLOCK + 1, config.tile_n if variant.even else BLOCK + 1, 1)
    return KernelCall(quant_gemm_kernel, tensors, sizes, constants, options, (1, 1, 1))


def wanted_instruction(config: KernelConfig, gfx_arch: str) -> str:
    """Return the start of the name of the matrix instruction that the code must consist of."""
    shape = f"f32_{config.warp_tile_m}x{config.warp_tile_n}x"
    if config.operation == "mx_gemm":
        return f"v_mfma_scale_{shape}{config.warp_tile_k}_f8f6f4"
    if _is_deep(config, gfx_arch):
        return f"v_mfma_{shape}{config.warp_tile_k}_f8f6f4"
    depth = 32 if config.warp_tile_m == 16 else 16
    return f"v_mfma_{shape}{depth}_{config.dtype}_{config.dtype}"


def _is_deep(config: KernelConfig, gfx_arch: str) -> bool:
    """Say whether the instruction is one of gfx950's own; the others are gfx942's, one or two of them to CK's depth."""
    return bare_arch(gfx_arch) == "gfx950" and config.warp_tile_k == (128 if config.warp_tile_m == 16 else 64)
