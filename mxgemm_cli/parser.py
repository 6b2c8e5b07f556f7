"""What every command takes: one function a command. Commands themselves are files of ``mxgemm/cli``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from mxgemm_cli import USAGE, names, tuning, values
from mxgemm_cli.light import load

_SHAPES: Final = "a size; repeat for more; default: the leaderboard's six"


class _Parser(argparse.ArgumentParser):
    """Errors in one line, as everywhere in mxgemm."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write what argparse has to say; it would hide that the disk is full."""
        if message and (file or sys.stderr) is not None:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help\n")


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Raises:
        SystemExit: it asks for help or the version, which is printed, or is none; argparse has said why.
    """
    parser, commands = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(USAGE)
    options = parser.parse_args(arguments)
    _check(options, commands[options.command])
    return options


def _parser() -> tuple[_Parser, dict[str, Any]]:
    parser = _Parser(prog="mxgemm", description="Block-scaled (microscaling) GEMM.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=load("_version.py").__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for define in (
        *(_bench, _plot, _parity, _explain, _doctor, _tune, _build, _convert, _inspect, _submission, _dispatcher),
    ):
        define(commands)
    return parser, dict(commands.choices)


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what no option can see by itself."""
    if options.command == "explain":
        try:
            options.shape += values.sizes(options.size)
        except argparse.ArgumentTypeError as error:
            parser.error(f"M N K: {error}")
        if not options.shape:
            parser.error("M N K: got none, want a size such as 16 2112 7168")
    elif options.command == "doctor":
        _check_doctor(options, parser)
    elif options.command == "bench" and (moe := [name for name in options.set if name in values.moe_sets()]):
        if len(moe) < len(options.set) or options.shape or options.plot or options.compare:
            parser.error(f"--set: got {moe[0]} beside other sizes, --plot or --compare, want layers of experts alone")
    elif options.command == "tune":
        tuning.check(options, parser)
    elif options.command == "plot" and not (options.results or options.map):
        parser.error("results: got none, want a file that mxgemm bench --json wrote, or --map")


def _check_doctor(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    of_verify = options.shape or options.json or options.tune or options.prepared is not None
    if options.read and (options.verify or of_verify or options.budget is not None):
        parser.error("--read: got it with other options, want it alone, or with --table")
    if options.table and not options.read:
        parser.error("--table: got it without --read, want --read too")
    if of_verify and not options.verify:
        parser.error("--shape, --json, --tune, --prepared and --raw: got one without --verify, want --verify too")


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    return parser


def _bench(commands: Any) -> None:
    parser = _command(
        commands,
        "bench",
        "Error against the float64 oracle, then device, eager and host time, against the floor and against peers.",
    )
    _add_sizes(parser, tuple(values.moe_sets()))
    _add_device(parser)
    _add_a_format(parser)
    _add_route(parser)
    parser.add_argument("--all-routes", action="store_true", help="every route that can, not only the chosen")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="other libraries too; default: on a GPU")
    _add_prepared(parser)
    _add_seconds(parser, 0.3, "time to spend on each of a contender's times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write pictures into this folder (mxgemm[bench])")
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two files of results, measure nothing"
    )
    _add_choice(parser, "--metric", names.METRICS, "what --compare looks at", default="device")
    _add_force(parser)


def _plot(commands: Any) -> None:
    parser = _command(commands, "plot", "Draw results of mxgemm bench --json, on any machine (mxgemm[bench]).")
    parser.add_argument("results", nargs="*", type=Path, help="files of results; pictures get their names")
    _add_choice(
        parser, "--map", names.MACHINES, "route maps of an architecture, which need not be here; repeat for more",
        action="append", default=[],
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="where to write them, as PNG"
    )
    _add_choice(parser, "--peer", names.PEERS, "what ratios are taken to", default="torch_mm")
    _add_prepared(parser, "route maps of --map: of a weight after prepare()", "of one as it comes")
    _add_force(parser)


def _parity(commands: Any) -> None:
    parser = _command(
        commands,
        "parity",
        "Compare two ways to compute the same products, size by size, in turn; outputs are looked at first. "
        "Status 1 where a side failed.",
    )
    sides = "route:NAME, route:auto, peer:NAME, python:MODULE:FUNCTION or so:/path/to/library.so"
    parser.add_argument("a", metavar="A", help=sides)
    parser.add_argument("b", metavar="B", help="the same")
    _add_sizes(parser)
    _add_device(parser)
    _add_prepared(parser, "routes get the weight after prepare()", "routes get the weight as it comes")
    _add_choice(parser, "--time", ("device", "eager"), "on a GPU; a CPU has wall time", default="device")
    parser.add_argument("--warm-up", type=values.count, default=50, metavar="CALLS", help="not measured")
    parser.add_argument("--repeats", type=values.count, default=100, metavar="CALLS", help="measured")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows here")
    _add_force(parser)


def _explain(commands: Any) -> None:
    parser = _command(commands, "explain", "Say which route a size takes, and why not the others.")
    parser.add_argument("size", nargs="*", metavar="M N K", help="a size; or M,N,K as in --shape, for more than one")
    parser.add_argument("--shape", type=values.shape, action="append", default=[], metavar="M,N,K", help="a size")
    parser.add_argument("--device", help="torch device, or an architecture such as gfx950")
    _add_a_format(parser)
    _add_route(parser)
    _add_prepared(parser)
    parser.add_argument(
        "--tables", type=Path, action="append", metavar="FILE", help="a routing table to put before the shipped ones"
    )


def _doctor(commands: Any) -> None:
    parser = _command(
        commands, "doctor", "Say what is here, what each route is for, which are available, and what the others miss."
    )
    parser.add_argument("--verify", action="store_true", help="run every available route against the oracle")
    parser.add_argument(
        "--shape", type=values.shape, action="append", default=[], metavar="M,N,K", help=f"with --verify: {_SHAPES}"
    )
    _add_device(parser)
    _add_prepared(
        parser, "with --verify: the weight after prepare() alone", "with --verify: the weight as it comes alone; "
        "default: every form that gemm takes", default=None,
    )  # fmt: skip
    _add_seconds(parser, 0.2, "with --verify: time to spend on timing a case")
    parser.add_argument(
        "--tune", action="store_true", help="with --verify: then measure every legal configuration, and torch.mm"
    )
    parser.add_argument(
        "--budget", type=values.seconds, metavar="SECONDS",
        help="with --verify: begin nothing after so long; default: 1800 with --tune, else no end",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="with --verify: the report, kept while it grows; the same command again does what is left",
    )  # fmt: skip
    parser.add_argument("--read", type=Path, metavar="FILE", help="print a report that was sent, and examine nothing")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="with --read: the routing table to write what was tuned to, or to add to",
    )
    _add_force(parser)


def _tune(commands: Any) -> None:
    parser = _command(
        commands,
        "tune",
        "Measure what promises most of every route's configurations, and keep what was right and fast in a routing "
        "table. A run that was stopped goes on where it was.",
    )
    tuning.add_options(parser)
    _add_sizes(parser)
    _add_choice(parser, "--route", names.ROUTES, "only this route; repeat for more", action="append", default=[])
    _add_prepared(parser)
    _add_seconds(parser, 0.2, "time to spend on one configuration")
    _add_force(parser)


def _build(commands: Any) -> None:
    parser = _command(
        commands, "build", "Build the HIP kernels of sizes into the cache, on any machine that has a compiler for them."
    )
    parser.add_argument("--shape", type=values.shape, action="append", default=[], metavar="M,N,K", help=_SHAPES)
    parser.add_argument("--arch", default="gfx950", help="what to build for; default: gfx950")


def _convert(commands: Any) -> None:
    parser = _command(
        commands,
        "convert",
        "Write a checkpoint in another format, a shard at a time. A run that was stopped goes on where it was.",
    )
    parser.add_argument("source", type=Path, metavar="IN", help="a folder, a safetensors file or a GGUF file")
    parser.add_argument("target", type=Path, metavar="OUT", help="a new folder, or a new .gguf file")
    _add_choice(parser, "--to", names.CHECKPOINTS, "format to write", required=True)
    _add_source(parser)
    parser.add_argument(
        "--quantize", action="append", default=[], metavar="PATTERN",
        help="tensors that become MXFP4 on the way, such as '*_proj.weight'; repeat for more",
    )  # fmt: skip
    _add_choice(
        parser, "--a-format", names.ACTIVATION_FORMATS, "what activations are rounded to, where IN does not say"
    )
    _add_choice(
        parser, "--scale-rounding", names.SCALE_ROUNDINGS, "rule for scales: of activations where IN does not say, and "
        "of --quantize, there even by default",
    )  # fmt: skip
    _add_choice(parser, "--dtype", names.DTYPES, "of the model, where IN does not say and OUT has to")
    parser.add_argument(
        "--shard-size", type=values.size, default=values.size("2GB"), metavar="SIZE",
        help="at most in one file, such as 500MB; default: 2GB",
    )  # fmt: skip


def _inspect(commands: Any) -> None:
    parser = _command(
        commands, "inspect", "Say what a checkpoint holds: formats, shapes, activations, saturated blocks, scales."
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="a folder, a safetensors file or a GGUF file")
    _add_source(parser)
    parser.add_argument("--headers", action="store_true", help="read no tensor: names, types and shapes alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the description here")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the scales into this folder (mxgemm[bench])")
    _add_force(parser)


def _submission(commands: Any) -> None:
    parser = _command(
        commands, "submission", "Write one self-contained file for the GPU MODE leaderboard amd-mxfp4-mm."
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("submission.py"), metavar="FILE", help="default: submission.py"
    )
    _add_choice(
        parser, "--form", names.FORMS, "carry this form; repeat for more; default: all", action="append", default=[]
    )
    _add_choice(
        parser, "--arch", names.MACHINES, "write down this machine's Triton launches, to judge the file there",
        default="gfx950",
    )  # fmt: skip
    _add_force(parser)


def _dispatcher(commands: Any) -> None:
    summary = "The CK bridge: kernel configurations to callable kernels."
    actions = _command(commands, "dispatcher", summary).add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, what in (
        ("names", "Print the names of the default kernels, or of those asked for."),
        ("build", "Build kernels, the default ones or those asked for, and print where they are."),
        (
            "selftest",
            "Build the default kernels, run what can run here, and say what could not. Status 1 if anything failed.",
        ),
    ):
        parser = _command(actions, name, what)
        _add_choice(
            parser, "--op", names.OPERATIONS, "an operation; repeat for more; default: all", action="append", default=[]
        )
        parser.add_argument(
            "--arch",
            action="append",
            default=[],
            help="gfx950 or gfx942; repeat for both; default: both",
        )
        if name != "names":
            _add_choice(parser, "--source", names.SOURCES, "where kernels come from", default="native")
            parser.add_argument(
                "--jobs", type=values.count, metavar="N", help="kernels compiled at a time; default: one a processor"
            )
            parser.add_argument("--build-only", action="store_true", help=_BUILD_ONLY[name])
        if name != "selftest":
            _add_kernels(parser)
        if name == "build":
            parser.add_argument("--list-names", action="store_true", help="print the kernels' names and build nothing")
            parser.add_argument(
                "--output-dir", type=Path, metavar="FOLDER",
                help="copy each library there as lib_NAME_ARCH.so, its configuration beside it as JSON",
            )  # fmt: skip


_BUILD_ONLY: Final = {
    "build": "do not open the libraries afterwards and ask them what they are",
    "selftest": "build the kernels and run none",
}


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    for option, metavar, text in (
        ("--name", "NAME", "a kernel by its name"),
        ("--config", "FILE", "a kernel by CK's JSON, which says its operation or --op does"),
        ("--sweep", "FILE", "all kernels of such a file that may be built"),
    ):
        parser.add_argument(
            option, action="append", default=[], metavar=metavar, type=str if option == "--name" else Path,
            help=f"{text}; repeat for more; default: the default kernels",
        )  # fmt: skip


def _add_choice(parser: argparse.ArgumentParser, option: str, choices: Sequence[str], text: str, **more: Any) -> None:
    default = f"; default: {more['default']}" if more.get("default") else ""
    parser.add_argument(
        option, type=values.one_of(choices), metavar=option.strip("-").upper().replace("-", "_"),
        help=f"{text}: {', '.join(choices)}{default}", **more,
    )  # fmt: skip


def _add_source(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser, "--from", names.CHECKPOINTS, "format to read, where nothing says which", dest="source_format")
    _add_choice(
        parser, "--scale-bias", ("127", "125"), "of compressed-tensors' scales, where no version of it is named",
    )  # fmt: skip


def _add_sizes(parser: argparse.ArgumentParser, more: tuple[str, ...] = ()) -> None:
    parser.add_argument("--shape", type=values.shape, action="append", default=[], metavar="M,N,K", help=_SHAPES)
    _add_choice(
        parser, "--set", (*values.shape_sets(), *more), "sizes of a model; repeat for more", action="append", default=[]
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help='torch device ("cpu", "cuda:0"); default: the GPU if there is one')


def _add_a_format(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser, "--a-format", names.ACTIVATION_FORMATS, "what A is rounded to", default="e2m1")


def _add_route(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser, "--route", names.ROUTES, "force a route instead of asking the router")


def _add_prepared(
    parser: argparse.ArgumentParser,
    prepared: str = "the weight after prepare(), as inference has it",
    raw: str = "the weight as it comes",
    default: bool | None = True,
) -> None:
    pair = parser.add_mutually_exclusive_group()
    pair.add_argument(
        "--prepared", action="store_const", const=True, default=default,
        help=f"{prepared}{' (the default)' if default else ''}",
    )  # fmt: skip
    pair.add_argument("--raw", action="store_const", const=False, dest="prepared", help=raw)


def _add_seconds(parser: argparse.ArgumentParser, default: float, text: str) -> None:
    parser.add_argument(
        "--seconds", type=values.seconds, default=default, metavar="SECONDS", help=f"{text}; default: {default}"
    )


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace an output file that this command did not write (an empty one is free)",
    )
