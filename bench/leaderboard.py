"""Judge and time a submission for the GPU MODE leaderboard amd-mxfp4-mm, as the leaderboard's own evaluator does.

    PYTHONPATH=. python bench/leaderboard.py submission.py [--mode test|benchmark|leaderboard] [-o result.json]

test         every test and benchmark shape is called once and checked.
benchmark    each benchmark shape: one check, then the same data up to 1000 times.
leaderboard  each benchmark shape: one check, then up to 100 repetitions, each with new data at new addresses, checked.
             Seeds are paired with a secret one. This is the mode that ranks.

Timing stops early once the standard error falls below 0.1 % of the mean, or after 120 s. Without a GPU the results are
checked (Triton kernels in its interpreter) and nothing is timed. The submission runs in a process of its own, in which
it cannot import mxgemm. Where it says which of its forms it took for a size (mxgemm's own do), the report shows that.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import multiprocessing
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from bench.leaderboard_run import MODES, WARM_UP, Outcome, Rules, clear_bytes_for, prepare_process, run_case, stats
from bench.leaderboard_task import ATOL, BENCHMARKS, RTOL, TESTS, Case, combine_seeds
from mxgemm._version import __version__
from mxgemm.device import default_device, machine_of
from mxgemm.measure import output

KIND: Final = "mxgemm-leaderboard"
LIMIT_SECONDS: Final = {"test": 420, "benchmark": 420, "leaderboard": 600}
"""What the leaderboard's runner allows, builds included."""
UNTIMED_REPEATS: Final = 3
"""Repetitions of the leaderboard mode on a CPU, where only the checks count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 0 if everything passed, else 1."""
    options = _parse(arguments)
    keep = output.json_file(options, KIND)
    cases = options.shape or (TESTS + BENCHMARKS if options.mode == "test" else BENCHMARKS)
    device = torch.device(options.device) if options.device else default_device()
    document = evaluate(options.submission, options.mode, cases, device, options.secret, options.repeats)
    print(summary(document))
    if options.output:
        keep(document)
        print(f"wrote {options.output}")
    return 0 if document["passed"] else 1


def evaluate(
    submission: Path,
    mode: str,
    cases: Sequence[Case],
    device: torch.device,
    secret: int | None = None,
    repeats: int | None = None,
) -> dict[str, Any]:
    """Run a submission in a process of its own and return the report.

    Args:
        submission: path of the file.
        mode: "test", "benchmark" or "leaderboard".
        cases: what to run; the geometric mean is over all of them.
        device: a CPU checks and times nothing.
        secret: seed to pair with the published ones; in leaderboard mode one is drawn if there is none.
        repeats: fewer repetitions than the mode's.

    Raises:
        FileNotFoundError: no such file.
        ValueError: timing was asked of a CPU in benchmark mode.
    """
    source = submission.read_bytes()
    timed = device.type != "cpu"
    if mode == "benchmark" and not timed:
        raise ValueError("mode: got 'benchmark' on a CPU, which only checks results; want 'test' or 'leaderboard'")
    rules = MODES[mode]
    most = rules.repeats if timed else min(rules.repeats, UNTIMED_REPEATS)
    rules = dataclasses.replace(rules, repeats=most if repeats is None else min(most, repeats))
    if mode == "leaderboard" and secret is None:
        secret = secrets.randbits(31)
    drawn = [case if secret is None else dataclasses.replace(case, seed=_paired(case.seed, secret)) for case in cases]
    began, clear = time.monotonic(), clear_bytes_for(device)
    outcomes = []
    work = [(case, rules) for case in drawn]
    if timed and mode in WARM_UP:  # on the first case
        work.insert(0, (drawn[0], WARM_UP[mode]))
    for outcome in _in_process(submission, work, len(drawn), device, clear, LIMIT_SECONDS[mode]):
        outcomes.append(outcome)
        if outcome.error and mode != "test":  # as the evaluator: one failure ends a run that times
            break
    results = [_result(case, outcome, timed) for case, outcome in zip(drawn, outcomes, strict=False)]
    passed = len(results) == len(cases) and all(result["passed"] for result in results)
    means = [result["mean_us"] for result in results if "mean_us" in result]
    return {
        "kind": KIND,
        "mxgemm": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "submission": submission.name,
        "sha256": hashlib.sha256(source).hexdigest(),
        "mode": mode,
        "secret": secret,
        "device": machine_of(device).name,
        "arch": machine_of(device).arch,
        "torch": torch.__version__,
        "triton": _installed("triton"),
        "runtime": torch.version.hip or torch.version.cuda,
        "clear_bytes": clear,
        "tolerance": {"rtol": RTOL, "atol": ATOL},
        "method": METHOD[mode] if timed else "results are checked; nothing is timed on a CPU",
        "passed": passed,
        "geometric_mean_us": _geometric_mean(means) if passed and means else None,
        "seconds": round(time.monotonic() - began, 1),
        "cases": results,
    }


_EVENTS: Final = (
    "device time between two events around the call, which is queued behind an asynchronous clear of clear_bytes; "
    "mean over the repetitions"
)
METHOD: Final = {
    "test": "one call each, checked; nothing is timed",
    "benchmark": f"one check, then the same data: {_EVENTS}",
    "leaderboard": f"new data at new addresses and a check for every repetition: {_EVENTS}",
}


def summary(document: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [
        f"{document['submission']} on {document['device']} ({document['arch']}), torch {document['torch']}, "
        f"triton {document['triton']}, mode {document['mode']}"
    ]
    for case in document["cases"]:
        form = f"  {case['form']}" if "form" in case else ""
        shape = f"  {case['m']:>4} {case['n']:>5} {case['k']:>5}  "
        if not case["passed"]:
            lines.append(f"{shape}FAIL  {case['error']}")
        elif "mean_us" in case:
            lines.append(
                f"{shape}{case['mean_us']:8.2f} us +- {case['err_us']:.2f}  best {case['best_us']:.2f}  "
                f"worst {case['worst_us']:.2f}  of {case['runs']}{form}"
            )
        else:
            lines.append(f"{shape}pass{form}")
    if document["geometric_mean_us"] is not None:
        lines.append(f"geometric mean {document['geometric_mean_us']:.2f} us")
    lines.append(f"{'passed' if document['passed'] else 'FAILED'} in {document['seconds']} s")
    return "\n".join(lines)


def _in_process(
    submission: Path, work: Sequence[tuple[Case, Rules]], wanted: int, device: torch.device, clear: int, limit: float
) -> Iterator[Outcome]:
    """Yield the outcomes of the last ``wanted`` pieces of work from one spawned process, and a failure before them.

    A crash or a lapse of time is an outcome too, and the last one.
    """
    spawn = multiprocessing.get_context("spawn")
    end = time.monotonic() + limit
    interpret = device.type == "cpu"
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=prepare_process, initargs=(interpret,)) as pool:
        for index, (case, rules) in enumerate(work):
            future, lost = pool.submit(run_case, str(submission), case, rules, str(device), clear), False
            try:
                outcome = future.result(timeout=max(0.0, end - time.monotonic()))
            except OutOfTime:
                for process in multiprocessing.active_children():
                    process.kill()
                outcome, lost = Outcome(f"took longer than the {limit} s that the leaderboard's runner allows"), True
            except Exception as error:  # the process died
                outcome, lost = Outcome(f"{type(error).__name__}: {error}"), True
            if index >= len(work) - wanted or outcome.error:
                yield outcome
            if lost:  # there is nothing left to run the other cases in
                return


def _result(case: Case, outcome: Outcome, timed: bool) -> dict[str, Any]:
    found = dataclasses.asdict(case) | {"passed": outcome.error is None}
    if outcome.error is not None:
        found["error"] = outcome.error
    elif outcome.times_us and timed:
        found |= {name: round(value, 3) for name, value in dataclasses.asdict(stats(outcome.times_us)).items()}
    elif outcome.times_us:
        found["repetitions"] = len(outcome.times_us)
    if outcome.form is not None:
        found |= {"form": outcome.form, "form_us": {name: round(us, 3) for name, us in outcome.form_us.items()}}
    return found


def _paired(public: int, secret: int) -> int:
    return combine_seeds(public, secret) % (1 << 63)


def _geometric_mean(values: Sequence[float]) -> float:
    return round(math.exp(math.fsum(math.log(value) for value in values) / len(values)), 3)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _case(text: str) -> Case:
    try:
        m, n, k, *seed = (int(part) for part in text.split(","))
        return Case(m, n, k, *(seed or [0]))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, want M,N,K or M,N,K,SEED ({error})") from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("submission", type=Path)
    parser.add_argument("--mode", choices=MODES, default="leaderboard")
    parser.add_argument("--device", help="torch device; default: the GPU if there is one")
    parser.add_argument("--shape", type=_case, action="append", help="M,N,K[,SEED]; repeat for more")
    parser.add_argument("--secret", type=int, help="secret seed; default: drawn in leaderboard mode, none elsewhere")
    parser.add_argument("--repeats", type=int, help="repetitions at most")
    output.add_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
