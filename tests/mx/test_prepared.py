"""Forms of a weight: who names them, what prepare() makes of them, and what it lets go of."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.experts.forms import STACK_FRAGMENTS
from mxgemm.mx import prepared
from mxgemm.mx.formats import FORMATS
from mxgemm.mx.layouts import ROW_MAJOR, Layout, preshuffle_weight, shuffle_scales
from mxgemm.mx.prepared import WeightForm, only_e2m1
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes import ROUTES
from tests.cases import spread

N, K = 48, 192
A = spread(3, K, torch.bfloat16)
FORM = Layout("preshuffled", "shuffled")


def weight(fmt: str = "e2m1") -> MXTensor:
    """Any bytes that a checkpoint may hold: every code in blocks of zeros, NaN and the least and largest scales too."""
    generator = torch.Generator().manual_seed(4)
    data = torch.randint(0, 256, (N, K // FORMATS[fmt].pack), generator=generator).to(torch.uint8)
    scales = torch.randint(0, 256, (N, K // 32), generator=generator).to(torch.uint8)
    scales[:2] = torch.tensor([0, 255]).to(torch.uint8)[:, None]
    data[4:6] = 0
    return MXTensor.wrap(data, scales, format=fmt)  # type: ignore[arg-type]


BACK: dict[str, Callable[[MXTensor], MXTensor]] = {
    "row_major": lambda p: p.row_major(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
}


@pytest.mark.parametrize("way", BACK)
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_row_major_bytes_come_back_to_the_byte(fmt: str, way: str) -> None:
    w = weight(fmt)
    p = w.prepare("gfx950", keep=False)
    back = BACK[way](p)
    assert back.layout == ROW_MAJOR
    assert back.prepared is None
    assert torch.equal(back.data, w.data)
    assert torch.equal(back.scales, w.scales)
    assert torch.equal(p.dequantize().nan_to_num(7e30), w.dequantize().nan_to_num(7e30))


def test_only_the_form_is_held() -> None:
    w = weight()
    gone = weakref.ref(w.data), weakref.ref(w.scales)
    kept, p = w.prepare("gfx950"), w.prepare("gfx950", keep=False)
    assert kept.prepared is not None
    assert p.prepared is not None
    assert p.layout == FORM
    assert p.prepared.tensors == (p.data, p.scales)
    assert p.nbytes == p.prepared.nbytes == p.data.nbytes + p.scales.nbytes
    assert kept.nbytes == w.nbytes + kept.prepared.nbytes
    assert f"prepared as preshuffled, {p.nbytes} bytes" in repr(p)
    assert f"prepared as preshuffled, {kept.nbytes} bytes" in repr(kept)
    assert f", {w.nbytes} bytes" in repr(w)
    del w, kept
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert mxgemm.gemm(A, p).shape == (3, N)


def test_every_call_takes_it_and_a_change_in_place_counts() -> None:
    w, other = mxgemm.quantize(spread(N, K)), mxgemm.quantize(spread(N, K, seed=3))
    p, q = w.prepare("gfx950", keep=False), mxgemm.quantize(A)
    for multiply in (lambda x: mxgemm.gemm(A, x), lambda x: mxgemm.gemm_mx(q, x)):
        assert torch.equal(multiply(p), multiply(w))
    w.data.zero_()  # not its memory
    p.data.copy_(preshuffle_weight(other.data))
    p.scales.copy_(shuffle_scales(other.scales))
    assert torch.equal(mxgemm.gemm(A, p), mxgemm.gemm(A, other))
    assert torch.equal(p.row_major().data, other.data)


def test_moves_and_clones_repeat_the_arguments() -> None:
    p = weight().prepare("gfx950", keep=False)
    assert p.to("cpu") is p
    for other in (p.clone(), p.prepare("gfx950", keep=False)):
        assert other.layout == FORM
        assert torch.equal(other.data, p.data)
        assert torch.equal(other.scales, p.scales)
    assert p.clone().data.data_ptr() != p.data.data_ptr()
    away = p.to("meta")
    assert (away.layout, away.shape) == (ROW_MAJOR, p.shape)
    assert away.prepared is not None
    assert away.prepared.arguments == ("gfx950", "fast", False, "e2m1")


@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("octaves", [3, 12])
def test_bytes_that_a_form_is_read_beside_are_not_let_go(memory: str, octaves: int) -> None:
    w = mxgemm.quantize(spread(N, K, octaves=octaves))
    with pytest.raises(ValueError, match=r"keep: got False, but on sm_90 the form 'fp8_fold\w*' is read beside"):
        w.prepare("sm_90", memory=memory, keep=False)  # type: ignore[arg-type]


def test_where_no_form_is_wanted_nothing_is_let_go() -> None:
    w = weight()
    odd = mxgemm.quantize(spread(50, K))
    for p, of in ((w.prepare(keep=False), w), (w.prepare("gfx950", memory="compact", keep=False), w),
                  (odd.prepare("gfx950", keep=False), odd)):  # fmt: skip
        assert p.data is of.data
        assert p.layout == ROW_MAJOR
        assert p.nbytes == of.nbytes
    with pytest.raises(TypeError, match="keep: got"):
        w.prepare(keep=0)  # type: ignore[arg-type]


def test_every_form_is_named_by_a_route_and_made_for_an_architecture_that_is_known() -> None:
    named = {form for route in ROUTES.values() for form in route.forms} | {STACK_FRAGMENTS}
    assert named == set(prepared._forms.values())
    for form in named:
        assert set(form.archs) <= set(KNOWN_MACHINES)


@pytest.fixture
def doubled() -> Iterator[WeightForm]:
    """A form of a route that is not here: the values as fp32, on an architecture that no other route knows."""

    def make(weight: MXTensor) -> tuple[Tensor] | None:
        return None if weight.data[0, 0] == 99 else (weight.dequantize(),)

    form = WeightForm(
        "fp32", ("gfx1250",), "fast", only_e2m1, make, parts=lambda n, k: ((torch.float32, (n, k)),)
    )  # fmt: skip
    prepared.register((form,))
    yield form
    del prepared._forms["fp32"]


def test_a_routes_new_form_is_known_everywhere_once_it_is_registered(doubled: WeightForm) -> None:
    w = weight()
    p = w.prepare("gfx1250")
    assert p.operand()[3:] == ("fp32", p.prepared.tensors)  # type: ignore[union-attr]
    answer = mxgemm.explain(3, N, K, device="gfx1250", prepared=True)
    assert answer.weight == "prepared (fp32)"
    assert answer.problem.derived == "fp32"
    found = torch.ops.mxgemm.gemm(A, w.data, w.scales, derived_kind="fp32", derived_data=w.dequantize())
    assert found.shape == (3, N)
    with pytest.raises(TypeError, match="derived_data: got"):
        torch.ops.mxgemm.gemm(A, w.data, w.scales, derived_kind="fp32", derived_data=w.data)
    w.data[0, 0] = 99
    assert w.prepare("gfx1250").operand()[3] == ""
    with pytest.raises(ValueError, match="kind: got 'fp32', want a name that no other weight form has"):
        prepared.register((WeightForm("fp32", (), "fast", only_e2m1, doubled.make),))
    prepared.register((doubled,))  # several routes may name one form
