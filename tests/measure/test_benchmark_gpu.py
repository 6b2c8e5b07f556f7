"""Timing on a GPU: every route can be captured in a graph, and the copies of the weight do not fit the cache."""

import pytest
import torch

from mxgemm import measure
from mxgemm.device import machine_of
from mxgemm.measure import parity, rotation, timing
from mxgemm.measure.peers import PEERS
from mxgemm.measure.routes import RouteContender, route_contenders
from mxgemm.measure.spread import Effort
from mxgemm.measure.subjects import subject_of

pytestmark = pytest.mark.gpu
QUICK = Effort(seconds=0.05, least=3, most=10)
SHAPES = [(4, 2880, 512), (256, 3072, 1536)]


@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_every_route_and_peer_is_captured_judged_and_timed(a_format: str) -> None:
    device = torch.device("cuda", 0)
    document = measure.run(
        measure.Request(SHAPES, device, a_format=a_format, all_routes=True, peers=tuple(PEERS), effort=QUICK)
    )
    assert document["failures"] == []
    assert measure.passed(document)
    routes = {record["name"] for record in document["results"] if record["kind"] == "route"}
    assert len(routes) >= 3
    cache = document["environment"]["last_cache_bytes"]
    for record in document["results"]:
        assert record["accuracy"]["passed"], record
        if record["name"] != "reference":  # reads sizes back to the host
            assert record["device"]["method"] == "graph", record["not_captured"]
        n, k = record["n"], record["k"]
        assert record["copies"] * n * (k // 2 + k // 32) * (4 if record["kind"] == "peer" else 1) > 2 * cache
        for time in ("device", "eager", "host"):
            assert record[time]["us"] > 0
        assert record["ratio_to_floor"] == pytest.approx(record["device"]["us"] / record["floor_us"])
    assert document["clocks"]["start"]


def test_copies_are_other_memory_with_the_same_values() -> None:
    device = torch.device("cuda", 0)
    a, weight = measure.inputs(8, 512, 512, device)
    prepared = weight.prepare()
    found, _, _ = route_contenders(8, 512, 512, prepared, a_format="e2m1", form="fast", only=None, every=True)
    cache = rotation.cache_bytes(device)
    assert cache >= 1 << 20
    for contender in [*found, PEERS["torch_mm"]]:
        loaded = contender.load(weight)
        copy = contender.clone(loaded)
        assert torch.equal(
            contender.call(contender.activations(a), copy), contender.call(contender.activations(a), loaded)
        )
        if isinstance(contender, RouteContender):
            made = zip(copy.prepared.tensors, loaded.prepared.tensors, strict=True)
            tensors = [(copy.data, loaded.data), (copy.scales, loaded.scales), *made]
        else:
            tensors = list(zip(copy, loaded, strict=True))
        assert all(x.data_ptr() != y.data_ptr() for x, y in tensors)
        assert rotation.copies_needed(contender.nbytes(loaded), cache) * contender.nbytes(loaded) > 2 * cache


def test_what_cannot_be_captured_is_queued() -> None:
    x = torch.randn(256, 256, device="cuda")

    def reads_back() -> float:
        return float((x @ x).sum())

    spread, reason = timing.device_us([reads_back], QUICK)
    assert spread.method == "queued"
    assert reason
    assert spread.us > 0
    assert timing.device_us([lambda: x @ x], QUICK)[0].method == "graph", "a failed capture leaves nothing behind"


def test_memory_that_a_call_allocates_itself_is_poisoned_first() -> None:
    device = torch.device("cuda", 0)

    def unwritten(out: torch.Tensor | None) -> torch.Tensor:
        assert out is None
        return torch.empty(64, 4096, dtype=torch.bfloat16, device=device)

    subject = parity.Subject("lazy", lambda a, weight: unwritten)
    output = parity.poisoned_output(unwritten, subject, 64, 4096, device)
    assert "elements never written" in parity.complain(output, (64, 4096))


def test_parity_of_two_routes() -> None:
    device = torch.device("cuda", 0)
    settings = parity.Settings(timing.single_device_us(device, 1 << 28), warm_up=5, repeats=10)
    sides = (subject_of("route:a16wfp4", device), subject_of("peer:torch_mm", device))
    (row,) = parity.parity(*sides, [(16, 2112, 7168)], device, settings)
    assert not row.failure
    assert row.us_a > 1
    assert row.us_b > 1
    assert 0 < row.difference < 0.3


def test_a_graph_sees_device_time_only() -> None:
    import time

    x = torch.randn(64, 64, device="cuda")

    def slow_host() -> torch.Tensor:
        time.sleep(0.0005)
        return x @ x

    graph, eager = timing.graph_us([slow_host], QUICK), timing.eager_us([slow_host], QUICK)
    assert graph.us < 100
    assert eager.us > 400
    assert timing.host_us([slow_host], QUICK, torch.cuda.synchronize).us > 400
    assert timing.single_device_us(torch.device("cuda", 0), 1 << 20)(lambda: x @ x) < 100


def test_the_recipe_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import hopper

    device = torch.device("cuda", 0)
    if machine_of(device).arch != "sm_90":
        pytest.skip("for sm_90")
    monkeypatch.setattr(hopper, "WEIGHTS", ((2880, 512),))
    document = measure.run(hopper.requests_for(device, [1, 64], 0.0))
    assert measure.passed(document)
    assert document["failures"] == document["refusals"] == []
    found = [(r["m"], r["name"], r["a_format"], r["form"]) for r in document["results"]]
    assert sorted(found, key=str) == sorted(
        [
            *((m, "torch_mm", None, None) for m in (1, 64)),
            *((m, v.route, v.a_format, v.form) for v in hopper.VARIANTS for m in (1, 64) if v.m_min <= m <= v.m_max),
        ],
        key=str,
    )
    assert all(record["device"]["method"] == "graph" and record["eager"] is None for record in document["results"])
