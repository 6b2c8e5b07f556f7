"""``mxgemm doctor``: what is here, and what each route has or misses; ``--verify`` runs all that is here."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence

import torch

from mxgemm import files
from mxgemm.cli.sizes import device_for, sizes_for
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.errors import Refused, by_reason
from mxgemm.measure import Shape, text
from mxgemm.measure import verify as verification
from mxgemm.measure.doctor import Findings, examine

_VERDICTS = ("M,N,K", "route", "weight", "A", "time", "norm", "element", "result")


def run(options: Namespace) -> int:
    """Print what is here; with ``--verify``, run it: 1 where a route failed."""
    if options.json:
        files.check_writable(options.json, files.json_mark(verification.KIND), force=options.force)
    device = device_for(options.device)
    shapes = sizes_for(device, options.shape) if options.verify else []
    found = examine()
    _say_findings(found)
    return _verify(options, found, shapes, device) if options.verify else 0


def _say_findings(found: Findings) -> None:
    say_table(("this machine", "what is here"), found.facts, left=("this machine",), wrapped=("what is here",))
    say()
    abilities = [(x.name, _state(x.missing), x.words) for x in found.abilities]
    _say_states("HIP kernels", "what serves, or what is missing", abilities)
    say()
    _say_states(
        f"routes on {found.arch}", "what it is for", [(x.name, _state(x.missing), x.takes) for x in found.routes]
    )
    say()
    for reason in by_reason(Refused(route.name, route.missing) for route in found.routes if route.missing):
        say(f"missing {reason}")


def _say_states(what: str, about: str, rows: Sequence[tuple[str, str, str]]) -> None:
    say_table((what, "state", about), rows, left=(what, "state"), wrapped=(about,))


def _state(missing: object) -> str:
    return "missing" if missing else "available"


def _verify(options: Namespace, found: Findings, shapes: Sequence[Shape], device: torch.device) -> int:
    done: list[verification.Verdict] = []
    with progress(len(shapes)) as shown:
        for shape in shapes:
            size = ",".join(map(str, shape))
            for verdict in verification.verify(
                [shape], device=device, seconds=options.seconds, prepared=options.prepared
            ):
                done.append(verdict)
                shown.now(f"{size}: {verdict.route}")
            shown.done(size)
    ran = [verdict for verdict in done if verdict.state not in ("missing", "refused")]
    say_table(
        _VERDICTS, [_cells(verdict) for verdict in ran], left=_VERDICTS[:4], wrapped=("weight",), shared=("M,N,K",)
    )
    reasons = Counter((verdict.state, verdict.route, verdict.reason) for verdict in done if verdict.reason)
    for (state, route, reason), count in reasons.items():
        say(f"{state} {count} of {len(done)}: {route}: {reason}")
    document = verification.report(done, found, device)
    counts = document["counts"]
    say(", ".join(f"{count} {state}" for state, count in counts.items()))
    if options.json:
        files.save_json(options.json, document, verification.KIND, force=options.force)
        say(f"wrote {options.json}")
    return int(counts["failed"] > 0)


def _cells(verdict: verification.Verdict) -> tuple[str, ...]:
    errors = (verdict.norm_error, verdict.element_error)
    return (
        f"{verdict.m},{verdict.n},{verdict.k}",
        verdict.route,
        verdict.weight,
        verdict.activations,
        text.duration(verdict.us),
        *("" if error is None else f"{error:.2e}" for error in errors),
        "pass" if verdict.state == "passed" else "FAIL",
    )
