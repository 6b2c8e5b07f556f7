"""A weight times its powers of two, by the kernel in Triton's interpreter: torch's own products, to the bit."""

from __future__ import annotations

import pytest
import torch

from mxgemm.scaled.dequant_mm import scale_call
from mxgemm.triton.launch import Launcher
from tests.cases import skip_without_kernels

DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("n, k, group", [(1, 32, 32), (33, 2880, 32), (16, 1024, 128), (5, 288, 96)])
@pytest.mark.parametrize("fmt", DTYPES)
def test_bits_are_those_of_torchs_products(fmt: str, n: int, k: int, group: int) -> None:
    """Every byte of fp8 with every scale byte, 0 and 255 among them; of columns, and into guarded, poisoned memory."""
    skip_without_kernels("cpu")
    generator = torch.Generator().manual_seed(n * k)
    count = 2 if fmt == "bf16" else 1
    raw = torch.randint(0, 256, (k, n * count), dtype=torch.uint8, generator=generator).view(DTYPES[fmt]).t()
    scales = torch.randint(0, 256, (n, k // group), dtype=torch.uint8, generator=generator)
    scales[0, 0] = 0
    scales[-1, -1] = 255
    memory = torch.full((n * k + 64,), float("nan"), dtype=torch.bfloat16)
    memory[:32], memory[-32:] = 3.0, 5.0
    call = scale_call(n, k, fmt, group, (raw.stride(0), raw.stride(1)), (scales.stride(0), scales.stride(1)))
    stored = raw if fmt == "bf16" else raw.view(torch.uint8)
    Launcher(call)(stored, scales, memory[32:-32].view(n, k))
    assert memory[:32].eq(3.0).all()
    assert memory[-32:].eq(5.0).all()
    powers = torch.exp2(scales.double() - 127).where(scales != 255, torch.nan).repeat_interleave(group, 1)
    want = (raw.double() * powers).float().bfloat16()  # a product of 8 bits and a power of two rounds once
    got = memory[32:-32].view(n, k)
    nan = want.isnan()
    assert torch.equal(got.isnan(), nan)
    assert torch.equal(got.view(torch.int16)[~nan], want.view(torch.int16)[~nan])
