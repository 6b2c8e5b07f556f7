"""``abquant``: fp8, bf8 or fp4 operands, a scale of A per row and group of K, of B per group of columns and of K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.config import Segment, wrong, wrong_choice
from mxgemm.dispatcher.operation import Operation
from mxgemm.dispatcher.quant import QuantKernelConfig, default_depth, group_refusals
from mxgemm.dispatcher.schemes import Scale, Scheme
from mxgemm.errors import Refusal

EIGHT_WAVES = {"tile_m": 192, "tile_n": 256, "tile_k": 128, "warp_m": 4, "warp_n": 2, "eight_waves": True}
"""CK's tile for gfx950 where eight waves share it."""


@dataclass(frozen=True, kw_only=True)
class ABQuantKernelConfig(QuantKernelConfig):
    """A kernel of ``C[m, n] = sum over g of AQ[m, g] * BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``, in fp16.

    AQ is row-major ``[M, groups of K]``, column-major where eight waves share a tile and gN is 128; BQ is column-major
    ``[groups of K, groups of N]``.

    Attributes:
        variant_key: ``fp8``, ``bf8``, ``fp4`` (e2m1, packed; gN is 128, B not preshuffled).
        aquant_group_k: elements of K that share a scale of A.
        bquant_group_n: columns of B that share a scale: 1 or 128.
        bquant_group_k: elements of K that share a scale of B: as many as of A.
        preshuffle_b: CK's kernel reads B in an order of its own. The library makes it; callers give B as always.
        preshuffle_bquant: the same of BQ.
        eight_waves: CK's pipeline of eight waves, for gfx950.
        pad_m: CK pads M to the tile.
        pad_n: CK pads N to the tile.
        pad_k: CK pads K to the tile.
        transpose_c: CK's accumulators are transposed; not part of the name.
    """

    operation: ClassVar[str] = "abquant"
    prefix: ClassVar[str] = "gemm_abquant"
    variants: ClassVar[tuple[str, ...]] = ("fp8", "bf8", "fp4")
    pipelines: ClassVar[tuple[str, ...]] = ("compv3", "preshuffleb", "eightwaves")
    segments: ClassVar[tuple[Segment, ...]] = (
        Segment("aqg", (1, 1, "aquant_group_k")),
        Segment("bqg", (1, "bquant_group_n", "bquant_group_k")),
    )
    tail_flags: ClassVar[tuple[tuple[str, str], ...]] = (
        ("preshuffle_b", "preshuffleb"),
        ("preshuffle_bquant", "preshufflebq"),
        ("eight_waves", "eightwaves"),
    )

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 128
    aquant_group_k: int = 128
    bquant_group_n: int = 1
    bquant_group_k: int = 128
    preshuffle_b: bool = False
    preshuffle_bquant: bool = False
    eight_waves: bool = False
    pad_m: bool = False
    pad_n: bool = False
    pad_k: bool = False
    transpose_c: bool = False

    @property
    def aq_is_column_major(self) -> bool:
        """Whether memory holds AQ as ``[groups of K, M]``."""
        return self.bquant_group_n == 128 and self.waves == 8

    @property
    def scheme(self) -> Scheme:
        """Scales of both operands by groups of K."""
        a_scale = Scale("fp32", 1, self.aquant_group_k, self.aq_is_column_major)
        return Scheme(
            self.variant_key, self.variant_key, a_scale, Scale("fp32", self.bquant_group_n, self.bquant_group_k)
        )

    @property
    def effective_epilogue(self) -> str:
        """CK's generator never gets to another (a defect that CK's own test pins)."""
        return "cshuffle"

    def rules(self, arch: str | None) -> list[Refusal]:
        """Return what the types, the groups and the pipelines exclude of one another."""
        found = group_refusals(self, (), "bquant_group_k")
        if self.aquant_group_k != self.bquant_group_k:
            needed = f"bquant_group_k = {self.bquant_group_k}: CK's kernels step through both at once"
            found.append(wrong("aquant_group_k", self.aquant_group_k, needed))
        widths = (128,) if self.variant_key == "fp4" else (1, 128)
        if self.bquant_group_n not in widths:
            needed = f"{' or '.join(map(str, widths))} for {self.variant_key}"
            found.append(wrong("bquant_group_n", self.bquant_group_n, needed))
        flags = {"eightwaves": self.eight_waves, "preshuffleb": self.preshuffle_b}
        wanted = next((name for name, on in flags.items() if on), "compv3")
        found += wrong_choice("pipeline", self.pipeline, (wanted,))
        if self.eight_waves and self.waves != 8:
            found.append(wrong("warp_m * warp_n * warp_k", self.waves, "8 for eight_waves"))
        if self.eight_waves and (self.variant_key == "fp4" or arch not in (None, "gfx950")):
            got = f"{self.variant_key} on {arch or 'any architecture'}"
            found.append(wrong("eight_waves", True, "fp8 or bf8 on gfx950 for it", got))
        return found + self._known_wrong() + self._fp4_rules()

    def _known_wrong(self) -> list[Refusal]:
        if self.preshuffle_b and not self.preshuffle_bquant and self.bquant_group_n == 1 and self.variant_key != "fp4":
            got = "True with bquant_group_n = 1 and BQ as it is"
            needed = "another: CK's own example of these kernels fails on about 7 shapes in 10 on gfx950"
            return [wrong("preshuffle_b", True, needed, got)]
        return []

    def _fp4_rules(self) -> list[Refusal]:
        if self.variant_key != "fp4":
            return []
        found = []
        if self.preshuffle_b:
            found.append(wrong("preshuffle_b", True, "False for fp4: CK's host code would overrun B (its -3)"))
        if self.instruction != (16, 16, 32):
            needed = "(16, 16, 32) for fp4, which CK multiplies as fp8"
            found.append(wrong("warp_tile", self.instruction, needed, str(self.instruction)))
        return found


class ABQuant(Operation):
    """``C[m, n] = sum over g of AQ[m, g] * BQ[g, n / gN] * sum over k in g of A[m, k] * B[k, n]``."""

    name = "abquant"
    symbol = "dispatcher_run_abquant_gemm"
    parameters = (
        *("A", "B", "AQ", "BQ", "C", "M", "N", "K", "stride_A", "stride_B", "stride_AQ", "stride_BQ", "stride_C"),
        *("QK_A", "QK_B", "QN_B", "k_batch"),
    )
    config_type = ABQuantKernelConfig

    def default_configs(self, gfx_arch: str) -> tuple[ABQuantKernelConfig, ...]:
        """Return CK's prefill kernels of each type, on gfx950 those of eight waves, and ours for several problems."""
        depth = default_depth(gfx_arch)
        kinds: list[dict[str, Any]] = [
            *({"variant_key": key, "warp_tile_k": depth} for key in ("fp8", "bf8")),
            {"variant_key": "fp4", "bquant_group_n": 128, "warp_tile_k": 32},
        ]
        if bare_arch(gfx_arch) == "gfx950":
            eight: dict[str, Any] = {**EIGHT_WAVES, "pipeline": "eightwaves", "bquant_group_n": 128}
            kinds += [{**eight, "variant_key": key} for key in ("fp8", "bf8")]
            kinds.append({**eight, "preshuffle_b": True})
        else:
            kinds.append({"bquant_group_n": 128, "warp_tile_k": depth})
        preshuffled = {"pipeline": "preshuffleb", "preshuffle_b": True, "warp_m": 2, "warp_n": 2}
        kinds.append({**preshuffled, "preshuffle_bquant": True, "warp_tile_k": max(depth, 64)})
        kinds.append({"several": True, "warp_tile_k": depth})
        return tuple(ABQuantKernelConfig(**kind).pinned(gfx_arch) for kind in kinds)
