"""Layers of experts on this GPU: how fast are the grouped products of w4_mma and w4_wgmma, by which configuration?

    PYTHONPATH=. python bench/experts.py build [--set moe-gpt-oss-20b] [--tokens 1 16] [--a-formats e2m1 bf16]
    PYTHONPATH=. python bench/experts.py time [--peers torch triton] [--forms fragments] [--variants default] ...
    PYTHONPATH=. python bench/experts.py host ...

``build`` compiles what ``time`` launches, by processes; no GPU is asked. ``time`` measures whole layers by graph
replay, of calls that take turns with others whose experts are others, so that weights come from memory: as the weight
lies and in fragment order; with ``--peers`` torch's grouped bf16 products and the Triton route. ``host`` measures how
long a call of mxgemm.moe keeps the host. A line of JSON for each figure, with the distance from the route reference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES, Machine, machine_of
from mxgemm.experts import mma, wgmma, whole
from mxgemm.experts.forms import in_fragments
from mxgemm.experts.mma import FEW_PAIRS, GroupedConfig
from mxgemm.experts.problem import GroupedProblem, Operands, Routing, Tokens
from mxgemm.experts.route import ExpertsRoute, LayerLaunches
from mxgemm.experts.steps import LayerOptions, describe
from mxgemm.experts.w4_mma import ROUNDED_TOKENS, GroupedMMA
from mxgemm.experts.w4_wgmma import GroupedWgmma
from mxgemm.experts.wgmma import GroupedWgmmaConfig
from mxgemm.measure.moe import _dense, _grouped, _ours, make_layer, make_tokens, turns_of
from mxgemm.measure.moe_sets import MOE_SETS, ExpertsSet
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us, host_us
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.fragments import stack_fragments

EFFORT = Effort(seconds=0.05, most=60)
BANDWIDTH = 4.2e6
"""Bytes a microsecond that an H200's memory gave; the floor of a figure is by it."""


class Mma(GroupedMMA):
    """The route w4_mma with changes to its configuration of the first product and of the second."""

    def __init__(
        self, first: dict[str, Any], second: dict[str, Any] | None = None, rounding: int = ROUNDED_TOKENS
    ) -> None:
        self.rounding, self.changes = rounding, (first, first if second is None else second)

    def whole_config(self, problems: whole.Problems, routing: Routing, tokens: Tokens | None) -> None:
        """Keep its launches apart."""

    def config(self, problem: GroupedProblem) -> GroupedConfig:
        """Change the route's own configuration."""
        return replace(mma.config_for(problem), **self.changes[problem.activation is None])


class Wgmma(GroupedWgmma):
    """The route w4_wgmma with a configuration."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def config(self, problem: GroupedProblem) -> GroupedWgmmaConfig:
        """Change the route's own configuration."""
        return replace(wgmma.config_for(problem), **self.changes)


class Registers(GroupedMMA):
    """The route w4_mma by the kernel whose weights wait in registers."""

    def whole_config(self, problems: whole.Problems, routing: Routing, tokens: Tokens | None) -> None:
        """Keep its launches apart."""

    def config(self, problem: GroupedProblem) -> GroupedConfig:
        """Choose as for weights as they lie."""
        return mma.registers_for(problem)


class Whole(GroupedMMA):
    """The route w4_mma by one launch for both products, with changes to its configuration."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def whole_config(
        self, problems: whole.Problems, routing: Routing, tokens: Tokens | None
    ) -> whole.WholeConfig | None:
        """Change the route's own configuration, of layers of any size."""
        found = whole.config_for(problems)
        can = found is not None and whole.takes(problems, routing, tokens, least_units=0)
        if found is None or not can:
            return None
        changed = replace(found, **self.changes)
        return changed if "slots" in self.changes else whole.filled(problems, changed)


_SLOTS: dict[str, Any] = {"tiles_m": 1, "tiles": 1, "warps_n": 4, "slots": 2, "resident": 2}
FEW: dict[str, ExpertsRoute] = {
    "w4_mma": GroupedMMA(),
    "w4_mma, apart": Mma({}),
    "w4_mma, slots": Mma(_SLOTS),
    "w4_mma, slots, second of 32 rows": Mma(_SLOTS, {**_SLOTS, "warps_n": 2, "resident": 3}),
    "w4_mma, three slots": Mma({**_SLOTS, "slots": 3}),
    "w4_mma, slots, rounded before": Mma(_SLOTS, rounding=0),
}
SOME: dict[str, ExpertsRoute] = {
    "w4_mma": GroupedMMA(),
    "w4_mma, apart": Mma({}),
    "w4_mma, slots": Mma(_SLOTS),
    "w4_mma, slots, rounded before": Mma(_SLOTS, rounding=0),
}
MANY_ROWS = 16
"""Rows of an expert in the mean from which on mxgemm.moe takes w4_wgmma."""
MANY: dict[str, ExpertsRoute] = {
    "w4_mma": GroupedMMA(),
    "w4_mma, apart": Mma({}),
    "w4_mma, in registers": Registers(),
    "w4_wgmma": Wgmma(),
    "w4_wgmma, 64 rows by 4": Wgmma(columns=64, tiles=1, groups=4),
    "w4_wgmma, 64 rows by 2 x 2": Wgmma(columns=64, tiles=2, groups=2),
    "w4_wgmma, 128 rows by 2": Wgmma(columns=128, tiles=1, groups=2),
    "w4_wgmma, 64 rows by 3": Wgmma(columns=64, tiles=1, groups=3),
}


def variants(p: Planned, fragments: bool) -> dict[str, ExpertsRoute]:
    """Return what is tried for a layer; as the weight lies the routes' own configurations alone."""
    per_expert = p.routing.pairs / p.routing.experts
    found = FEW if p.routing.pairs <= FEW_PAIRS else SOME if per_expert < 8 else MANY
    rounds = p.tokens.a_format != "bf16"
    default = {"default": GroupedMMA() if per_expert < MANY_ROWS else GroupedWgmma()}
    return default | {
        name: route
        for name, route in found.items()
        if ("," not in name) or (fragments and (rounds or "rounded" not in name))
    }


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


FORMS = {"raw": as_they_lie, "fragments": in_order}
"""What puts a layer's weights into a form."""


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
    out = torch.empty((p.routing.tokens, two.n), dtype=torch.bfloat16, device=x.device)
    if launches.whole is not None:
        first, second = (w13.codes, w13.scales, layer.b13), (w2.codes, w2.scales, layer.b2)
        launches.combine(launches.whole(x, None, first, second, ids, None), ids, weights, None, out)
        return out
    assert launches.sort is not None
    data, scales = (x, None) if launches.quantise is None else launches.quantise(x)
    ordered = launches.sort(ids, None)
    inner = torch.empty((one.rows, one.strides.out[0]), dtype=one.out_dtype, device=x.device)
    inner_scales = torch.empty((one.rows, one.columns // BLOCK), dtype=torch.uint8, device=x.device)
    y = torch.empty((two.rows, two.n), dtype=torch.float32, device=x.device)
    where = ordered.offsets, ordered.places, ordered.tiles
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


def time_layers(
    one: ExpertsSet, tokens: tuple[int, ...], a_formats: list[str], peers: list[str], names: list[str] | None,
    wanted: list[str],
) -> None:  # fmt: skip
    """Measure whole layers, by variants of some names or all, of weights in some forms."""
    device = torch.device("cuda", 0)
    layer = make_layer(one, device)
    forms = {form: FORMS[form](layer) for form in wanted}
    dense = _dense(one, layer, {"refusals": []}) if "torch" in peers else None
    heat()
    for count in tokens:
        time_tokens(one, count, a_formats, layer, forms, dense, names, "triton" in peers)


def time_tokens(
    one: ExpertsSet, count: int, a_formats: list[str], layer: Any, forms: dict[str, tuple[Weight, Weight]], dense: Any,
    names: list[str] | None, triton: bool,
) -> None:  # fmt: skip
    """Measure layers of so many tokens, each beside the result of the route reference."""
    x, ids, weights = make_tokens(one, count, layer.w13.device)
    turns, floor = turns_of(one, ids, int(torch.unique(ids).numel())), floor_us(one, ids)
    common = {"set": one.name, "tokens": count, "hit": int(torch.unique(ids).numel())}
    for fmt in a_formats:
        want = _ours(x, weights, fmt, "reference", turns[-1], layer).float()  # type: ignore[arg-type]
        for form, (w13, w2) in forms.items():
            p = planned(one, count, fmt, machine_of(x.device), form == "fragments")
            for name, variant in variants(p, form == "fragments").items():
                if names is not None and name not in names:
                    continue
                launches = variant.bind_layer(p.problems, p.routing, p.tokens)
                calls = [partial(run_layer, launches, p, w13, w2, layer, x, turn, weights) for turn in turns]
                got = calls[-1]().float()
                error = round(float((got - want).norm() / want.norm()), 5)
                measure(name, calls, floor, form=form, a_format=fmt, error=error, **common)
        if triton:
            calls = [partial(_ours, x, weights, fmt, "triton", turn, layer) for turn in turns]  # type: ignore[arg-type]
            measure("triton", calls, floor, a_format=fmt, **common)
    if dense is not None:
        calls = [partial(_grouped, x, weights, layer.activation, turn, dense) for turn in turns]
        try:
            measure("torch_grouped_mm", calls, floor, **common)
        except RuntimeError as error_of:
            tell(what="torch_grouped_mm", failed=str(error_of).splitlines()[0], **common)


def time_host(one: ExpertsSet, tokens: tuple[int, ...], a_formats: list[str]) -> None:
    """Measure how long a call keeps the host."""
    device = torch.device("cuda", 0)
    made = make_layer(one, device)
    layer = replace(made, w13=made.w13.prepare(), w2=made.w2.prepare())
    for count, fmt in itertools.product(tokens, a_formats):
        x, ids, weights = make_tokens(one, count, device)
        call = partial(_ours, x, weights, fmt, None, ids, layer)  # type: ignore[arg-type]
        time = host_us([call], EFFORT, torch.cuda.synchronize)
        tell(what="host", us=round(time.us, 2), a_format=fmt, set=one.name, tokens=count)


def heat() -> None:
    """Keep the GPU busy until its clocks are up."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    for _ in range(400):
        torch.mm(a, a)
    torch.cuda.synchronize()


Job = tuple[str, int, str, bool, str]
"""A set, tokens, a format of A, whether in fragment order, and a variant."""


def bind_one(job: Job) -> None:
    """Build what one variant launches, in a process of its own; no GPU is asked."""
    name, tokens, a_format, fragments, variant = job
    p = planned(MOE_SETS[name], tokens, a_format, KNOWN_MACHINES["sm_90"], fragments)
    try:
        variants(p, fragments)[variant].bind_layer(p.problems, p.routing, p.tokens)
    except Exception as error:
        print(f"{job}: {type(error).__name__}: {error}", file=sys.stderr)


def jobs(
    sets: list[ExpertsSet], tokens: tuple[int, ...], a_formats: list[str], names: list[str] | None, forms: list[str]
) -> list[Job]:
    """Return what is built: what ``time`` would launch."""
    machine = KNOWN_MACHINES["sm_90"]
    return [
        (one.name, count, fmt, form == "fragments", variant)
        for one, count, fmt, form in itertools.product(sets, tokens, a_formats, forms)
        for variant in variants(planned(one, count, fmt, machine, form == "fragments"), form == "fragments")
        if names is None or variant in names
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("build", "time", "host"))
    parser.add_argument("--set", nargs="+", default=["moe-gpt-oss-20b"], choices=MOE_SETS)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--a-formats", nargs="+", default=["e2m1", "bf16"])
    parser.add_argument("--peers", nargs="*", default=[], choices=("torch", "triton"), help="grouped bf16; the route")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS, help="of the weights")
    parser.add_argument("--variants", nargs="+", help="time these alone, by their names; all by default")
    chosen = parser.parse_args()
    sets, tokens = [MOE_SETS[name] for name in chosen.set], tuple(chosen.tokens)
    if chosen.command == "build":
        found = jobs(sets, tokens, chosen.a_formats, chosen.variants, chosen.forms)
        with multiprocessing.get_context("fork").Pool() as pool:
            pool.map(bind_one, found, chunksize=1)
        print(f"{len(found)} layers", flush=True)
        return 0
    for one in sets:
        if chosen.command == "time":
            time_layers(one, tokens, chosen.a_formats, chosen.peers, chosen.variants, chosen.forms)
        else:
            time_host(one, tokens, chosen.a_formats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
