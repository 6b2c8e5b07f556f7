"""``mxgemm tune``: measure every configuration of every route, and write a routing table."""

from __future__ import annotations

from argparse import Namespace

from mxgemm.cli.sizes import device_for, sizes_for
from mxgemm.cli.terminal import progress, say, say_table
from mxgemm.device import machine_of
from mxgemm.measure import text
from mxgemm.measure import tune as tuning
from mxgemm.routing.tables import TABLES_VARIABLE


def run(options: Namespace) -> int:
    """Measure, print and write; 1 where nothing was found."""
    device = device_for(options.device)
    shapes = sizes_for(device, options.shape, options.set)
    arch = machine_of(device).arch
    tuning.check_writable(options.output, arch, force=options.force)  # before the work, not after it
    done: list[tuning.Timing] = []
    with progress(len(shapes)) as shown:
        for shape in shapes:
            size = ",".join(map(str, shape))
            for timing in tuning.tune(
                [shape], device=device, a_format=options.a_format, prepared=options.prepared,
                routes=options.route, seconds=options.seconds,
            ):  # fmt: skip
                done.append(timing)
                shown.now(f"{size}: {len(done)} measured; {timing.route}: {timing.config}")
            shown.done(size)
    name, source = tuning.source_of(device, options.prepared)
    found = tuning.rows(done, device, options.a_format, name)
    for timing in done:
        if timing.us is None:
            say(f"left out: {timing.route} ({timing.config}) on {timing.shape}: {timing.reason}")
    if not found:
        say("nothing was measured: no route that was asked for took a shape and passed")
        return 1
    configs = {(*timing.shape, timing.route, str(timing.config.to_mapping())): str(timing.config) for timing in done}
    rows = [
        (
            f"{row.m},{row.n},{row.k}",
            text.duration(row.us),
            row.route,
            configs[row.m, row.n, row.k, row.route, str(dict(row.config))],
        )
        for row in found
    ]
    say_table(("M,N,K", "time", "route", "configuration"), rows, left=("M,N,K", "route"), wrapped=("configuration",))
    tuning.write(options.output, arch, name, source, found, force=options.force)
    say(f"{len(done)} configurations measured; wrote {options.output}; to use it: {TABLES_VARIABLE}={options.output}")
    return 0
