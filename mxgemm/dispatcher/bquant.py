"""``bquant``: B in fp8, bf8, int4, and in MX formats, with a scale per group of columns and of K; A without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.config import Segment, wrong, wrong_choice
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.quant import QuantKernelConfig, default_depth, group_refusals, permutes_n
from mxgemm.dispatcher.schemes import Scale, Scheme
from mxgemm.errors import Refusal

TYPES: Final = {
    "fp8": ("fp8", "fp8", "fp32", "fp16"),
    "bf8": ("bf8", "bf8", "fp32", "fp16"),
    "fp8i4": ("fp8", "int4", "fp8", "fp16"),
    "bf8i4": ("bf8", "int4", "bf8", "fp16"),
    "mx_bf16bf16": ("bf16", "bf16", "e8m0", "bf16"),
    "mx_bf16bf8": ("bf16", "bf8", "e8m0", "bf16"),
    "mx_bf16fp4": ("bf16", "fp4", "e8m0", "bf16"),
}
"""A, B, scales of B, C."""
MX_TILE: Final[dict[str, Any]] = {"pipeline": "microscale", "tile_m": 128, "tile_n": 128, "tile_k": 128}
PRESHUFFLED: Final[dict[str, Any]] = {
    **{"pipeline": "preshuffleb", "preshuffle_b": True, "double_smem_buffer": True, "k_block_per_cu": 2},
    **{"tile_m": 128, "tile_n": 128, "tile_k": 128},
}


@dataclass(frozen=True, kw_only=True)
class BQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = sum over groups g of BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``.

    BQ is column-major ``[groups of K, groups of N]``. C is fp16, of the MX types bf16.

    Attributes:
        variant_key: ``fp8``, ``bf8``; ``fp8i4`` and ``bf8i4``: B in int4 (value = nibble - 8, the even k in the high
            nibble), A and the scales in fp8 or bf8; ``mx_bf16bf16``, ``mx_bf16bf8``, ``mx_bf16fp4``: A in bf16, E8M0
            scales that multiply B's elements, on gfx950.
        quant_group_m: 1.
        quant_group_n: columns of B that share a scale.
        quant_group_k: elements of K that share one.
        preshuffle_b: CK's kernel reads B in an order of its own. The library makes it; callers give B as always.
        preshuffle_bquant: the same of BQ.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
    """

    operation: ClassVar[str] = "bquant"
    prefix: ClassVar[str] = "gemm_bquant"
    variants: ClassVar[tuple[str, ...]] = tuple(TYPES)
    pipelines: ClassVar[tuple[str, ...]] = ("compv3", "preshuffleb", "microscale")
    segments: ClassVar[tuple[Segment, ...]] = (Segment("qg", ("quant_group_m", "quant_group_n", "quant_group_k")),)
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = (
        ("preshuffle_b", "preshuffleb"),
        ("preshuffle_bquant", "preshufflebq"),
    )
    bq_is_row_major: ClassVar[bool] = False

    quant_group_m: int = 1
    quant_group_n: int = 1
    quant_group_k: int = 128
    preshuffle_b: bool = False
    preshuffle_bquant: bool = False
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = True

    @property
    def scheme(self) -> Scheme:
        """No scales of A; of B by groups of columns and of K."""
        a, b, dtype, c = TYPES[self.variant_key]
        return Scheme(a, b, None, Scale(dtype, self.quant_group_n, self.quant_group_k, self.bq_is_row_major), c)

    @property
    def effective_epilogue(self) -> str:
        """PermuteN where B is preshuffled and the tile allows it."""
        return "permute_n" if self.preshuffle_b is True and permutes_n(self, self.quant_group_n) else "cshuffle"

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the types and the pipelines exclude of one another."""
        found = group_refusals(self, ("quant_group_m",), "quant_group_k")
        mx = self.variant_key.startswith("mx_")
        wanted = "microscale" if mx else "preshuffleb" if self.preshuffle_b else "compv3"
        found += wrong_choice("pipeline", self.pipeline, (wanted,))
        if mx and (self.preshuffle_b or self.preshuffle_bquant):
            flags = (self.preshuffle_b, self.preshuffle_bquant)
            found.append(wrong("preshuffle_b, preshuffle_bquant", flags, "neither for MX types", str(flags)))
        if mx and arch not in (None, "gfx950"):
            found.append(wrong("gfx_arch", arch, "'gfx950' for MX types"))
        return found


class BQuant(Operation):
    """``C[m, n] = sum over groups g of BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "bquant"
    symbol = "dispatcher_run_bquant_gemm"
    parameters = (
        *("A", "B", "BQ", "C", "M", "N", "K", "stride_A", "stride_B", "stride_BQ", "stride_C"),
        *("QK_B", "QN_B", "k_batch"),
    )
    config_type: ClassVar[type[BQuantKernelConfig]] = BQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[BQuantKernelConfig, ...]:
        """Return the decode kernel of each type, one of fp8 with B and BQ preshuffled, and on gfx950 the MX types."""
        depth = default_depth(gfx_arch)
        kinds: list[dict[str, Any]] = [
            {"variant_key": key, "warp_tile_k": depth} for key in TYPES if not key.startswith("mx_")
        ]
        kinds.append({**PRESHUFFLED, "preshuffle_bquant": True, "warp_tile_k": max(depth, 64)})
        if bare_arch(gfx_arch) == "gfx950":
            kinds += mx_kinds()
        return tuple(self.config_type(**kind).pinned(gfx_arch) for kind in kinds)


def mx_kinds() -> list[dict[str, Any]]:
    """Return the fields of CK's kernels of the MX types."""
    return [
        {**MX_TILE, "variant_key": "mx_bf16bf16", "quant_group_k": 32, "warp_tile_k": 32},
        {**MX_TILE, "variant_key": "mx_bf16bf8", "quant_group_k": 128, "warp_tile_k": 64},
        {**MX_TILE, "variant_key": "mx_bf16fp4", "quant_group_k": 32, "warp_tile_k": 32},
    ]
