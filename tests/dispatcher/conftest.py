"""Libraries built from the CK tile source against the stand-ins, once for all tests."""

import shutil
from pathlib import Path

import pytest

from mxgemm.dispatcher import (
    BuildResult,
    KernelConfig,
    MxGemmKernelConfig,
    RowColQuantKernelConfig,
    TensorQuantKernelConfig,
    build,
)
from tests.dispatcher.native_libraries import shared_cache
from tests.dispatcher.toolchain import HEADERS, make_hipcc


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MXGEMM_CACHE", str(shared_cache(tmp_path_factory)))
        results = build(kinds.values(), source="ck_tile", ck_include=HEADERS, hipcc=hipcc)
    return {name: _entry(result) for name, result in zip(kinds, results, strict=True)}


def _entry(result: BuildResult) -> tuple[KernelConfig, Path]:
    return result.config, result.library()
