"""Measure sizes: every route that was asked for and every peer that is here, each judged before it is timed.

Results are JSON objects from the start, so that what is printed, written, plotted and compared is one thing.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.measure import timing
from mxgemm.measure.contender import Contender
from mxgemm.measure.document import KIND, VERSION
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.floor import Roof, measure_roof
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS, Peer
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.routes import RouteContender, route_contenders
from mxgemm.measure.shapes import Shape
from mxgemm.measure.spread import Effort, Spread
from mxgemm.mx.accuracy import NORM_GATE
from mxgemm.mx.formats import ActivationFormat
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem
from mxgemm.quantize import quantize

METHOD: Final[dict[str, dict[str, str]]] = {
    "cpu": {
        "device": "wall time of one call after an unmeasured one; the weight stays in what cache it fits",
        "eager": "on a CPU the same as device",
        "host": "on a CPU the same as device",
    },
    "cuda": {
        "device": "replays of a graph of many calls, each on the next copy of the weight, over the number of calls;"
        " copies together exceed the last cache twice; method 'queued' where a call cannot be captured",
        "eager": "device idle, event, one call on the next copy of the weight, event",
        "host": "how long one call keeps the host, without waiting for the device",
    },
}
COMMON_METHOD: Final = {
    "spread": "median and quartiles over the runs",
    "accuracy": "float64, 64 rows and 1024 columns drawn at random; not-finite values anywhere; judged before timing,"
    " and what fails is not timed",
    "floor": "max(bytes / bandwidth, flops / rate), both measured in this run; A in bf16, MXFP4 weight, bf16 result",
}


DEFAULT_EFFORT: Final = Effort(seconds=0.3)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        shapes: (M, N, K) triples.
        device: where.
        a_format: as in ``gemm``.
        route: this route only, None for the one that the router takes.
        all_routes: every route that can.
        peers: peers too.
        prepare: call ``prepare()`` on the weight first.
        effort: for each of the three times.
        seed: of the data.
    """

    shapes: Sequence[Shape]
    device: torch.device
    a_format: ActivationFormat = "e2m1"
    route: str | None = None
    all_routes: bool = False
    peers: bool = False
    prepare: bool = True
    effort: Effort = DEFAULT_EFFORT
    seed: int = 0


Tell = Callable[[int, str], None]
"""Called with how many sizes are done, and what is being measured now."""


def inputs(m: int, n: int, k: int, device: torch.device, seed: int = 0) -> tuple[Tensor, MXTensor]:
    """Make bf16 activations ``[M, K]`` and an MXFP4 weight (N, K) from N(0, 1), the same in every run on a device."""
    return activations_of(m, k, device, seed), weight_of(n, k, device, seed)


def activations_of(m: int, k: int, device: torch.device, seed: int = 0) -> Tensor:
    """Make the activations of :func:`inputs`."""
    return _normal(m, k, device, 2 * seed)


def weight_of(n: int, k: int, device: torch.device, seed: int = 0) -> MXTensor:
    """Make the weight of :func:`inputs`."""
    return quantize(_normal(n, k, device, 2 * seed + 1))


def _normal(rows: int, columns: int, device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.bfloat16, device=device)


def run(
    request: Request, tell: Tell | None = None, keep: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Measure, and return the document (docs/benchmarks.md describes its fields).

    Args:
        request: what to measure.
        tell: called as it goes.
        keep: called with the unfinished document after each size, so that an interrupted run leaves what it measured.
    """
    tell = tell or (lambda done, what: None)
    on_gpu = request.device.type == "cuda"
    with torch.cuda.device(request.device) if on_gpu else contextlib.nullcontext():
        return _run(request, tell, keep or (lambda document: None))


def _run(request: Request, tell: Tell, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    device = request.device
    tell(0, "bandwidth and rates")
    roof = measure_roof(device)
    document: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": {"start": clocks(device)},
        "method": {**METHOD[device.type], **COMMON_METHOD},
        "gates": {"norm": NORM_GATE, "element": "32 + K / 64; 4 at 13 bits"},
        "a_format": request.a_format,
        "prepared": request.prepare,
        "roof": {**asdict(roof), "bandwidth_gb_per_s": roof.bandwidth, "rate_tflop_per_s": roof.rate},
        "peers": [_describe(peer, device) for peer in PEERS.values()] if request.peers else [],
        "results": [],
        "refusals": [],
        "failures": [],
    }
    weight: MXTensor | None = None
    for done, (m, n, k) in enumerate(request.shapes):
        if weight is None or tuple(weight.shape) != (n, k):
            weight = weight_of(n, k, device, request.seed)
        _measure_size(request, (m, n, k), weight, roof, document, lambda what, done=done: tell(done, what))  # type: ignore[misc]
        keep(document)
    document["clocks"]["end"] = clocks(device)
    return document


def passed(document: dict[str, Any]) -> bool:
    """Say whether a route ran, and every one that did passed the gates; peers answer for themselves."""
    ours = [record for record in document["results"] if record["kind"] == "route"]
    failed = [failure for failure in document["failures"] if failure["kind"] == "route"]
    return bool(ours) and not failed and all(record["accuracy"]["passed"] for record in ours)


def measure(contender: Contender, oracle: Oracle, loaded: Any, device: torch.device, effort: Effort) -> dict[str, Any]:
    """Judge one contender on one problem and, if it passes, time it.

    Args:
        contender: what to measure.
        oracle: of the problem.
        loaded: what ``contender.load`` made of the weight.
        device: where.
        effort: for each of the three times.
    """
    a = contender.activations(oracle.a)
    out = contender.checked_call(a, loaded)
    judged = oracle.judge(out, contender.exact(oracle, a, loaded), contender.accumulate_bits)
    del out
    record: dict[str, Any] = {
        "kind": contender.kind,
        "name": contender.name,
        "statement": contender.statement,
        "accuracy": {**_finite(asdict(judged)), "passed": judged.passed},
        **dict.fromkeys(("device", "eager", "host")),
        "copies": None,
        "not_captured": "",
    }
    if not judged.passed:
        return record
    copies = copies_needed(contender.nbytes(loaded), cache_bytes(device))
    calls = contender.bind(a, [loaded, *(contender.clone(loaded) for _ in range(copies - 1))])
    record["copies"] = copies
    times: dict[str, Spread] = {}
    if device.type == "cuda":
        times["eager"] = timing.eager_us(calls, effort)
        times["host"] = timing.host_us(calls, effort, torch.cuda.synchronize)
        times["device"], record["not_captured"] = timing.device_us(calls, effort)
    else:
        times["device"] = timing.wall_us(calls, effort, warm_up=0)  # the judged call was the first
    record.update({name: asdict(spread) for name, spread in times.items()})
    return record


def _measure_size(
    request: Request,
    shape: Shape,
    weight: MXTensor,
    roof: Roof,
    document: dict[str, Any],
    tell: Callable[[str], None],
) -> None:
    m, n, k = shape
    device = request.device
    oracle = Oracle(activations_of(m, k, device, request.seed), weight)
    problem = Problem(m, n, k, machine_of(device), a_format=request.a_format)
    floor, bound = roof.floor_us(problem.traffic_bytes, problem.flops)
    size = {"m": m, "n": n, "k": k}
    common = {
        **size,
        "a_format": request.a_format,
        "bytes": problem.traffic_bytes,
        "flops": problem.flops,
        "floor_us": floor,
        "bound": bound,
    }
    routes, refused, reason = route_contenders(
        m, n, k, weight.prepare() if request.prepare else weight,
        a_format=request.a_format, prepare=request.prepare, only=request.route, every=request.all_routes,
    )  # fmt: skip
    document["refusals"] += [{**size, "kind": "route", "name": name, "reason": why} for name, why in refused]
    for contender in (*routes, *_peers_for(request, size, document)):
        tell(f"{m},{n},{k} {contender.name}")
        try:
            record = measure(contender, oracle, contender.load(weight), device, request.effort)
        except Exception as error:  # one that breaks must not take the others' results with it: it is recorded
            text = f"{type(error).__name__}: {error}"
            document["failures"].append({**size, "kind": contender.kind, "name": contender.name, "error": text})
            continue
        chosen = isinstance(contender, RouteContender) and contender.chosen
        document["results"].append({**common, **record, "chosen": chosen, "reason": reason if chosen else ""})
        _add_rates(document["results"][-1])
        gc.collect()  # copies of large weights go before the next ones are made


def _peers_for(request: Request, size: dict[str, int], document: dict[str, Any]) -> list[Peer]:
    found: list[Peer] = []
    for peer in PEERS.values() if request.peers else ():
        if peer.absent(request.device):
            continue
        reason = peer.refuses(**size)
        if reason:
            document["refusals"].append({**size, "kind": "peer", "name": peer.name, "reason": reason})
        else:
            found.append(peer)
    return found


def _describe(peer: Peer, device: torch.device) -> dict[str, Any]:
    reason = peer.absent(device)
    return {
        "name": peer.name,
        "statement": peer.statement,
        "present": not reason,
        "reason": reason,
        "version": None if reason else peer.version(),
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace what JSON cannot hold: errors are NaN or infinite where the output is."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _add_rates(record: dict[str, Any]) -> None:
    us = record["device"]["us"] if record["device"] else None
    record["gb_per_s"] = record["bytes"] / us / 1e3 if us else None
    record["tflop_per_s"] = record["flops"] / us / 1e6 if us else None
    record["ratio_to_floor"] = us / record["floor_us"] if us else None
