"""MXLinear under torch.compile, export and AOTInductor, and the operator that they meet."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mxgemm.nn import MXLinear
from tests.cases import spread
from tests.nn.test_state import FORMS, K, N, X, by_hand, cloned, layer

no_spaces = pytest.mark.skipif(
    " " in tempfile.gettempdir(), reason="inductor does not quote the folder of temporary files, which has a space"
)


def model(form: str = "raw") -> nn.Module:
    return nn.Sequential(layer(1, form), nn.ReLU(), MXLinear.from_linear(nn.Linear(N, 32), a_format="bf16"))


@pytest.mark.parametrize(
    "options",
    [
        (),
        (torch.ones(N),),
        (torch.ones(N), "e4m3", "rceil"),
        (None, "bf16"),
    ],
    ids=["weight", "bias", "e4m3", "bf16"],
)
def test_opcheck(options: tuple) -> None:
    state = layer().state_dict()
    for x in (X, X.clone().requires_grad_(), X.bfloat16().view(3, 1, K)):
        torch.library.opcheck(torch.ops.mxgemm.mx_linear, (x, state["weight"], state["weight_scale"], *options))


@pytest.mark.parametrize("form", FORMS)
def test_compiles_into_one_graph_for_any_number_of_rows(form: str) -> None:
    eager = model(form)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (8, 3, 5):
        x = torch.randn(2, m, K)
        with torch.no_grad():
            assert torch.equal(compiled(x), eager(x))


def test_gradients_of_a_compiled_layer() -> None:
    eager = model()
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, K, requires_grad=True)
    inputs = [x, eager[0].bias.requires_grad_(), eager[2].bias]
    want = torch.autograd.grad(eager(x).square().sum(), inputs)
    got = torch.autograd.grad(compiled(x).square().sum(), inputs)
    for one, other in zip(got, want, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)
    with torch.autocast("cpu"):
        under = torch.autograd.grad(compiled(x).square().sum(), inputs)
    for one, other in zip(under, want, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_layer_sees_what_is_loaded_moved_and_replaced(form: str) -> None:
    eager = layer(form=form)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    for change in (
        lambda: eager.load_state_dict(layer(2).state_dict()),
        lambda: eager.load_state_dict(layer(3).state_dict(), assign=True),
        lambda: eager.to(torch.float32),
        lambda: eager.prepare("gfx950"),
        lambda: eager.prepare("sm_90"),
    ):
        assert torch.equal(compiled(X), by_hand(cloned(eager)))
        change()
        assert torch.equal(compiled(X), by_hand(cloned(eager)))


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_layer_sees_bytes_written_in_place_or_refuses(form: str) -> None:
    eager = layer(form=form)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    compiled(X)
    with torch.no_grad():
        eager.weight.bitwise_xor_(1)
    if form in ("raw", "gfx950 alone"):
        assert torch.equal(compiled(X), by_hand(cloned(eager)))
    assert is_right_or_refused(compiled, by_hand(cloned(eager)))
    eager(X)  # makes the form anew
    assert torch.equal(compiled(X), by_hand(cloned(eager)))


REPLACED = {
    "a new parameter": lambda m: setattr(m, "weight", torch.nn.Parameter(m.weight.data ^ 8, requires_grad=False)),
    "moved": lambda m: m._apply(torch.clone),
}


@pytest.mark.parametrize("change", REPLACED)
@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_layer_sees_bytes_that_were_replaced_and_then_written(form: str, change: str) -> None:
    eager = layer(form=form)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    compiled(X)
    REPLACED[change](eager)
    assert torch.equal(compiled(X), by_hand(cloned(eager)))
    with torch.no_grad():
        eager.weight.bitwise_xor_(1)
    assert is_right_or_refused(compiled, by_hand(cloned(eager)))


def is_right_or_refused(compiled: Callable[[Tensor], Tensor], want: Tensor) -> bool:
    """Which of both, depends on the graph that torch finds among those that it has compiled of this layer's code."""
    try:
        return torch.equal(compiled(X), want)
    except RuntimeError as error:
        return "b: its bytes were changed after prepare()" in str(error)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_exports_with_a_free_number_of_rows(form: str, strict: bool) -> None:
    eager = model(form)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(eager, (torch.randn(8, K),), dynamic_shapes=({0: rows},), strict=strict)
    for m in (2, 5):
        x = spread(m, K)
        assert torch.equal(program.module()(x), eager(x))


@no_spaces
@pytest.mark.exhaustive  # half a minute; tests/test_ops.py has the operators packaged
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aot_inductor_packages_a_model(tmp_path: Path) -> None:
    eager = model().eval()
    x = torch.randn(4, K)
    with torch.no_grad():
        program = torch.export.export(eager, (x,))
        file = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        assert torch.allclose(torch._inductor.aoti_load_package(file)(x), eager(x), rtol=1e-5)
