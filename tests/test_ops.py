"""torch.ops.mxgemm: schemas, fake kernels, torch.compile."""

import shutil

import pytest
import torch

import mxgemm
from tests.cases import make


def _operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    case = make(4, 32, 64)
    return case.a, case.weight.data, case.weight.scales


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": torch.ones(32)},
        {"a_format": "bf16", "out_dtype": torch.float32},
        {"a_format": "e4m3", "scale_rounding": "rceil"},
    ],
    ids=str,
)
def test_opcheck(options: dict) -> None:
    a, b, s = _operands()
    torch.library.opcheck(torch.ops.mxgemm.gemm, (a, b, s), options)
    out = torch.empty(4, 32, dtype=options.get("out_dtype", torch.bfloat16))
    torch.library.opcheck(torch.ops.mxgemm.gemm_out, (a, b, s, out), options)


def test_opcheck_mx() -> None:
    a, b, s = _operands()
    q = mxgemm.quantize(a)
    torch.library.opcheck(torch.ops.mxgemm.gemm_mx, (q.data, q.scales, b, s))
    out = torch.empty(4, 32, dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.mxgemm.gemm_mx_out, (q.data, q.scales, b, s, out))


@pytest.mark.parametrize("weight", ["packed", "MXTensor", "prepared"])
def test_compile_with_dynamic_m(weight: str) -> None:
    case = make(8, 48, 128)
    w = case.weight.prepare(arch="gfx950") if weight == "prepared" else case.weight

    def layer(x: torch.Tensor) -> torch.Tensor:
        if weight == "packed":
            return torch.relu(mxgemm.gemm(x, w.data, w.scales))
        return torch.relu(mxgemm.gemm(x, w))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (8, 3, 5):
        assert torch.equal(compiled(case.a[:m]), layer(case.a[:m]))


def test_compile_with_out_and_gemm_mx() -> None:
    case = make(8, 48, 128)
    q = mxgemm.quantize(case.a)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return mxgemm.gemm(x, case.weight, out=out) + 1

    out = torch.empty(8, 48, dtype=torch.bfloat16)
    want = mxgemm.gemm(case.a, case.weight)
    assert torch.equal(into(case.a, out), want + 1)
    assert torch.equal(out, want)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def mx() -> torch.Tensor:
        return mxgemm.gemm_mx(q, case.weight, out_dtype=torch.float32)

    assert torch.equal(mx(), mxgemm.gemm_mx(q, case.weight, out_dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler (apt install g++)")
def test_compile_with_inductor() -> None:
    case = make(8, 48, 128)

    @torch.compile(fullgraph=True)
    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(mxgemm.gemm(x * 2, case.weight)) + 1

    torch.testing.assert_close(layer(case.a), torch.relu(mxgemm.gemm(case.a * 2, case.weight)) + 1)


def test_export() -> None:
    case = make(8, 48, 128)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("data", case.weight.data)
            self.register_buffer("scales", case.weight.scales)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mxgemm.gemm(x, self.data, self.scales)

    m = torch.export.Dim("m", min=2, max=64)
    program = torch.export.export(Layer(), (case.a,), dynamic_shapes={"x": {0: m}})
    assert torch.equal(program.module()(case.a[:5]), mxgemm.gemm(case.a[:5], case.weight))


def test_fake_kernel_checks_k() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b, s = torch.empty(4, 64), torch.empty(32, 48, dtype=torch.uint8), torch.empty(32, 3, dtype=torch.uint8)
        with pytest.raises(ValueError, match=r"b: got shape \(32, 48\), which holds K = 96 .* want K = 64"):
            mxgemm.gemm(a, b, s)
        ok = mxgemm.gemm(a, torch.empty(32, 32, dtype=torch.uint8), s)
        assert ok.shape == (4, 32)
        assert ok.dtype == torch.bfloat16


def test_gradients_are_refused_while_tracing() -> None:
    case = make(8, 48, 128)
    compiled = torch.compile(lambda x: mxgemm.gemm(x, case.weight), backend="aot_eager")
    with pytest.raises(Exception, match="requires grad"):
        compiled(case.a.float().requires_grad_())
