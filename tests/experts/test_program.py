"""A layer's launches as one call in C: what is where, what is kept for the next call, and when it is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from mxgemm import workspace
from mxgemm.experts import known, program, whole
from mxgemm.experts import layer as experts_layer
from mxgemm.experts.launches import Combined, Product, Quantised, Routed, Scratch, Slabbed, Whole, ids_alone
from mxgemm.experts.mma import POINTERS
from mxgemm.experts.problem import Tokens
from mxgemm.experts.steps import Steps
from mxgemm.native.program import OUT, SCRATCH, SLOTS, A, KernelStep, Place, brought
from tests.experts.cases import DEEPSEEK, GPT_OSS, Layer, layer
from tests.experts.lanes_routes import ByLanes, under_its_name


class Launched:
    """A kernel by its places alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def step(self, device: torch.device, *places: Place) -> KernelStep:
        return KernelStep(7, (1, 1, 1), (32, 1, 1), 0, bytes(8 * len(places)), tuple(enumerate(places)))


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[ByLanes]:
    yield from under_its_name(ByLanes(), monkeypatch)


def steps_of(one: Layer, a_format: str, route: ByLanes) -> Steps:
    """The steps of a layer, whose launches are places."""
    one.run(a_format, route="lanes")
    (plan,) = experts_layer._plans.values()
    assert plan.steps is not None
    steps = plan.steps
    routing, one_of = steps.routing, steps.problems[0]
    sort = steps.sort
    if sort is not ids_alone:
        sort = Routed(Launched("route"), routing.pairs, 9)  # type: ignore[arg-type]
    quantise: Any = None if steps.quantise is None else Quantised(Launched("quantise"), None)  # type: ignore[arg-type]
    products = Product(Launched("first")), Product(Launched("second"))  # type: ignore[arg-type]
    assert one_of.divisor == routing.top_k
    return replace(steps, sort=sort, quantise=quantise, products=products, combine=Combined(Launched("sum")))  # type: ignore[arg-type]


@pytest.mark.parametrize("few", [32, 0])
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
@pytest.mark.parametrize("bias", [True, False])
def test_what_one_launch_writes_the_next_one_reads(route: ByLanes, a_format: str, few: int, bias: bool) -> None:
    route.few, route.rounding = few, 0
    one = layer(3, 2, bias=bias, activation=DEEPSEEK)
    scratch = Scratch()
    described = program.launches(steps_of(one, a_format, route), scratch, torch.device("cpu"))
    placed = [[place for _, place in step.places] for step in described if isinstance(step, KernelStep)]
    assert len(placed) == len(described) == 3 + (a_format == "e2m1") + (few == 0)
    assert all(0 <= place.slot < SLOTS for step in placed for place in step)
    first, second, added = placed[-3:]
    assert len(first) == len(second) == len(POINTERS.offsets)
    assert first[5:7] == second[:2], "the inner activations and their scales"
    assert second[5] == added[0], "the pairs' results"
    assert first[7:] == second[7:], "which rows there are"
    assert (first[4] == second[4] == program.fixed(0)) is not bias
    assert first[2:4] != second[2:4]
    if few == 0:
        assert first[7:] == placed[-4][1::-1]
    if a_format == "e2m1":
        assert first[:2] == placed[0][1:]
    taken = sorted({place.add for step in placed for place in step if place.slot == SCRATCH.slot})
    assert taken[0] == 0
    assert all(at % 256 == 0 for at in taken)
    assert taken[-1] < scratch.nbytes


def test_slabs_lie_between_two_launches() -> None:
    """The product of w4_wgmma reads what gathers A for it; only the launch that goes by an index has it."""
    scratch, places = Scratch(), [brought(i) for i in range(len(POINTERS.offsets))]
    before = scratch.take(1)
    slabbed = Slabbed(Launched("slabs"), Launched("main"), 1000, reads_index=True, writes_index=False)  # type: ignore[arg-type]
    slabs, main = ([place for _, place in step.places] for step in slabbed.steps(torch.device("cpu"), scratch, *places))
    a, a_scales, w, s, bias, out, out_scales, tiles, index = places
    assert slabs == [a, a_scales, before + 256, tiles, index]
    assert main == [before + 256, w, s, bias, out, out_scales, tiles, program.fixed(0)]
    assert scratch.nbytes == 256 + 1024


@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_one_launch_reads_what_the_one_before_it_makes(route: ByLanes, a_format: str) -> None:
    """Both products as one: bytes of tokens, tile list and places."""
    one = layer(3, 2, activation=DEEPSEEK)
    quantised = a_format != "bf16"
    tokens = Tokens(3, 96, torch.bfloat16, (96, 1), a_format, "even", True) if quantised else None
    both = Whole(Launched("begin"), Launched("main"), tokens, (6, 100, 32, 2 if quantised else 0, 96))  # type: ignore[arg-type]
    steps = replace(steps_of(one, a_format, route), sort=None, products=(), quantise=None, whole=both)
    scratch = Scratch()
    described = program.launches(steps, scratch, torch.device("cpu"))
    placed = [[place for _, place in step.places] for step in described if isinstance(step, KernelStep)]
    assert len(placed) == len(described) == 3
    begin, main, added = placed
    assert len(begin) == len(whole.BEGIN_POINTERS.offsets)
    assert len(main) == len(whole.POINTERS.offsets)
    found, tiles, ids, table, x, data, scales = begin
    assert main[11:] == [tiles, found, ids, table]
    assert main[:2] == ([data, scales] if quantised else [A, program.fixed(0)])
    assert x == (A if quantised else program.fixed(0))
    assert (ids, table) == (program._IDS, program.fixed(0))
    assert added[0] == main[10], "the pairs' results"
    assert added[1:3] == [program._WEIGHTS, OUT]
    mine = [place for place in (found, tiles, data, scales, *main[5:7], main[10]) if place.slot == SCRATCH.slot]
    assert len(set(mine)) == len(mine) == (7 if quantised else 4)
    assert all(place.add % 256 == 0 and place.add < scratch.nbytes for place in mine)


class Counted(program.LayerProgram):
    """A program that notes the arguments of its launches, and whose result is a number."""

    __slots__ = ()
    calls: ClassVar[list[tuple[int, ...]]] = []
    status = 0

    def _settle(self) -> bool:
        def run(*given: int) -> int:
            self.calls.append(given)
            return self.status

        self.run, self.nbytes = run, 512
        return True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Layers on a CPU as if their launches could be described; the arguments of the calls in C."""
    make = experts_layer._make_plan

    def made(*given: Any) -> experts_layer.LayerPlan:
        plan = make(*given)
        assert plan.steps is not None
        return replace(plan, program=Counted(plan.steps, plan.device, plan.allocate))

    monkeypatch.setattr(experts_layer, "_make_plan", made)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(Counted, "calls", [])
    monkeypatch.setattr(Counted, "status", 0)
    experts_layer._plans.clear()
    workspace.clear()
    return Counted.calls


def settled(one: Layer, calls: list[tuple[int, ...]], **options: Any) -> None:
    """Call so often that the next call is by what the first stack keeps."""
    for _ in range(program.SETTLE_AT):
        one.run("bf16", **options)
    assert len(calls) == 1


def test_a_layer_is_known_by_tokens_ids_and_weights(calls: list[tuple[int, ...]]) -> None:
    one = layer(3, 2)
    settled(one, calls)
    assert type(one.w13.known) is known.KnownLayer
    out = one.run("bf16")
    assert (out.shape, out.dtype) == ((3, 96), torch.bfloat16)
    stream, x, bias, result, scratch, counters, ids, weights, table, *others = calls[-1]
    assert (stream, bias, counters, table) == (0, 0, 0, 0)
    assert (x, result) == (one.x.data_ptr(), out.data_ptr())
    assert (ids, weights) == (one.ids.data_ptr(), one.weights.data_ptr())
    assert scratch % 16 == 0
    assert one.b13 is not None
    assert one.b2 is not None
    parts = one.w13.data, one.w13.scales, one.b13, one.w2.data, one.w2.scales, one.b2
    assert others == [part.data_ptr() for part in parts]
    again = replace(one, x=one.x.clone(), ids=one.ids.clone(), weights=one.weights.clone())
    again.run("bf16")
    assert len(calls) == 3
    assert calls[-1][1] == again.x.data_ptr()


CHANGES: dict[str, Callable[[Layer], Layer]] = {
    "fewer tokens": lambda one: replace(one, x=one.x[:2], ids=one.ids[:2], weights=one.weights[:2]),
    "ids of another dtype": lambda one: replace(one, ids=one.ids.int()),
    "another activation": lambda one: replace(one, activation=GPT_OSS if one.activation is DEEPSEEK else DEEPSEEK),
    "no bias": lambda one: replace(one, b2=None),
    "a bias elsewhere": lambda one: replace(one, b2=one.b2.clone()),  # type: ignore[union-attr]
    "another stack": lambda one: replace(one, w2=one.w2.clone()),
    "misaligned tokens": lambda one: replace(one, x=torch.zeros(289, dtype=torch.bfloat16)[1:].view(3, 96)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_call_goes_the_long_way(calls: list[tuple[int, ...]], name: str) -> None:
    one = layer(3, 2)
    settled(one, calls)
    other = CHANGES[name](one)
    got = other.run("bf16")
    assert len(calls) == (2 if name in ("a bias elsewhere", "another stack") else 1), "its plan may be known"
    experts_layer._plans.clear()
    if len(calls) == 1:
        assert torch.equal(got, other.run("bf16", route="cpu_native"))


def test_what_is_unusual_goes_the_long_way(calls: list[tuple[int, ...]]) -> None:
    one = layer(3, 2)
    settled(one, calls)
    with torch.inference_mode():
        one.run("bf16")
    assert len(calls) == 2
    one.run("bf16", out=torch.empty(3, 96, dtype=torch.bfloat16))
    one.run("bf16", expert_map=torch.arange(5, dtype=torch.int32))
    assert len(calls) == 2
    x = one.x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="x: requires grad"):
        replace(one, x=x).run("bf16")
    with pytest.raises(TypeError, match="got NoneType"):
        replace(one, x=None).run("bf16")  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_stack_that_moved_is_seen(calls: list[tuple[int, ...]]) -> None:
    one = layer(3, 2)
    settled(one, calls)
    one.w2.scales.data = one.w2.scales.clone()
    one.run("bf16")
    assert calls[-1][-2] == one.w2.scales.data_ptr()
    ready = replace(one, w13=one.w13.prepare("sm_90"), w2=one.w2.prepare("sm_90"))
    for _ in range(program.SETTLE_AT + 1):
        ready.run("bf16")
    ready.w2.data[0, 0, 0] ^= 1
    with pytest.raises(RuntimeError, match="w2: its bytes were changed"):
        ready.run("bf16")


def test_where_the_driver_refuses_python_launches(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = layer(3, 2)
    settled(one, calls)
    monkeypatch.setattr(Counted, "status", 700)
    want = one.run("bf16", route="cpu_native")
    assert torch.equal(one.run("bf16"), want)
    assert len(calls) == 3, "by what is known, then by the plan"
