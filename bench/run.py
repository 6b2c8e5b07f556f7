"""Measure routes and peers without the command line's packages: torch, numpy and triton are enough.

    python bench/run.py --set leaderboard --all-routes --json bench/out/leaderboard.json
    python bench/run.py --shape 16,2112,7168 --route a16wfp4 --no-peers
    python bench/run.py --compare old.json new.json

The same as ``mxgemm bench``; pictures come from the JSON, on any machine: bench/plot.py. What the numbers mean:
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from mxgemm import measure
from mxgemm.device import default_device
from mxgemm.measure import compare, text


def main() -> int:
    """Measure or compare; 1 where a route of ours fails or became slower."""
    arguments = _parser().parse_args()
    if arguments.compare:
        old, new = (measure.load(path) for path in arguments.compare)
        changes = compare.compare(old, new, metric=arguments.metric)
        print(text.aligned(text.CHANGE_COLUMNS, text.change_rows(changes)))
        print("\n".join(compare.remarks(old, new)))
        return int(any(change.bad for change in changes))
    device = torch.device(arguments.device) if arguments.device else default_device()
    peers = device.type == "cuda" if arguments.peers is None else arguments.peers
    request = measure.Request(
        shapes=measure.select(arguments.set, arguments.shape),
        device=device,
        a_format=arguments.a_format,
        route=arguments.route,
        all_routes=arguments.all_routes,
        peers=tuple(measure.PEERS) if peers else (),
        form="raw" if arguments.raw else "fast",
        effort=measure.Effort(seconds=arguments.seconds),
    )
    total = len(request.shapes)

    def tell(done: int, what: str) -> None:
        print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)

    keeper = measure.Keeper(arguments.json, force=arguments.force) if arguments.json else None
    document = measure.run(request, tell, keeper.keep if keeper else None)
    if keeper:
        keeper.finish(document)
    print(text.title(document))
    print(text.aligned(*text.filled(text.COLUMNS, text.rows(document))))
    print("\n".join(text.notes(document)))
    return int(not measure.passed(document))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], choices=list(measure.SETS), help="repeat for more")
    parser.add_argument("--shape", action="append", default=[], help="M,N,K; repeat for more")
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    parser.add_argument("--a-format", default="e2m1", choices=("e2m1", "e4m3", "bf16"))
    parser.add_argument("--route")
    parser.add_argument("--all-routes", action="store_true")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=None, help="default: on a GPU")
    parser.add_argument("--raw", action="store_true", help="do not call prepare() on the weight")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each of a contender's times")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--force", action="store_true", help="with --json: replace a file that this did not write")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="measure nothing")
    parser.add_argument("--metric", default="device", choices=compare.METRICS)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:  # a size, name or file that is none
        sys.exit(f"bench/run.py: {error}")
