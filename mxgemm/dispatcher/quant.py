"""What the operations with fp8 kernels share: the fields of their configurations, instruction rules, groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mxgemm.dispatcher.arch import bare_arch, bf16_warp_tile_k, fp8_warp_tile_k
from mxgemm.dispatcher.config import (
    KernelConfig,
    choice_refusals,
    flag_refusals,
    size_refusals,
    tile_refusals,
    wrong,
    wrong_arch,
    wrong_choice,
)
from mxgemm.dispatcher.operation import Operation
from mxgemm.errors import Refusal

ARCHES = ("gfx942", "gfx950")


@dataclass(frozen=True, kw_only=True)
class QuantKernelConfig(KernelConfig):
    """The fields of a kernel of CK's block-scale family, and what is refused of every one.

    The default ``warp_tile_k`` is gfx950's; ``default_configs`` of the operation gives each architecture its own.

    Attributes:
        variant_key: the types; ``fp8`` (e4m3) and ``bf8`` (e5m2) are OCP on gfx950, FNUZ on gfx942.
        gfx_arch: the architecture, or None until the build pins it.
        double_smem_buffer: two buffers of LDS in CK's main loop; not part of the name.
    """

    arch_field: ClassVar[str] = "gfx_arch"
    dtype_field: ClassVar[str] = "variant_key"
    variants: ClassVar[tuple[str, ...]] = ("fp8", "bf8")
    pipelines: ClassVar[tuple[str, ...]] = ("compv3",)
    arches: ClassVar[tuple[str, ...]] = ARCHES

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
        choices = choice_refusals(self)
        found = choices + tile_refusals(self) + flag_refusals(self)
        if arch is not None:
            found += wrong_arch(self.arch_field, arch, self.arches)
        known = bare_arch(arch) if arch is not None and not wrong_arch(self.arch_field, arch, self.arches) else None
        if not choices and not size_refusals(self) and not flag_refusals(self):
            found += self.rules(known)
            if known is not None:
                found += instruction_refusals(self, known)
        elif known is not None and not size_refusals(self):
            found += instruction_refusals(self, known)
        return tuple(found)

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the operation's own rules refuse, of fields that are right each by itself."""
        return []


def instruction_refusals(config: QuantKernelConfig, arch: str) -> list[Refusal]:
    """Return the refusal of a matrix instruction that CK does not have on an architecture, or nothing."""
    rows = (config.warp_tile_m, config.warp_tile_n)
    if rows not in ((16, 16), (32, 32)):
        return [wrong("warp_tile_m, warp_tile_n", rows, "(16, 16) or (32, 32)", str(rows))]
    bf16 = not wrong_choice("", config.variant_key, config.variants) and config.scheme.compute == "bf16"
    wanted = (bf16_warp_tile_k if bf16 else fp8_warp_tile_k)(arch, config.warp_tile_m)
    if config.warp_tile_k in wanted:
        return []
    choices = " or ".join(map(str, wanted))
    zeros = "; CK compiles 16x16x128 there, and the kernel silently gives zeros" if arch == "gfx942" else ""
    kind = f"{config.warp_tile_m}x{config.warp_tile_n} {config.variant_key} on {arch}"
    needed = f"{choices} for {kind}, the instructions that CK has{zeros}"
    return [wrong("warp_tile_k", config.warp_tile_k, needed)]


def group_refusals(config: KernelConfig, ones: Iterable[str], along_k: str) -> list[Refusal]:
    """Return the refusals of groups that CK does not have: of more than one row, or that the tile does not fill."""
    found = [wrong(name, getattr(config, name), "1") for name in ones if getattr(config, name) != 1]
    if config.tile_k % getattr(config, along_k):
        needed = f"a multiple of {along_k} = {getattr(config, along_k)}: CK's tiles hold whole groups"
        found.append(wrong("tile_k", config.tile_k, needed))
    return found


def permutes_n(config: KernelConfig, groups_n: int) -> bool:
    """Return whether CK's PermuteN epilogue fits: a wave has an even number of instructions along N, and gN is 1."""
    return config.tile_n // (config.warp_n * config.warp_tile_n) % 2 == 0 and groups_n == 1


class SumScaled(Operation):
    """An operation whose fp32 scales of A and B multiply the sum over all of K."""

    parameters: ClassVar[tuple[str, ...]] = (
        "A",
        "B",
        "AQ",
        "BQ",
        "C",
        "M",
        "N",
        "K",
        "stride_A",
        "stride_B",
        "stride_C",
        "k_batch",
    )
    config_type: ClassVar[type[QuantKernelConfig]]

    def default_configs(self, gfx_arch: str) -> tuple[QuantKernelConfig, ...]:
        """Return the kernel of each type with the default tile and the architecture's instruction."""
        depth = default_depth(gfx_arch)
        kinds = [self.config_type(variant_key=key, warp_tile_k=depth) for key in ("fp8", "bf8")]
        return tuple(kind.pinned(gfx_arch) for kind in kinds)


def default_depth(gfx_arch: str, rows: int = 16) -> int:
    """Return the depth of the fp8 instruction that CK takes on an architecture.

    Raises:
        ValueError: there are no kernels for it.
    """
    if unknown := wrong_arch("gfx_arch", gfx_arch, ARCHES):
        raise ValueError(str(unknown[0]))
    return fp8_warp_tile_k(gfx_arch, rows)[0]
