"""Draw what bench/run.py or ``mxgemm bench --json`` wrote, on any machine with matplotlib.

python bench/plot.py results.json [more.json ...] -o folder     time, roofline, ratios and route maps, PNG
python bench/plot.py --map gfx950 -o folder                     route maps of an architecture that need not be here
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import PEERS, load, plots


def main() -> None:
    """Draw every document under its own file's name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", type=Path)
    parser.add_argument("--map", action="append", default=[], choices=list(KNOWN_MACHINES), help="repeat for more")
    parser.add_argument("--peer", default="torch_mm", choices=list(PEERS), help="what ratios are taken to")
    parser.add_argument("--force", action="store_true", help="replace pictures that mxgemm did not draw")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/out"))
    arguments = parser.parse_args()
    if not arguments.documents and not arguments.map:
        parser.error("want a results file or --map")
    paths = []
    for document in arguments.documents:
        paths += plots.draw(load(document), arguments.output, document.stem, peer=arguments.peer, force=arguments.force)
    for arch in arguments.map:
        paths += plots.draw_maps(arch, arguments.output, force=arguments.force)
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, ImportError) as error:  # a file that is no benchmark, or no matplotlib
        sys.exit(f"bench/plot.py: {error}")
