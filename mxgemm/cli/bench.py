"""``mxgemm bench``: measure sizes, draw what was measured, or compare two runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from mxgemm import files, measure
from mxgemm.cli.sizes import device_for, sizes_for
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.device import machine_of
from mxgemm.files import FileError
from mxgemm.measure import compare as comparison
from mxgemm.measure import moe, plots, text
from mxgemm.measure.moe_sets import MOE_SETS


def run(options: Namespace) -> int:
    """Measure, print, write and draw; 1 where a route of ours fails or became slower."""
    if options.compare:
        return _compare(options)
    if any(name in MOE_SETS for name in options.set):
        return _experts(options)
    device = device_for(options.device)
    peers = device.type == "cuda" if options.peers is None else options.peers
    request = measure.Request(
        shapes=sizes_for(device, options.shape, options.set),
        device=device,
        a_format=options.a_format,
        route=options.route,
        all_routes=options.all_routes,
        peers=tuple(measure.PEERS) if peers else (),
        form="fast" if options.prepared else "raw",
        effort=measure.Effort(seconds=options.seconds),
    )
    if options.plot:
        try:
            plots.check_writable(options.plot, machine_of(device).arch, force=options.force)  # before the work
        except ImportError as error:
            raise ValueError(f"--plot: {error}") from error
    document = _measure(request, measure.Keeper(options.json, force=options.force) if options.json else None)
    header, rows = text.filled(text.COLUMNS, text.rows(document))
    say_table(header, rows, text.title(document), left=text.LEFT, wrapped=("what",), shared=text.SHARED)
    for note in text.notes(document):
        say(note)
    if options.json:
        say(f"wrote {options.json}")
    if options.plot:
        for path in plots.draw(document, options.plot, force=options.force):
            say(f"wrote {path}")
    return int(not measure.passed(document))


def load_results(option: str, path: Path) -> dict[str, Any]:
    """Read a file of results that an option names.

    Raises:
        ValueError: it is none: the user should have named another.
    """
    try:
        return measure.load(path)
    except FileError as error:
        raise ValueError(f"{option}: {error}") from error


def _measure(request: measure.Request, keeper: measure.Keeper | None) -> dict[str, Any]:
    """Measure with progress; the file is written after each size, and again at the end."""
    sizes = iter(request.shapes)
    with progress(len(request.shapes)) as shown:

        def keep(unfinished: dict[str, Any]) -> None:
            shown.done(",".join(map(str, next(sizes))))
            if keeper:
                keeper.keep(unfinished)

        document = measure.run(request, lambda done, what: shown.now(what), keep)
    if keeper:
        keeper.finish(document)
    return document


def _compare(options: Namespace) -> int:
    old, new = (load_results("--compare", path) for path in options.compare)
    changes = comparison.compare(old, new, metric=options.metric)
    title = "{} time, {} to {}".format(options.metric, *options.compare)
    say_table(
        text.CHANGE_COLUMNS, text.change_rows(changes), title, left=text.LEFT, wrapped=("what",), shared=text.SHARED
    )
    for line in comparison.remarks(old, new):
        say(line)
    bad = [change for change in changes if change.bad]
    say(f"{len(bad)} of {len(changes)} slower by more than the spread, or wrong")
    return int(bool(bad))


def _experts(options: Namespace) -> int:
    """Measure layers of experts, print and write."""
    device = device_for(options.device)
    if options.json:
        files.check_writable(options.json, files.json_mark(moe.KIND), force=options.force)  # before the work
    request = moe.MoeRequest(
        sets=[MOE_SETS[name] for name in dict.fromkeys(options.set)],
        device=device,
        a_format=options.a_format,
        route=options.route,
        all_routes=options.all_routes,
        peers=device.type == "cuda" if options.peers is None else options.peers,
        effort=measure.Effort(seconds=options.seconds),
    )
    with progress(1) as shown:
        document = moe.run(request, shown.now)
    environment = document["environment"]
    title = f"{environment['device']}, torch {environment['torch']}, a_format {document['a_format']}"
    say_table(moe.COLUMNS, moe.rows(document), title, left=("set", "what"), shared=("set", "tokens"))
    for note in moe.notes(document):
        say(note)
    if options.json:
        files.save_json(options.json, document, moe.KIND, force=options.force)
        say(f"wrote {options.json}")
    return int(not moe.passed(document))
