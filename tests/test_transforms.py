"""Transforms of torch: batching, derivatives, modes without data, and the version counters that autograd reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vjp, vmap

import mxgemm
from tests.cases import skip_without_kernels, spread

B, M, N, K = 3, 4, 32, 64


@pytest.fixture
def a() -> Tensor:
    return spread(B * M, K, octaves=0).view(B, M, K)


@pytest.fixture
def w() -> mxgemm.MXTensor:
    return mxgemm.quantize(spread(N, K, octaves=0, seed=1))


def test_vmap_over_activations(a: Tensor, w: mxgemm.MXTensor) -> None:
    want = torch.stack([mxgemm.gemm(x, w) for x in a])
    assert torch.equal(vmap(lambda x: mxgemm.gemm(x, w))(a), want)
    for dim in (1, 2, -1):
        moved = vmap(lambda x: mxgemm.gemm(x, w), in_dims=dim, out_dims=1)(a.movedim(0, dim))
        assert torch.equal(moved, want.movedim(0, 1))
    assert torch.equal(vmap(vmap(lambda x: mxgemm.gemm(x, w)))(a), want)
    assert torch.equal(vmap(vmap(lambda x: mxgemm.gemm(x, w)), in_dims=1, out_dims=1)(a), want)
    assert torch.equal(vmap(lambda x: mxgemm.gemm(x, w), chunk_size=2)(a), want)


def test_vmap_over_activations_is_one_call(a: Tensor, w: mxgemm.MXTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the call with a leading dimension, to the bit, whatever the data: more rows of one problem."""
    x = spread(B * M, K, octaves=9).view(B, M, K)
    assert torch.equal(
        vmap(lambda x: mxgemm.gemm(x, w, out_dtype=torch.float32))(x), mxgemm.gemm(x, w, out_dtype=torch.float32)
    )
    calls: list[Any] = []
    multiply = mxgemm.ops.multiply
    monkeypatch.setattr(mxgemm.ops, "multiply", lambda *args: calls.append(args) or multiply(*args))
    vmap(lambda x: mxgemm.gemm(x, w))(a)
    assert [call[0].shape for call in calls] == [(B, M, K)]


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None)], ids=str)
def test_vmap_over_bias(in_dims: tuple[int | None, ...], a: Tensor, w: mxgemm.MXTensor) -> None:
    bias = spread(B, N, octaves=0, seed=2)
    left, added = a if in_dims[0] == 0 else a[0], bias if in_dims[1] == 0 else bias[0]
    found = vmap(lambda x, c: mxgemm.gemm(x, w, bias=c), in_dims=in_dims)(left, added)
    pairs = [(a[i if in_dims[0] == 0 else 0], bias[i if in_dims[1] == 0 else 0]) for i in range(B)]
    assert torch.equal(found, torch.stack([mxgemm.gemm(x, w, bias=c) for x, c in pairs]))


def test_vmap_over_weights(a: Tensor) -> None:
    many = mxgemm.quantize(spread(B * N, K, octaves=3, seed=1).view(B, N, K))
    want = torch.stack([mxgemm.gemm(a[0], d, s) for d, s in zip(many.data, many.scales, strict=True)])
    assert torch.equal(vmap(lambda d, s: mxgemm.gemm(a[0], d, s))(many.data, many.scales), want)
    last = vmap(lambda d, s: mxgemm.gemm(a[0], d, s), in_dims=(-1, 1))(
        many.data.movedim(0, -1), many.scales.movedim(0, 1)
    )
    assert torch.equal(last, want)


def test_vmap_over_the_bytes_of_quantised_activations_alone(a: Tensor, w: mxgemm.MXTensor) -> None:
    """Scales that are not mapped belong to every element: no call with one more leading dimension."""
    q, scales = mxgemm.quantize(a), mxgemm.quantize(a[0]).scales
    found = vmap(lambda x: torch.ops.mxgemm.gemm(x, w.data, w.scales, a_scales=scales))(q.data)
    assert torch.equal(found, torch.stack([mxgemm.gemm_mx(mxgemm.MXTensor.wrap(x, scales), w) for x in q.data]))


def test_vmap_over_quantised_operands(a: Tensor, w: mxgemm.MXTensor) -> None:
    found = vmap(lambda x: mxgemm.gemm_mx(mxgemm.quantize(x, format="e4m3"), w))(a)
    assert torch.equal(found, torch.stack([mxgemm.gemm_mx(mxgemm.quantize(x, format="e4m3"), w) for x in a]))
    shuffled = w.prepare("gfx950", keep=False)
    assert torch.equal(
        vmap(lambda x: mxgemm.gemm_mx(mxgemm.quantize(x), shuffled))(a),
        torch.stack([mxgemm.gemm_mx(mxgemm.quantize(x), w) for x in a]),
    )
    many = [mxgemm.quantize(spread(N, K, seed=seed)).prepare("gfx950", keep=False) for seed in range(B)]
    data, scales = (torch.stack([getattr(one, name) for one in many]) for name in ("data", "scales"))
    layout = "preshuffled", "shuffled"
    found = vmap(lambda d, s: torch.ops.mxgemm.dequantize(d, s, "e2m1", *layout))(data, scales)
    assert torch.equal(found, torch.stack([one.dequantize() for one in many]))
    back = vmap(lambda x: mxgemm.dequantize(mxgemm.quantize(x), dtype=torch.bfloat16), in_dims=1, out_dims=1)(a)
    assert torch.equal(back, mxgemm.dequantize(mxgemm.quantize(a), dtype=torch.bfloat16))
    data, scales = vmap(lambda x: torch.ops.mxgemm.quantize(x, "e5m2"))(a)
    assert torch.equal(data, mxgemm.quantize(a, format="e5m2").data)
    assert torch.equal(scales, mxgemm.quantize(a, format="e5m2").scales)


def test_vmap_over_out(a: Tensor, w: mxgemm.MXTensor) -> None:
    want = torch.stack([mxgemm.gemm(x, w) for x in a])
    for inputs in (a, a[0]):
        out = torch.zeros(M, B, N, dtype=torch.bfloat16)
        vmap(lambda x, o: mxgemm.gemm(x, w, out=o), in_dims=(0 if inputs is a else None, 1))(inputs, out)
        assert torch.equal(out.movedim(1, 0), want if inputs is a else want[:1].expand(B, M, N))
    out = torch.zeros(B, M, N, dtype=torch.bfloat16)
    vmap(lambda x, o: mxgemm.gemm_mx(mxgemm.quantize(x), w, out=o))(a, out)
    assert torch.equal(out, want)
    with pytest.raises(ValueError, match="out: got a tensor that torch.vmap does not map"):
        vmap(lambda x: mxgemm.gemm(x, w, out=out[0]))(a)


def _sum(x: Tensor, w: mxgemm.MXTensor) -> Tensor:
    return mxgemm.gemm(x, w).float().sum()


DERIVATIVES: dict[str, tuple[str, Callable[[Tensor, mxgemm.MXTensor], Any]]] = {
    "grad": ("a: requires grad", lambda a, w: grad(lambda x: _sum(x, w))(a)),
    "vjp": ("a: requires grad", lambda a, w: vjp(lambda x: mxgemm.gemm(x, w), a)),
    "vmap of grad": ("a: requires grad", lambda a, w: vmap(grad(lambda x: _sum(x, w)))(a)),
    "grad of vmap": ("a: requires grad", lambda a, w: grad(lambda y: vmap(lambda x: _sum(x, w))(y).sum())(a)),
    "grad of bias": (
        "bias: requires grad",
        lambda a, w: grad(lambda c: mxgemm.gemm(a, w, bias=c).float().sum())(a[0, 0, :N]),
    ),
    "gemm_mx, bias": (
        "bias: requires grad",
        lambda a, w: grad(lambda c: mxgemm.gemm_mx(w, w, bias=c).float().sum())(a[0, 0, :N]),
    ),
    "jvp": ("a: carries a forward-mode tangent", lambda a, w: jvp(lambda x: mxgemm.gemm(x, w), (a,), (a,))),
    "jacfwd": ("a: carries a forward-mode tangent", lambda a, w: jacfwd(lambda x: mxgemm.gemm(x, w))(a)),
    "jvp of bias": (
        "bias: carries",
        lambda a, w: jvp(lambda c: mxgemm.gemm(a, w, bias=c), (a[0, 0, :N],), (a[0, 0, :N],)),
    ),
    "jvp of vmap": ("a: carries", lambda a, w: jvp(lambda y: vmap(lambda x: mxgemm.gemm(x, w))(y), (a,), (a,))),
    "vmap of jvp": ("a: carries", lambda a, w: vmap(lambda x: jvp(lambda y: mxgemm.gemm(y, w), (x,), (x,)))(a)),
    "operator": ("a: requires grad", lambda a, w: torch.ops.mxgemm.gemm(a.clone().requires_grad_(), w.data, w.scales)),
    "grad of quantize": ("x: a derivative", lambda a, w: grad(lambda x: mxgemm.quantize(x).dequantize().sum())(a)),
    "grad of vmap of quantize": (
        "x: a derivative",
        lambda a, w: grad(lambda y: vmap(lambda x: mxgemm.quantize(x).dequantize())(y).sum())(a),
    ),
    "jvp of quantize": ("x: a derivative", lambda a, w: jvp(lambda x: mxgemm.quantize(x).dequantize(), (a,), (a,))),
}


@pytest.mark.parametrize("message, call", DERIVATIVES.values(), ids=DERIVATIVES.keys())
def test_derivatives_are_refused(message: str, call: Callable[..., Any], a: Tensor, w: mxgemm.MXTensor) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(a, w)


@pytest.mark.parametrize("recorded", [torch.enable_grad, torch.no_grad])
def test_dual_tensors_are_refused(recorded: Callable[[], Any], a: Tensor, w: mxgemm.MXTensor) -> None:
    out, bias = torch.empty(B, M, N), torch.ones(N)
    with forward_ad.dual_level(), recorded():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        dual_bias = forward_ad.make_dual(bias, bias)
        dual_out = forward_ad.make_dual(out.bfloat16(), out.bfloat16())
        for name, call in {
            "a": lambda: mxgemm.gemm(dual, w),
            "bias": lambda: mxgemm.gemm(a, w, bias=dual_bias),
            "out": lambda: mxgemm.gemm(a, w, out=dual_out),
        }.items():
            with pytest.raises(RuntimeError, match=f"{name}: carries a forward-mode tangent"):
                call()
        with pytest.raises(RuntimeError, match="bias: carries"):
            mxgemm.gemm_mx(w, w, bias=dual_bias)
        with pytest.raises(RuntimeError, match="x: a derivative"):
            mxgemm.quantize(dual)
        with pytest.raises(RuntimeError, match="x: a derivative"):
            torch.ops.mxgemm.quantize(dual)
        with pytest.raises(RuntimeError, match="out: carries"):
            torch.ops.mxgemm.gemm_out(a, w.data, w.scales, dual_out)
        assert torch.equal(mxgemm.gemm(dual.detach(), w), mxgemm.gemm(a, w))


def test_out_forms_refuse_gradients(a: Tensor, w: mxgemm.MXTensor) -> None:
    """The operators too: torch has no backward pass in which it could say so."""
    out, bias = torch.zeros(B, M, N, dtype=torch.bfloat16), torch.ones(N, requires_grad=True)
    held = torch.zeros(B, M, N, dtype=torch.bfloat16, requires_grad=True)
    gemm_out = torch.ops.mxgemm.gemm_out
    q = mxgemm.quantize(a)
    for name, call in (
        ("a", lambda: gemm_out(a.clone().requires_grad_(), w.data, w.scales, out)),
        ("out", lambda: gemm_out(a, w.data, w.scales, held)),
        ("bias", lambda: gemm_out(a, w.data, w.scales, out, bias)),
        ("bias", lambda: gemm_out(q.data, w.data, w.scales, out, bias, a_scales=q.scales)),
        ("out", lambda: mxgemm.gemm_mx(q, w, out=held)),
        ("bias", lambda: mxgemm.gemm_mx(q, w, bias=bias)),
    ):
        with pytest.raises(RuntimeError, match=f"{name}: requires grad"):
            call()
    assert not out.any()
    with torch.no_grad():
        assert torch.equal(mxgemm.gemm(a, w, out=held), mxgemm.gemm(a, w))


def test_other_derivatives_pass_by(a: Tensor, w: mxgemm.MXTensor) -> None:
    """A result that does not depend on what is differentiated is a constant."""
    constant = mxgemm.gemm(a, w).float().sum()
    assert torch.equal(grad(lambda x: (x * _sum(a, w)).sum())(a), constant.expand_as(a))
    value, tangent = jvp(lambda x: x * _sum(a, w), (a,), (a,))
    assert torch.equal(value, tangent)


def test_a_parameter_may_be_quantised(a: Tensor) -> None:
    parameter = torch.nn.Parameter(a[0].clone())
    found = mxgemm.quantize(parameter * 1)
    assert not found.data.requires_grad
    assert torch.equal(found.data, mxgemm.quantize(a[0]).data)
    assert not torch.ops.mxgemm.quantize(parameter)[1].requires_grad
    assert torch.equal(
        vmap(lambda x: mxgemm.quantize(parameter).dequantize() + x)(a), mxgemm.quantize(a[0]).dequantize() + a
    )


@pytest.mark.parametrize("route", ["reference", "a16wfp4"])
def test_writing_out_is_seen_by_autograd(route: str, a: Tensor, w: mxgemm.MXTensor) -> None:
    skip_without_kernels("cpu")
    out = torch.ones(B, M, N, dtype=torch.bfloat16)
    scale = torch.ones(B, M, N, dtype=torch.bfloat16, requires_grad=True)
    loss = (scale * out).sum()  # saves out for the backward pass
    before = out._version
    mxgemm.gemm(a, w, out=out, route=route)
    assert out._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_every_form_of_out_counts(a: Tensor, w: mxgemm.MXTensor) -> None:
    q, out = mxgemm.quantize(a), torch.ones(B, M, N, dtype=torch.bfloat16)
    base = torch.ones(2, B, M, N, dtype=torch.bfloat16)
    for call in (
        lambda o: mxgemm.gemm(a, w, out=o),
        lambda o: mxgemm.gemm_mx(q, w, out=o),
        lambda o: torch.ops.mxgemm.gemm_out(a, w.data, w.scales, o),
        lambda o: torch.ops.mxgemm.gemm_out(q.data, w.data, w.scales, o, a_scales=q.scales),
    ):
        for written, counted in ((out, out), (base[1], base)):
            before = counted._version
            call(written)
            assert counted._version > before
    with torch.inference_mode():  # whose tensors have no counters
        assert mxgemm.gemm(a, w, out=torch.empty(B, M, N, dtype=torch.bfloat16)).shape == (B, M, N)


def test_meta_tensors_have_meta_results() -> None:
    rows = 1 << 40
    x = torch.empty(rows, K, device="meta", dtype=torch.bfloat16)
    q = mxgemm.quantize(x, format="e4m3")
    assert (q.data.shape, q.scales.shape, q.device.type) == ((rows, K), (rows, K // 32), "meta")
    assert mxgemm.dequantize(q).shape == (rows, K)
    w = mxgemm.quantize(torch.empty(N, K, device="meta"))
    bias = torch.empty(N, device="meta")
    for found in (
        mxgemm.gemm(x, w, bias=bias, out_dtype=torch.float16),
        mxgemm.gemm_mx(q, w, out_dtype=torch.float16),
        torch.ops.mxgemm.gemm(x, w.data, w.scales, out_dtype=torch.float16),
        torch.ops.mxgemm.gemm(q.data, w.data, w.scales, None, "e4m3", out_dtype=torch.float16, a_scales=q.scales),
        mxgemm.gemm(x, w.prepare("gfx950"), out_dtype=torch.float16),
    ):
        assert (found.shape, found.dtype, found.device.type) == ((rows, N), torch.float16, "meta")
    out = torch.empty(rows, N, device="meta", dtype=torch.bfloat16)
    assert mxgemm.gemm(x, w, out=out) is out
    assert mxgemm.gemm(torch.empty(2, 0, K, device="meta"), w).shape == (2, 0, N)


def _contract(make: Callable[..., Tensor]) -> None:
    """Errors on tensors without data are the contract's."""
    x, d = make(M, K), make(N, K // 2, dtype=torch.uint8)
    s = make(N, K // 32, dtype=torch.uint8)
    for error, message, call in (
        (ValueError, "b: got shape .* want K = 64", lambda: mxgemm.gemm(x, d[:, :16], s)),
        (ValueError, "b_scales: got shape", lambda: mxgemm.gemm(x, d, s[:, :1])),
        (ValueError, "bias: got shape", lambda: mxgemm.gemm(x, d, s, bias=make(N + 1))),
        (TypeError, "out: got", lambda: mxgemm.gemm(x, d, s, out=make(M, N))),
        (ValueError, "a: got K = 48", lambda: mxgemm.gemm(make(M, 48), d, s)),
        (TypeError, "a: got a torch.float64 tensor", lambda: mxgemm.gemm(x.double(), d, s)),
        (ValueError, "route: got 'cublas'", lambda: mxgemm.gemm(x, d, s, route="cublas")),
        (ValueError, "a_format: got 'e3m2'", lambda: torch.ops.mxgemm.gemm(d, d, s, None, "e3m2", a_scales=s)),
        (ValueError, "b_format: got 'e3m2'", lambda: torch.ops.mxgemm.gemm(x, d, s, b_format="e3m2")),
        (ValueError, "x: got shape", lambda: mxgemm.quantize(make(M, 48))),
        (ValueError, "format: got 'fp4'", lambda: torch.ops.mxgemm.quantize(x, "fp4")),
        (ValueError, "scale_rounding: got 'up'", lambda: torch.ops.mxgemm.quantize(x, "e2m1", "up")),
        (TypeError, "dtype: got torch.int8", lambda: mxgemm.dequantize(mxgemm.quantize(x), dtype=torch.int8)),
        (ValueError, "scales: got shape", lambda: torch.ops.mxgemm.dequantize(d, s[:, :1])),
    ):
        with pytest.raises(error, match=message):
            call()


def test_errors_on_meta_tensors() -> None:
    _contract(lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta"))


def test_errors_on_fake_tensors() -> None:
    with FakeTensorMode():
        _contract(lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype))


def test_errors_on_tensors() -> None:
    _contract(lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype))


def test_fake_tensors_have_fake_results() -> None:
    real = mxgemm.quantize(torch.ones(N, K))
    with FakeTensorMode() as mode:
        x, w = torch.empty(2, M, K, dtype=torch.bfloat16), mxgemm.quantize(torch.empty(N, K))
        q = mxgemm.quantize(x, format="e5m2")
        for found, shape, dtype in (
            (mxgemm.gemm(x, w), (2, M, N), torch.bfloat16),
            (mxgemm.gemm_mx(q, w, out_dtype=torch.float32), (2, M, N), torch.float32),
            (mxgemm.dequantize(q, dtype=torch.float16), (2, M, K), torch.float16),
            (q.data, (2, M, K), torch.uint8),
            (w.scales, (N, K // 32), torch.uint8),
            (mxgemm.gemm(x, w.prepare("gfx950")), (2, M, N), torch.bfloat16),
        ):
            assert isinstance(found, FakeTensor)
            assert (found.shape, found.dtype) == (shape, dtype)
    assert isinstance(mxgemm.gemm(mode.from_tensor(torch.ones(M, K)), w), FakeTensor)  # the mode is left, they are not
    with FakeTensorMode(), pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        mxgemm.gemm(torch.ones(M, K), real)


def test_subclasses_stay_what_they_are(a: Tensor, w: mxgemm.MXTensor) -> None:
    class Mine(Tensor):
        pass

    mine = a.as_subclass(Mine)
    assert type(mxgemm.gemm(mine, w)) is Mine
    assert type(mxgemm.quantize(mine).data) is Mine
    assert torch.equal(mxgemm.gemm(mine, w).as_subclass(Tensor), mxgemm.gemm(a, w))
    other = mxgemm.gemm(a, w.data.as_subclass(Mine), w.scales)
    assert type(other) is Mine


@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_mkldnn,
        lambda x: torch.nested.nested_tensor([x, x]),
        lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    ],
)
def test_quantize_wants_dense_memory(make: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="x: got a .*, want a dense tensor"):
        mxgemm.quantize(make(torch.ones(4, 64)))


def test_dequantize_says_what_it_wants() -> None:
    with pytest.raises(TypeError, match="x: got a torch.float32 tensor .* want an MXTensor"):
        mxgemm.dequantize(torch.ones(4, 64))  # type: ignore[arg-type]
