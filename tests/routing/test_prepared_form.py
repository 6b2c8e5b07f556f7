"""What ``prepare()`` would make is what it makes, and the commands describe the call that they measure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm import MXTensor
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.measure import inputs, routes, tune
from mxgemm.measure.routes import route_contenders
from mxgemm.mx.accuracy import judge
from mxgemm.mx.formats import ACTIVATION_FORMATS, E2M1, ActivationFormat
from mxgemm.mx.prepared import Memory, wanted, wanted_on
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.reference import Reference
from mxgemm.routing.explain import explain as explain_function
from tests.command import output

SHAPES = [(32, 64), (16, 64), (30, 64), (48, 96), (17, 32), (256, 512), (2112, 256)]


@pytest.mark.parametrize("arch", KNOWN_MACHINES)
@pytest.mark.parametrize("n, k", SHAPES)
def test_what_prepare_makes(arch: str, n: int, k: int) -> None:
    weight = mxgemm.quantize(torch.randn(n, k)).prepare(arch)
    assert weight.prepared is not None
    forms = list(wanted(arch, "fast", E2M1, n, k))
    assert weight.prepared.kind == (forms[0].kind if forms else "")
    assert weight.prepared.layout == (forms[0].layout if forms else None)
    best = wanted_on(arch)
    assert not forms or forms[0] is best


@pytest.mark.parametrize("a_format", ACTIVATION_FORMATS)
@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("arch", KNOWN_MACHINES)
def test_what_it_makes_for_activations(arch: str, memory: Memory, a_format: ActivationFormat) -> None:
    weight = mxgemm.quantize(torch.randn(32, 128))
    kinds = [form.kind for form in wanted(arch, memory, E2M1, 32, 128, a_format=a_format)]
    prepared = weight.prepare(arch, memory=memory, a_format=a_format)
    assert prepared.prepared is not None
    assert prepared.prepared.kind == (kinds[0] if kinds else "")
    if arch == "sm_90" and a_format != "e2m1":
        assert prepared.prepared.kind == ("bf16" if memory == "fast" else "")
    a = torch.randn(3, 128)
    for other in ("e2m1", "e4m3", "bf16"):  # every format is multiplied, whatever the weight was prepared for
        assert judge(mxgemm.gemm(a, prepared, a_format=other), a, weight, a_format=other).passed


def test_activations_are_repeated() -> None:
    weight = mxgemm.quantize(torch.randn(32, 128)).prepare("sm_90", a_format="bf16")
    layer = mxgemm.nn.MXLinear.from_mx(weight, a_format="bf16")
    for again in (weight.clone(), layer._read(), mxgemm.nn.MXLinear.from_mx(weight).double()._read()):
        assert again is not None
        assert again.prepared is not None
        assert again.prepared.kind == "bf16"
    layer.prepare("sm_90", a_format="e2m1")
    assert layer._read().prepared.kind == "fp8_fold"  # type: ignore[union-attr]
    layer.prepare("sm_90")  # for the layer's own
    assert layer._read().prepared.kind == "bf16"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="a_format: got 'e3m2', want one of e2m1, e4m3, bf16"):
        weight.prepare(a_format="e3m2")  # type: ignore[arg-type]


class Recorded(Reference):
    """The reference, which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Problem] = []

    def can_implement(self, problem: Problem) -> Refusal | None:
        self.asked.append(problem)
        return super().can_implement(problem)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    route = Recorded()
    monkeypatch.setitem(ROUTES, "reference", route)
    return route


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("arch", KNOWN_MACHINES)
@pytest.mark.parametrize("m, n, k", [(3, 32, 64), (3, 30, 64), (5, 48, 96)])
def test_explain_bench_and_tune_describe_one_call(
    m: int, n: int, k: int, arch: str, prepare: bool, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command explains what the others measure, by default and with ``--raw``."""
    size = [str(value) for value in (m, n, k)]
    options = [] if prepare else ["--raw"]
    output("explain", *size, "--device", arch, "--route", "reference", *options)
    (explained,) = recorded.asked

    _, weight = inputs(m, n, k, torch.device("cpu"))
    real = MXTensor.prepare
    monkeypatch.setattr(MXTensor, "prepare", lambda self, of=None, **options: real(self, of or arch, **options))
    monkeypatch.setattr(routes, "explain", lambda *a, **b: explain_function(*a, **b | {"device": arch}))
    recorded.asked.clear()
    held = weight.prepare() if prepare else weight
    contenders, _, _ = route_contenders(
        m, n, k, held, a_format="e2m1", form="fast" if prepare else "raw", only="reference", every=False
    )  # fmt: skip
    assert [contender.name for contender in contenders] == ["reference"]
    assert set(recorded.asked) == {explained}

    recorded.asked.clear()
    monkeypatch.setattr("mxgemm.measure.trial.machine_of", lambda device: KNOWN_MACHINES[arch])
    monkeypatch.setattr(Recorded, "configs", lambda self, problem: [])  # what it asks is enough
    monkeypatch.setattr(Recorded, "candidates", lambda self, problem: [])
    bench = tune.Bench(tune.Task((m, n, k), form="fast" if prepare else "raw"), torch.device("cpu"), ["reference"])
    assert bench.candidates == []
    assert recorded.asked == [explained]


def test_the_default_of_the_function_stays_loose_tensors() -> None:
    answer = mxgemm.explain(64, 1024, 1024, device="sm_90")
    assert answer.weight == "row-major, as loose tensors"
    assert (answer.problem.derived, answer.problem.weight_layout) == ("", "row_major")


def test_the_readmes_command_is_the_call_that_bench_measures() -> None:
    command = "explain 16 2112 7168 --device gfx950"
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"`mxgemm {command}`" in readme
    assert "weight    prepared (preshuffled, scales shuffled)" in output(*command.split())
    assert "weight    row-major, as loose tensors" in output(*command.split(), "--raw")
