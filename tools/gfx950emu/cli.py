"""Look into gfx950 code objects without a GPU.

info FILE               kernels, registers at the start, arguments
check FILE...           instructions that the emulator does not know, and hazards
dis FILE                the code
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.gfx950emu import hazards
from tools.gfx950emu.errors import EmulatorError, MissingTool
from tools.gfx950emu.program import Kernel, Program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gfx950emu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, function, many in (("info", info, False), ("check", check, True), ("dis", disassembly, False)):
        command = commands.add_parser(name, help=function.__doc__)
        command.add_argument("files" if many else "file", nargs="+" if many else None, type=Path)
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
