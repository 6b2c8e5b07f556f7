"""From a CK-tile configuration to the Triton launch that is compiled for it: the one statement of that mapping.

| configuration | Triton |
|---|---|
| ``tile_m``, ``tile_n``, ``tile_k`` | the program's block; a tile that is no power of two is cut (see ``blocks``) |
| ``warp_m * warp_n * warp_k`` | ``num_warps``; Triton deals the waves out over the block itself |
| ``warp_tile_m`` | ``matrix_instr_nonkdim``; the depth follows from type and architecture, checked after the build |
| ``k_block_per_cu`` above 1 | ``waves_per_eu``, so that this many workgroups fit a compute unit (four SIMDs) |
| ``persistent`` | ``PROGRAMS``: ``k_block_per_cu`` a compute unit |
| ``pad_n``, ``pad_k`` of mx_gemm | masks in every variant; otherwise one has none, for sizes that fill the tile |
| ``double_smem_buffer`` | ``num_stages`` 3 instead of 2 |
| ``layout``, types, groups | constants of the kernel |
| ``preshuffle_*`` | nothing: the kernels read operands and scales as callers give them |
| ``pipeline``, ``scheduler``, ``epilogue``, ``transpose_c`` | nothing: Triton schedules by itself |
| other paddings | nothing: M and N may always be anything |
| ``several`` | another kernel, ``several_gemm.py``, which finds its problem in a table |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher.arch import bare_arch, fp8_is_ocp
from mxgemm.dispatcher.config import KernelConfig, wrong
from mxgemm.dispatcher.schemes import Scale
from mxgemm.errors import Refusal
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.support import is_power_of_two

ARGUMENTS: Final = ("a", "b", "a_scales", "b_scales", "out", "m", "n", "k_blocks")
"""What a kernel is launched with, in order; k_blocks is K / 32. Triton adds two scratch pointers, which are null."""
SEVERAL_ARGUMENTS: Final = ("problems", "count", "tiles")
"""The same of a kernel that takes several problems."""
MOST_SUMS: Final = 2048
"""Elements of C of a wave above which it is not told how many waves share its SIMD, where sums are kept twice (of a
group and of all): registers would spill."""
BLOCK: Final = 32
"""K is a multiple of this in every native kernel."""
SCALES: Final = {
    **{"mx_gemm": "block", "rowcolquant": "row", "tensor_quant": "tensor"},
    **{"grouped_rowcolquant": "row", "grouped_tensorquant": "tensor"},
}
"""Where the scales are, of the operations that ``quant_gemm.py`` computes; ``group_quant_gemm.py`` does the others."""
_TYPES: Final = {"fp4": "e2m1", "fp8": "e4m3", "bf8": "e5m2", "int4": "int4", "bf16": "bf16"}
_STORED: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: torch.float32}


class Blocks(NamedTuple):
    """A program's block: rows and columns of C, elements of K of an iteration."""

    m: int
    n: int
    k: int


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
    padded = config.operation == "mx_gemm" and (getattr(config, "pad_n", False) or getattr(config, "pad_k", False))
    return (MASKED, WIDE) if padded or config.several else (EVEN, MASKED, WIDE)


def arguments(config: KernelConfig) -> tuple[str, ...]:
    """Return the names of the arguments that a configuration's kernels are launched with."""
    return SEVERAL_ARGUMENTS if config.several else ARGUMENTS


def native_refusals(config: KernelConfig, gfx_arch: str) -> tuple[Refusal, ...]:
    """Return why there is no native kernel of a configuration; empty if there is one."""
    found = list(config.refusals(gfx_arch))
    if found:
        return tuple(found)
    for name, least, most in (("tile_m", 16, 256), ("tile_n", 16, 256), ("tile_k", BLOCK, 1024)):
        size = getattr(config, name)
        if not least <= _cut(size) <= most:
            needed = f"a size whose largest power of two is from {least} to {most} (native: Triton's blocks)"
            found.append(wrong(name, size, needed))
    fewest = 2 if config.operation == "mx_gemm" else 1
    if not is_power_of_two(config.waves) or not fewest <= config.waves <= 16:
        found.append(wrong("warp_m * warp_n * warp_k", config.waves, f"a power of two from {fewest} to 16 (native)"))
    found += [
        wrong("group of K", size, f"a power of two from {BLOCK} (native: Triton's blocks lie within groups)")
        for size in sorted(_groups_of_k(config))
        if not is_power_of_two(size) or size < BLOCK
    ]
    if config.scheme.compute == "bf16" and config.warp_tile_k < (32 if config.warp_tile_m == 16 else 16):
        needed = "32 or 64 of 16 rows, 16 or 32 of 32 (native: Triton takes gfx950's own instructions)"
        found.append(wrong("warp_tile_k", config.warp_tile_k, needed))
    return tuple(found)


def _cut(tile: int) -> int:
    """Return the largest power of two that divides a tile's size."""
    return tile & -tile


def _groups_of_k(config: KernelConfig) -> set[int]:
    scales = (config.scheme.a_scale, config.scheme.b_scale)
    return {scale.k for scale in scales if scale and scale.k and config.operation != "mx_gemm"}


def num_warps(config: KernelConfig) -> int:
    """Return the waves of a workgroup."""
    return config.waves


def blocks(config: KernelConfig, gfx_arch: str) -> Blocks:
    """Return the program's block: the tile, or a part of it.

    A tile of 192 rows is cut into three blocks of 64, each a program of its own: Triton's blocks are powers of two.
    """
    return Blocks(_cut(config.tile_m), _cut(config.tile_n), block_k(config, gfx_arch))


def block_k(config: KernelConfig, gfx_arch: str) -> int:
    """Return the depth of the program's block: the tile's, or less.

    A block lies within one group of K wherever scales multiply sums. And it keeps Triton from another instruction: on
    gfx950 that takes the deep one, of 128 (16 rows) or 64 (32 rows), wherever the block holds it.
    """
    most = _cut(config.tile_k)
    if not config.scheme.multiplies_elements:
        most = min([most, *_groups_of_k(config)])
    if config.scheme.compute == "bf16" or bare_arch(gfx_arch) != "gfx950" or _is_deep(config, gfx_arch):
        return most
    return min(most, 64 if config.warp_tile_m == 16 else 32)


def type_name(dtype: str, gfx_arch: str) -> str:
    """Return a type as the kernels call it: ``e2m1``, ``int4``, ``bf16``, ``e4m3``, on gfx942 ``e4m3fnuz``, ..."""
    name = _TYPES[dtype]
    return f"{name}fnuz" if name in ("e4m3", "e5m2") and not fp8_is_ocp(gfx_arch) else name


def element_type(config: KernelConfig, gfx_arch: str) -> str:
    """Return the type of A as the kernel calls it."""
    return type_name(config.scheme.a, gfx_arch)


def persistent_programs(config: KernelConfig, gfx_arch: str) -> int:
    """Return how many programs a persistent kernel is launched with at most; 0: one a tile."""
    if not getattr(config, "persistent", False):
        return 0
    return KNOWN_MACHINES[bare_arch(gfx_arch)].cu_count * config.k_block_per_cu


def kernel_call(config: KernelConfig, gfx_arch: str, variant: Variant) -> KernelCall:
    """Return the launch of one variant; its sizes stand for all sizes that the variant takes, its grid is not one."""
    arch = bare_arch(gfx_arch)
    machine = KNOWN_MACHINES[arch]
    block = blocks(config, arch)
    workgroups = config.k_block_per_cu
    options = {
        "num_warps": num_warps(config),
        "num_stages": 3 if getattr(config, "double_smem_buffer", False) else 2,
        "matrix_instr_nonkdim": config.warp_tile_m,
        "waves_per_eu": 0 if workgroups == 1 else min(8, max(1, workgroups * num_warps(config) // machine.simds)),
    }
    if _groups_of_k(config) and block.m * block.n // num_warps(config) > MOST_SUMS:
        options["waves_per_eu"] = 0
    sizes = (BLOCK + 1, block.n if variant.even else BLOCK + 1, 1)
    programs = persistent_programs(config, arch)
    return launch_of(config, arch, variant, sizes, options, programs=programs, xcds=machine.xcds)


def launch_of(
    config: KernelConfig, arch: str, variant: Variant, sizes: tuple[int, int, int], options: dict[str, Any], *,
    programs: int = 0, xcds: int = 1, grid: int = 1, short_k: int = 0, interpreted: bool = False,
) -> KernelCall:  # fmt: skip
    """Return a launch of a configuration's kernel, for its own architecture or for the one that is here.

    Args:
        config: the kernel.
        arch: whose fp8 types.
        variant: which of its forms.
        sizes: M, N and K / 32; of several problems, how many there are and their tiles in the first two.
        options: the compiler's.
        programs: see the kernels.
        xcds: of the machine.
        grid: programs.
        short_k: elements of K after which sm_90's short fp8 sums are added to fp32 ones; 0: at the end.
        interpreted: for Triton's interpreter.
    """
    block = blocks(config, arch)
    tail: dict[str, Any] = {"WIDE": variant.wide, "XCDS": xcds}
    if config.operation in SCALES and not config.several:
        from mxgemm.triton.kernels.quant_gemm import quant_gemm_kernel

        kind, scale = element_type(config, arch), SCALES[config.operation]
        constants: dict[str, Any] = {"A_TYPE": kind, "B_TYPE": kind, "A_SCALE": scale, "B_SCALE": scale}
        constants |= {f"BLOCK_{axis.upper()}": size for axis, size in block._asdict().items()}
        constants |= {"EVEN_N": variant.even, "EVEN_K": variant.even, "PROGRAMS": programs, **tail, "SHORT_K": short_k}
        constants["INTERPRETED"] = interpreted
        scales = torch.uint8 if scale == "block" else torch.float32
        tensors = (torch.uint8, torch.uint8, scales, scales, torch.float16)
        return KernelCall(quant_gemm_kernel, tensors, sizes, constants, options, (grid, 1, 1))
    constants = _scheme_constants(config, arch)
    at = {f"BLOCK_{axis.upper()}": size for axis, size in block._asdict().items()}
    if config.several:
        from mxgemm.triton.kernels.several_gemm import several_gemm_kernel

        constants |= {"C_TYPE": config.scheme.c, **at, **tail, "INTERPRETED": interpreted}
        return KernelCall(several_gemm_kernel, (torch.int64,), sizes[:2], constants, options, (grid, 1, 1))
    from mxgemm.triton.kernels.group_quant_gemm import group_quant_gemm_kernel

    constants |= {**at, "EVEN": variant.even, "PROGRAMS": programs, **tail, "INTERPRETED": interpreted}
    return KernelCall(group_quant_gemm_kernel, tensor_types(config), sizes, constants, options, (grid, 1, 1))


def tensor_types(config: KernelConfig) -> tuple[torch.dtype, ...]:
    """Return the types of A, B, their scales and C as the kernel is given them: bytes where it decodes by itself."""
    scheme = config.scheme
    scales = (scale.dtype if scale else None for scale in (scheme.a_scale, scheme.b_scale))
    return tuple(_STORED.get(dtype, torch.uint8) for dtype in (scheme.a, scheme.b, *scales, scheme.c))


def _scheme_constants(config: KernelConfig, arch: str) -> dict[str, Any]:
    scheme = config.scheme
    constants: dict[str, Any] = {
        "A_TYPE": type_name(scheme.a, arch),
        "B_TYPE": type_name(scheme.b, arch),
        "COMPUTE": type_name(scheme.compute, arch),
        "A_COLUMN": config.a_is_column_major,
        "B_ROW": config.b_is_row_major,
    }
    for letter, scale in (("A", scheme.a_scale), ("B", scheme.b_scale)):
        constants |= _scale_constants(letter, scale, arch)
    return constants


def _scale_constants(letter: str, scale: Scale | None, arch: str) -> dict[str, Any]:
    if scale is None:
        kind, rows, group, k_slowest = "none", 1, 0, False
    else:
        kind = scale.dtype if scale.dtype in ("fp32", "e8m0") else type_name(scale.dtype, arch)
        rows, group, k_slowest = scale.rows, scale.k, scale.k_slowest
    return {
        f"{letter}_SCALE": kind,
        f"{letter}_ROWS": rows,
        f"{letter}_GROUP": group,
        f"{letter}_K_SLOWEST": k_slowest,
    }


def wanted_instruction(config: KernelConfig, gfx_arch: str) -> str:
    """Return the start of the name of the matrix instruction that the code must consist of."""
    shape = f"f32_{config.warp_tile_m}x{config.warp_tile_n}x"
    compute = config.scheme.compute
    if config.operation == "mx_gemm":
        return f"v_mfma_scale_{shape}{config.warp_tile_k}_f8f6f4"
    if compute == "bf16":
        return f"v_mfma_{shape}{32 if config.warp_tile_m == 16 else 16}_bf16"
    if _is_deep(config, gfx_arch):
        return f"v_mfma_{shape}{config.warp_tile_k}_f8f6f4"
    depth = 32 if config.warp_tile_m == 16 else 16
    return f"v_mfma_{shape}{depth}_{compute}_{compute}"


def _is_deep(config: KernelConfig, gfx_arch: str) -> bool:
    """Say whether the instruction is one of gfx950's own; the others are gfx942's, one or two of them to CK's depth."""
    return bare_arch(gfx_arch) == "gfx950" and config.warp_tile_k == (128 if config.warp_tile_m == 16 else 64)
