"""Measure layers of experts: every route and peer judged by float64, then timed, against the floor of the experts hit.

Weights are random bytes, tokens N(0, 1), the experts of a token drawn evenly and without repetition. The floor is
``max(bytes / bandwidth, flops / rate)`` of what a call must move: the weights of the experts that some token has, the
tokens in bf16, the result. Where few experts are hit, calls take turns with others, so that weights come from memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.experts import SwiGLU, moe
from mxgemm.experts import oracle as experts_oracle
from mxgemm.experts.choice import NOT_ON_A_CPU, ROUTES, check_route, choose
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.measure import timing
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.measure.floor import Roof, measure_roof
from mxgemm.measure.moe_sets import ExpertsSet
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.spread import Effort
from mxgemm.mx.formats import ActivationFormat
from mxgemm.mx.tensor import MXTensor

KIND: Final = "mxgemm-bench-moe"
VERSION: Final = 1
JUDGED_TOKENS: Final = 2
LIMITS: Final = {"bf16": 5e-3, "e4m3": 5e-3, "e2m1": 2e-2}
"""Of the norm. The inner activations are rounded: where one lies at a tie, sums in fp32 and in float64 may round it to
either side, which costs a whole step of the format."""
PEERS: Final = ("torch_grouped_mm", "torch_mm_loop")
STATEMENTS: Final = {
    "route": "mxgemm.moe, routing and rounding of activations included",
    "torch_grouped_mm": "torch's grouped_mm on weights dequantised to bf16 beforehand (3.8 times the bytes), sort,"
    " activation and sums by torch",
    "torch_mm_loop": "torch.mm for each expert that is hit, on the same weights; the host reads the ids",
}


DEFAULT_EFFORT: Final = Effort(0.3)


@dataclass(frozen=True)
class MoeRequest:
    """What to measure.

    Attributes:
        sets: layers.
        device: where.
        a_format: as in ``moe``.
        route: this route only, None for the chosen one.
        all_routes: every route that can, but for the interpreter's.
        peers: others' too.
        effort: for each time.
        tokens: only these numbers of tokens, () for the sets' own.
    """

    sets: Sequence[ExpertsSet]
    device: torch.device
    a_format: ActivationFormat = "bf16"
    route: str | None = None
    all_routes: bool = False
    peers: bool = True
    effort: Effort = DEFAULT_EFFORT
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's operands."""

    w13: MXTensor
    w2: MXTensor
    b13: Tensor | None
    b2: Tensor | None
    activation: SwiGLU


def make_layer(one: ExpertsSet, device: torch.device, seed: int = 0) -> Layer:
    """Make random weights: element bytes at random, scales of 2^-8 to 2^-6."""
    made = torch.Generator(device).manual_seed(seed)

    def weight(n: int, k: int) -> MXTensor:
        shape = (one.experts, n)
        data = torch.randint(0, 256, (*shape, k // 2), generator=made, dtype=torch.uint8, device=device)
        return MXTensor.wrap(
            data, torch.randint(119, 122, (*shape, k // 32), generator=made, dtype=torch.uint8, device=device)
        )

    def bias(n: int) -> Tensor | None:
        shape = (one.experts, n)
        return torch.randn(shape, generator=made, dtype=torch.bfloat16, device=device) if one.gpt_oss else None

    activation = SwiGLU() if one.gpt_oss else SwiGLU.plain()
    n = 2 * one.inner
    return Layer(weight(n, one.hidden), weight(one.hidden, one.inner), bias(n), bias(one.hidden), activation)


def make_tokens(one: ExpertsSet, tokens: int, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Make tokens, the ids of their experts and the router's weights."""
    made = torch.Generator(device).manual_seed(1000 + seed)
    x = torch.randn(tokens, one.hidden, generator=made, dtype=torch.bfloat16, device=device)
    scores = torch.rand(tokens, one.experts, generator=made, dtype=torch.float32, device=device)
    best = scores.topk(one.top_k, dim=-1)
    return x, best.indices, torch.softmax(best.values, -1)


def run(request: MoeRequest, tell: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Measure, and return a document.

    Raises:
        ValueError: the device cannot hold a set's weights.
    """
    device = request.device
    check_route(request.route)
    for one in request.sets:
        if (needed := one.experts * one.expert_bytes) > _memory(device):
            raise ValueError(f"--set: got {one.name}, whose weights take {needed / 2**30:.1f} GiB; {device} has less")
    tell("bandwidth and rates")
    roof = measure_roof(device)
    document: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": {"start": clocks(device)},
        "method": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "a_format": request.a_format,
        "limits": LIMITS,
        "roof": {**asdict(roof), "bandwidth_gb_per_s": roof.bandwidth, "rate_tflop_per_s": roof.rate},
        "results": [],
        "refusals": [],
        "failures": [],
    }
    for one in request.sets:
        made = make_layer(one, device)
        layer = replace(made, w13=made.w13.prepare(), w2=made.w2.prepare())
        dense = _dense(one, layer, document) if request.peers else None
        for tokens in request.tokens or one.tokens:
            _measure_tokens(request, one, layer, dense, tokens, roof, document, tell)
    document["clocks"]["end"] = clocks(device)
    return document


def passed(document: dict[str, Any]) -> bool:
    """Say whether a route ran, and every one that did is right; peers answer for themselves."""
    ours = [record for record in document["results"] if record["kind"] == "route"]
    failed = [record for record in document["failures"] if record["kind"] == "route"]
    return bool(ours) and not failed and all(record["passed"] for record in ours)


COLUMNS: Final = ("set", "tokens", "what", "device", "spread", "experts hit", "floor", "x floor", "error", "gates")


def rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of :data:`COLUMNS` for each result."""
    from mxgemm.measure.text import duration

    found: list[tuple[str, ...]] = []
    for record in document["results"]:
        time = record["device"]
        found.append(
            (
                record["set"],
                str(record["tokens"]),
                f"{record['name']}{'*' if record['chosen'] else ''}",
                duration(time and time["us"]),
                f"{(time['high'] - time['low']) / time['us']:.1%}" if time else "",
                f"{record['hit']} of {record['experts']}",
                duration(record["floor_us"]),
                f"{record['ratio_to_floor']:.3g}" if time else "",
                f"{record['error']:.2e}",
                "pass" if record["passed"] else "FAIL",
            )
        )
    return found


def notes(document: dict[str, Any]) -> list[str]:
    """Return what the table does not show."""
    roof = document["roof"]
    lines = [f"measured ceilings: {roof['bandwidth_gb_per_s']:.4g} GB/s, {roof['rate_tflop_per_s']:.4g} TFLOP/s"]
    lines += [f"refused {r['name']} ({r['set']}): {r['reason']}" for r in document["refusals"]]
    lines += [f"FAILED {r['name']} ({r['set']}, {r['tokens']}): {r['error']}" for r in document["failures"]]
    return [*lines, "* the chosen route; error: of the norm, against float64, on two tokens"]


def _measure_tokens(
    request: MoeRequest, one: ExpertsSet, layer: Layer, dense: Any, tokens: int, roof: Roof, document: dict[str, Any],
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    device = request.device
    x, ids, weights = make_tokens(one, tokens, device)
    hit = int(torch.unique(ids).numel())
    pairs = tokens * one.top_k
    nbytes = hit * one.expert_bytes + 4 * tokens * one.hidden
    flops = 6 * pairs * one.hidden * one.inner
    floor, bound = roof.floor_us(nbytes, flops)
    common = {
        "set": one.name, "tokens": tokens, "experts": one.experts, "top_k": one.top_k, "hit": hit, "bytes": nbytes,
        "flops": flops, "floor_us": floor, "bound": bound,
    }  # fmt: skip
    options = LayerOptions(layer.activation, a_format=request.a_format)
    problems = describe(x, layer.w13, layer.w2, layer.b13, layer.b2, one.top_k, options, machine_of(device))
    chosen = choose(problems, request.route).name
    names = [chosen]
    if request.all_routes:
        every = {n: r for n, r in ROUTES.items() if device.type != "cpu" or n not in NOT_ON_A_CPU}
        names += [n for n, r in every.items() if n != chosen and all(r.refusal(p) is None for p in problems)]
    calls: list[tuple[str, str, Callable[..., Tensor]]] = [
        ("route", name, partial(_ours, x, weights, request.a_format, name)) for name in names
    ]
    if dense is not None:
        calls += [("peer", name, partial(PEER_CALLS[name], x, weights, layer.activation)) for name in PEERS]
    turns = turns_of(one, ids, hit)
    exact: dict[str, np.ndarray[Any, Any]] = {}
    for kind, name, call in calls:
        tell(f"{one.name}, {tokens} tokens: {name}")
        operands: Any = layer if kind == "route" else dense
        fmt = request.a_format if kind == "route" else "bf16"
        who = {**common, "kind": kind, "name": name, "a_format": fmt}
        try:
            out = call(ids, operands)
            if fmt not in exact:
                exact[fmt] = _exact(x, ids, weights, layer, fmt)
            got = out[:JUDGED_TOKENS].double().cpu().numpy()
            error = float(np.linalg.norm(got - exact[fmt]) / np.linalg.norm(exact[fmt]))
            limit = LIMITS[fmt] if kind == "route" else 2e-2  # activations between the products in bf16
            right = error <= limit
            time = _time([partial(call, turn, operands) for turn in turns], device, request.effort) if right else None
        except (RuntimeError, ValueError, TypeError, AttributeError) as error_of:
            document["failures"].append({**who, "error": f"{type(error_of).__name__}: {str(error_of).splitlines()[0]}"})
            continue
        document["results"].append(
            {
                **who,
                "statement": STATEMENTS.get(name, STATEMENTS["route"]),
                "chosen": name == chosen and kind == "route",
                "error": error if math.isfinite(error) else None,
                "passed": right,
                "device": time and asdict(time),
                "ratio_to_floor": time and time.us / floor,
            }
        )


def turns_of(one: ExpertsSet, ids: Tensor, hit: int) -> list[Tensor]:
    """Return ids of calls that take turns: their experts are others, as far as there are others to fill the caches."""
    most = max(1, one.experts // hit)
    turns = min(most, copies_needed(hit * one.expert_bytes, cache_bytes(ids.device)))
    return [(ids + turn * (one.experts // turns)) % one.experts for turn in range(turns)]


def _time(calls: list[Callable[[], Tensor]], device: torch.device, effort: Effort) -> Any:
    if device.type == "cpu":
        return timing.wall_us(calls, effort, warm_up=0)
    return timing.device_us(calls, effort)[0]


def _ours(x: Tensor, weights: Tensor, a_format: ActivationFormat, route: str, ids: Tensor, layer: Layer) -> Tensor:
    return moe(
        x, layer.w13, layer.w2, ids, weights, activation=layer.activation, b13=layer.b13, b2=layer.b2,
        a_format=a_format, route=route,
    )  # fmt: skip


def _exact(x: Tensor, ids: Tensor, weights: Tensor, layer: Layer, a_format: str) -> np.ndarray[Any, Any]:
    """Compute the first tokens in float64, with the experts that they have alone."""
    part = slice(0, JUDGED_TOKENS)
    used, local = torch.unique(ids[part], return_inverse=True)
    w13, w2 = (
        experts_oracle.weights(w.data[used].cpu().numpy(), w.scales[used].cpu().numpy(), "e2m1")
        for w in (layer.w13, layer.w2)
    )
    b13, b2 = (None if b is None else b[used].double().cpu().numpy() for b in (layer.b13, layer.b2))
    rows, factors = (tensor[part].double().cpu().numpy() for tensor in (x, weights))
    return experts_oracle.layer(rows, w13, w2, local.tolist(), factors, layer.activation, a_format, b13, b2)


def _dense(one: ExpertsSet, layer: Layer, document: dict[str, Any]) -> Layer | None:
    """Dequantise to bf16 for the peers, where the memory holds it."""
    needed = 2 * 3 * one.experts * one.inner * one.hidden
    if 1.5 * needed > _free(layer.w13.device):
        for name in PEERS:
            reason = f"{needed / 2**30:.1f} GiB of weights in bf16 are more than the machine has free"
            document["refusals"].append({"set": one.name, "kind": "peer", "name": name, "reason": reason})
        return None
    w13, w2 = (w.dequantize(torch.bfloat16) for w in (layer.w13, layer.w2))
    return Layer(w13, w2, layer.b13, layer.b2, layer.activation)  # type: ignore[arg-type]


def _grouped(x: Tensor, weights: Tensor, activation: SwiGLU, ids: Tensor, dense: Any) -> Tensor:
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    experts = flat[order]
    numbers = torch.arange(1, len(dense.w13) + 1, dtype=flat.dtype, device=flat.device)
    ends = torch.searchsorted(experts, numbers).to(torch.int32)  # bincount asks the host
    product: Any = torch._grouped_mm
    h = product(x[order // ids.shape[1]], dense.w13.transpose(1, 2), offs=ends)
    h = activation.apply((h if dense.b13 is None else h + dense.b13[experts]).float()).to(torch.bfloat16)
    y = product(h, dense.w2.transpose(1, 2), offs=ends)
    y = (y if dense.b2 is None else y + dense.b2[experts]).float()
    back = torch.empty_like(y).index_copy_(0, order, y).view(*ids.shape, -1)
    return (back * weights.unsqueeze(-1)).sum(1).to(torch.bfloat16)


def _loop(x: Tensor, weights: Tensor, activation: SwiGLU, ids: Tensor, dense: Any) -> Tensor:
    result = torch.zeros(len(x), dense.w2.shape[1], dtype=torch.float32, device=x.device)
    for expert in torch.unique(ids).tolist():
        token, place = torch.where(ids == expert)
        h = torch.mm(x[token], dense.w13[expert].T)
        h = activation.apply((h if dense.b13 is None else h + dense.b13[expert]).float()).to(torch.bfloat16)
        y = torch.mm(h, dense.w2[expert].T)
        y = (y if dense.b2 is None else y + dense.b2[expert]).float()
        result.index_add_(0, token, y * weights[token, place].unsqueeze(1))
    return result.to(torch.bfloat16)


PEER_CALLS: Final[dict[str, Callable[..., Tensor]]] = {"torch_grouped_mm": _grouped, "torch_mm_loop": _loop}


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
