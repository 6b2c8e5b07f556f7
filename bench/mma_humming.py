"""w4_mma against Humming's w4a16 kernels (humming-kernels on PyPI): bf16 activations, few rows, one run, one clock.

    PYTHONPATH=. python bench/mma_humming.py -o bench/results/mma_humming_h200.json [--seconds 0.02] [--m 1 4 16]

Device time of whole calls by graph replay over rotating weights: the router's choice on a prepared weight, Humming's
own heuristics on the layer that it repacked, torch.mm on the weight in bf16. Each is judged against float64 first. In
``mxgemm bench`` what fails the gates is not timed; here a peer is all the same, and its error is written beside.

Humming compiles while it runs, tens of seconds a weight: ``--warm FILE`` has it compile and then waits until there is
such a file, so that other work can be measured meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from bench.hopper import WEIGHTS
from mxgemm.measure import output
from mxgemm.measure.contender import Contender
from mxgemm.measure.environment import describe_environment
from mxgemm.measure.forms import in_form
from mxgemm.measure.oracle import Oracle
from mxgemm.measure.peers import PEERS
from mxgemm.measure.rotation import cache_bytes, copies_needed
from mxgemm.measure.routes import route_contenders
from mxgemm.measure.session import activations_of, weight_of
from mxgemm.measure.spread import Effort
from mxgemm.measure.timing import graph_us
from mxgemm.mx.tensor import MXTensor

KIND = "mxgemm-humming"
SMALL = ((2880, 512), (4096, 512), (2112, 7168), (5760, 2880))
PEER_NAMES = ("torch_mm", "humming")


def measured(ms: Sequence[int], device: torch.device, effort: Effort) -> Iterator[dict[str, Any]]:
    """Yield a row for each size and contender."""
    for n, k in (*SMALL, *WEIGHTS):
        weight = weight_of(n, k, device)
        prepared = in_form(weight, "fast")
        made: dict[str, list[Any]] = {}
        for m in ms:
            oracle = Oracle(activations_of(m, k, device), weight)
            for contender, given in _contenders((m, n, k), weight, prepared):
                row = {"m": m, "n": n, "k": k, "name": contender.name}
                try:
                    yield row | _one(contender, oracle, given, made, effort)
                except Exception as error:  # a peer that cannot take a size: the others are compared
                    yield row | {"error": f"{type(error).__name__}: {error}".strip()}
        made.clear()
        gc.collect()


def _contenders(
    shape: tuple[int, int, int], weight: MXTensor, prepared: MXTensor
) -> Iterator[tuple[Contender, MXTensor]]:
    routes, _, _ = route_contenders(*shape, prepared, a_format="bf16", form="fast", only=None, every=False)
    yield from ((route, weight) for route in routes)
    yield from ((PEERS[name], weight) for name in PEER_NAMES)


def _one(
    contender: Contender, oracle: Oracle, weight: MXTensor, made: dict[str, list[Any]], effort: Effort
) -> dict[str, Any]:
    """Judge and time one; copies of a weight are kept in ``made`` for the next M."""
    if contender.name not in made:
        loaded = contender.load(weight)
        copies = copies_needed(contender.nbytes(loaded), cache_bytes(weight.device))
        made[contender.name] = [loaded, *(contender.clone(loaded) for _ in range(copies - 1))]
    copies_of = made[contender.name]
    a = contender.activations(oracle.a)
    judged = oracle.judge(
        contender.call(a, copies_of[0]), contender.exact(oracle, a, copies_of[0]), contender.accumulate_bits
    )
    spread = graph_us(contender.bind(a, copies_of), effort)
    return {
        "us": round(spread.us, 3),
        "low": round(spread.low, 3),
        "high": round(spread.high, 3),
        "norm": judged.norm,
        "passed": judged.passed,
    }


def compile_all(ms: Sequence[int], device: torch.device) -> None:
    """Have Humming compile what it needs; what it cannot take is said."""
    for n, k in (*SMALL, *WEIGHTS):
        try:
            loaded = PEERS["humming"].load(weight_of(n, k, device))
            for m in ms:
                PEERS["humming"].call(activations_of(m, k, device), loaded)
        except Exception as error:
            print(f"humming, {n},{k}: {type(error).__name__} {error}", flush=True)
    torch.cuda.synchronize()


def main() -> None:
    """Measure, print ratios, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=0.05, help="of each time")
    parser.add_argument("--warm", type=Path, help="a file to wait for after compiling")
    output.add_options(parser, Path("mma_humming.json"))
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    device = torch.device("cuda", 0)
    if arguments.warm:
        compile_all(arguments.m, device)
        arguments.warm.with_suffix(".ready").touch()
        while not arguments.warm.exists():
            time.sleep(0.1)
    rows: list[dict[str, Any]] = []
    document = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "method": "device time by graph replay over rotating weights; each judged against float64 and timed either way",
        "humming": PEERS["humming"].version(),
        "effort": asdict(Effort(seconds=arguments.seconds)),
        "rows": rows,
    }
    for row in measured(arguments.m, device, Effort(seconds=arguments.seconds)):
        rows.append(row)
        here = {one["name"]: one.get("us") for one in rows if all(one[x] == row[x] for x in "mnk")}
        ours = next((us for name, us in here.items() if name not in PEER_NAMES), None)
        if row["name"] == PEER_NAMES[-1]:
            peer = here[row["name"]]
            against = f"{ours / peer:.3f}" if ours and peer else row.get("error", "")
            print(f"{row['m']},{row['n']},{row['k']}: {here} ours / humming {against}", flush=True)
            keep(document)
    keep(document)


if __name__ == "__main__":
    main()
