"""Libraries built from the CK tile source against the stand-ins, once for all tests."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mxgemm.dispatcher import (
    ABQuantKernelConfig,
    AQuantKernelConfig,
    BQuantKernelConfig,
    BuildResult,
    GroupedABQuantKernelConfig,
    GroupedAQuantKernelConfig,
    GroupedBQuantKernelConfig,
    GroupedRowColQuantKernelConfig,
    GroupedTensorQuantKernelConfig,
    KernelConfig,
    MxGemmKernelConfig,
    RowColQuantKernelConfig,
    TensorQuantKernelConfig,
    build,
)
from tests.dispatcher.native_libraries import shared_cache
from tests.dispatcher.toolchain import HEADERS, make_hipcc

_SHUFFLED: dict[str, Any] = {"pipeline": "preshuffleb", "preshuffle_b": True}
_PREFILL: dict[str, Any] = {"tile_m": 32, "tile_n": 128, "tile_k": 256}
_MX: dict[str, Any] = {"pipeline": "microscale", "tile_m": 32, "tile_n": 64, "tile_k": 128}
BY_GROUPS: dict[str, KernelConfig] = {
    "a_fp8": AQuantKernelConfig(epilogue="default"),
    "a_bf8_crr": AQuantKernelConfig(variant_key="bf8", layout="crr"),
    "a_i4": AQuantKernelConfig(variant_key="fp8i4", layout="rrr"),
    "a_shuffled": AQuantKernelConfig(pipeline="compv3", scheduler="intrawave", preshuffle_aquant=True),
    "ab_fp8": ABQuantKernelConfig(tile_m=32, tile_n=64),
    "ab_fp4": ABQuantKernelConfig(variant_key="fp4", bquant_group_n=128, tile_m=32, warp_tile_k=32),
    "ab_eight": ABQuantKernelConfig(
        pipeline="eightwaves", tile_m=64, tile_n=64, warp_m=4, warp_n=2, eight_waves=True, bquant_group_n=128
    ),
    "ab_shuffled": ABQuantKernelConfig(**_SHUFFLED, **_PREFILL, preshuffle_bquant=True),
    "b_fp8": BQuantKernelConfig(quant_group_n=64),
    "b_i4": BQuantKernelConfig(variant_key="bf8i4"),
    "b_shuffled": BQuantKernelConfig(**_SHUFFLED, **_PREFILL),
    "b_i4_shuffled": BQuantKernelConfig(**_SHUFFLED, variant_key="fp8i4", tile_m=32, tile_n=64),
    "b_both_shuffled": BQuantKernelConfig(**_SHUFFLED, **_PREFILL, preshuffle_bquant=True),
    "mx_bf16": BQuantKernelConfig(**_MX, variant_key="mx_bf16bf16", quant_group_k=32, warp_tile_k=32),
    "mx_bf16fp4": BQuantKernelConfig(**_MX, variant_key="mx_bf16fp4", quant_group_k=32, warp_tile_k=32),
    "grouped_row": GroupedRowColQuantKernelConfig(tile_m=64, tile_n=64),
    "grouped_tensor": GroupedTensorQuantKernelConfig(tile_m=64, tile_n=64, variant_key="bf8", persistent=True),
    "grouped_a": GroupedAQuantKernelConfig(variant_key="fp8i4"),
    "grouped_ab": GroupedABQuantKernelConfig(tile_m=32, tile_n=64, preshuffle_aq=True, preshuffle_bq=True),
    "grouped_b": GroupedBQuantKernelConfig(variant_key="bf8i4", quant_group_n=32),
}
"""Kernels with scales by groups of K, for gfx950."""


@pytest.fixture(scope="session")
def hipcc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return make_hipcc(tmp_path_factory.mktemp("hipcc"))


@pytest.fixture(scope="session")
def built(hipcc: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[KernelConfig, Path]]:
    """Kernels with small tiles by name: mx_fp8, mx_fp4, mx_fp4_low, row_fp8, tensor_fp8, row_bf8_gfx942."""
    kinds: dict[str, KernelConfig] = {
        "mx_fp8": MxGemmKernelConfig(tile_m=32, tile_n=32, gpu_target="gfx950"),
        "mx_fp4": MxGemmKernelConfig(datatype="fp4", tile_m=32, tile_n=32, gpu_target="gfx950"),
        "mx_fp4_low": MxGemmKernelConfig(
            datatype="fp4", pad_m=True, tile_m=16, tile_n=32, warp_m=1, gpu_target="gfx950"
        ),
        "row_fp8": RowColQuantKernelConfig(gfx_arch="gfx950"),
        "tensor_fp8": TensorQuantKernelConfig(gfx_arch="gfx950"),
        "row_bf8_gfx942": RowColQuantKernelConfig(variant_key="bf8", warp_tile_k=32, gfx_arch="gfx942"),
    }
    return _built(kinds, hipcc, tmp_path_factory)


@pytest.fixture(scope="session")
def built_by_groups(hipcc: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[KernelConfig, Path]]:
    """The kernels of BY_GROUPS."""
    return _built({name: config.pinned("gfx950") for name, config in BY_GROUPS.items()}, hipcc, tmp_path_factory)


def _built(
    kinds: dict[str, KernelConfig], hipcc: Path, factory: pytest.TempPathFactory
) -> dict[str, tuple[KernelConfig, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MXGEMM_CACHE", str(shared_cache(factory)))
        results = build(kinds.values(), source="ck_tile", ck_include=HEADERS, hipcc=hipcc)
    return {name: _entry(result) for name, result in zip(kinds, results, strict=True)}


def _entry(result: BuildResult) -> tuple[KernelConfig, Path]:
    return result.config, result.library()
