"""CK's ``grouped_gemm_*quant`` kernels: single problems under other names and C signatures, despite the word.

Several problems in one launch are ours: the field ``several`` of any of these configurations (``shim/several.h``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.bquant import BQuant, BQuantKernelConfig
from mxgemm.dispatcher.config import Segment, wrong, wrong_choice
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.quant import QuantKernelConfig, SumScaled, default_depth, group_refusals, permutes_n
from mxgemm.dispatcher.schemes import ONE, Extent, Scale, Scheme
from mxgemm.errors import Refusal

_A_TYPES: Final = {
    "fp8": ("fp8", "fp8", "fp32"),
    "bf8": ("bf8", "bf8", "fp32"),
    "fp8i4": ("fp8", "int4", "fp8"),
    "bf8i4": ("bf8", "int4", "bf8"),
}
"""A, B, scales of A: here int4 is B."""
_SUM_PARAMETERS: Final = (
    *("A", "B", "AQ", "BQ", "C", "M", "N", "K", "stride_A", "stride_B", "stride_AQ", "stride_BQ", "stride_C"),
    *("QK_A", "QK_B", "k_batch"),
)


@dataclass(frozen=True, kw_only=True)
class GroupedSumKernelConfig(QuantKernelConfig):
    """What ``grouped_rowcolquant`` and ``grouped_tensorquant`` share.

    Attributes:
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
        persistent: workgroups loop over tiles.
    """

    flag_fields: ClassVar[tuple[str, ...]] = ("pad_m", "pad_n", "pad_k", "persistent")

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    warp_m: int = 2
    warp_n: int = 2
    warp_tile_m: int = 32
    warp_tile_n: int = 32
    warp_tile_k: int = 16
    pad_m: bool = True
    pad_n: bool = False
    pad_k: bool = True
    persistent: bool = False

    def flags(self) -> tuple[bool, ...]:
        """Return the paddings and ``persistent``."""
        return (self.pad_m, self.pad_n, self.pad_k, self.persistent)


@dataclass(frozen=True, kw_only=True)
class GroupedRowColQuantKernelConfig(GroupedSumKernelConfig):
    """A kernel of ``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``, C in fp16."""

    operation: ClassVar[str] = "grouped_rowcolquant"
    prefix: ClassVar[str] = "grouped_gemm_rowcolquant"

    @property
    def scheme(self) -> Scheme:
        """A scale a row of A and a column of B."""
        return Scheme(self.variant_key, self.variant_key, Scale("fp32", 1), Scale("fp32", 1))

    def extents(self) -> dict[str, Extent]:
        """Return CK's: the counts are those of rows and columns, the strides 1."""
        return super().extents() | {"stride_AQ": ONE, "stride_BQ": ONE, "QK_A": Extent("m"), "QK_B": Extent("n")}


class GroupedRowColQuant(SumScaled):
    """``C[m, n] = aq[m] * bq[n] * sum over k of A[m, k] * B[n, k]``."""

    name = "grouped_rowcolquant"
    symbol = "dispatcher_run_rowcolquant_gemm"
    aliases = ("dispatcher_run_gemm",)
    parameters = _SUM_PARAMETERS
    config_type: ClassVar[type[QuantKernelConfig]] = GroupedRowColQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[QuantKernelConfig, ...]:
        """Return the kernel of each type."""
        default_depth(gfx_arch)
        return tuple(self.config_type(variant_key=key).pinned(gfx_arch) for key in ("fp8", "bf8"))


@dataclass(frozen=True, kw_only=True)
class GroupedTensorQuantKernelConfig(GroupedSumKernelConfig):
    """A kernel of ``C[m, n] = aq * bq * sum over k of A[m, k] * B[n, k]``, C in fp16."""

    operation: ClassVar[str] = "grouped_tensorquant"
    prefix: ClassVar[str] = "grouped_gemm_tensorquant"

    @property
    def scheme(self) -> Scheme:
        """A scale for all of A and one for all of B."""
        return Scheme(self.variant_key, self.variant_key, Scale("fp32", 0), Scale("fp32", 0))


class GroupedTensorQuant(GroupedRowColQuant):
    """``C[m, n] = aq * bq * sum over k of A[m, k] * B[n, k]``."""

    name = "grouped_tensorquant"
    symbol = "dispatcher_run_tensorquant_gemm"
    config_type = GroupedTensorQuantKernelConfig


@dataclass(frozen=True, kw_only=True)
class GroupedAQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n]``, C in fp16.

    AQ is row-major.

    Attributes:
        variant_key: ``fp8``, ``bf8``; ``fp8i4``, ``bf8i4``: A and the scales in fp8 or bf8, B in int4.
        quant_group_m: rows of A that share a scale: 1.
        quant_group_n: 1.
        quant_group_k: elements of K that share one.
        preshuffle_aq: CK's kernel reads AQ in an order of its own, which the library makes.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
        transpose_c: CK's accumulators are transposed; not part of the name.
    """

    operation: ClassVar[str] = "grouped_aquant"
    prefix: ClassVar[str] = "grouped_gemm_aquant"
    variants: ClassVar[tuple[str, ...]] = tuple(_A_TYPES)
    pipelines: ClassVar[tuple[str, ...]] = ("mem", "compv3")
    schedulers: ClassVar[tuple[str, ...]] = ("intrawave", "interwave")
    segments: ClassVar[tuple[Segment, ...]] = (Segment("aqg", ("quant_group_m", "quant_group_n", "quant_group_k")),)
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = (("preshuffle_aq", "preshuffleaq"),)

    pipeline: str = "mem"
    quant_group_m: int = 1
    quant_group_n: int = 1
    quant_group_k: int = 128
    preshuffle_aq: bool = False
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = True
    transpose_c: bool = False

    @property
    def scheme(self) -> Scheme:
        """Scales of A by groups of K; none of B."""
        a, b, scale = _A_TYPES[self.variant_key]
        return Scheme(a, b, Scale(scale, 1, self.quant_group_k), None)

    @property
    def effective_epilogue(self) -> str:
        """PermuteN wherever the tile allows it, B preshuffled or not."""
        return "permute_n" if permutes_n(self, self.quant_group_n) else "cshuffle"

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the pipelines cannot do."""
        found = group_refusals(self, ("quant_group_m", "quant_group_n"), "quant_group_k")
        found += wrong_choice("pipeline", self.pipeline, ("compv3" if self.preshuffle_aq else "mem",))
        if self.preshuffle_aq and self.scheduler == "interwave":
            found.append(wrong("scheduler", self.scheduler, "'intrawave' for compv3: CK's mem alone has interwave"))
        return found


class GroupedAQuant(Operation):
    """``C[m, n] = sum over groups g of AQ[m, g] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "grouped_aquant"
    symbol = "dispatcher_run_aquant_gemm"
    parameters = (
        *("A", "B", "AQ", "C", "M", "N", "K", "stride_A", "stride_B", "stride_AQ", "stride_C"),
        *("QK_A", "QM_A", "k_batch"),
    )
    config_type = GroupedAQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[GroupedAQuantKernelConfig, ...]:
        """Return the decode kernel of each type."""
        depth = default_depth(gfx_arch)
        kinds = [GroupedAQuantKernelConfig(variant_key=key, warp_tile_k=depth) for key in _A_TYPES]
        return tuple(kind.pinned(gfx_arch) for kind in kinds)


@dataclass(frozen=True, kw_only=True)
class GroupedBQuantKernelConfig(BQuantKernelConfig):
    """As :class:`BQuantKernelConfig`, with BQ row-major ``[groups of K, groups of N]``."""

    operation: ClassVar[str] = "grouped_bquant"
    prefix: ClassVar[str] = "grouped_gemm_bquant"
    bq_is_row_major: ClassVar[bool] = True

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return bquant's, and that CK's grouped bridge cannot preshuffle B."""
        found = super().rules(arch)
        if self.preshuffle_b:
            needed = "False: CK's grouped bridge has no shuffle for B and answers -3"
            found.append(wrong("preshuffle_b", True, needed))
        return found


class GroupedBQuant(BQuant):
    """``C[m, n] = sum over groups g of BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "grouped_bquant"
    symbol = "dispatcher_run_grouped_bquant_gemm"
    config_type = GroupedBQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[BQuantKernelConfig, ...]:
        """Return bquant's that are not preshuffled."""
        return tuple(config for config in super().default_configs(gfx_arch) if not config.preshuffle_b)


@dataclass(frozen=True, kw_only=True)
class GroupedABQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = sum over g of AQ[m, g] * BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``, in fp16.

    AQ is row-major, BQ column-major.

    Attributes:
        variant_key: ``fp8`` or ``bf8``.
        aquant_group_m: rows of A that share a scale: 1.
        aquant_group_n: 1.
        aquant_group_k: elements of K that share a scale of A.
        bquant_group_m: 1.
        bquant_group_n: columns of B that share a scale.
        bquant_group_k: elements of K that share a scale of B: as many as of A.
        preshuffle_b: refused: CK's grouped bridge has no shuffle for B.
        preshuffle_aq: CK's kernel reads AQ in an order of its own, which the library makes.
        preshuffle_bq: the same of BQ.
        transpose_c: CK's accumulators are transposed.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
    """

    operation: ClassVar[str] = "grouped_abquant"
    prefix: ClassVar[str] = "grouped_gemm_abquant"
    pipelines: ClassVar[tuple[str, ...]] = ("compv3", "eightwaves", "preshuffleb")
    segments: ClassVar[tuple[Segment, ...]] = (
        Segment("aqg", ("aquant_group_m", "aquant_group_n", "aquant_group_k")),
        Segment("bqg", ("bquant_group_m", "bquant_group_n", "bquant_group_k")),
    )
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = (
        ("preshuffle_b", "preshuffleb"),
        ("preshuffle_aq", "preshuffleaq"),
        ("preshuffle_bq", "preshufflebq"),
        ("transpose_c", "transposec"),
    )

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 128
    aquant_group_m: int = 1
    aquant_group_n: int = 1
    aquant_group_k: int = 128
    bquant_group_m: int = 1
    bquant_group_n: int = 1
    bquant_group_k: int = 128
    preshuffle_b: bool = False
    preshuffle_aq: bool = False
    preshuffle_bq: bool = False
    transpose_c: bool = False
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = False

    @property
    def scheme(self) -> Scheme:
        """Scales of both operands by groups of K."""
        a_scale, b_scale = (
            Scale("fp32", 1, self.aquant_group_k),
            Scale("fp32", self.bquant_group_n, self.bquant_group_k),
        )
        return Scheme(self.variant_key, self.variant_key, a_scale, b_scale)

    @property
    def effective_epilogue(self) -> str:
        """PermuteN wherever compv3's tile allows it."""
        permuted = self.pipeline == "compv3" and permutes_n(self, self.bquant_group_n)
        return "permute_n" if permuted else "cshuffle"

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the groups and the pipelines exclude of one another."""
        ones = ("aquant_group_m", "aquant_group_n", "bquant_group_m")
        found = group_refusals(self, ones, "bquant_group_k")
        if self.aquant_group_k != self.bquant_group_k:
            needed = f"bquant_group_k = {self.bquant_group_k}: CK's kernels step through both at once"
            found.append(wrong("aquant_group_k", self.aquant_group_k, needed))
        if self.pipeline == "preshuffleb" or self.preshuffle_b:
            needed = "False: CK's grouped bridge has no shuffle for B, and C would be wrong without a word"
            found.append(wrong("preshuffle_b", self.preshuffle_b, needed, f"{self.preshuffle_b} with {self.pipeline}"))
        if self.pipeline == "eightwaves" and (self.waves != 8 or arch not in (None, "gfx950")):
            got = f"eightwaves with {self.waves} waves on {arch or 'any architecture'}"
            found.append(wrong("pipeline", self.pipeline, "8 waves on gfx950 for it", got))
        return found


class GroupedABQuant(Operation):
    """``C[m, n] = sum over g of AQ[m, g] * BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "grouped_abquant"
    symbol = "dispatcher_run_abquant_gemm"
    parameters = (
        *("A", "B", "AQ", "BQ", "C", "M", "N", "K", "stride_A", "stride_B", "stride_AQ", "stride_BQ", "stride_C"),
        *("QK_A", "QM_A", "QK_B", "QN_B", "k_batch"),
    )
    config_type = GroupedABQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[GroupedABQuantKernelConfig, ...]:
        """Return the prefill kernel of each type, on gfx950 that of eight waves too."""
        depth = default_depth(gfx_arch)
        kinds: list[dict[str, Any]] = [
            {"variant_key": key, "warp_tile_k": depth, "bquant_group_n": 128} for key in ("fp8", "bf8")
        ]
        if bare_arch(gfx_arch) == "gfx950":
            eight = {"tile_m": 192, "tile_n": 256, "warp_m": 4, "warp_n": 2, "pipeline": "eightwaves"}
            kinds.append({**eight, "bquant_group_n": 128, "transpose_c": True})
        return tuple(GroupedABQuantKernelConfig(**kind).pinned(gfx_arch) for kind in kinds)
