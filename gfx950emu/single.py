"""Assemble single instructions, and run one on a machine state of its own: for tests, and for ``pcode``."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gfx950emu.device_memory import Memory
from gfx950emu.disassemble import Instruction, find_tool, parse
from gfx950emu.numeric import U32, Array
from gfx950emu.operands import EXEC, parse_operand
from gfx950emu.semantics import build
from gfx950emu.waves import Group, Run

ASSEMBLERS: Final = ("llvm-mc-22", "llvm-mc-21", "llvm-mc-20", "llvm-mc")
REGISTERS: Final = 64
ACCUMULATORS: Final = 32
"""``a0`` is the vector register of this number."""
LDS_BYTES: Final = 4096
_ERROR = re.compile(r":(\d+):\d+: error: (.*)")


def _llvm_mc(*arguments: str) -> list[str]:
    return [find_tool("GFX950EMU_MC", ASSEMBLERS), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx950", *arguments]


def refusals(texts: Sequence[str]) -> list[str]:
    """Return why llvm-mc does not take each instruction; "" where it does."""
    found = [""] * len(texts)
    source = "".join(f"{text}\n" for text in texts)
    command = _llvm_mc("-filetype=null", "-")
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    for line, why in _ERROR.findall(done.stderr):
        found[int(line) - 1] = found[int(line) - 1] or why
    return found


def assemble(texts: Sequence[str]) -> list[Instruction | str]:
    """Return each instruction as a code object would hold it, or why llvm-mc does not take it."""
    found: list[Instruction | str] = [*refusals(texts)]
    good = [k for k, why in enumerate(found) if not why]
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "a.o")
        source = "".join(f"{texts[k]}\n" for k in good)
        subprocess.run(_llvm_mc("-filetype=obj", "-", "-o", str(code)), input=source, text=True, check=True)
        objdump = [find_tool("GFX950EMU_OBJDUMP"), "-d", "--mcpu=gfx950", str(code)]
        listing = subprocess.run(objdump, capture_output=True, text=True, check=True).stdout
    for k, fields in zip(good, parse(listing), strict=True):
        i = found[k] = Instruction(*fields)
        i.operands = [parse_operand(argument) for argument in i.arguments]
        for o in i.operands:
            o.index += ACCUMULATORS if o.kind == "a" else 0
    return found


def machine(
    vectors: Mapping[int, Array | int] | None = None,
    scalars: Mapping[int, int] | None = None,
    *,
    scc: int = 0,
    execute: int = 2**64 - 1,
    lds: Array | None = None,
    memory: Memory | None = None,
    modes: Mapping[str, bool] | None = None,
) -> Group:
    """Return one wave with zeros in its registers but for what is given, by number; EXEC is ``execute``."""
    v, s = np.zeros((REGISTERS, 1, 64), U32), np.zeros((128, 1), U32)
    for number, value in (vectors or {}).items():
        v[number] = value
    for number, value in (scalars or {}).items():
        s[number] = value
    s[EXEC], s[EXEC + 1] = U32(execute & 0xFFFFFFFF), U32(execute >> 32)
    shared = np.zeros(LDS_BYTES, np.uint8) if lds is None else np.array(lds, U32).view(np.uint8)
    run = Run(memory or Memory(), (1, 1, 1), 0, 1, shared, shared.size, np.zeros(64 * 64, np.uint8), 64, False)
    for name, value in (modes or {}).items():
        setattr(run, name, value)
    g = Group(run, 0, v, s, np.array([bool(scc)]), np.zeros(1, bool), np.arange(1), np.zeros(1, int), [0] * REGISTERS)
    g.update_exec()
    return g


def execute(i: Instruction, g: Group) -> Group:
    """Carry an instruction out.

    Raises:
        EmulatorError: it, or what it does with these values, is not modelled.
    """
    step = build(i)
    if step is not None:
        with np.errstate(all="ignore"):
            step(g)
    return g


def pair_of(low: int, high: int) -> int:
    """Join two dwords."""
    return int(low) | int(high) << 32
