"""Configurations as data: CK's JSON, in its three forms, read, written, and refused where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxgemm.dispatcher import OPERATIONS, document_of, read_config, read_sweep, sweep_of
from mxgemm.files import FileError

TILE = {"tile_m": 16, "tile_n": 64, "tile_k": 256, "warp_m": 1, "warp_n": 4, "warp_k": 1}
STEP = {"warp_tile_m": 16, "warp_tile_n": 16, "warp_tile_k": 128}
AQUANT: dict[str, Any] = {
    "variant_keys": ["fp8", "bf8i4"],
    "layouts": ["rcr", "ccr"],
    "scheduler": "interwave",
    "tile_configs": [{**TILE, **STEP}, {**TILE, **STEP, "tile_m": 24}],
    "quant_groups": [{"quant_group_m": 1, "quant_group_n": 1, "quant_group_k": 128}],
    "pad_k": True,
    "block_size": 256,
    "k_block_per_cu": 1,
    "double_smem_buffer": False,
    "preshuffle_aquant": False,
}


def test_a_generators_sweep_is_every_combination() -> None:
    sweep = sweep_of(AQUANT, "gfx950", "aquant")
    assert [config.name for config in sweep.configs] == [
        "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128",
        "gemm_aquant_fp8_ccr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128",
        "gemm_aquant_bf8i4_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128",
        "gemm_aquant_bf8i4_ccr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128",
    ]
    assert len(sweep.refused) == 4
    assert all("tile_m: got 24, want a multiple of warp_m * warp_tile_m = 16" in reason for reason in sweep.refused)


def test_mx_gemms_configuration_is_one_kernel(tmp_path: Path) -> None:
    tile = {**dict.fromkeys(("tile_m", "tile_n", "tile_k"), 128), "warp_m": 2, "warp_n": 2, "warp_k": 1, **STEP}
    document = {
        **{"datatype": "fp4", "layout": "rcr", "gpu_target": "gfx950", "pipeline": "comp_async"},
        **{"epilogue": "cshuffle", "scheduler": "intrawave", "pad_m": True, "persistent": False},
        **{"tile_config": tile, "k_block_per_cu": 2, "operation": "mx_gemm"},
    }
    path = tmp_path / "f.json"
    path.write_text(json.dumps(document))
    config = read_config(path, "gfx950")
    assert config.name == "mx_gemm_fp4_rcr_comp_async_cshuffle_intrawave_True_False_False_128x128x128_2x2x1_16x16x128"
    assert config.k_block_per_cu == 2


def test_the_tile_engines_ranges() -> None:
    document = {
        "tile_config": {
            **{key: {"values": [value]} for key, value in {**TILE, **STEP}.items()},
            "tile_m": {"min": 16, "max": 48, "step": 16},
        },
        "trait_config": {"pipeline": {"values": ["compv3", "mem"]}, "pad_m": {"values": [False]}},
    }
    sweep = sweep_of(document, "gfx950", "aquant")
    assert [(config.pipeline, config.tile_m) for config in sweep.configs] == [("mem", 16), ("mem", 32), ("mem", 48)]
    assert len(sweep.refused) == 3  # compv3 has no interwave


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_what_is_written_is_read_back(arch: str) -> None:
    for operation in OPERATIONS.values():
        for config in operation.default_configs(arch):
            if config.is_valid():
                again = sweep_of(json.loads(json.dumps(document_of(config))), arch)
                assert again.configs == (config,)


@pytest.mark.parametrize(
    "document, operation, reason",
    [
        ({"variant_keys": ["fp8"]}, None, "operation: got none, want one of mx_gemm"),
        ({"operation": "bquant"}, "aquant", "operation: got 'bquant', want 'aquant', as asked for"),
        ({"operation": "conv"}, None, "operation: got 'conv', want one of"),
        ({"variant_keys": []}, "aquant", "variant_keys: got an empty list"),
        ({"variant_keys": "fp8"}, "aquant", "variant_keys: got 'fp8', want a list"),
        ({"tile_configs": [{"tile_q": 3}]}, "aquant", "tile_configs: got the field 'tile_q'"),
        ({"pad_q": True}, "aquant", "got the field 'pad_q', want one of"),
        ({"block_size": 100}, "aquant", "block_size: got 100"),
        ({"tile_config": {"tile_m": {"min": 16, "max": 8}}}, "aquant", "want values, or min, max and step"),
        ({"tile_config": {"tile_m": {"min": 16, "max": 1 << 40, "step": 1}}}, "aquant", "want a range"),
        ({"tile_m": list(range(1000)), "tile_n": list(range(1000))}, "aquant", "more than 65536 combinations"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], operation: str | None, reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        sweep_of(document, "gfx950", operation)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_sweep(tmp_path / "none.json", "gfx950", "aquant")
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(TypeError, match="want an object"):
        read_sweep(path, "gfx950", "aquant")
    path.write_text(json.dumps(AQUANT))
    with pytest.raises(ValueError, match="got 8 kernels, want one; read more as a sweep"):
        read_config(path, "gfx950", "aquant")
    path.write_text(json.dumps({"variant_keys": ["fp8"], "layouts": ["crc"]}))
    with pytest.raises(ValueError, match="layout: got 'crc', want 'rcr' or 'rrr'"):
        read_config(path, "gfx950", "aquant")
