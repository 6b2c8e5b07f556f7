"""Layers of experts on this GPU, launch by launch: how fast are the grouped products of w4_mma, by which configuration?

    PYTHONPATH=. python bench/experts.py build [--for products] [--set moe-gpt-oss-20b]
    PYTHONPATH=. python bench/experts.py time [--set moe-gpt-oss-20b] [--tokens 1 16] [--a-formats e2m1 bf16]
    PYTHONPATH=. python bench/experts.py products [--tokens 1 16 64]

``build`` compiles what the others launch, by processes; no GPU is asked. ``time`` measures whole layers by graph
replay, of calls whose experts differ so that weights come from memory: the weight as it lies and in fragment order, the
Triton route, torch's grouped bf16 products. ``products`` measures the two products alone with several configurations.
A line of JSON for each figure; results are compared with the Triton route's before they are timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES, Machine, machine_of
from mxgemm.experts import mma as grouped_mma
from mxgemm.experts.forms import in_fragments
from mxgemm.experts.mma import GroupedConfig, config_for
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens
from mxgemm.experts.route import LayerLaunches
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.experts.w4_mma import GroupedMMA
from mxgemm.measure.moe import _dense, _grouped, make_layer, make_tokens, turns_of
from mxgemm.measure.moe_sets import MOE_SETS, ExpertsSet
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.fragments import stack_fragments

EFFORT = Effort(seconds=0.05, most=60)
BANDWIDTH = 4.2e6
"""Bytes a microsecond that an H200's memory gave; the floor of a figure is by it."""
ROUTE = GroupedMMA()


class Variant(GroupedMMA):
    """The route with other configurations: changes to the first product's and to the second's."""

    def __init__(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.changes = first, second

    def config(self, problem: GroupedProblem) -> GroupedConfig:
        """Change the route's own configuration."""
        return replace(config_for(problem), **self.changes[problem.activation is None])


_AHEAD: dict[str, Any] = {"prefetch": True}
_HALVES: dict[str, Any] = {"tiles": 2, "warps_n": 2, "depth": 2}
FEW_ROWS = {
    "plain": Variant({"prefetch": False}, {"prefetch": False}),
    "prefetch second": Variant({"prefetch": False}, _AHEAD),
    "prefetch both": Variant(_AHEAD, _AHEAD),
    "two tiles": Variant({**_HALVES, "prefetch": False}, {**_HALVES, **_AHEAD}),
    "narrow second": Variant({"prefetch": False}, {"tiles": 2, "warps_n": 1, **_AHEAD}),
    "eight along K": Variant({"warps_k": 8, "depth": 1}, {"warps_k": 8, "depth": 1, **_AHEAD}),
}
_FOUR: dict[str, Any] = {"tiles": 4, "warps_n": 1, "depth": 1}
MANY_ROWS = {
    "plain": Variant({}, {}),
    "four tiles": Variant(_FOUR, _FOUR),
    "four tiles, two along K": Variant({**_FOUR, "warps_k": 2}, {**_FOUR, "warps_k": 2}),
    "sixteen rows": Variant({**_FOUR, "tiles_m": 2}, {**_FOUR, "tiles_m": 2}),
}


def variants(p: GroupedProblem, fragments: bool) -> dict[str, GroupedMMA]:
    """Return what is tried for a layer, of its first product: in fragment order more than as the weight lies."""
    if not fragments:
        return {"own": ROUTE}
    return dict(FEW_ROWS if config_for(p).tiles_m < 4 else MANY_ROWS)


def configs(p: GroupedProblem) -> list[GroupedConfig]:
    """Return what is tried for a product: the route's own first."""
    own = config_for(p)
    found = [own]
    for tiles, warps_n, depth, warps_k, prefetch in itertools.product((4, 2), (1, 2), (1, 2), (4, 8), (False, True)):
        c = replace(own, tiles=tiles, warps_n=warps_n, depth=depth, warps_k=warps_k, prefetch=prefetch)
        gated = p.activation is not None and c.columns != grouped_mma.GATED_ROWS
        if not gated and c.threads <= 512 and tiles * depth * own.tiles_m <= 16:
            found.append(c)
    return list(dict.fromkeys(found))


class Weight(NamedTuple):
    """Codes and scales of all experts, in fragment order or as they lie."""

    codes: Tensor
    scales: Tensor


def as_they_lie(layer: Any) -> tuple[Weight, Weight]:
    """Return a layer's two weights."""
    return Weight(layer.w13.data, layer.w13.scales), Weight(layer.w2.data, layer.w2.scales)


def in_order(layer: Any) -> tuple[Weight, Weight]:
    """Put them into fragment order."""
    w13, w2 = (stack_fragments(w.data, w.scales) for w in (layer.w13, layer.w2))
    return Weight(*w13), Weight(*w2)


class Planned(NamedTuple):
    """A layer's problems, its routing and its tokens."""

    problems: tuple[GroupedProblem, GroupedProblem]
    routing: Routing
    tokens: Tokens


def planned(one: ExpertsSet, tokens: int, a_format: str, machine: Machine, fragments: bool) -> Planned:
    """Describe a layer of a set without its tensors' memory."""
    meta = torch.device("meta")
    w13, w2 = (
        mxgemm.MXTensor.wrap(
            torch.empty((one.experts, n, k // 2), dtype=torch.uint8, device=meta),
            torch.empty((one.experts, n, k // BLOCK), dtype=torch.uint8, device=meta),
        )
        for n, k in ((2 * one.inner, one.hidden), (one.hidden, one.inner))
    )
    bias = [torch.empty((one.experts, w.shape[1]), dtype=torch.bfloat16, device=meta) for w in (w13, w2)]
    b13, b2 = bias if one.gpt_oss else (None, None)
    x = torch.empty((tokens, one.hidden), dtype=torch.bfloat16, device=meta)
    activation = mxgemm.SwiGLU() if one.gpt_oss else mxgemm.SwiGLU.plain()
    problems = describe(x, w13, w2, b13, b2, one.top_k, LayerOptions(activation, a_format=a_format), machine)
    if fragments:
        problems = in_fragments(problems[0]), in_fragments(problems[1])
    routing = Routing(
        tokens, one.top_k, one.experts, 0, 0, torch.int64, one.hidden, torch.float32, torch.bfloat16, machine,
        (one.hidden, 1),
    )  # fmt: skip
    return Planned(problems, routing, Tokens(tokens, one.hidden, x.dtype, (one.hidden, 1), a_format, "even", True))


def run_layer(
    launches: LayerLaunches, p: Planned, w13: Weight, w2: Weight, layer: Any, x: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Run a layer by its launches, as mxgemm.experts.layer does."""
    one, two = p.problems
    data, scales = (x, None) if launches.quantise is None else launches.quantise(x)
    ordered = launches.sort(ids, None)
    inner = torch.empty((one.rows, one.strides.out[0]), dtype=one.out_dtype, device=x.device)
    inner_scales = torch.empty((one.rows, one.columns // BLOCK), dtype=torch.uint8, device=x.device)
    y = torch.empty((two.rows, two.n), dtype=torch.float32, device=x.device)
    out = torch.empty((p.routing.tokens, two.n), dtype=torch.bfloat16, device=x.device)
    where = ordered.offsets, ordered.places, None
    launches.products[0](
        Operands(
            data, scales, w13.codes, w13.scales, layer.b13, *where, inner, inner_scales if one.out_format else None
        )
    )
    launches.products[1](
        Operands(inner, inner_scales if one.out_format else None, w2.codes, w2.scales, layer.b2, *where, y)
    )
    launches.combine(y, ids, weights, None, out)
    return out


def floor_us(one: ExpertsSet, ids: Tensor) -> float:
    """Return how long the weights of the experts that are hit take at the memory's bandwidth."""
    return int(torch.unique(ids).numel()) * one.expert_bytes / BANDWIDTH


def tell(**figures: Any) -> None:
    """Print a line."""
    print(json.dumps(figures), flush=True)


def measure(name: str, calls: Sequence[Callable[[], Tensor]], floor: float, **more: Any) -> float:
    """Time calls and tell it."""
    time = graph_us(calls, EFFORT)
    tell(what=name, us=round(time.us, 2), x_floor=round(time.us / floor, 3), **more)
    return time.us


def time_layers(one: ExpertsSet, tokens: tuple[int, ...], a_formats: list[str], peers: bool) -> None:
    """Measure whole layers."""
    device = torch.device("cuda", 0)
    layer = make_layer(one, device)
    forms = {"raw": as_they_lie(layer), "fragments": in_order(layer)}
    dense = _dense(one, layer, {"refusals": []}) if peers else None
    heat()
    for count in tokens:
        time_tokens(one, count, a_formats, layer, forms, dense)


def time_tokens(
    one: ExpertsSet, count: int, a_formats: list[str], layer: Any, forms: dict[str, tuple[Weight, Weight]], dense: Any
) -> None:
    """Measure layers of so many tokens."""
    x, ids, weights = make_tokens(one, count, layer.w13.device)
    turns, floor = turns_of(one, ids, int(torch.unique(ids).numel())), floor_us(one, ids)
    common = {"set": one.name, "tokens": count, "hit": int(torch.unique(ids).numel())}

    def by_triton(fmt: Any, turn: Tensor) -> Tensor:
        return mxgemm.moe(
            x, layer.w13, layer.w2, turn, weights, activation=layer.activation, b13=layer.b13, b2=layer.b2,
            a_format=fmt, route="triton",
        )  # fmt: skip

    for fmt in a_formats:
        want = by_triton(fmt, turns[-1]).float()
        for form, (w13, w2) in forms.items():
            p = planned(one, count, fmt, machine_of(x.device), form == "fragments")
            for name, variant in variants(p.problems[0], form == "fragments").items():
                launches = variant.bind_layer(p.problems, p.routing, p.tokens)
                calls = [partial(run_layer, launches, p, w13, w2, layer, x, turn, weights) for turn in turns]
                got = calls[-1]().float()
                error = float((got - want).norm() / want.norm())
                measure(
                    "w4_mma", calls, floor, form=form, variant=name, a_format=fmt, error=round(error, 5), **common
                )  # fmt: skip
        measure("triton", [partial(by_triton, fmt, turn) for turn in turns], floor, a_format=fmt, **common)
    if dense is not None:
        calls = [partial(_grouped, x, weights, layer.activation, turn, dense) for turn in turns]
        try:
            measure("torch_grouped_mm", calls, floor, **common)
        except RuntimeError as error:
            tell(what="torch_grouped_mm", failed=str(error).splitlines()[0], **common)


def time_products(one: ExpertsSet, tokens: tuple[int, ...], a_formats: list[str]) -> None:
    """Measure the two products alone, by ids, with each of some configurations."""
    device = torch.device("cuda", 0)
    layer = make_layer(one, device)
    forms = {"fragments": in_order(layer), "raw": as_they_lie(layer)}
    heat()
    for count in tokens:
        x, ids, _ = make_tokens(one, count, device)
        turns = turns_of(one, ids, int(torch.unique(ids).numel()))
        for fmt in a_formats:
            for form, weights in forms.items():
                p = planned(one, count, fmt, machine_of(device), form == "fragments")
                for which in (0, 1):
                    problem, w = p.problems[which], weights[which]
                    floor = floor_us(one, ids) * (2 - which) / 3
                    for c in configs(problem) if form == "fragments" else configs(problem)[:1]:
                        calls = product_calls(p, which, c, w, layer, x, turns)
                        try:
                            measure(
                                f"product {which}", calls, floor, form=form, a_format=fmt, tokens=count, set=one.name,
                                config=asdict(c),
                            )  # fmt: skip
                        except RuntimeError as error:
                            tell(what=f"product {which}", config=asdict(c), failed=str(error).splitlines()[0])


def product_calls(
    p: Planned, which: int, c: GroupedConfig, w: Weight, layer: Any, x: Tensor, turns: list[Tensor]
) -> list[Callable[[], Tensor]]:
    """Return calls of one product."""
    problem = p.problems[which]
    launch = ROUTE.launcher(problem, c, p.routing, early=True)
    a, a_scales = x, None
    if which == 1:
        a = torch.randn((problem.a_rows, problem.k), dtype=torch.bfloat16, device=x.device)
    if problem.a is not None:
        quantised = mxgemm.quantize(a, format=p.tokens.a_format)  # type: ignore[arg-type]
        a, a_scales = quantised.data, quantised.scales
    out = torch.empty((problem.rows, problem.strides.out[0]), dtype=problem.out_dtype, device=x.device)
    scales = torch.empty((problem.rows, max(1, problem.columns // BLOCK)), dtype=torch.uint8, device=x.device)
    bias = (layer.b13, layer.b2)[which]

    def call(turn: Tensor) -> Tensor:
        launch(Operands(a, a_scales, w.codes, w.scales, bias, turn, None, None, out, scales))
        return out

    return [partial(call, turn) for turn in turns]


def heat() -> None:
    """Keep the GPU busy until its clocks are up."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    for _ in range(400):
        torch.mm(a, a)
    torch.cuda.synchronize()


def build_one(job: tuple[str, dict[str, int | str]]) -> None:
    """Build a kernel, in a process of its own."""
    from mxgemm.cuda.launch import KERNELS
    from mxgemm.hip.build import build

    try:
        build(job[0], arch="sm_90", defines=job[1], folder=KERNELS)
    except Exception as error:
        print(f"{job}: {error}", file=sys.stderr)


Job = tuple[str, dict[str, int | str]]


def jobs_of_layers(p: Planned, fragments: bool) -> Iterator[Job]:
    """Yield what ``time`` builds."""
    few = p.routing.pairs <= grouped_mma.MAX_PAIRS
    for variant in variants(p.problems[0], fragments).values():
        for i, problem in enumerate(p.problems):
            early = i == 1 or (few and p.tokens.a_format != "bf16")
            yield grouped_mma.SOURCE, grouped_mma.defines(problem, variant.config(problem), by_ids=few, early=early)


def jobs_of_products(p: Planned, fragments: bool) -> Iterator[Job]:
    """Yield what ``products`` builds."""
    for problem in p.problems:
        for c in configs(problem) if fragments else configs(problem)[:1]:
            yield grouped_mma.SOURCE, grouped_mma.defines(problem, c, by_ids=True, early=True)


def jobs(what: str, sets: list[ExpertsSet], tokens: tuple[int, ...], a_formats: list[str]) -> list[Job]:
    """Return what a command builds, each once."""
    machine, one_by_one = KNOWN_MACHINES["sm_90"], {"time": jobs_of_layers, "products": jobs_of_products}[what]
    found = {
        (source, tuple(sorted(macros.items())))
        for one, count, fmt, fragments in itertools.product(sets, tokens, a_formats, (True, False))
        for source, macros in one_by_one(planned(one, count, fmt, machine, fragments), fragments)
    }
    return [(source, dict(macros)) for source, macros in sorted(found)]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("build", "time", "products"))
    parser.add_argument("--for", dest="what", default="time", choices=("time", "products"), help="what to build for")
    parser.add_argument("--set", nargs="+", default=["moe-gpt-oss-20b"], choices=MOE_SETS)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--a-formats", nargs="+", default=["e2m1", "bf16"])
    parser.add_argument("--peers", action="store_true")
    chosen = parser.parse_args()
    sets, tokens = [MOE_SETS[name] for name in chosen.set], tuple(chosen.tokens)
    if chosen.command == "build":
        found = jobs(chosen.what, sets, tokens, chosen.a_formats)
        print(f"{len(found)} kernels", flush=True)
        with multiprocessing.get_context("fork").Pool() as pool:
            pool.map(build_one, found, chunksize=1)
        return 0
    for one in sets:
        if chosen.command == "time":
            time_layers(one, tokens, chosen.a_formats, chosen.peers)
        else:
            time_products(one, tokens, chosen.a_formats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
