"""Small layers of experts, one by each kernel for Hopper, for a sanitizer to watch on a GPU; each is judged too.

    PYTHONPATH=. compute-sanitizer --tool racecheck --kernel-regex kns=grouped python bench/experts_sanitized.py
    PYTHONPATH=. compute-sanitizer --tool memcheck --kernel-regex kns=grouped python bench/experts_sanitized.py

``--build`` compiles what is launched, and no GPU is asked. Exit status 1 if a result is far from the route reference's.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import torch

from bench.experts import Mma, Registers, Wgmma, Whole, as_they_lie, in_order, planned, run_layer, tell
from mxgemm.device import KNOWN_MACHINES, machine_of
from mxgemm.experts.route import ExpertsRoute
from mxgemm.measure.moe import LIMITS, _ours, make_layer, make_tokens
from mxgemm.measure.moe_sets import ExpertsSet

SHORT = ExpertsSet("short", "", "", 3, 2, 288, 288, gpt_oss=True)
LONG = ExpertsSet("long", "", "", 3, 2, 1056, 288)


class Case(NamedTuple):
    """A layer, and what computes it."""

    name: str
    one: ExpertsSet
    tokens: int
    a_format: str
    fragments: bool
    route: ExpertsRoute


CASES = (
    Case("one launch", SHORT, 3, "bf16", True, Whole(watched=True)),
    Case("one launch", LONG, 12, "e2m1", True, Whole(rows=2, slots=3, watched=True)),
    Case("one launch, places", SHORT, 2, "bf16", True, Whole(split=(True, True), watched=True)),
    Case("by ids", SHORT, 3, "e2m1", True, Mma({})),
    Case("slots", LONG, 12, "bf16", True, Mma({"tiles": 1, "warps_n": 4, "slots": 2, "resident": 2}, {})),
    Case("as it lies", SHORT, 20, "e2m1", False, Registers()),
    Case("warpgroups", SHORT, 60, "bf16", True, Wgmma()),
)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", action="store_true", help="compile what is launched, no more")
    only = parser.parse_args().build
    wrong = 0
    for case in CASES:
        machine = KNOWN_MACHINES["sm_90"] if only else machine_of(torch.device("cuda", 0))
        p = planned(case.one, case.tokens, case.a_format, machine, case.fragments)
        launches = case.route.bind_layer(p.problems, p.routing, p.tokens)
        assert (launches.whole is not None) == isinstance(case.route, Whole)
        if only:
            continue
        layer = make_layer(case.one, torch.device("cuda", 0))
        weights = in_order(layer) if case.fragments else as_they_lie(layer)
        x, ids, factors = make_tokens(case.one, case.tokens, layer.w13.device)
        got = run_layer(launches, p, *weights, layer, x, ids, factors).float()
        want = _ours(x, factors, case.a_format, "reference", ids, layer).float()  # type: ignore[arg-type]
        off = float((got - want).norm() / want.norm())
        wrong += not off <= LIMITS[case.a_format]
        tell(what=case.name, tokens=case.tokens, a_format=case.a_format, off=off)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
