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
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from mxgemm.arguments import one_of
from mxgemm.device import machine_of
from mxgemm.measure import timing
from mxgemm.measure.contender import Contender
from mxgemm.measure.document import KIND, VERSION
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.floor import Roof, measure_roof
from mxgemm.measure.forms import in_form
from mxgemm.measure.identity import Identity, identity
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS, Peer
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.routes import FORMS, Form, RouteContender, route_contenders
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
Time = Literal["device", "eager", "host"]
TIMES: Final[tuple[Time, ...]] = get_args(Time)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        shapes: (M, N, K) triples.
        device: where.
        a_format: as in ``gemm``.
        form: of the weight that routes get.
        route: this route only, None for the one that the router takes.
        all_routes: every route that can.
        peers: names of peers to measure too; those that are not here are listed as absent.
        times: which of the three times to take on a GPU.
        effort: for each of them.
        seed: of the data.
    """

    shapes: Sequence[Shape]
    device: torch.device
    a_format: ActivationFormat = "e2m1"
    form: Form = "fast"
    route: str | None = None
    all_routes: bool = False
    peers: Sequence[str] = ()
    times: Sequence[Time] = TIMES
    effort: Effort = DEFAULT_EFFORT
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            ValueError: an unknown form, peer or time.
        """
        one_of("form", self.form, FORMS)
        for peer in self.peers:
            one_of("peers", peer, PEERS)
        for time in self.times:
            one_of("times", time, TIMES)


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


def sizes_of(requests: Sequence[Request]) -> list[Shape]:
    """Return the sizes of several requests, each once."""
    return list(dict.fromkeys(shape for request in requests for shape in request.shapes))


def run(
    requests: Request | Sequence[Request],
    tell: Tell | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure, and return one document (docs/benchmarks.md describes its fields).

    Args:
        requests: what to measure. Of several, size by size: what is compared is measured within seconds. What two of
            them ask for is measured once.
        tell: called as it goes.
        keep: called with the unfinished document after each size, so that an interrupted run leaves what it measured.

    Raises:
        ValueError: no requests, or such that differ in device or seed.
    """
    wanted = [requests] if isinstance(requests, Request) else list(requests)
    if len({(request.device, request.seed) for request in wanted}) != 1:
        raise ValueError(f"requests: got {len(wanted)}, want at least one, all with one device and seed")
    tell = tell or (lambda done, what: None)
    device = wanted[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        return _run(wanted, tell, keep or (lambda document: None))


def _run(requests: Sequence[Request], tell: Tell, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    device, seed = requests[0].device, requests[0].seed
    tell(0, "bandwidth and rates")
    roof = measure_roof(device)
    asked = dict.fromkeys(name for request in requests for name in request.peers)
    document: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": {"start": clocks(device)},
        "method": {**METHOD[device.type], **COMMON_METHOD},
        "gates": {"norm": NORM_GATE, "element": "32 + K / 64; 32 at 13 bits"},
        "a_formats": list(dict.fromkeys(request.a_format for request in requests)),
        "forms": list(dict.fromkeys(request.form for request in requests)),
        "roof": {**asdict(roof), "bandwidth_gb_per_s": roof.bandwidth, "rate_tflop_per_s": roof.rate},
        "peers": [_describe(PEERS[name], device) for name in asked],
        "results": [],
        "refusals": [],
        "failures": [],
    }
    weight: MXTensor | None = None
    for done, (m, n, k) in enumerate(sizes_of(requests)):
        if weight is None or tuple(weight.shape) != (n, k):
            weight = weight_of(n, k, device, seed)
        here = [request for request in requests if (m, n, k) in request.shapes]
        oracle = Oracle(activations_of(m, k, device, seed), weight)
        _measure_size(here, (m, n, k), oracle, roof, document, lambda what, done=done: tell(done, what))  # type: ignore[misc]
        keep(document)
    document["clocks"]["end"] = clocks(device)
    return document


def passed(document: dict[str, Any]) -> bool:
    """Say whether a route ran, and every one that did passed the gates; peers answer for themselves."""
    ours = [record for record in document["results"] if record["kind"] == "route"]
    failed = [failure for failure in document["failures"] if failure["kind"] == "route"]
    return bool(ours) and not failed and all(record["accuracy"]["passed"] for record in ours)


def measure(
    contender: Contender,
    oracle: Oracle,
    loaded: Any,
    device: torch.device,
    effort: Effort,
    wanted: Sequence[Time] = TIMES,
) -> dict[str, Any]:
    """Judge one contender on one problem and, if it passes, time it.

    Args:
        contender: what to measure.
        oracle: of the problem.
        loaded: what ``contender.load`` made of the weight.
        device: where.
        effort: for each of the times.
        wanted: which times to take on a GPU; a CPU has one.
    """
    a = contender.activations(oracle.a)
    out = contender.checked_call(a, loaded)
    judged = oracle.judge(out, contender.exact(oracle, a, loaded), contender.accumulate_bits)
    del out
    record: dict[str, Any] = {
        "statement": contender.statement,
        "accuracy": {**_finite(asdict(judged)), "passed": judged.passed},
        **dict.fromkeys(TIMES),
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
        if "eager" in wanted:
            times["eager"] = timing.eager_us(calls, effort)
        if "host" in wanted:
            times["host"] = timing.host_us(calls, effort, torch.cuda.synchronize)
        if "device" in wanted:
            times["device"], record["not_captured"] = timing.device_us(calls, effort)
    else:
        times["device"] = timing.wall_us(calls, effort, warm_up=0)  # the judged call was the first
    record.update({name: asdict(spread) for name, spread in times.items()})
    return record


def _measure_size(
    requests: Sequence[Request],
    shape: Shape,
    oracle: Oracle,
    roof: Roof,
    document: dict[str, Any],
    tell: Callable[[str], None],
) -> None:
    m, n, k = shape
    problem = Problem(m, n, k, machine_of(requests[0].device))
    floor, bound = roof.floor_us(problem.traffic_bytes, problem.flops)
    common = {"bytes": problem.traffic_bytes, "flops": problem.flops, "floor_us": floor, "bound": bound}
    seen: set[Identity] = set()
    for request in requests:
        contenders, refusals = _contenders(request, shape, oracle.weight)
        document["refusals"] += refusals
        for contender, reason in contenders:
            who = _who(shape, contender)
            if identity(who) in seen:
                continue
            seen.add(identity(who))
            tell(f"{m},{n},{k} {contender.name}")
            try:
                loaded = contender.load(oracle.weight)
                record = measure(contender, oracle, loaded, request.device, request.effort, request.times)
            except Exception as error:  # one that breaks must not take the others' results with it: it is recorded
                document["failures"].append({**who, "error": f"{type(error).__name__}: {error}"})
                continue
            own = {"traffic_bytes": contender.traffic_bytes(m, n, k), "chosen": bool(reason), "reason": reason}
            document["results"].append({**who, **common, **record, **own})
            _add_rates(document["results"][-1])
            gc.collect()  # copies of large weights go before the next ones are made


def _contenders(
    request: Request, shape: Shape, weight: MXTensor
) -> tuple[list[tuple[Contender, str]], list[dict[str, Any]]]:
    """Return (contender, why the router chooses it or "") for all that take a size, and records of the others."""
    found: list[tuple[Contender, str]] = []
    refused: list[dict[str, Any]] = []
    for peer in (PEERS[name] for name in request.peers):
        if peer.absent(request.device):
            continue
        refusal = peer.refuses(*shape)
        if refusal:
            refused.append({**_who(shape, peer), "reason": refusal.reason})
        else:
            found.append((peer, ""))
    routes, refusals, reason = route_contenders(
        *shape, in_form(weight, request.form),
        a_format=request.a_format, form=request.form, only=request.route, every=request.all_routes,
    )  # fmt: skip
    given = {**_size(shape), "kind": "route", "a_format": request.a_format, "form": request.form}
    refused += [{**given, "name": one.route, "reason": one.refusal.reason} for one in refusals]
    return [*((route, reason if route.chosen else "") for route in routes), *found], refused


def _size(shape: Shape) -> dict[str, int]:
    return dict(zip(("m", "n", "k"), shape, strict=True))


def _who(shape: Shape, contender: Contender) -> dict[str, Any]:
    ours = contender if isinstance(contender, RouteContender) else None
    return {
        **_size(shape),
        "kind": contender.kind,
        "name": contender.name,
        "a_format": ours.a_format if ours else None,
        "form": ours.form if ours else None,
    }


def _describe(peer: Peer, device: torch.device) -> dict[str, Any]:
    absent = peer.absent(device)
    return {
        "name": peer.name,
        "statement": peer.statement,
        "present": absent is None,
        "reason": absent.reason if absent else "",
        "version": None if absent else peer.version(),
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace what JSON cannot hold: errors are NaN or infinite where the output is."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _add_rates(record: dict[str, Any]) -> None:
    us = record["device"]["us"] if record["device"] else None
    record["gb_per_s"] = record["bytes"] / us / 1e3 if us else None
    record["tflop_per_s"] = record["flops"] / us / 1e6 if us else None
    record["ratio_to_floor"] = us / record["floor_us"] if us else None
