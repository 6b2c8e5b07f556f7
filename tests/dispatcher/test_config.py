import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mxgemm.dispatcher import (
    KernelConfig,
    MxGemmKernelConfig,
    Problem,
    RowColQuantKernelConfig,
    TensorQuantKernelConfig,
    arch,
    ck_tile,
    config_named,
)
from mxgemm.dispatcher.operations import OPERATIONS

MX = "mx_gemm_{}_rcr_comp_async_cshuffle_intrawave_False_False_False_128x128x128_2x2x1_16x16x128"
ROW = "gemm_rowcolquant_{}_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x{}"


@pytest.mark.parametrize(
    "config, name",
    [
        (MxGemmKernelConfig(), MX.format("fp8")),
        (MxGemmKernelConfig(datatype="fp4", gpu_target="gfx950", k_block_per_cu=2), MX.format("fp4")),
        (
            MxGemmKernelConfig(pad_m=True, pad_n=True, persistent=True, tile_m=64, tile_k=256, warp_m=4, warp_n=1),
            "mx_gemm_fp8_rcr_comp_async_cshuffle_intrawave_True_True_False_True_64x128x256_4x1x1_16x16x128",
        ),
        (RowColQuantKernelConfig(), ROW.format("fp8", 128)),
        (RowColQuantKernelConfig(variant_key="bf8", double_smem_buffer=True), ROW.format("bf8", 128)),
        (RowColQuantKernelConfig(warp_tile_k=32, gfx_arch="gfx942"), ROW.format("fp8", 32)),
        (
            TensorQuantKernelConfig(variant_key="bf8"),
            "gemm_tensor_quant_bf8_rcr_compv3_cshuffle_intrawave_16x64x256_1x4x1_16x16x128",
        ),
    ],
)
def test_names_are_cks_to_the_byte(config: KernelConfig, name: str) -> None:
    assert config.name == name
    assert config.refusals() == ()


@pytest.mark.parametrize(
    "config",
    [
        MxGemmKernelConfig(gpu_target="gfx950"),
        MxGemmKernelConfig(
            datatype="fp4", pad_n=True, persistent=True, tile_m=64, warp_m=4, warp_n=1, gpu_target="gfx950"
        ),
        RowColQuantKernelConfig(variant_key="bf8", warp_tile_k=32, gfx_arch="gfx942"),
        TensorQuantKernelConfig(tile_k=512, gfx_arch="gfx950"),
    ],
)
def test_a_name_leads_back_to_its_configuration(config: KernelConfig) -> None:
    assert config.arch is not None
    assert config_named(config.name, config.arch) == config


@pytest.mark.parametrize("name", ["", "mx_gemm", MX.format("fp8") + "_x", ROW.format("fp8", "128x1"), "gemm_" + MX])
def test_what_is_no_name_of_a_kernel_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="want the name of a kernel of mx_gemm"):
        config_named(name, "gfx950")


def test_configurations_are_values() -> None:
    assert MxGemmKernelConfig() == MxGemmKernelConfig()
    assert len({MxGemmKernelConfig(), MxGemmKernelConfig(), MxGemmKernelConfig(k_block_per_cu=2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        MxGemmKernelConfig().tile_m = 64  # type: ignore[misc]


@pytest.mark.parametrize(
    "config, reason",
    [
        (MxGemmKernelConfig(datatype="bf8"), "datatype: got 'bf8', want 'fp8' or 'fp4'"),
        (MxGemmKernelConfig(layout="rrr"), "layout: got 'rrr', want 'rcr'"),
        (MxGemmKernelConfig(pipeline="compv3"), "pipeline: got 'compv3', want 'comp_async'"),
        (MxGemmKernelConfig(epilogue="default"), "epilogue: got 'default', want 'cshuffle'"),
        (MxGemmKernelConfig(scheduler="interwave"), "scheduler: got 'interwave', want 'intrawave'"),
        (MxGemmKernelConfig(tile_m=100), "tile_m: got 100, want a multiple of warp_m * warp_tile_m = 32"),
        (MxGemmKernelConfig(tile_k=64), "tile_k: got 64, want a multiple of warp_k * warp_tile_k = 128"),
        (MxGemmKernelConfig(tile_n=0), "tile_n: got 0, want a positive int"),
        (MxGemmKernelConfig(k_block_per_cu=True), "k_block_per_cu: got True, want a positive int"),
        (MxGemmKernelConfig(warp_tile_m=32), "warp_tile: got (32, 16, 128), want (16, 16, 128)"),
        (MxGemmKernelConfig(gpu_target="gfx942"), "gpu_target: got 'gfx942', want 'gfx950'"),
        (RowColQuantKernelConfig(variant_key="fp4"), "variant_key: got 'fp4', want 'fp8' or 'bf8'"),
        (RowColQuantKernelConfig(pipeline="mem"), "pipeline: got 'mem', want 'compv3'"),
        (RowColQuantKernelConfig(gfx_arch="gfx90a"), "gfx_arch: got 'gfx90a', want 'gfx942' or 'gfx950'"),
        (
            RowColQuantKernelConfig(gfx_arch="gfx942"),
            "warp_tile_k: got 128, want 32 or 64 for 16x16 fp8 on gfx942, the instructions that CK has; "
            "CK compiles 16x16x128 there, and the kernel silently gives zeros",
        ),
        (
            RowColQuantKernelConfig(gfx_arch="gfx950:xnack-", warp_tile_k=16),
            "warp_tile_k: got 16, want 128 or 32 or 64 for 16x16 fp8 on gfx950, the instructions that CK has",
        ),
        (RowColQuantKernelConfig(gfx_arch="sm_90"), "gfx_arch: got 'sm_90', want 'gfx942' or 'gfx950'"),
        (MxGemmKernelConfig(gpu_target=950), "gpu_target: got 950, want 'gfx950'"),  # type: ignore[arg-type]
        (MxGemmKernelConfig(pad_m=1), "pad_m: got 1, want True or False"),  # type: ignore[arg-type]
        (MxGemmKernelConfig(persistent="no"), "persistent: got 'no', want True or False"),  # type: ignore[arg-type]
        (
            TensorQuantKernelConfig(double_smem_buffer=np.True_),  # type: ignore[arg-type]
            "double_smem_buffer: got bool, want True or False",
        ),
        (MxGemmKernelConfig(tile_n=128.0), "tile_n: got 128.0, want a positive int"),  # type: ignore[arg-type]
        (MxGemmKernelConfig(warp_m=np.array([2, 2])), "warp_m: got ndarray, want a positive int"),  # type: ignore[arg-type]
        (MxGemmKernelConfig(tile_m=10**5000), "tile_m: got an int of 16610 bits"),
        (MxGemmKernelConfig(layout=["rcr"]), "layout: got list, want 'rcr'"),  # type: ignore[arg-type]
        (
            RowColQuantKernelConfig(gfx_arch="gfx950", tile_n=32, warp_tile_n=8),
            "got (16, 8), want (16, 16) or (32, 32)",
        ),
    ],
)
def test_a_refusal_names_field_value_and_need(config: KernelConfig, reason: str) -> None:
    assert not config.is_valid()
    assert any(reason in str(refusal) for refusal in config.refusals()), config.refusals()
    with pytest.raises(ValueError, match=f"^{re.escape(config.name)}: "):
        config.check()


def test_every_refusal_is_named_at_once() -> None:
    assert len(MxGemmKernelConfig(datatype="int4", layout="ccr", tile_n=24).refusals("gfx942")) == 4


@pytest.mark.parametrize("tiles", [{"tile_m": 192, "tile_n": 128}, {"tile_m": 128, "tile_n": 192}])
def test_the_cluster_known_to_be_wrong_is_refused(tiles: dict[str, int]) -> None:
    steps = {"warp_m": 2, "warp_n": 2, "warp_tile_m": 32, "warp_tile_n": 32, "warp_tile_k": 32}
    cluster = RowColQuantKernelConfig(**tiles, **steps, gfx_arch="gfx942")  # type: ignore[arg-type]
    assert [refusal for refusal in cluster.refusals() if "wrong results" in refusal.needed]
    for other in ({"warp_m": 1}, {"warp_tile_k": 16}, {"tile_m": 128, "tile_n": 128}):
        assert dataclasses.replace(cluster, **other).refusals() == ()  # type: ignore[arg-type]


CK_FP8 = {
    "gfx942": {(32, 32, 16), (32, 32, 32), (16, 16, 32), (16, 16, 64)},
    "gfx950": {(32, 32, 16), (32, 32, 32), (16, 16, 32), (16, 16, 64), (16, 16, 128), (32, 32, 64)},
}
"""``fp8_fp8_fp32`` and ``bf8_bf8_fp32`` of CK's arch_specs.json."""


@pytest.mark.parametrize("gfx_arch", CK_FP8)
@pytest.mark.parametrize("kind", [RowColQuantKernelConfig, TensorQuantKernelConfig])
@pytest.mark.parametrize("variant", ["fp8", "bf8"])
def test_the_instructions_are_cks(gfx_arch: str, kind: type[RowColQuantKernelConfig], variant: str) -> None:
    taken = set()
    for rows, depth in itertools.product((4, 16, 32, 64), (8, 16, 32, 64, 128, 256)):
        config = kind(
            variant_key=variant, gfx_arch=gfx_arch, tile_m=64, tile_n=256, tile_k=256,
            warp_tile_m=rows, warp_tile_n=rows, warp_tile_k=depth,
        )  # fmt: skip
        if config.is_valid():
            taken.add((rows, rows, depth))
    assert taken == CK_FP8[gfx_arch]


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.array, torch.tensor])
def test_sizes_of_any_integer_type_are_ints(integer: Callable[[int], Any]) -> None:
    config = MxGemmKernelConfig(tile_m=integer(64), k_block_per_cu=integer(2))
    assert config == MxGemmKernelConfig(tile_m=64, k_block_per_cu=2)
    assert hash(config) == hash(MxGemmKernelConfig(tile_m=64, k_block_per_cu=2))
    assert config.refusals() == ()
    assert json.loads(json.dumps(dataclasses.asdict(config)))["tile_m"] == 64
    assert Problem(integer(3), integer(4), integer(32)) == Problem(3, 4, 32)


def test_pinning_never_changes_an_architecture() -> None:
    assert MxGemmKernelConfig().pinned("gfx950:sramecc+:xnack-").gpu_target == "gfx950"
    with pytest.raises(ValueError, match="gfx_arch: got gfx942, but mx_gemm_.* has gpu_target='gfx950'"):
        MxGemmKernelConfig(gpu_target="gfx950").pinned("gfx942")
    for wrong in ("sm_90", "", "gfx950 "):
        with pytest.raises(ValueError, match="gfx_arch: got"):
            MxGemmKernelConfig().pinned(wrong)


def test_defaults_follow_the_architecture() -> None:
    depths = {a: [c.warp_tile_k for c in OPERATIONS["rowcolquant"].default_configs(a)] for a in arch.KNOWN}
    assert depths == {"gfx942": [32, 32], "gfx950": [128, 128]}
    assert [c.dtype for c in OPERATIONS["mx_gemm"].default_configs("gfx950")] == ["fp8", "fp4"]


def test_fp8_bytes_follow_the_architecture() -> None:
    assert [arch.fp8_is_ocp(a) for a in ("gfx950", "gfx1201", "gfx942:xnack-", "gfx90a")] == [True, True, False, False]


@pytest.mark.parametrize(
    "said, found", [("gfx000\ngfx942\n", "gfx942"), ("gfx000\n", None), ("gfx942\ngfx950\n", None)]
)
def test_detection_never_guesses(
    said: str, found: str | None, tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "rocm_agent_enumerator"  # type: ignore[operator]
    tool.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if found:
        assert arch.detect_arch() == found
    else:
        with pytest.raises(RuntimeError, match="Pass gfx_arch"):
            arch.detect_arch()


def test_the_header_says_which_kernel_is_meant() -> None:
    config = MxGemmKernelConfig(datatype="fp4", pad_m=True, k_block_per_cu=2)
    text = ck_tile.header(config)
    assert text == ck_tile.header(MxGemmKernelConfig(datatype="fp4", pad_m=True, k_block_per_cu=2))
    for line in (
        f'static constexpr const char* name = "{config.name}";',
        "using Data = ck_tile::pk_fp4_t;",
        "static constexpr int tile_k = 128;",
        "static constexpr int warp_n = 2;",
        "static constexpr int warp_tile_k = 128;",
        "static constexpr int blocks_per_cu = 2;",
        "static constexpr bool pad_m = true;",
        "static constexpr bool pad_n = false;",
        "static constexpr bool persistent = false;",
    ):
        assert f"    {line}\n" in text
    assert "static constexpr bool double_smem_buffer = true;" in ck_tile.header(
        RowColQuantKernelConfig(double_smem_buffer=True)
    )
