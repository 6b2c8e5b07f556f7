"""Routes whose product is asked of cublasLt directly, with a library that is not there: what it is asked, and where."""

from __future__ import annotations

import ctypes
import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.accuracy import judge
from mxgemm.mx.formats import BLOCK, E2M1
from mxgemm.native.program import BIAS, FIXED, OUT, SCRATCH, A, KernelStep, Place, ProductStep
from mxgemm.native.vendor import VendorError
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import Operands, dequant_mm
from mxgemm.triton.launch import Launcher
from tests.cases import skip_without_kernels

M, N, K = 5, 48, 96
MEMORY_BYTES = 640


class Vendor:
    """The library: it notes what it is told when a plan is made, and multiplies what it is given."""

    refuses = False

    def __init__(self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, bias_dtype: Any) -> None:
        self.sizes, self.dtypes = (m, n, k), (dtype, out_dtype, bias_dtype)

    def step(
        self, device: torch.device, weight: Place, weight_base: int, a: Place, base: Any, bias: Any, out: Place,
        memory: Place,
    ) -> ProductStep:  # fmt: skip
        if self.refuses:
            raise VendorError("cublasLt: it has no algorithm for this product")
        return ProductStep(1, (2, 3, 4), (5,), weight, a, base, bias, out, memory, MEMORY_BYTES, bytes(64), self)


def multiply(step: ProductStep, weight: int, a: int, base: int, bias: int, out: int, memory: int, stream: int) -> None:
    vendor: Any = step.owner
    (m, n, k), (dtype, out_dtype, bias_dtype) = vendor.sizes, vendor.dtypes
    assert (base, stream) == (0, 0)
    left, right = at(a, (m, k), dtype), at(weight, (n, k), dtype)
    sums = left.float() @ right.float().T
    if bias_dtype is not None:
        sums += at(bias, (n,), bias_dtype).float()
    at(memory, (MEMORY_BYTES,), torch.uint8).fill_(255)  # which is nobody else's
    at(out, (m, n), out_dtype).copy_(sums)


def at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype).view(shape)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    monkeypatch.setattr(dequant_mm, "VendorProduct", Vendor)
    monkeypatch.setattr(dequant_mm, "run", multiply)
    monkeypatch.setattr(dequant_mm, "relaxed", nullcontext)


def case(a_format: str, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, prepared: bool) -> tuple[Any, Any, Any]:
    weight = mxgemm.quantize(torch.randn(N, K))
    derived = weight.prepare("sm_90", a_format="bf16").operand()[4] if prepared else ()
    p = Problem.of(
        M, N, K, KNOWN_MACHINES["sm_90"], a_format=a_format, out_dtype=out_dtype, derived="bf16" if prepared else "",
        has_bias=bias_dtype is not None, bias_dtype=bias_dtype or torch.float32,
        strides=contiguous_strides(N, K, E2M1, K // BLOCK),
    )  # fmt: skip
    bias = None if bias_dtype is None else torch.randn(N).to(bias_dtype)
    a, out = torch.randn(M, K, dtype=torch.bfloat16), torch.full((M, N), torch.nan, dtype=out_dtype)
    return dequant_mm._Launch(p), Operands(a, None, weight.data, weight.scales, bias, out, derived), weight


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("a_format", ["bf16", "e2m1", "e4m3"])
@pytest.mark.parametrize(
    ("bias_dtype", "out_dtype"),
    [(None, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)],
)
def test_dequant_mm(a_format: Any, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, prepared: bool) -> None:
    launch, operands, weight = case(a_format, bias_dtype, out_dtype, prepared)
    assert isinstance(launch.vendor, Vendor)
    assert launch.vendor.dtypes == (torch.bfloat16, out_dtype, bias_dtype)
    for _ in range(2):
        launch(operands)
        assert judge(operands.out, operands.a, weight, bias=operands.bias, a_format=a_format).passed
        operands.out.fill_(torch.nan)


@pytest.mark.parametrize(
    ("bias_dtype", "out_dtype"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (None, torch.float16)],
)
def test_what_the_library_does_not_add_or_write_is_torchs(
    bias_dtype: torch.dtype | None, out_dtype: torch.dtype
) -> None:
    launch, operands, weight = case("e2m1", bias_dtype, out_dtype, False)
    assert launch.vendor is None
    launch(operands)
    assert launch.program(operands) is None
    assert judge(operands.out, operands.a, weight, bias=operands.bias).passed


def test_a_library_that_refuses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Vendor, "refuses", True)
    launch, operands, weight = case("e2m1", None, torch.bfloat16, False)
    for _ in range(2):
        launch(operands)
        assert judge(operands.out, operands.a, weight).passed
    assert launch.vendor is None
    assert launch.program(operands) is None


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("a_format", ["bf16", "e2m1"])
def test_what_c_is_told(a_format: str, prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch reads what the one before it wrote, and parts of the scratch do not meet."""

    def step(self: Launcher, tensors: tuple[Tensor, ...], places: tuple[Place, ...]) -> KernelStep:
        assert len(tensors) == len(places)
        return KernelStep(7, (1, 1, 1), (32, 1, 1), 0, bytes(64), tuple((8 * i, at) for i, at in enumerate(places)))

    monkeypatch.setattr(Launcher, "step", step)
    launch, operands, _ = case(a_format, torch.bfloat16, torch.bfloat16, prepared)
    assert launch.program(operands) is None  # nothing has been launched yet
    launch(operands)
    program = launch.program(operands)
    assert program is not None
    assert program.fits()
    *kernels, product = program.steps
    assert isinstance(product, ProductStep)
    assert (product.bias, product.out, product.b_scale) == (BIAS, OUT, None)
    written: dict[Place, int] = {}
    for kernel in kernels:
        assert isinstance(kernel, KernelStep)
        *read, (_, target) = kernel.places
        if read[0][1] == A:
            assert product.b == target
            written[target] = 2 * M * K
        else:
            fixed = [place.add for _, place in read if place.slot == FIXED]
            assert fixed == [operands.b.data_ptr(), *[operands.b_scales.data_ptr()] * 2]
            assert product.a == target
            written[target] = 2 * N * K
    assert len(kernels) == (a_format != "bf16") + (not prepared)
    if a_format == "bf16":
        assert product.b == A
    if prepared:
        assert product.a == Place(FIXED, operands.derived[0].data_ptr())
    written[product.memory] = product.memory_bytes
    spans = sorted((place.add, place.add + nbytes) for place, nbytes in written.items())
    assert all(place.slot == SCRATCH.slot for place in written)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= program.scratch_bytes
