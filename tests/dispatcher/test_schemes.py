"""The schemes with scales by groups: names, C signatures, memory, formulas and refusals, written out here once more."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from mxgemm.dispatcher import (
    OPERATIONS,
    ABQuantKernelConfig,
    AQuantKernelConfig,
    BQuantKernelConfig,
    GroupedABQuantKernelConfig,
    GroupedAQuantKernelConfig,
    GroupedBQuantKernelConfig,
    GroupedRowColQuantKernelConfig,
    GroupedTensorQuantKernelConfig,
    KernelConfig,
    Problem,
    config_named,
    make_inputs,
    reference,
)
from mxgemm.dispatcher.c_interface import interface
from mxgemm.dispatcher.codecs import decode, decode_e8m0, decode_result
from tests.dispatcher.scheme_cases import SCHEMES, drawn

EIGHT: dict[str, Any] = {"tile_m": 192, "tile_n": 256, "tile_k": 128, "warp_m": 4, "warp_n": 2}
PREFILL: dict[str, Any] = {"tile_m": 128, "tile_n": 128, "tile_k": 128}
SHUFFLED: dict[str, Any] = {**PREFILL, "pipeline": "preshuffleb", "preshuffle_b": True}
MX: dict[str, Any] = {**PREFILL, "pipeline": "microscale", "warp_tile_k": 32, "quant_group_k": 32}


@pytest.mark.parametrize(
    "config, name",
    [
        (AQuantKernelConfig(), "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128"),
        (
            AQuantKernelConfig(variant_key="bf8i4", layout="rrr", epilogue="default", scheduler="intrawave"),
            "gemm_aquant_bf8i4_rrr_mem_default_intrawave_16x64x256_1x4x1_16x16x128_qg1x1x128",
        ),
        (
            AQuantKernelConfig(pipeline="compv3", scheduler="intrawave", preshuffle_aquant=True),
            "gemm_aquant_fp8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x128_qg1x1x128_preshufflequant",
        ),
        (
            AQuantKernelConfig(pipeline="compv3", scheduler="intrawave", tile_n=128),  # two instructions a wave
            "gemm_aquant_fp8_rcr_compv3_cshuffle_intrawave_16x128x256_1x4x1_16x16x128_qg1x1x128",
        ),
        (
            ABQuantKernelConfig(),
            "gemm_abquant_fp8_rcr_compv3_cshuffle_intrawave_128x128x128_1x4x1_16x16x128_aqg1x1x128_bqg1x1x128",
        ),
        (
            ABQuantKernelConfig(**EIGHT, pipeline="eightwaves", eight_waves=True, bquant_group_n=128),
            "gemm_abquant_fp8_rcr_eightwaves_cshuffle_intrawave_192x256x128_4x2x1_16x16x128_aqg1x1x128_bqg1x128x128"
            "_eightwaves",
        ),
        (
            ABQuantKernelConfig(
                **EIGHT,
                pipeline="eightwaves",
                eight_waves=True,
                bquant_group_n=128,
                preshuffle_b=True,
                preshuffle_bquant=True,
            ),
            "gemm_abquant_fp8_rcr_eightwaves_cshuffle_intrawave_192x256x128_4x2x1_16x16x128_aqg1x1x128_bqg1x128x128"
            "_preshuffleb_preshufflebq_eightwaves",
        ),
        (
            ABQuantKernelConfig(**SHUFFLED, preshuffle_bquant=True),  # an even repeat, and still CShuffle: CK's defect
            "gemm_abquant_fp8_rcr_preshuffleb_cshuffle_intrawave_128x128x128_1x4x1_16x16x128_aqg1x1x128_bqg1x1x128"
            "_preshuffleb_preshufflebq",
        ),
        (BQuantKernelConfig(), "gemm_bquant_fp8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x128_qg1x1x128"),
        (
            BQuantKernelConfig(**SHUFFLED),
            "gemm_bquant_fp8_rcr_preshuffleb_permute_n_intrawave_128x128x128_1x4x1_16x16x128_qg1x1x128_preshuffleb",
        ),
        (
            BQuantKernelConfig(**SHUFFLED, preshuffle_bquant=True, quant_group_n=64),  # gN beyond 1: not permuted
            "gemm_bquant_fp8_rcr_preshuffleb_cshuffle_intrawave_128x128x128_1x4x1_16x16x128_qg1x64x128"
            "_preshuffleb_preshufflebq",
        ),
        (
            BQuantKernelConfig(**(SHUFFLED | {"tile_n": 64})),  # one instruction a wave: odd
            "gemm_bquant_fp8_rcr_preshuffleb_cshuffle_intrawave_128x64x128_1x4x1_16x16x128_qg1x1x128_preshuffleb",
        ),
        (
            BQuantKernelConfig(**MX, variant_key="mx_bf16fp4"),
            "gemm_bquant_mx_bf16fp4_rcr_microscale_cshuffle_intrawave_128x128x128_1x4x1_16x16x32_qg1x1x32",
        ),
        (
            GroupedRowColQuantKernelConfig(),
            "grouped_gemm_rowcolquant_fp8_rcr_compv3_cshuffle_intrawave_True_False_True_False_128x128x64_2x2x1_32x32x16",
        ),
        (
            GroupedTensorQuantKernelConfig(variant_key="bf8", persistent=True),
            "grouped_gemm_tensorquant_bf8_rcr_compv3_cshuffle_intrawave_True_False_True_True_128x128x64_2x2x1_32x32x16",
        ),
        (
            GroupedAQuantKernelConfig(variant_key="fp8i4", pipeline="compv3", preshuffle_aq=True),
            "grouped_gemm_aquant_fp8i4_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x128_aqg1x1x128_preshuffleaq",
        ),
        (
            GroupedAQuantKernelConfig(tile_n=128),  # whether or not B is preshuffled
            "grouped_gemm_aquant_fp8_rcr_mem_permute_n_intrawave_16x128x256_1x4x1_16x16x128_aqg1x1x128",
        ),
        (
            GroupedBQuantKernelConfig(),
            "grouped_gemm_bquant_fp8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x128_qg1x1x128",
        ),
        (
            GroupedABQuantKernelConfig(preshuffle_aq=True, preshuffle_bq=True, transpose_c=True),
            "grouped_gemm_abquant_fp8_rcr_compv3_permute_n_intrawave_128x128x128_1x4x1_16x16x128"
            "_aqg1x1x128_bqg1x1x128_preshuffleaq_preshufflebq_transposec",
        ),
    ],
)
def test_names_are_cks_to_the_byte(config: KernelConfig, name: str) -> None:
    assert config.name == name
    assert config.refusals("gfx950") == ()
    assert config_named(name, "gfx950") == config.pinned("gfx950")


SIGNATURES = {
    "aquant": "A AQ B C M N K stride_A stride_AQ stride_B stride_C QK_A k_batch",
    "abquant": "A B AQ BQ C M N K stride_A stride_B stride_AQ stride_BQ stride_C QK_A QK_B QN_B k_batch",
    "bquant": "A B BQ C M N K stride_A stride_B stride_BQ stride_C QK_B QN_B k_batch",
    "grouped_rowcolquant": "A B AQ BQ C M N K stride_A stride_B stride_AQ stride_BQ stride_C QK_A QK_B k_batch",
    "grouped_tensorquant": "A B AQ BQ C M N K stride_A stride_B stride_AQ stride_BQ stride_C QK_A QK_B k_batch",
    "grouped_aquant": "A B AQ C M N K stride_A stride_B stride_AQ stride_C QK_A QM_A k_batch",
    "grouped_abquant": "A B AQ BQ C M N K stride_A stride_B stride_AQ stride_BQ stride_C QK_A QM_A QK_B QN_B k_batch",
    "grouped_bquant": "A B BQ C M N K stride_A stride_B stride_BQ stride_C QK_B QN_B k_batch",
}
SYMBOLS = {
    "aquant": "dispatcher_run_aquant_gemm",
    "abquant": "dispatcher_run_abquant_gemm",
    "bquant": "dispatcher_run_bquant_gemm",
    "grouped_rowcolquant": "dispatcher_run_rowcolquant_gemm",
    "grouped_tensorquant": "dispatcher_run_tensorquant_gemm",
    "grouped_aquant": "dispatcher_run_aquant_gemm",
    "grouped_abquant": "dispatcher_run_abquant_gemm",
    "grouped_bquant": "dispatcher_run_grouped_bquant_gemm",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_c_functions_are_cks(name: str) -> None:
    operation = OPERATIONS[name]
    config = operation.default_configs("gfx950")[0]
    parameters = re.search(r"#define PARAMETERS (.*)", "\n".join(interface(config, operation)))
    assert parameters
    declared = [part.split() for part in parameters[1].split(", ")]
    assert [words[-1].lstrip("*") for words in declared] == SIGNATURES[name].split()
    for words in declared:
        pointer = words[-1].startswith("*")
        want = ["void"] if words[-1] == "*C" else ["const", "void"] if pointer else None
        assert words[:-1] == (want or ["int" if words[-1] == "k_batch" else "int64_t"])
    assert operation.symbol == SYMBOLS[name]


@pytest.mark.parametrize(
    "config, stated",
    [
        (AQuantKernelConfig(), {"stride_A": 300, "stride_B": 300, "stride_C": 70, "stride_AQ": 3, "QK_A": 3}),
        (AQuantKernelConfig(layout="crr"), {"stride_A": 10, "stride_B": 70, "stride_AQ": 3}),
        (AQuantKernelConfig(layout="ccr"), {"stride_A": 10, "stride_B": 300, "stride_AQ": 3}),  # AQ row-major there too
        (
            ABQuantKernelConfig(bquant_group_n=64),
            {"stride_AQ": 3, "stride_BQ": 3, "QK_A": 3, "QK_B": 3, "QN_B": 2, "QM_A": 10},
        ),
        (ABQuantKernelConfig(**EIGHT, bquant_group_n=128), {"stride_AQ": 10, "stride_BQ": 3, "QN_B": 1}),
        (BQuantKernelConfig(), {"stride_BQ": 3, "QK_B": 3, "QN_B": 70}),
        (GroupedBQuantKernelConfig(), {"stride_BQ": 70, "QK_B": 3, "QN_B": 70}),
        (GroupedRowColQuantKernelConfig(), {"stride_AQ": 1, "stride_BQ": 1, "QK_A": 10, "QK_B": 70}),
        (GroupedTensorQuantKernelConfig(), {"stride_AQ": 1, "stride_BQ": 1, "QK_A": 1, "QK_B": 1}),
    ],
)
def test_strides_and_counts(config: KernelConfig, stated: dict[str, int]) -> None:
    """Of M = 10, N = 70, K = 300, groups of 128."""
    extents = config.extents()
    assert {name: extents[name].of(10, 70, 300) for name in stated} == stated


@pytest.mark.parametrize("name", SCHEMES)
def test_the_reference_is_the_formula(name: str) -> None:
    case = drawn(SCHEMES[name], "gfx950", 6, 20, 288, seed=5)
    assert case.judge(reference(case.config, case.inputs)).passed


def test_mx_scales_multiply_b() -> None:
    """``sum over k of A * (B * 2^(BQ[k / 32, n] - 127))``, written as such."""
    config = BQuantKernelConfig(**MX, variant_key="mx_bf16fp4").pinned("gfx950")
    inputs = make_inputs(config, Problem(3, 5, 96), seed=2)
    assert inputs.a.dtype == np.uint16
    assert inputs.b_scales is not None
    assert inputs.b_scales.shape == (5, 3)
    assert len(np.unique(inputs.b_scales)) > 2
    a, b = decode(inputs.a, "bf16", "gfx950"), decode(inputs.b, "fp4", "gfx950")
    b = b * decode_e8m0(inputs.b_scales).repeat(32, axis=1)
    out = decode_result(reference(config, inputs), "bf16")
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=2**-8)


@pytest.mark.parametrize(
    "config, reason",
    [
        (AQuantKernelConfig(quant_group_m=2), "quant_group_m: got 2, want 1"),
        (AQuantKernelConfig(quant_group_k=96), "tile_k: got 256, want a multiple of quant_group_k = 96"),
        (AQuantKernelConfig(preshuffle_aquant=True), "pipeline: got 'mem', want 'compv3' for preshuffle_aquant"),
        (
            AQuantKernelConfig(pipeline="compv3", scheduler="intrawave", preshuffle_aquant=True, layout="ccr"),
            "layout: got 'ccr', want 'rcr', 'rrr' or 'crr' for preshuffle_aquant",
        ),
        (AQuantKernelConfig(pipeline="compv3"), "scheduler: got 'interwave', want 'intrawave' for compv3"),
        (AQuantKernelConfig(layout="rcc"), "layout: got 'rcc', want 'rcr' or 'rrr' or 'crr' or 'ccr'"),
        (
            AQuantKernelConfig(
                tile_m=192, tile_n=128, warp_m=2, warp_n=2, warp_tile_m=32, warp_tile_n=32, warp_tile_k=32
            ),
            "CK's kernels of this cluster give wrong results",
        ),
        (AQuantKernelConfig(preshuffle_aquant=1), "preshuffle_aquant: got 1, want True or False"),  # type: ignore[arg-type]
        (AQuantKernelConfig(several="no"), "several: got 'no', want True or False"),  # type: ignore[arg-type]
        (ABQuantKernelConfig(aquant_group_k=64), "aquant_group_k: got 64, want bquant_group_k = 128"),
        (ABQuantKernelConfig(bquant_group_n=32), "bquant_group_n: got 32, want 1 or 128 for fp8"),
        (ABQuantKernelConfig(variant_key="fp4", warp_tile_k=32), "bquant_group_n: got 1, want 128 for fp4"),
        (
            ABQuantKernelConfig(**SHUFFLED, variant_key="fp4", bquant_group_n=128, warp_tile_k=32),
            "preshuffle_b: got True, want False for fp4",
        ),
        (
            ABQuantKernelConfig(**SHUFFLED),
            "preshuffle_b: got True with bquant_group_n = 1 and BQ as it is, want another: CK's own example",
        ),
        (ABQuantKernelConfig(preshuffle_b=True, preshuffle_bquant=True), "pipeline: got 'compv3', want 'preshuffleb'"),
        (ABQuantKernelConfig(eight_waves=True, pipeline="eightwaves"), "warp_m * warp_n * warp_k: got 4, want 8"),
        (BQuantKernelConfig(variant_key="mx_bf16bf8"), "pipeline: got 'compv3', want 'microscale'"),
        (BQuantKernelConfig(**MX, variant_key="mx_bf16fp4", preshuffle_bquant=True), "want neither for MX types"),
        (
            BQuantKernelConfig(**(MX | {"warp_tile_k": 128}), variant_key="mx_bf16bf16"),
            "warp_tile_k: got 128, want 32 or 16 or 64 for 16x16 mx_bf16bf16 on gfx950",
        ),
        (GroupedBQuantKernelConfig(**SHUFFLED), "preshuffle_b: got True, want False: CK's grouped bridge"),
        (GroupedABQuantKernelConfig(pipeline="preshuffleb"), "has no shuffle for B"),
    ],
)
def test_what_is_refused(config: KernelConfig, reason: str) -> None:
    assert any(reason in str(refusal) for refusal in config.refusals("gfx950")), config.refusals("gfx950")


def test_what_gfx950_alone_has() -> None:
    eight = ABQuantKernelConfig(**EIGHT, pipeline="eightwaves", eight_waves=True, bquant_group_n=128, warp_tile_k=32)
    assert any("fp8 or bf8 on gfx950" in str(why) for why in eight.refusals("gfx942"))
    microscale = BQuantKernelConfig(**MX, variant_key="mx_bf16fp4")
    assert any("'gfx950' for MX types" in str(why) for why in microscale.refusals("gfx942"))
    assert not microscale.refusals("gfx950")


def test_defaults_are_legal_and_of_their_architecture() -> None:
    for operation in OPERATIONS.values():
        if operation.name == "mx_gemm":
            continue
        for arch in ("gfx950", "gfx942"):
            configs = operation.default_configs(arch)
            assert all(config.refusals() == () and config.arch == arch for config in configs)
    shuffled = [c for c in OPERATIONS["aquant"].default_configs("gfx942") if getattr(c, "preshuffle_aquant", False)]
    assert [config.warp_tile_k for config in shuffled] == [64]


def test_operands_of_a_wrong_kind_are_named() -> None:
    config = AQuantKernelConfig(variant_key="fp8i4", layout="crr").pinned("gfx950")
    with pytest.raises(ValueError, match="m: got 3, want an even number: two elements share a byte"):
        make_inputs(config, Problem(3, 4, 32))
    inputs = make_inputs(config, Problem(4, 6, 32))
    assert inputs.a.shape == (32, 2)
    assert inputs.b.shape == (32, 6)
    assert inputs.b_scales is None
    with pytest.raises(ValueError, match=r"inputs\.b_scales: got ndarray, want None"):
        reference(config, dataclasses.replace(inputs, b_scales=np.ones(3, np.float32)))
