"""The Triton kernels of grouped products for GPUs that are not here: matrix instructions, wide loads, no spills."""

from __future__ import annotations

import pytest

from tests.cross import available, compile_jobs

pytestmark = pytest.mark.slow

SIZE = {"top_k": 4, "count": 8, "hidden": 2880, "inner": 2880, "bias": True}
MATRIX = {
    ("gfx950", "e2m1"): "v_mfma_scale_f32_16x16x128_f8f6f4",
    ("gfx950", "e4m3"): "v_mfma_scale_f32_16x16x128_f8f6f4",
    ("gfx950", "bf16"): "v_mfma_f32_16x16x32_bf16",
    ("sm_90", "e2m1"): "mma.sync",
    ("sm_90", "e4m3"): "mma.sync",
    ("sm_90", "bf16"): "wgmma.mma_async",
}
PRODUCTS = [
    {"experts": kind, "arch": arch, "a": a, "tokens": tokens, "gated": gated, **SIZE}
    for arch, a in MATRIX
    for kind, tokens, gated in (("gate", 4, "gpt-oss"), ("gate", 8192, "plain"), ("down", 64, "plain"))
]
AROUND = [
    {"experts": kind, "arch": arch, "a": "e2m1", "tokens": 64, "mapped": mapped, **SIZE}
    for arch in ("gfx950", "sm_90")
    for kind, mapped in (("plain", 0), ("list", 0), ("sort", 0), ("sort", 256), ("sum", 256))
]


@pytest.mark.parametrize("triton", ["own", "3.6"])
def test_compiles_to_the_matrix_unit(triton: str) -> None:
    """By one instruction for each architecture and format, however many rows: a row's sums have one order."""
    pytest.importorskip("triton")
    if missing := available(triton):
        pytest.skip(missing)
    jobs = PRODUCTS + AROUND
    for job, found in zip(jobs, compile_jobs(triton, jobs), strict=True):
        assert "error" not in found, (job, found)
        (kernel,) = found
        assert not kernel["vector_spills"], (job, kernel)
        if job["experts"] in ("gate", "down"):
            assert set(kernel["matrix"]) == {MATRIX[job["arch"], job["a"]]}, (job, kernel)
            assert kernel["wide_loads"], (job, kernel)
