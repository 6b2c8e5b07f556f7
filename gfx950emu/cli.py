"""Look into gfx950 code objects without a GPU.

    info FILE       kernels, registers at the start, arguments
    check FILE...   instructions that the emulator does not know, and hazards
    dis FILE        the code
    run             one kernel on arrays
    profile         the same, and what it executed

    python -m gfx950emu profile k.hsaco scale --grid 4 --block 256 --args x y 1024
        --array x=x.npy --array y=zeros:float32:1024 --save y=result.npy

An array is a .npy file, or zeros:DTYPE:SHAPE or random:DTYPE:SHAPE (bytes drawn at random). Arguments are names of
arrays and numbers, in the kernel's order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gfx950emu import hazards, profile
from gfx950emu.api import load, run_code_object
from gfx950emu.errors import EmulatorError, MissingTool
from gfx950emu.launch import Stats
from gfx950emu.numeric import Array
from gfx950emu.program import Kernel, Program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gfx950emu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, function, many in (("info", info, False), ("check", check, True), ("dis", disassembly, False)):
        command = commands.add_parser(name, help=function.__doc__)
        command.add_argument("files" if many else "file", nargs="+" if many else None, type=Path)
        command.set_defaults(function=function)
    for name, function in (("run", run), ("profile", profiled)):
        command = commands.add_parser(name, help=function.__doc__)
        command.add_argument("file", type=Path)
        command.add_argument("kernel")
        command.add_argument("--grid", nargs="+", type=int, required=True, help="workgroups along x, y, z")
        command.add_argument("--block", nargs="+", type=int, required=True, help="work items along x, y, z")
        command.add_argument("--array", action="append", default=[], metavar="NAME=SPEC", help="device memory")
        command.add_argument("--args", nargs="*", default=[], help="names of arrays, and numbers")
        command.add_argument("--save", action="append", default=[], metavar="NAME=FILE.npy")
        command.add_argument("--lds", type=int, default=0, help="bytes of LDS beyond what the kernel declares")
        command.add_argument("--strict", action="store_true", help="model waits; find hazards and races")
        command.set_defaults(function=function)
    parsed = parser.parse_args(arguments)
    try:
        return int(parsed.function(parsed))
    except (EmulatorError, MissingTool, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def info(parsed: argparse.Namespace) -> int:
    """Print kernels, what their registers hold at the start, and their arguments."""
    for kernel in Program(parsed.file.read_bytes()).kernels.values():
        _describe(kernel)
    return 0


def _describe(kernel: Kernel) -> None:
    d = kernel.descriptor
    print(kernel.name)
    print(f"  entry 0x{d.entry:x}, LDS {d.lds}, scratch {d.scratch}, arguments {kernel.kernarg_size} bytes")
    registers = [f"s[{first}:{first + count - 1}] {name}" for name, first, count in d.user_layout()]
    following = d.user_sgprs
    for axis, enabled in zip("xyz", d.workgroup_ids, strict=True):
        if enabled:
            registers.append(f"s{following} workgroup id {axis}")
            following += 1
    print(f"  at the start: {', '.join(registers)}")
    for argument in kernel.arguments:
        name, kind = argument.get(".name", ""), argument[".value_kind"]
        print(f"  argument at {argument['.offset']:3}, {argument['.size']:2} bytes: {kind} {name}")


def check(parsed: argparse.Namespace) -> int:
    """Print instructions that the emulator does not know, and hazards; status 1 if there are any."""
    status = 0
    for path in parsed.files:
        program = Program(path.read_bytes())
        unsupported = program.unsupported()
        status |= bool(unsupported)
        print(f"{path}: {len(program.instructions)} instructions, {len(unsupported)} names not supported")
        for text, reason in unsupported.items():
            print(f"  {text}: {reason}")
        for kernel in program.kernels.values():
            for hazard in hazards.find(program, kernel.entry):
                status = 1
                print(f"  {kernel.name}: {hazard}")
    return status


def disassembly(parsed: argparse.Namespace) -> int:
    """Print the code."""
    for instruction in Program(parsed.file.read_bytes()).instructions:
        print(instruction)
    return 0


def run(parsed: argparse.Namespace) -> int:
    """Run a kernel on arrays."""
    stats = _execute(parsed, None)
    print(f"{stats.waves} waves, {sum(stats.counts.values())} instructions, {stats.seconds:.2f} s")
    return 0


def profiled(parsed: argparse.Namespace) -> int:
    """Run a kernel and print what it executed."""
    observer = profile.Profile()
    stats = _execute(parsed, observer)
    print("\n".join(profile.report(observer, stats, load(parsed.file.read_bytes()))))
    return 0


def _execute(parsed: argparse.Namespace, observer: profile.Profile | None) -> Stats:
    arrays = dict(_array(text) for text in parsed.array)
    arguments = [text if text in arrays else _number(text) for text in parsed.args]
    after, stats = run_code_object(
        parsed.file, parsed.kernel, parsed.grid, parsed.block, arguments, arrays,
        dynamic_lds=parsed.lds, strict=parsed.strict, observer=observer,
    )  # fmt: skip
    for text in parsed.save:
        name, _, path = text.partition("=")
        if name not in after:
            raise ValueError(f"--save {text}: no array {name!r}; there are {', '.join(after)}")
        np.save(path, after[name])
    return stats


def _array(text: str) -> tuple[str, Array]:
    name, _, spec = text.partition("=")
    kind, _, rest = spec.partition(":")
    if kind not in ("zeros", "random"):
        return name, np.load(spec)
    dtype, _, shape = rest.partition(":")
    try:
        size = tuple(int(part) for part in shape.split(","))
        array: Array = np.zeros(size, dtype)
    except (ValueError, TypeError) as error:
        raise ValueError(f"--array {text}: wanted NAME={kind}:DTYPE:SHAPE, as in x={kind}:uint8:16,64") from error
    if kind == "random":
        as_bytes = array.reshape(-1).view(np.uint8)
        as_bytes[:] = np.random.default_rng(0).integers(0, 256, as_bytes.size, np.uint8)
    return name, array


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"--args {text}: neither an array's name nor a number") from None
