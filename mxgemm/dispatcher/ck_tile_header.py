"""The C++ header that tells ``ck_tile_csrc`` which kernel is meant: a configuration, in CK tile's names."""

from __future__ import annotations

from typing import Any, Final

from mxgemm.dispatcher.c_interface import interface, scale_macros
from mxgemm.dispatcher.config import KernelConfig, wrong
from mxgemm.dispatcher.operations import operation_of
from mxgemm.dispatcher.schemes import Scheme
from mxgemm.errors import Refusal

TYPES: Final = {
    **{"fp8": "ck_tile::fp8_t", "bf8": "ck_tile::bf8_t", "fp4": "ck_tile::pk_fp4_t", "int4": "ck_tile::pk_int4_t"},
    **{"bf16": "ck_tile::bf16_t", "fp16": "ck_tile::half_t", "fp32": "float", "e8m0": "ck_tile::e8m0_t"},
}
SOURCES: Final = {
    **{"grouped_aquant": "aquant", "grouped_bquant": "bquant", "grouped_abquant": "abquant"},
    **{"grouped_rowcolquant": "grouped_sum", "grouped_tensorquant": "grouped_sum"},
}
"""The source of an operation's kernels, where it is not the operation's own."""
_QUANTISATIONS: Final = {
    **{"aquant": "AQuantGrouped", "grouped_aquant": "AQuantGrouped"},
    **{"bquant": "BQuantGrouped", "grouped_bquant": "BQuantGrouped"},
    **{"abquant": "ABQuantGrouped", "grouped_abquant": "ABQuantGrouped"},
    **{"grouped_rowcolquant": "RowColQuant", "grouped_tensorquant": "TensorQuant"},
}
_V3: Final = "BaseGemmPipelineAgBgCrCompV3"
_MEM: Final = "BaseGemmPipelineAgBgCrMem"
_WEIGHTS: Final = "BaseWeightPreshufflePipelineAGmemBGmemCRegV2"
_PIPELINES: Final = {
    ("AQuantGrouped", "mem"): (_MEM, "AQuantGemmPipelineAgBgCrMem"),
    ("AQuantGrouped", "compv3"): (_V3, "AQuantGemmPipelineAgBgCrCompV3"),
    ("BQuantGrouped", "compv3"): (_V3, "BQuantGemmPipelineAgBgCrCompV3"),
    ("BQuantGrouped", "preshuffleb"): (_WEIGHTS, "WPQuantBPipelineAgBgCrV2"),
    ("BQuantGrouped", "microscale"): (_WEIGHTS, "MicroscaleGemmPipelineAgBgCrCompV3"),
    ("ABQuantGrouped", "compv3"): (_MEM, "ABQuantGemmPipelineAgBgCrCompV3"),
    ("ABQuantGrouped", "preshuffleb"): (_WEIGHTS, "WPABQuantBPipelineAgBgCrV2"),
    ("ABQuantGrouped", "eightwaves"): (_V3, "ABQuantGemmPipelineAgBgCrEightWaves"),
}
"""CK's base pipeline, which counts iterations, and its pipeline."""
_EPILOGUES: Final = {"cshuffle": "C", "permute_n": "P", "default": "D"}
_TILE: Final = ("tile", "warp", "warp_tile")
_TRAITS: Final = ("pad_m", "pad_n", "pad_k", "persistent", "double_smem_buffer")


def ck_tile_refusals(config: KernelConfig) -> tuple[Refusal, ...]:
    """Return why there is no CK kernel of a configuration, though there may be a native one; empty if there is one."""
    found: list[Refusal] = []
    if config.several:
        found.append(wrong("several", True, "False (ck_tile): several problems in one launch are mxgemm's own"))
    if config.a_is_column_major and config.scheme.a == "int4":
        needed = "'rcr' or 'rrr' for int4 A (ck_tile): CK's own reference takes nibbles by K, its memory pairs rows"
        found.append(wrong("layout", config.layout, needed))
    if config.effective_epilogue == "permute_n" and not getattr(config, "preshuffle_b", False):
        needed = (
            "a tile of an odd number of instructions along N for a wave (ck_tile): CK's epilogue undoes an order of B"
        )
        found.append(wrong("tile_n", config.tile_n, f"{needed} that its grouped bridge does not make"))
    return tuple(found)


def header(config: KernelConfig) -> str:
    """Return the header's text. The same text for the same kernel."""
    sizes = [f"{part}_{axis}" for part in _TILE for axis in "mnk"]
    traits = [name for name in _TRAITS if hasattr(config, name)]
    by_scheme = config.operation in _QUANTISATIONS
    types = _types(config.scheme) if by_scheme else [f"    using Data = {TYPES[config.scheme.a]};"]
    lines = [
        f"// {config.name}: written by mxgemm.dispatcher, force-included before the operation's source.",
        "#pragma once",
        '#include "ck_tile/core.hpp"',
        *(_includes(config) if by_scheme else []),
        "",
        "struct Config",
        "{",
        *types,
        f'    static constexpr const char* name = "{config.name}";',
        *(f"    static constexpr int {name} = {getattr(config, name)};" for name in sizes),
        f"    static constexpr int blocks_per_cu = {config.k_block_per_cu};",
        *(f"    static constexpr bool {name} = {str(getattr(config, name)).lower()};" for name in traits),
        *(_quantisation(config) if by_scheme else []),
        "};",
        "",
    ]
    return "\n".join(lines)


def _types(scheme: Scheme) -> list[str]:
    scale = scheme.a_scale or scheme.b_scale
    pairs = (("A", scheme.a), ("B", scheme.b), ("C", scheme.c), ("Scale", scale.dtype if scale else "fp32"))
    return [f"    using {name} = {TYPES[dtype]};" for name, dtype in pairs]


def _includes(config: KernelConfig) -> list[str]:
    names = ("epilogue", "gemm", "gemm_quant")
    return [
        *(f'#include "ck_tile/ops/{name}.hpp"' for name in names),
        "#include <cstdint>",
        *scale_macros(config),
        *interface(config, operation_of(config)),
    ]


def _quantisation(config: KernelConfig) -> list[str]:
    kind = _QUANTISATIONS[config.operation]
    lines = [
        f"    static constexpr auto quantisation = ck_tile::QuantType::{kind};",
        f"    static constexpr auto scheduler = ck_tile::GemmPipelineScheduler::{config.scheduler.capitalize()};",
    ]
    if (kind, config.pipeline) not in _PIPELINES:
        return lines
    base, pipeline = _PIPELINES[kind, config.pipeline]
    if config.operation == "grouped_abquant" and base == _MEM:
        base = _V3
    chosen = _EPILOGUES[config.effective_epilogue]
    wide = config.operation == "abquant"
    partitioner = "GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>" if wide else "GemmTile1DPartitioner<Shape>"
    return [
        *lines,
        f"    template <typename Problem> using BasePipeline = ck_tile::{base}<Problem>;",
        f"    template <typename Problem> using Pipeline = ck_tile::{pipeline}<Problem>;",
        f"    template <typename Shape> using Partitioner = ck_tile::{partitioner};",
        f"    template <typename C, typename P, typename D> using Epilogue = {chosen};",
        *(f"    static constexpr bool {name} = {str(value).lower()};" for name, value in _flags(config).items()),
    ]


def _flags(config: KernelConfig) -> dict[str, bool]:
    def on(*names: str) -> bool:
        return any(getattr(config, name, False) is True for name in names)

    scheme = config.scheme
    orders: dict[str, Any] = {
        "a_column_major": config.a_is_column_major,
        "b_row_major": config.b_is_row_major,
        "aq_column_major": scheme.a_scale is not None and scheme.a_scale.k_slowest,
        "bq_row_major": scheme.b_scale is not None and scheme.b_scale.k_slowest,
    }
    return orders | {
        "preshuffle_b": on("preshuffle_b"),
        "preshuffle_aq": on("preshuffle_aquant", "preshuffle_aq"),
        "preshuffle_bq": on("preshuffle_bquant", "preshuffle_bq"),
        "permute_n": config.effective_epilogue == "permute_n",
        "transpose_c": on("transpose_c"),
        "eight_waves": config.pipeline == "eightwaves",
    }
