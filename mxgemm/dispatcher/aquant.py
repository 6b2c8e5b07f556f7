"""``aquant``: fp8, bf8 or int4 A with a scale per row and group of K; B in fp8 or bf8 without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from mxgemm.dispatcher.config import Segment, wrong
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.quant import QuantKernelConfig, default_depth, group_refusals
from mxgemm.dispatcher.schemes import Scale, Scheme
from mxgemm.errors import Refusal

_TYPES: Final = {
    "fp8": ("fp8", "fp8", "fp32"),
    "bf8": ("bf8", "bf8", "fp32"),
    "fp8i4": ("int4", "fp8", "fp8"),
    "bf8i4": ("int4", "bf8", "bf8"),
}
"""A, B, scales of A."""


@dataclass(frozen=True, kw_only=True)
class AQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n]``, C in fp16.

    AQ is row-major ``[M, ceil(K / quant_group_k)]`` in every layout.  (For ``ccr`` CK has two stored versions; in the
    other AQ is column-major there.)

    Attributes:
        variant_key: ``fp8``, ``bf8``; ``fp8i4`` and ``bf8i4``: A in int4 (value = nibble - 8, the even k in the high
            nibble), B and the scales in fp8 or bf8.
        quant_group_m: rows of A that share a scale: 1.
        quant_group_n: 1.
        quant_group_k: elements of K that share a scale.
        preshuffle_aquant: CK's kernel reads AQ in an order of its own. The library makes it; callers give AQ as always.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
    """

    operation: ClassVar[str] = "aquant"
    prefix: ClassVar[str] = "gemm_aquant"
    variants: ClassVar[tuple[str, ...]] = tuple(_TYPES)
    layouts: ClassVar[tuple[str, ...]] = ("rcr", "rrr", "crr", "ccr")
    pipelines: ClassVar[tuple[str, ...]] = ("mem", "compv3")
    epilogues: ClassVar[tuple[str, ...]] = ("cshuffle", "default")
    schedulers: ClassVar[tuple[str, ...]] = ("interwave", "intrawave")
    segments: ClassVar[tuple[Segment, ...]] = (Segment("qg", ("quant_group_m", "quant_group_n", "quant_group_k")),)
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = (("preshuffle_aquant", "preshufflequant"),)

    pipeline: str = "mem"
    scheduler: str = "interwave"
    quant_group_m: int = 1
    quant_group_n: int = 1
    quant_group_k: int = 128
    preshuffle_aquant: bool = False
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = True

    @property
    def scheme(self) -> Scheme:
        """Scales of A by groups of K; none of B."""
        a, b, scale = _TYPES[self.variant_key]
        return Scheme(a, b, Scale(scale, 1, self.quant_group_k), None)

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the pipelines cannot do."""
        found = group_refusals(self, ("quant_group_m", "quant_group_n"), "quant_group_k")
        if self.pipeline == "compv3" and self.scheduler == "interwave":
            found.append(wrong("scheduler", self.scheduler, "'intrawave' for compv3: CK's mem alone has interwave"))
        if self.preshuffle_aquant and self.pipeline != "compv3":
            found.append(wrong("pipeline", self.pipeline, "'compv3' for preshuffle_aquant"))
        if self.preshuffle_aquant and self.layout == "ccr":
            found.append(wrong("layout", self.layout, "'rcr', 'rrr' or 'crr' for preshuffle_aquant"))
        return found


class AQuant(Operation):
    """``C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "aquant"
    symbol = "dispatcher_run_aquant_gemm"
    parameters = (
        *("A", "AQ", "B", "C", "M", "N", "K", "stride_A", "stride_AQ", "stride_B", "stride_C", "QK_A", "k_batch"),
    )
    config_type = AQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[AQuantKernelConfig, ...]:
        """Return the decode kernel of each type, and of fp8 one with AQ preshuffled and one of each other layout."""
        depth = default_depth(gfx_arch)
        plain = [AQuantKernelConfig(variant_key=key, warp_tile_k=depth) for key in _TYPES]
        shuffled = AQuantKernelConfig(
            pipeline="compv3", scheduler="intrawave", preshuffle_aquant=True, warp_tile_k=max(depth, 64)
        )
        others = [AQuantKernelConfig(layout=layout, warp_tile_k=depth) for layout in ("rrr", "crr", "ccr")]
        return tuple(config.pinned(gfx_arch) for config in (*plain, shuffled, *others))
