"""What Triton's interpreter gets wrong by itself is right in our kernels there: casts of bf16, e5m2 and extreme A."""

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm.mx import oracle
from mxgemm.mx.accuracy import compare
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS, scale_addend
from mxgemm.triton.quantize import quantize_rows
from mxgemm.triton.support import interpreting
from tests.cases import bytes_of, skip_without_kernels
from tests.load_kernels import decode_kernel, widen_kernel


@pytest.fixture(autouse=True)
def _in_the_interpreter() -> None:
    skip_without_kernels("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_widens_exactly(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    out = torch.zeros(2**16)
    widen_kernel[(1,)](x, out, 2**16, interpreting())
    assert np.array_equal(out.numpy(), x.float().numpy(), equal_nan=True)
    assert torch.equal(out.signbit(), x.signbit())


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_every_code_and_scale_decodes_exactly(fmt) -> None:
    data = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    k = 256 * fmt.pack
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, k // 32).contiguous()
    out = torch.zeros(256, k)
    decode_kernel[(1,)](data, scales, out, fmt.name, fmt.pack, 256, k)
    with np.errstate(over="ignore"):
        want = oracle.decode(bytes_of(data), bytes_of(scales), fmt.name).astype(np.float32)
    assert np.array_equal(out.numpy(), want, equal_nan=True)


@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_subnormal_bf16_is_quantised_to_the_byte(fmt, rounding: str) -> None:
    x = torch.arange(0, 128).to(torch.int16).view(torch.bfloat16).view(4, 32) * torch.tensor([1.0, -1.0] * 16)
    data, scales = oracle.encode(x.float().numpy(), fmt.name, rounding)
    got = torch.zeros(4, 32 // fmt.pack, dtype=torch.uint8), torch.zeros(4, 1, dtype=torch.uint8)
    quantize_rows(x.bfloat16(), fmt, scale_addend(fmt, rounding), *got)
    assert np.array_equal(bytes_of(got[0]), data)
    assert np.array_equal(bytes_of(got[1]), scales)
    assert data.any()


@pytest.mark.parametrize("route, a_format", [("a16wfp4", "e2m1"), ("a16wfp4", "e4m3"), ("w4a16", "bf16")])
@pytest.mark.parametrize("power", [-128, -100, -20, -14, 14, 17, 60, 100])
@pytest.mark.parametrize("b_format", FORMATS)
def test_activations_of_any_size(b_format: str, power: int, route: str, a_format: str) -> None:
    a = (torch.randn(5, 64).double() * 2.0**power).to(torch.bfloat16)
    weight = mxgemm.quantize(torch.randn(19, 64) * 2.0 ** (6 if power < -60 else 0), format=b_format)  # type: ignore[arg-type]
    out = mxgemm.gemm(a, weight, a_format=a_format, route=route, out_dtype=torch.float32)  # type: ignore[arg-type]
    if a_format == "bf16":
        a64 = a.double().numpy()
    else:
        a64 = oracle.decode(*oracle.encode(a.float().numpy(), a_format, "even"), a_format)
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), b_format)
    judged = compare(out, oracle.matmul(a64, b64), a64, b64)
    assert judged.passed, judged


@pytest.mark.parametrize("other", FORMATS)
def test_subnormal_e5m2(other: str) -> None:
    data = torch.randint(0, 4, (16, 64), dtype=torch.uint8) | torch.randint(0, 2, (16, 64), dtype=torch.uint8) << 7
    small = mxgemm.MXTensor.wrap(data, torch.full((16, 2), 140, dtype=torch.uint8), format="e5m2")
    usual = mxgemm.quantize(torch.randn(16, 64), format=other)  # type: ignore[arg-type]
    for left, right in ((small, usual), (usual, small)):
        out = mxgemm.gemm_mx(left, right, route="gemm_mx", out_dtype=torch.float32)
        a64, b64 = (oracle.decode(bytes_of(t.data), bytes_of(t.scales), t.format.name) for t in (left, right))
        judged = compare(out, oracle.matmul(a64, b64), a64, b64)
        assert judged.passed, judged
        assert out.any()
