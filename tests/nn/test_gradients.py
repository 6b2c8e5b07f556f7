"""Gradients past a frozen weight, as adapters want them: against float64, and what is refused."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from mxgemm.nn import MXLinear
from tests.cases import spread


def layer(n: int = 33, k: int = 96, **options: str) -> MXLinear:
    return MXLinear.from_parts(*_parts(n, k), nn.Parameter(torch.randn(n)), **options)


def _parts(n: int, k: int) -> tuple[Tensor, Tensor]:
    weight = MXLinear.from_linear(_linear(n, k)).mx_tensor()
    return weight.data, weight.scales


def _linear(n: int, k: int) -> nn.Linear:
    linear = nn.Linear(k, n)
    linear.weight.data = spread(n, k)
    return linear


def values(mx: MXLinear) -> Tensor:
    return mx.mx_tensor().dequantize().double()


@pytest.mark.parametrize("form", ["raw", "sm_90", "gfx950", "gfx950 alone"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n, k", [(33, 96), (1, 32), (64, 128)], ids=str)
def test_the_gradient_of_the_input_is_the_dequantised_product(n: int, k: int, dtype: torch.dtype, form: str) -> None:
    mx = layer(n, k, a_format="e2m1")
    weight = values(mx)
    if form != "raw":
        mx.prepare(form.split()[0], keep="alone" not in form)
    x = torch.randn(2, 5, k).to(dtype).requires_grad_()
    dy = torch.randn(2, 5, n).to(dtype)
    mx(x).backward(dy)
    exact = dy.double() @ weight
    assert x.grad is not None
    assert x.grad.dtype == dtype
    bound = 2**-8 * exact.abs() + 2**-20 * (dy.double().abs() @ weight.abs())
    if dtype == torch.float16:
        bound += torch.finfo(dtype).tiny
    assert ((x.grad.double() - exact).abs() <= bound).all()


def test_an_adapter_learns_what_it_does_beside_the_exact_weight() -> None:
    """LoRA: B @ A beside the frozen layer, and a trainable layer before it; gradients against float64."""
    torch.manual_seed(1)
    n, k, rank = 48, 64, 4
    mx = layer(n, k, a_format="bf16")
    before, a, b = nn.Linear(k, k), nn.Linear(k, rank, bias=False), nn.Linear(rank, n, bias=False)
    x, target = torch.randn(7, k), torch.randn(7, n)
    h = before(x).bfloat16().float()  # what the layer rounds its input to, made explicit
    loss = (mx(h) + b(a(h)) - target).square().mean()
    loss.backward()
    got = [p.grad.double() for p in (before.weight, a.weight, b.weight, mx.bias)]

    exact = [p.detach().double().requires_grad_() for p in (before.weight, a.weight, b.weight, mx.bias)]
    h64 = nn.functional.linear(x.double(), exact[0], before.bias.double())
    h64 = h64 + (h.double() - h64).detach()  # the same rounding, with the same gradient: the identity
    y = h64 @ values(mx).T + exact[3] + h64 @ exact[1].T @ exact[2].T
    (y - target.double()).square().mean().backward()
    for gradient, reference in zip(got, exact, strict=True):
        assert ((gradient - reference.grad).norm() / reference.grad.norm()) < 5e-3  # bf16 gradients of h


def test_the_bias_learns_and_the_weight_does_not() -> None:
    mx = layer()
    optimizer = torch.optim.SGD(mx.parameters(), lr=1.0)
    before = {name: value.clone() for name, value in mx.state_dict().items()}
    dy = torch.randn(2, 5, 33)
    mx(torch.randn(2, 5, 96)).backward(dy)
    optimizer.step()
    assert torch.equal(mx.weight, before["weight"])
    assert torch.equal(mx.weight_scale, before["weight_scale"])
    assert torch.allclose(mx.bias, before["bias"] - dy.sum((0, 1)), atol=1e-5)


def test_inference_needs_no_context_and_records_nothing() -> None:
    mx = layer()
    mx.bias.requires_grad_(False)
    assert not mx(torch.randn(3, 96)).requires_grad
    x = torch.randn(3, 96, requires_grad=True)
    assert mx(x).requires_grad
    with torch.no_grad():
        assert not mx(x).requires_grad
    with torch.inference_mode():
        assert mx(x).is_inference()


def test_recorded_or_not_the_result_is_the_same() -> None:
    for a_format in ("bf16", "e4m3", "e2m1"):
        mx = layer(a_format=a_format)
        x = torch.randn(3, 96, requires_grad=True)
        with torch.no_grad():
            want = mx(x)
        assert torch.equal(mx(x), want)
        assert mx(x).relu_().grad_fn is not None  # in place behind the layer, as activations are


def test_gradients_of_gradients() -> None:
    mx = layer()
    x = torch.randn(3, 96, requires_grad=True)
    dy = torch.randn(3, 33, requires_grad=True)
    (dx,) = torch.autograd.grad(mx(x), x, dy, create_graph=True)
    direction = torch.randn_like(dx)
    (second,) = torch.autograd.grad(dx, dy, direction)
    assert torch.allclose(second.double(), direction.double() @ values(mx).T, atol=1e-4)


def test_autocast_and_the_precision_of_products_leave_gradients_alone() -> None:
    mx = layer()
    x, dy = torch.randn(9, 96, requires_grad=True), torch.randn(9, 33)
    (want,) = torch.autograd.grad(mx(x), x, dy)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu"):
            (got,) = torch.autograd.grad(mx(x), x, dy)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(got, want)


def test_a_weight_written_before_the_backward_pass_is_an_error() -> None:
    mx = layer()
    x = torch.randn(3, 96, requires_grad=True)
    out = mx(x)
    mx.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_checkpointed_activations() -> None:
    mx, x = layer(), torch.randn(3, 96, requires_grad=True)
    (want,) = torch.autograd.grad(mx(x).sum(), x)
    out = torch.utils.checkpoint.checkpoint(mx, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], want)


def test_mapped_layers_have_gradients_too() -> None:
    mx = layer()
    x = torch.randn(4, 3, 96, requires_grad=True)
    out = torch.func.vmap(mx)(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad.double(), values(mx).sum(0).expand_as(x), rtol=1e-5, atol=1e-5)


def test_other_derivatives_are_refused() -> None:
    mx, x = layer(), torch.randn(3, 96)
    message = "x: torch.func or forward mode takes a derivative"
    for take in (
        lambda: torch.func.grad(lambda x: mx(x).sum())(x),
        lambda: torch.func.grad(lambda x: torch.func.vmap(mx)(x).sum())(x),
        lambda: torch.func.vmap(torch.func.grad(lambda x: mx(x).sum()))(x),
        lambda: torch.func.jvp(mx, (x,), (x,)),
    ):
        with pytest.raises(RuntimeError, match=message):
            take()
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=message):
        mx(forward_ad.make_dual(x, x))
