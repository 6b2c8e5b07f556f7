"""The vendor's product launched without its library, on a GPU: the library's bits, wherever operands lie."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from mxgemm import plan, steady, workspace
from mxgemm.mx.tensor import MXTensor
from mxgemm.native import module
from mxgemm.native.program import BIAS, COUNTERS, OUT, SCRATCH, A, KernelStep, ProductStep, Program, fixed
from mxgemm.native.vendor import VendorError, VendorProduct
from mxgemm.native.vendor_kernel import product_kernel

pytestmark = pytest.mark.gpu

SIZES = ((33, 48, 96), (64, 7168, 2048), (256, 3072, 1536), (1100, 1024, 2048), (17, 2112, 7168))
KINDS = (
    (torch.float8_e4m3fn, torch.bfloat16, None),
    (torch.float8_e4m3fn, torch.float32, None),
    (torch.float8_e4m3fn, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, None),
    (torch.bfloat16, torch.float32, torch.float32),
)


class Case:
    """A product of random operands, by the library and without it."""

    def __init__(self, size: tuple[int, int, int], dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None]) -> None:
        native = module.load(MXTensor, steady.Known, vars(plan))
        if native is None:
            pytest.skip("no compiler for the steady call")
        m, n, k = size
        dtype, self.out_dtype, bias_dtype = dtypes
        device = torch.device("cuda", torch.cuda.current_device())
        torch.mm(*(torch.ones(64, 64, dtype=torch.bfloat16, device=device),) * 2)  # or cublasLt is not loaded
        self.m, self.n, product = m, n, VendorProduct(m, n, k, *dtypes)
        self.a, self.w = (torch.randn(rows, k, device=device).to(dtype) for rows in (m, n))
        self.bases = [torch.rand(rows, device=device) + 0.5 for rows in (m, n)]
        self.bias = torch.randn(n, device=device).to(bias_dtype or torch.float32)
        bias, base = None if bias_dtype is None else BIAS, COUNTERS if product.scaled else None
        weight_base = self.bases[1].data_ptr() if product.scaled else 0
        try:
            step = product.step(device, fixed(self.w.data_ptr()), weight_base, A, base, bias, OUT, SCRATCH)
        except VendorError as error:
            pytest.skip(str(error))
        self.memory_bytes, kernel = step.memory_bytes, product_kernel(product, step, device)
        self.by_library = native.program(Program((step,)))
        self.by_kernel = None if kernel is None else native.program(Program((kernel,)))
        self.described: KernelStep | ProductStep = kernel or step

    def run(self, program: object, a: Tensor, out: Tensor) -> int:
        memory = torch.empty(max(self.memory_bytes, 1), dtype=torch.uint8, device=a.device)
        stream, base = workspace.raw_stream(a.device), self.bases[0]
        brought = (tensor.data_ptr() for tensor in (a, self.bias, out, memory, base))
        return int(program.run(stream, *brought))  # type: ignore[attr-defined]

    def outputs(self, offset: int) -> list[Tensor]:
        memory = (torch.full((self.m * self.n + 64,), torch.nan, dtype=self.out_dtype, device="cuda") for _ in range(2))
        begin = offset // self.out_dtype.itemsize
        return [one[begin : begin + self.m * self.n].view(self.m, self.n) for one in memory]


@pytest.mark.parametrize("dtypes", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_librarys_bits(
    size: tuple[int, int, int], dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None]
) -> None:
    case = Case(size, dtypes)
    if case.by_kernel is None:
        pytest.skip("this product is asked of the library")
    for offset in (0, 16, 80):
        for a in (case.a, case.a.view(torch.uint8).flip(0).view(case.a.dtype)):
            theirs, ours = case.outputs(offset)
            assert case.run(case.by_library, a, theirs) == 0
            assert case.run(case.by_kernel, a, ours) == 0
            assert torch.isfinite(ours).all()
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_products_of_gpus_here_are_understood() -> None:
    """Those of an H200's library are; another may be asked at every call, which this would say."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written on an H200")
    understood = [Case(size, kind).by_kernel is not None for size in SIZES[1:3] for kind in KINDS[:4:3]]
    assert all(understood)


def test_threads() -> None:
    """As many as like: there are no descriptions to lend."""
    case = Case(SIZES[2], KINDS[0])
    if case.by_kernel is None:
        pytest.skip("this product is asked of the library")
    inputs = [torch.randn(case.m, case.a.shape[1], device="cuda").to(case.a.dtype) for _ in range(8)]
    wants = [case.outputs(0)[0] for _ in inputs]
    for a, want in zip(inputs, wants, strict=True):
        assert case.run(case.by_library, a, want) == 0
    torch.cuda.synchronize()
    wrong: list[int] = []
    start = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        start.wait()
        with torch.cuda.stream(stream):
            for _ in range(100):
                out = case.outputs(0)[0]
                if case.run(case.by_kernel, inputs[number], out) or not torch.equal(out, wants[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
