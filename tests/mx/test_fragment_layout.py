"""A weight of which only the fragment order is left: as many bytes, the same values, back to the byte."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.cuda.w4_mma import MmaConfig, fragments, mma_refusal
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.fragments import fragment_parts, row_major_parts
from mxgemm.mx.layouts import FRAGMENTS, ROW_MAJOR, Layout
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES, Operands
from tests.cases import skip_without_kernels
from tests.cuda import lanes

HOPPER = KNOWN_MACHINES["sm_90"]


def weight(n: int = 96, k: int = 384) -> mxgemm.MXTensor:
    random = torch.Generator().manual_seed(0)
    made = mxgemm.quantize(torch.randn(n, k, generator=random))
    scales = torch.randint(0, 256, made.scales.shape, generator=random).to(torch.uint8)
    data = torch.randint(0, 256, made.data.shape, generator=random).to(torch.uint8)
    return replace(made, data=data, scales=scales)


def test_back_to_the_byte_also_by_slices() -> None:
    w = weight()
    data, scales = fragment_parts(w.data, w.scales)
    assert (data.shape, scales.shape) == (w.data.shape, w.scales.shape)
    assert not torch.equal(data, w.data)
    for rows in (slice(None), slice(0, 32), slice(32, 96)):
        back = row_major_parts(data[rows], scales[rows])
        assert torch.equal(back[0], w.data[rows])
        assert torch.equal(back[1], w.scales[rows])


def test_prepare_lets_the_bytes_go() -> None:
    w = weight()
    alone = w.prepare("sm_90", keep=False)
    assert alone.layout == Layout(FRAGMENTS, FRAGMENTS)
    assert alone.nbytes == w.nbytes
    assert alone.prepared is not None
    assert alone.prepared.kind == FRAGMENTS
    back = alone.row_major()
    assert torch.equal(back.data, w.data)
    assert torch.equal(back.scales, w.scales)
    assert torch.equal(alone.dequantize().nan_to_num(1.0), w.dequantize().nan_to_num(1.0))
    assert alone.clone().layout == alone.layout
    file = io.BytesIO()
    torch.save(alone, file)
    file.seek(0)
    assert torch.load(file, weights_only=True).layout == ROW_MAJOR


def test_with_keep_it_is_not_chosen() -> None:
    made = mxgemm.quantize(torch.randn(32, 128)).prepare("sm_90")
    assert made.prepared is not None
    assert made.prepared.kind == "fp8_fold"


@pytest.mark.parametrize("shape", [(96, 320), (80, 384)])
def test_what_needs_padding_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="keep: got False"):
        weight(*shape).prepare("sm_90", keep=False)
    with pytest.raises(ValueError, match="fragment order"):
        replace(weight(*shape), layout=Layout(FRAGMENTS, FRAGMENTS))


def test_bytes_and_scales_go_together() -> None:
    with pytest.raises(ValueError, match="scale_layout"):
        Layout(FRAGMENTS, "row_major")
    a, w = torch.randn(2, 384), weight()
    with pytest.raises(ValueError, match="only one of bytes and scales"):
        mxgemm.gemm(a, w.data, w.scales, weight_layout="fragments")


def test_other_routes_refuse_it() -> None:
    options = {"weight_layout": FRAGMENTS, "scale_layout": FRAGMENTS}
    strides = contiguous_strides(96, 384, mxgemm.quantize(torch.zeros(1, 32)).format, 12)
    taken = set()
    for name, route in ROUTES.items():
        for machine in KNOWN_MACHINES.values():
            refusal = route.refusal(Problem.of(40, 96, 384, machine, strides=strides, **options))
            if refusal is None:
                taken.add(name)
    assert taken <= {"reference", "dequant_mm", "w4_wgmma"}  # w4_mma takes fewer rows
    for m, want in ((32, "w4_mma"), (33, "w4_wgmma")):
        chosen = mxgemm.explain(m, 96, 384, device="sm_90", weight_layout=FRAGMENTS, scale_layout=FRAGMENTS)
        assert chosen.route in (want, "reference")


@pytest.mark.parametrize("m", [3, 40])
def test_a_product_on_a_cpu(m: int) -> None:
    """By the reference route, in slices of rows."""
    random = torch.Generator().manual_seed(1)
    w = mxgemm.quantize(torch.randn(96, 384, generator=random))
    a = torch.randn(m, 384, generator=random)
    alone = w.prepare("sm_90", keep=False)
    want = mxgemm.gemm(a, w, route="reference", out_dtype=torch.float32)
    assert torch.equal(mxgemm.gemm(a, alone, out_dtype=torch.float32, route="reference"), want)
    got = mxgemm.gemm(a, alone, out_dtype=torch.float32)
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_many_rows_are_put_in_order_first(a_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dequant_mm, several slices of the weight: the bits that it gives on row-major bytes."""
    skip_without_kernels("cpu")
    monkeypatch.setattr("mxgemm.routes.decode.SLICE_BYTES", 1)
    random = torch.Generator().manual_seed(3)
    w = mxgemm.quantize(torch.randn(544, 128, generator=random))
    a = torch.randn(33, 128, generator=random).bfloat16()
    call = partial(mxgemm.gemm, a, a_format=a_format, route="dequant_mm")  # type: ignore[arg-type]
    assert torch.equal(call(w.prepare("sm_90", keep=False)), call(w))


@pytest.mark.slow
def test_the_kernel_reads_it() -> None:
    """The text of w4_mma lane by lane: the same bits as from the fragment order beside the weight's own bytes."""
    random = torch.Generator().manual_seed(2)
    w = mxgemm.quantize(torch.randn(64, 256, generator=random))
    a = torch.randn(2, 256, generator=random).bfloat16()
    alone = w.prepare("sm_90", keep=False)
    beside = (torch.empty(0), torch.cat([part.view(-1) for part in fragment_parts(w.data, w.scales)]))
    found: list[Tensor] = []
    for layout, data, scales, derived in (
        (ROW_MAJOR, w.data, w.scales, beside),
        (alone.layout, alone.data, alone.scales, ()),
    ):
        out = torch.full((2, 64), torch.nan)
        problem = Problem.of(
            2, 64, 256, HOPPER, out_dtype=torch.float32, derived="bf16" if derived else "",
            weight_layout=layout.data, scale_layout=layout.scales,
            strides=contiguous_strides(64, 256, w.format, 8),
        )  # fmt: skip
        config = MmaConfig(3, 1, 2, 1, a_slots=1, prefetch=True)
        assert fragments(problem)
        assert mma_refusal(problem, config) is None
        lanes.run(problem, config, Operands(a, None, data, scales, None, out, derived))
        found.append(out)
    assert torch.equal(*found)
    assert not found[0].isnan().any()
