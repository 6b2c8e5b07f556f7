"""The dispatcher's Triton family where torch runs it: Triton's interpreter here, a GPU with ``pytest -m gpu``."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from evidence.quant_cases import FP8, Operands, operands
from mxgemm.dispatcher.jit import Tile, quant_gemm
from mxgemm.triton.support import interpreting, triton_version

KINDS = (("e2m1", "block"), ("e4m3", "block"), ("e4m3", "row"), ("e5m2", "row"))
SHAPES = ((1, 16, 32), (33, 17, 96), (20, 72, 288))
GPU_SHAPES = tuple(itertools.product((1, 16, 33, 130), (1, 16, 200, 512), (32, 96, 416, 2048)))
SMALL = Tile(block_m=16, block_n=32, block_k=128)


@pytest.fixture
def interpreter() -> None:
    pytest.importorskip("triton")
    if not interpreting():
        pytest.skip("kernels run on the GPU here; the interpreter is chosen before triton is imported")
    version = triton_version()
    if version is None or version < (3, 9):
        pytest.skip("triton's interpreter has dot_scaled from 3.9 on")
    return None


def run(drawn: Operands, kind: str, device: str, tile: Tile | None, **options: bool) -> np.ndarray:
    tensors = [torch.from_numpy(array).to(device) for array in drawn.arrays]
    return quant_gemm(*tensors, kind, tile, **options).cpu().numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind, scale", [*KINDS, ("e4m3fnuz", "row"), ("e5m2fnuz", "row")])
def test_product(kind: str, scale: str, shape: tuple[int, int, int], interpreter: None) -> None:
    drawn = operands(kind, scale, *shape, seed=sum(shape))
    assert drawn.judge(run(drawn, kind, "cpu", SMALL)).passed


def test_persistent_programs(interpreter: None) -> None:
    drawn = operands("e4m3", "row", 40, 100, 160)
    few = run(drawn, "e4m3", "cpu", Tile(block_m=16, block_n=32, block_k=128, programs=5))
    np.testing.assert_array_equal(few, run(drawn, "e4m3", "cpu", SMALL))


def test_one_scale_for_a_whole_operand(interpreter: None) -> None:
    drawn = operands("e4m3", "row", 20, 40, 96)
    one = torch.tensor([0.375])
    tensors = [torch.from_numpy(array) for array in drawn.arrays]
    out = quant_gemm(tensors[0], tensors[1], one, tensors[3], "e4m3", SMALL).numpy()
    same = quant_gemm(tensors[0], tensors[1], one.repeat(20), tensors[3], "e4m3", SMALL).numpy()
    np.testing.assert_array_equal(out, same)
    exact = drawn.exact() / drawn.a_scales.astype(np.float64)[:, None] * 0.375
    np.testing.assert_allclose(out, exact, rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize("kind", list(FP8))
def test_special_values_of_fp8(kind: str, interpreter: None) -> None:
    """Every byte once: NaN stays NaN and infinity stays infinite."""
    bytes_of_a = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 32)
    bytes_of_a[:, 1:] = 0
    one = torch.ones(1).to(FP8[kind]).view(torch.uint8)
    b = one.repeat(1, 32)
    ones = torch.ones(256), torch.ones(1)
    out = quant_gemm(bytes_of_a, b, *ones, kind, SMALL)[:, 0]
    value = torch.arange(256, dtype=torch.uint8).view(FP8[kind]).float()
    torch.testing.assert_close(out.float(), value.half().float(), rtol=0, atol=0, equal_nan=True)


def test_bad_calls_name_the_argument() -> None:
    drawn = operands("e4m3", "row", 4, 16, 64)
    a, b, a_scales, b_scales = (torch.from_numpy(array) for array in drawn.arrays)

    def fails(error: type[Exception], match: str, *tensors: Tensor, kind: str = "e4m3") -> None:
        with pytest.raises(error, match=match):
            quant_gemm(*tensors, kind)

    fails(ValueError, "kind: got 'fp8'", a, b, a_scales, b_scales, kind="fp8")
    fails(TypeError, "a: got torch.float32, want torch.uint8", a.float(), b, a_scales, b_scales)
    fails(ValueError, r"b: got shape \(64, 16\)", a, b.T, a_scales, b_scales)
    fails(ValueError, "b: got K = 32 against 64", a, b[:, :32].contiguous(), a_scales, b_scales)
    fails(ValueError, "a multiple of 32", a[:, :48].contiguous(), b[:, :48].contiguous(), a_scales, b_scales)
    fails(TypeError, "a_scales: got torch.float64", a, b, a_scales.double(), b_scales)
    fails(ValueError, r"b_scales: got shape \(15,\), want \(16,\) or \(1,\)", a, b, a_scales, b_scales[:15])
    block = torch.zeros(16, 2, dtype=torch.uint8)
    fails(TypeError, "b_scales: got torch.uint8, want torch.float32, as a_scales", a, b, a_scales, block)


@pytest.mark.gpu
@pytest.mark.parametrize("kind, scale", KINDS)
def test_product_on_the_gpu(kind: str, scale: str) -> None:
    bits = 13 if scale == "row" and torch.cuda.get_device_capability() == (9, 0) and not torch.version.hip else 24
    for shape in GPU_SHAPES:
        drawn = operands(kind, scale, *shape, seed=sum(shape))
        accuracy = drawn.judge(run(drawn, kind, "cuda", None), bits)
        assert accuracy.passed, (shape, accuracy)


@pytest.mark.gpu
def test_row_scales_agree_with_torch_on_the_gpu() -> None:
    if torch.version.hip or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("torch multiplies OCP fp8 on NVIDIA GPUs from compute capability 8.9 on")
    drawn = operands("e4m3", "row", 96, 256, 1024)
    a, b, a_scales, b_scales = (torch.from_numpy(array).cuda() for array in drawn.arrays)
    e4m3 = torch.float8_e4m3fn
    ours = quant_gemm(a, b, a_scales, b_scales, "e4m3")
    theirs = torch._scaled_mm(
        a.view(e4m3), b.view(e4m3).T, scale_a=a_scales[:, None], scale_b=b_scales[None, :], out_dtype=torch.bfloat16
    )
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-7, atol=2e-2)


def test_scales_are_read_as_words_where_a_row_has_eight(interpreter: None) -> None:
    """And from a view that starts between two words."""
    drawn = operands("e2m1", "block", 20, 32, 512, seed=4)
    tensors = [torch.from_numpy(array) for array in drawn.arrays]
    shifted = torch.empty(tensors[2].numel() + 1, dtype=torch.uint8)[1:].view(tensors[2].shape).copy_(tensors[2])
    tile = Tile(block_m=16, block_n=32, block_k=256)
    out = quant_gemm(tensors[0], tensors[1], shifted, tensors[3], "e2m1", tile).numpy()
    assert drawn.judge(out).passed
