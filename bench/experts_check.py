"""Layers of experts by one launch on this GPU: the bits of the launches that it stands for?

    PYTHONPATH=. python bench/experts_check.py [--build] [--a-formats e2m1 bf16]

Of several routings, again and again, by a graph, and on two streams at the same time. ``--build`` compiles what is
launched, and no GPU is asked. Its last line says how many results differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from bench.experts import Mma, Planned, Weight, Whole, in_order, planned, run_layer, tell
from mxgemm.device import KNOWN_MACHINES
from mxgemm.experts.route import ExpertsRoute, LayerLaunches
from mxgemm.measure.moe import make_layer, make_tokens
from mxgemm.measure.moe_sets import MOE_SETS, ExpertsSet

CHECKED = (
    ExpertsSet("small, gpt-oss", "", "", 6, 2, 1056, 1184, gpt_oss=True),
    ExpertsSet("short", "", "", 6, 2, 480, 224),
    MOE_SETS["moe-gpt-oss-20b"],
)
CHECKED_TOKENS = (1, 3, 16, 24)
TWO: dict[str, ExpertsRoute] = {"whole": Whole(), "apart": Mma({})}


def check_layers(a_formats: Sequence[str], *, build_only: bool) -> int:
    """Compare bits of layers by one launch and by launches of their own; return how many differ."""
    machine = KNOWN_MACHINES["sm_90"]
    wrong = 0
    for one in CHECKED:
        layer = None if build_only else make_layer(one, torch.device("cuda", 0))
        weights = None if layer is None else in_order(layer)
        for tokens, fmt in itertools.product(CHECKED_TOKENS, a_formats):
            p = planned(one, tokens, fmt, machine, True)
            launches = [route.bind_layer(p.problems, p.routing, p.tokens) for route in TWO.values()]
            if weights is not None:
                assert launches[0].whole is not None
                wrong += check_layer(one, p, launches, layer, weights)
    return wrong


def check_layer(
    one: ExpertsSet, p: Planned, launches: list[LayerLaunches], layer: Any, weights: tuple[Weight, Weight]
) -> int:
    """Compare a layer's results of several routings; return how many differ."""
    x, ids, factors = make_tokens(one, p.routing.tokens, layer.w13.device)
    drawn = torch.randint(-1, one.experts, ids.shape, device=ids.device)
    routings = {"own": ids, "others": (ids + 1) % one.experts, "drawn": drawn, "one": torch.zeros_like(ids)}
    there = ids.clone()
    calls = [partial(run_layer, chosen, p, *weights, layer, x, there, factors) for chosen in launches]
    wrong, graph = 0, torch.cuda.CUDAGraph()
    calls[0]()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        replayed = calls[0]()
    for name, chosen in routings.items():
        there.copy_(chosen)
        want = calls[1]()
        found = [calls[0]() for _ in range(10)]
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        found.append(replayed)
        streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
        for _ in range(10):
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(calls[0]())
        torch.cuda.synchronize()
        differ = sum(not torch.equal(got, want) for got in found)
        wrong += differ
        if differ:
            off = max(float((got.float() - want.float()).norm() / want.float().norm()) for got in found)
            tell(
                differ=differ, of=len(found), off=off, finite=bool(want.isfinite().all()), set=one.name, routing=name,
                tokens=p.routing.tokens, a_format=p.tokens.a_format,
            )  # fmt: skip
    return wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", action="store_true", help="compile what is launched, no more")
    parser.add_argument("--a-formats", nargs="+", default=["e2m1", "bf16"])
    chosen = parser.parse_args()
    wrong = check_layers(chosen.a_formats, build_only=chosen.build)
    tell(what="check", wrong=wrong)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
