"""The Triton kernels of ``quant_gemm`` for GPUs that are not here: matrix instructions, wide loads, no spills."""

from __future__ import annotations

import pytest

from tests.cross import available, compile_jobs

pytestmark = pytest.mark.slow

SIZE = {"m": 33, "n": 7168, "k": 2048}
CASES = (
    ("gfx950", "tensor_quant", [], "e4m3", "e4m3", "v_mfma_f32_16x16x128_f8f6f4"),
    ("gfx950", "abquant", [128, 128, 128], "e5m2", "e4m3", "v_mfma_f32_16x16x128_f8f6f4"),
    ("gfx950", "abquant", [32, 1, 64], "e4m3", "e4m3", "v_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx950", "aquant", [128], "int4", "e4m3", "v_mfma_f32_16x16x128_f8f6f4"),
    ("gfx950", "bquant_e8m0", [1, 32], "bf16", "e2m1", "v_mfma_f32_16x16x32_bf16"),
    ("gfx942", "rowcolquant", [], "e4m3fnuz", "e4m3fnuz", "v_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx942", "bquant", [1, 128], "e4m3", "e4m3", "v_mfma_f32_16x16x16_bf16"),
    ("sm_90", "abquant", [128, 128, 128], "e4m3", "e4m3", "wgmma.mma_async"),
)


def jobs(form: str) -> list[dict]:
    rows = SIZE | {"m": 4} if form == "small" else SIZE
    return [
        {"scaled": form, "arch": arch, "scheme": scheme, "sizes": groups, "a": a, "b": b, **rows}
        for arch, scheme, groups, a, b, _ in CASES
    ]


@pytest.mark.parametrize(
    "triton, form",
    [*(("own", form) for form in ("dense", "small", "offsets", "table")), ("3.6", "dense"), ("3.6", "table")],
)
def test_compiles_to_the_matrix_unit(triton: str, form: str) -> None:
    pytest.importorskip("triton")
    if missing := available(triton):
        pytest.skip(missing)
    for (*case, wanted), found in zip(CASES, compile_jobs(triton, jobs(form)), strict=True):
        assert "error" not in found, (case, found)
        (kernel,) = found
        instructions = kernel["matrix"]
        assert instructions, case
        assert all(name.startswith(wanted) for name in instructions), (case, instructions)
        assert not kernel["vector_spills"], (case, kernel)
        assert kernel["wide_loads"], (case, kernel)
