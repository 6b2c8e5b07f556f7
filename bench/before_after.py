"""Two trees on one machine, in turn: did anything become slower by more than the runs spread?

    mkdir .base && git archive COMMIT | tar -x -C .base
    python bench/before_after.py --base .base --set leaderboard --set gpt-oss [--runs 2] [--metric eager]

Each tree's own ``mxgemm bench`` measures the sizes ``--runs`` times, before, after, before, after; a time's spread is
that of all runs of its tree (mxgemm.measure.compare.pooled). The exit status is 1 where a route of ours became slower
than the spread, wrong, or raises. Peers are the same code on both sides: their ratios say what the machine did
meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mxgemm import measure
from mxgemm.measure import compare, text

HERE = Path(__file__).resolve().parent.parent


def main() -> int:
    """Measure and compare."""
    arguments = _parser().parse_args()
    options = [f"--seconds={arguments.seconds}", "--peers" if arguments.peers else "--no-peers"]
    options += [f"--set={name}" for name in arguments.set] + [f"--shape={shape}" for shape in arguments.shape]
    options += [f"--device={arguments.device}"] if arguments.device else []
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    for number in range(arguments.runs):
        for side, tree in (("before", arguments.base.resolve()), ("after", HERE)):
            path = arguments.output.resolve() / f"{side}_{number}.json"
            run(tree, [*options, f"--json={path}"])
            runs[side].append(measure.load(path))
    before, after = (compare.pooled(documents) for documents in runs.values())
    bad = 0
    for metric in arguments.metric or ["device"]:
        changes = compare.compare(before, after, metric=metric)
        failed = [change for change in changes if change.bad]
        print(f"{metric} time, {arguments.base} to {HERE.name}, {arguments.runs} runs each")
        print(text.aligned(text.CHANGE_COLUMNS, text.change_rows(changes)))
        print(f"{len(failed)} of {len(changes)} slower by more than the spread, or wrong\n")
        bad += len(failed)
    print("\n".join(compare.remarks(before, after)))
    return int(bad > 0)


def run(tree: Path, options: list[str]) -> None:
    """Have a tree measure itself.

    Raises:
        ValueError: it cannot; 1 means that a route failed, which its document says.
    """
    command = [sys.executable, "-m", "mxgemm", "bench", *options]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise ValueError(f"{tree}: mxgemm bench ended with {done.returncode}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="the tree before")
    parser.add_argument("--set", action="append", default=[], choices=list(measure.SETS), help="repeat for more")
    parser.add_argument("--shape", action="append", default=[], help="M,N,K; repeat for more")
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    parser.add_argument("--peers", action="store_true", help="other libraries too")
    parser.add_argument("--runs", type=int, default=2, help="of each tree")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each of a contender's times")
    parser.add_argument("--metric", action="append", choices=compare.METRICS, help="repeat for more; default: device")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/out/before_after"), help="folder of the runs")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:  # a tree that does not run, or writes something else
        sys.exit(f"bench/before_after.py: {error}")
