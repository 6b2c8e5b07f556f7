"""``mxgemm plot``: pictures of results and of the router's choices, on any machine."""

from __future__ import annotations

from argparse import Namespace

from mxgemm.cli.bench import load_results
from mxgemm.cli.terminal import say
from mxgemm.measure import plots


def run(options: Namespace) -> int:
    """Draw every file of results under its own name, and the maps that were asked for."""
    documents = [(path.stem, load_results("results", path)) for path in options.results]
    try:
        plots.require_matplotlib()
    except ImportError as error:
        raise ValueError(f"plot: {error}") from error
    paths = []
    for name, document in documents:
        paths += plots.draw(document, options.output, name, peer=options.peer, force=options.force)
    for arch in options.map:
        paths += plots.draw_maps(arch, options.output, prepared=options.prepared, force=options.force)
    for path in paths:
        say(f"wrote {path}")
    return 0
