"""``torch.ops.mxgemm.quant_gemm``: schemas, fake kernels, torch.compile, export, vmap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import ABBlock, BBlock, QuantTensor, RowCol, TensorWise
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.schemes import described
from tests.scaled.cases import PAIRS, grouped, ids, make

CASES = [PAIRS[2], PAIRS[14]]


@pytest.mark.slow
@pytest.mark.parametrize("pair", CASES, ids=ids)
def test_opcheck(pair: tuple) -> None:
    case = make(pair, 4, 24, 64, bias=True)
    (a, a_scales, a_format), (b, b_scales, b_format) = parts("a", case.a), parts("b", case.b)
    name, groups = described(case.scheme)
    # As bytes: what opcheck does with fp8 tensors, torch has no kernels for on a CPU.
    a, b = (x if x.dtype == torch.bfloat16 else x.view(torch.uint8) for x in (a, b))
    options = {"a_scales": a_scales, "b_scales": b_scales, "bias": case.bias, "out_dtype": torch.float32}
    torch.library.opcheck(torch.ops.mxgemm.quant_gemm, (a, b, name, groups, a_format, b_format), options)


@pytest.mark.slow
def test_opcheck_of_groups() -> None:
    a, b, offsets, _ = grouped(PAIRS[2], (1, 3), 24, 64)
    name, groups = described(PAIRS[2][0])
    options = {"a_scales": a.scales, "b_scales": b.scales}
    arguments = (a.data.view(torch.uint8), b.data.view(torch.uint8), offsets, name, groups, a.format, b.format)
    torch.library.opcheck(torch.ops.mxgemm.quant_gemm_grouped, arguments, options)


@pytest.mark.slow
@pytest.mark.parametrize("pair", CASES, ids=ids)
def test_compile_with_dynamic_m(pair: tuple) -> None:
    """In one graph, quantising A inside, into fresh memory and into ``out``."""
    scheme, a_format, _ = pair
    case = make(pair, 8, 24, 64)

    def layer(x: Tensor, out: Tensor | None = None) -> Tensor:
        a = mxgemm.quantize_for(x, scheme, "a", format=a_format)
        return mxgemm.quant_gemm(a, case.b, scheme=scheme, out=out) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (8, 3, 5):
        x = torch.randn(m, 64)
        assert torch.equal(compiled(x), layer(x))
        given, expected = torch.zeros(m, 24, dtype=torch.bfloat16), torch.zeros(m, 24, dtype=torch.bfloat16)
        assert torch.equal(compiled(x, given), layer(x, expected))
        assert torch.equal(given, expected)


@pytest.mark.slow
def test_compile_of_groups() -> None:
    pair = PAIRS[7]
    a, b, offsets, _ = grouped(pair, (2, 0, 5), 24, 128, tail=1)

    def layer(data: Tensor, scales: Tensor, ends: Tensor) -> Tensor:
        return mxgemm.quant_gemm_grouped(QuantTensor(data, scales, "e4m3"), b, ends, scheme=ABBlock())

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a.data, a.scales, offsets), layer(a.data, a.scales, offsets))


@pytest.mark.slow
def test_export() -> None:
    case = make((RowCol(), "e4m3", "e4m3"), 4, 24, 64)

    class Layer(torch.nn.Module):
        def forward(self, data: Tensor, scales: Tensor) -> Tensor:
            return mxgemm.quant_gemm(QuantTensor(data, scales), case.b, scheme=RowCol())

    arguments = (case.a.data, case.a.scales)
    assert torch.equal(torch.export.export(Layer(), arguments).module()(*arguments), Layer()(*arguments))


def test_vmap_is_a_loop() -> None:
    cases = [make((RowCol(), "e4m3", "e4m3"), 4, 24, 64, seed=i) for i in range(3)]
    data = torch.stack([case.a.data.view(torch.uint8) for case in cases])
    scales = torch.stack([case.a.scales for case in cases])
    b = cases[0].b

    def one(bytes_of_a: Tensor, scales_of_a: Tensor) -> Tensor:
        return mxgemm.quant_gemm(QuantTensor(bytes_of_a, scales_of_a, "e4m3"), b, scheme=RowCol())

    mapped = torch.vmap(one)(data, scales)
    assert torch.equal(mapped, torch.stack([one(x, s) for x, s in zip(data, scales, strict=True)]))


def test_meta_and_fake_tensors_are_checked_and_nothing_runs() -> None:
    case = make((BBlock(1, 128), "e4m3", "int4"), 4, 24, 256)
    a, b = case.a.to("meta"), case.b.to("meta")
    out = mxgemm.quant_gemm(a, b, scheme=case.scheme, out_dtype=torch.float32)
    assert (out.shape, out.dtype, out.device.type) == ((4, 24), torch.float32, "meta")
    with pytest.raises(ValueError, match="b: got K = 256, want 128"):
        mxgemm.quant_gemm(a[:, :128], b, scheme=case.scheme)


@pytest.mark.slow
def test_a_wrong_output_of_a_compiled_call() -> None:
    case = make((TensorWise(), "e4m3", "e4m3"), 4, 24, 64)

    def layer(out: Tensor) -> Tensor:
        return mxgemm.quant_gemm(case.a, case.b, scheme=TensorWise(), out=out)

    compiled = torch.compile(layer, backend="aot_eager")
    with pytest.raises(Exception, match=r"out: got a torch.float32 tensor"):
        compiled(torch.zeros(4, 24))
    with pytest.raises(Exception, match=r"out: got shape \(24, 4\)"):
        compiled(torch.zeros(24, 4, dtype=torch.bfloat16))
