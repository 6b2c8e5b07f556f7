"""What ``mxgemm tune`` takes besides what other commands take too."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from mxgemm_cli import names, values

PATIENCE: Final = 12
"""As ``mxgemm.measure.search`` has it; a test compares them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the command's parser."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="the table to write or to add to; default: the one in the cache folder, which calls use by themselves",
    )  # fmt: skip
    parser.add_argument(
        "--model", type=Path, action="append", default=[], metavar="DIR",
        help="sizes of a checkpoint's MX weights; repeat for more",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=values.count, action="append", default=[], metavar="M",
        help="rows of A for the weights of --model and --set; repeat for more; default: those of a set, of a model 1, "
        "16, 64, 256, 1024, 4096",
    )  # fmt: skip
    parser.add_argument(
        "--device", action="append", default=[],
        help='torch device ("cpu", "cuda:0"); repeat for a process each; "all": every GPU; default: the current GPU, '
        "or the CPU where there is none; with --dry-run an architecture such as sm_90 too",
    )  # fmt: skip
    parser.add_argument(
        "--a-format", action="append", default=[], type=values.one_of(names.ACTIVATION_FORMATS), metavar="A_FORMAT",
        help=f"what A is rounded to: {', '.join(names.ACTIVATION_FORMATS)}; repeat for more; default: e2m1",
    )  # fmt: skip
    parser.add_argument(
        "--both", action="store_true", help="the weight after prepare() and as it comes, each by itself"
    )
    parser.add_argument(
        "--form", action="append", default=[], type=values.one_of(names.WEIGHT_FORMS), metavar="FORM",
        help='the weight in this form: fast, bf16 or compact, after prepare(), prepare(a_format="bf16") or '
        'prepare(memory="compact"); raw, as it comes; repeat for more',
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=values.seconds, metavar="SECONDS",
        help="begin nothing after so long; the same command again goes on; default: no end",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=values.count, default=PATIENCE, metavar="N",
        help="leave a route when N of its configurations in a row were not faster than its best; default: 12",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=values.count, metavar="N",
        help="build in N processes what will be measured, for a GPU while others are measured, for a CPU before; "
        "default: each is built when it is measured",
    )  # fmt: skip
    parser.add_argument(
        "--build-only", action="store_true",
        help="measure nothing: build what would be measured first, for --device, which need not be here",
    )  # fmt: skip
    parser.add_argument(
        "--again", metavar="SOURCE",
        help="the sizes of the table's rows whose source holds this text, and of --route alone where it is given; "
        "says what became of their times",
    )  # fmt: skip
    parser.add_argument("--every", action="store_true", help="measure every configuration, however slow")
    parser.add_argument("--anew", action="store_true", help="forget what an unfinished run has measured")
    parser.add_argument(
        "--dry-run", action="store_true", help="measure nothing: say what would be, the most promising first"
    )
    parser.add_argument(
        "--merge", type=Path, action="append", default=[], metavar="TABLE",
        help="measure nothing: add this table to the one to write; repeat for more",
    )  # fmt: skip


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what no option can see by itself."""
    sizes = options.shape or options.set or options.model
    if options.rows and not (options.model or options.set):
        parser.error("--rows: got it without --model or --set, want one of them too: --shape has its own")
    named = options.output if options.again is None else None
    if options.form and (options.both or not options.prepared):
        parser.error("--form: got it with --both or --raw, want one of the three")
    if options.again is not None and (sizes or options.rows or options.a_format or options.form or options.merge):
        parser.error("--again: got it with sizes, --a-format, --form or --merge, want none: rows have their own")
    if options.build_only and (named or options.dry_run or options.merge or options.anew):
        parser.error("--build-only: got it with --output, --dry-run, --merge or --anew, want none: nothing is measured")
    if options.merge and (sizes or options.route or options.dry_run or options.device):
        parser.error("--merge: got it with other options, want it alone, or with --output and --force")
    if options.dry_run and (named or options.budget is not None or options.anew):
        parser.error("--dry-run: got it with --output, --budget or --anew, want none of them: nothing is measured")
