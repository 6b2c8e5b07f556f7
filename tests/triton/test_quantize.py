"""The quantising kernel: the bytes of the oracle, scales in both orders, nothing written outside."""

import sys

import numpy as np
import pytest
import torch

import mxgemm
from mxgemm.mx import layouts, oracle
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS, scale_addend
from mxgemm.triton.quantize import quantize_rows
from tests.cases import DEVICES, OUT_DTYPES, bytes_of, skip_without_kernels, spread


def awkward(m: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random data with every edge: NaN, Inf, zeros, -0, ties, subnormals, the largest float."""
    x = spread(m, k, octaves=60)
    flat = x.view(-1)
    edges = torch.tensor([torch.nan, torch.inf, -torch.inf, 2.0**-149, -(2.0**-127), 3.4e38, 0.0, -0.0])
    for i, edge in enumerate(edges):
        flat[(i * 97 + 5) % flat.numel()] = edge
    if m > 2:
        x[1] = 0
        x[2] = -0.0
    if m > 4:
        x[3] = torch.linspace(-8, 8, k)
        x[4] = torch.linspace(-600, 600, k)
    return x.to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
@pytest.mark.slow
def test_bytes(fmt, rounding: str, dtype: torch.dtype, device: str) -> None:
    skip_without_kernels(device)
    for m, k in ((1, 32), (5, 96), (33, 288), (16, 576)):
        x = awkward(m, k, dtype)
        data = torch.full((m + 2, k // fmt.pack + 16), 0xA5, dtype=torch.uint8, device=device)
        scales = torch.full((m + 2, k // 32 + 2), 0xA5, dtype=torch.uint8, device=device)
        inner = data[1:-1, 8:-8], scales[1:-1, 1:-1]
        quantize_rows(x.to(device), fmt, scale_addend(fmt, rounding), *inner)
        want_data, want_scales = oracle.encode(x.float().numpy(), fmt.name, rounding)
        assert np.array_equal(bytes_of(inner[1]), want_scales)
        assert np.array_equal(bytes_of(inner[0]), want_data)
        inner[0].fill_(0xA5)
        inner[1].fill_(0xA5)
        assert data.eq(0xA5).all()
        assert scales.eq(0xA5).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
@pytest.mark.parametrize(
    "m, k",
    [
        (1, 32),
        (16, 512),
        (31, 96),
        (33, 256),
        (64, 576),
        (257, 288),
        pytest.param(16, 7168, marks=pytest.mark.gpu),
        pytest.param(64, 2880, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.slow
def test_shuffled_scales(m: int, k: int, fmt, device: str) -> None:
    skip_without_kernels(device)
    x = awkward(m, k, torch.bfloat16).to(device)
    want = mxgemm.quantize(x.cpu(), format=fmt.name)
    for rows in (layouts.round_up(m, 32), layouts.round_up(m, 256)):
        columns = layouts.round_up(k // 32, 8)
        memory = torch.full((rows * columns + 512,), 0xA5, dtype=torch.uint8, device=device)
        scales = memory[256:-256].view(rows, columns)
        data = torch.full((m, k // fmt.pack), 0xA5, dtype=torch.uint8, device=device)
        quantize_rows(x, fmt, scale_addend(fmt, "even"), data, scales, shuffled=True)
        assert torch.equal(data.cpu(), want.data)
        full = layouts.shuffle_scales(want.scales)[:rows]
        assert torch.equal(scales.cpu(), full)  # the padding too: zero bytes
        assert memory[:256].eq(0xA5).all()
        assert memory[-256:].eq(0xA5).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", ["transposed", "strided", "offset", "expanded"])
def test_views(view: str, device: str) -> None:
    skip_without_kernels(device)
    fmt = FORMATS["e2m1"]
    x = spread(8, 128, torch.bfloat16)
    if view == "transposed":
        x = x.t().contiguous().t()
    elif view == "strided":
        x = torch.stack((x, x), dim=-1)[..., 1]
    elif view == "offset":
        x = torch.cat((x.new_zeros(1), x.flatten()))[1:].view(8, 128)
    else:
        x = x[:1].expand(8, -1)
    data, scales = (torch.empty(8, width, dtype=torch.uint8, device=device) for width in (64, 4))
    if device == "cuda":  # .to() alone would make a contiguous copy
        flat = x.as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0).to(device)
        x = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    quantize_rows(x, fmt, scale_addend(fmt, "even"), data, scales)
    want = mxgemm.quantize(x.contiguous().cpu())
    assert torch.equal(data.cpu(), want.data)
    assert torch.equal(scales.cpu(), want.scales)


@pytest.mark.gpu
def test_quantize_uses_the_kernel_and_agrees_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    host = sys.modules["mxgemm.quantize"]  # the name mxgemm.quantize is the function
    original = host.quantize_rows
    monkeypatch.setattr(host, "quantize_rows", lambda *a, **k: (called.append(1), original(*a, **k)))
    x = awkward(300, 2880, torch.bfloat16)
    for fmt in FORMATS:
        here, there = mxgemm.quantize(x, format=fmt), mxgemm.quantize(x.cuda(), format=fmt)  # type: ignore[arg-type]
        assert torch.equal(here.data, there.data.cpu())
        assert torch.equal(here.scales, there.scales.cpu())
    assert len(called) == 3


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements() -> None:
    x = torch.zeros(65600, 32768, dtype=torch.bfloat16, device="cuda")
    x[0], x[-1] = torch.linspace(-8, 8, 32768), torch.linspace(-8, 8, 32768)
    q = mxgemm.quantize(x)
    assert torch.equal(q.data[0], q.data[-1])
    assert torch.equal(q.scales[0], q.scales[-1])
    assert q.data[-1].any()
    assert not q.data[1:-1].any()
