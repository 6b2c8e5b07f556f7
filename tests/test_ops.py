"""torch.ops.mxgemm: schemas, fake kernels, torch.compile."""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import mxgemm
from tests.cases import make

no_spaces = pytest.mark.skipif(
    " " in tempfile.gettempdir(), reason="inductor does not quote the folder of temporary files, which has a space"
)


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
    torch.library.opcheck(torch.ops.mxgemm.gemm, (q.data, b, s), {"a_scales": q.scales})
    out = torch.empty(4, 32, dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.mxgemm.gemm_out, (q.data, b, s, out), {"a_scales": q.scales})


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
@no_spaces
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


class Everything(torch.nn.Module):
    """Every public function with all its defaults, on one weight."""

    def __init__(self, weight: mxgemm.MXTensor) -> None:
        super().__init__()
        self.register_buffer("data", weight.data)
        self.register_buffer("scales", weight.scales)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = mxgemm.MXTensor.wrap(self.data, self.scales)
        q = mxgemm.quantize(x)
        activations = mxgemm.quantize(x, format="e4m3", scale_rounding="floor")
        bias = mxgemm.dequantize(w)[:, 0]
        return (
            mxgemm.gemm(x, self.data, self.scales),
            mxgemm.gemm(x, w, bias=bias, out_dtype=torch.float32),
            mxgemm.gemm_mx(q, w),
            mxgemm.gemm_mx(activations, w, out_dtype=torch.float16),
            mxgemm.dequantize(q),
            q.dequantize(torch.bfloat16),
            activations.scales + 1,
        )


def _check_everything(found: tuple[torch.Tensor, ...], x: torch.Tensor, model: Everything) -> None:
    for got, want in zip(found, model(x), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_everything_in_one_graph(dynamic: bool) -> None:
    case = make(8, 48, 128)
    model = Everything(case.weight)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for m in (8, 3, 5) if dynamic else (8,):
        _check_everything(compiled(case.a[:m]), case.a[:m], model)


def test_compile_returns_an_mx_tensor() -> None:
    case = make(8, 48, 128)
    weight = torch.nn.Parameter(case.a.float())
    q = torch.compile(lambda x: mxgemm.quantize(x * 2, format="e4m3"), fullgraph=True, backend="aot_eager")(weight)
    want = mxgemm.quantize(weight.detach() * 2, format="e4m3")
    assert isinstance(q, mxgemm.MXTensor)
    assert torch.equal(q.data, want.data)
    assert torch.equal(q.scales, want.scales)
    assert not q.data.requires_grad
    shuffled = case.weight.prepare("gfx950", keep=False)
    compiled = torch.compile(
        lambda: (shuffled.row_major().data, shuffled.dequantize()), fullgraph=True, backend="aot_eager"
    )
    for got, right in zip(compiled(), (case.weight.data, case.weight.dequantize()), strict=True):
        assert torch.equal(got, right)


@pytest.mark.parametrize("strict", [False, True])
def test_export_everything(strict: bool) -> None:
    case = make(8, 48, 128)
    model = Everything(case.weight)
    m = torch.export.Dim("m", min=2, max=64)
    program = torch.export.export(model, (case.a,), dynamic_shapes={"x": {0: m}}, strict=strict)
    called = {str(node.target) for node in program.graph.nodes if "mxgemm" in str(node.target)}
    assert called == {f"mxgemm.{name}.default" for name in ("gemm", "quantize", "dequantize")}
    for rows in (8, 5):
        _check_everything(program.module()(case.a[:rows]), case.a[:rows], model)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler (apt install g++)")
@no_spaces
def test_aot_inductor_packages_everything(tmp_path: Path) -> None:
    case = make(8, 48, 128)
    model = Everything(case.weight)
    m = torch.export.Dim("m", min=2, max=64)
    program = torch.export.export(model, (case.a,), dynamic_shapes={"x": {0: m}})
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for rows in (8, 5):
        _check_everything(loaded(case.a[:rows]), case.a[:rows], model)


def test_no_schema_has_a_dtype_for_a_default() -> None:
    """AOTInductor hands such a default on as an integer; None it can."""
    for name in ("gemm", "gemm_out", "quantize", "dequantize"):
        for argument in getattr(torch.ops.mxgemm, name).default._schema.arguments:
            if "dtype" in argument.name:
                assert argument.default_value is None


def test_operators_by_their_defaults() -> None:
    """``torch.ops.mxgemm.gemm`` with three tensors is ``mxgemm.gemm``, and so on."""
    case = make(4, 32, 64)
    w, q = case.weight, mxgemm.quantize(case.a)
    ops = torch.ops.mxgemm
    assert torch.equal(ops.gemm(case.a, w.data, w.scales), mxgemm.gemm(case.a, w))
    assert torch.equal(ops.gemm(q.data, w.data, w.scales, a_scales=q.scales), mxgemm.gemm_mx(q, w))
    for got, want in zip(ops.quantize(case.a), (q.data, q.scales), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(ops.dequantize(q.data, q.scales), mxgemm.dequantize(q))
    fp16 = ops.gemm(case.a, w.data, w.scales, out_dtype=torch.float16)
    assert torch.equal(fp16, mxgemm.gemm(case.a, w, out_dtype=torch.float16))
    shuffled = w.prepare("gfx950", keep=False)
    found = ops.dequantize(shuffled.data, shuffled.scales, "e2m1", "preshuffled", "shuffled", torch.bfloat16)
    # The operator sees the padded scales alone, so the rows are those of the data.
    assert torch.equal(found, mxgemm.dequantize(w, dtype=torch.bfloat16))


@pytest.mark.parametrize("format", ["e2m1", "e4m3", "e5m2"])
def test_opcheck_quantize(format: str) -> None:
    a, _, _ = _operands()
    torch.library.opcheck(torch.ops.mxgemm.quantize, (a, format, "rceil"))
    torch.library.opcheck(torch.ops.mxgemm.quantize, (a.float().requires_grad_(), format))
    q = mxgemm.quantize(a, format=format)
    torch.library.opcheck(torch.ops.mxgemm.dequantize, (q.data, q.scales, format), {"dtype": torch.float16})


def test_jit_trace_records_operators() -> None:
    case = make(4, 32, 64)
    w = case.weight
    traced = torch.jit.trace(lambda x: mxgemm.gemm(x, w.data, w.scales), (case.a,))
    assert "mxgemm::gemm" in str(traced.graph)
    assert torch.equal(traced(case.a * 2), mxgemm.gemm(case.a * 2, w))


def test_fake_kernel_checks_k() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b, s = torch.empty(4, 64), torch.empty(32, 48, dtype=torch.uint8), torch.empty(32, 3, dtype=torch.uint8)
        with pytest.raises(ValueError, match=r"b: got shape \(32, 48\), which holds K = 96 .* want K = 64"):
            mxgemm.gemm(a, b, s)
        ok = mxgemm.gemm(a, torch.empty(32, 32, dtype=torch.uint8), s[:, :2])
        assert ok.shape == (4, 32)
        assert ok.dtype == torch.bfloat16


def test_gradients_are_refused_while_tracing() -> None:
    case = make(8, 48, 128)
    compiled = torch.compile(lambda x: mxgemm.gemm(x, case.weight), backend="aot_eager")
    with pytest.raises(Exception, match="requires grad"):
        compiled(case.a.float().requires_grad_())
