"""What one pass of a kernel's main loop issues, read from its code object: ours, Triton's and AITER's alike.

    loop = main_loop(load(code))      # gfx950emu.api.load
    print(loop.counts, loop.matrix_cycles, loop.issue_cycles)

The main loop is the innermost loop with the most matrix instructions. Cycles are of one wave, as
``gfx950emu/profile.py`` counts them: those in which the matrix unit works for it, and those in which anything of it is
issued, a matrix instruction taking one slot like the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from gfx950emu.disassemble import Instruction
from gfx950emu.profile import class_of, issue_cycles
from gfx950emu.program import End, Program, branch_target, end_of

ISSUE: Final = 4
"""Cycles of a SIMD that issuing a matrix instruction takes, which then works beside what follows."""
CLASSES: Final = (
    "mfma", "valu", "salu", "lds_read", "lds_write", "load", "load_to_lds", "store", "wait", "barrier", "nop",
)  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """One pass of a loop, of one wave.

    Attributes:
        first: pc of its first instruction.
        last: pc of the branch back.
        counts: instructions by what they are, see ``CLASSES``.
        loaded_bytes: of a lane, by loads from device memory, those to LDS included.
        copied_bytes: of a lane, by loads to LDS.
        read_bytes: of a lane, by reads from LDS.
        written_bytes: of a lane, by writes to LDS.
        matrix_cycles: that the matrix unit works.
        issue_cycles: that the wave issues.
    """

    first: int
    last: int
    counts: dict[str, int]
    loaded_bytes: int
    copied_bytes: int
    read_bytes: int
    written_bytes: int
    matrix_cycles: int
    issue_cycles: int

    def to_json(self) -> dict[str, Any]:
        """Return it for a results file, without addresses."""
        names = ("loaded_bytes", "copied_bytes", "read_bytes", "written_bytes", "matrix_cycles", "issue_cycles")
        return {"counts": self.counts, **{name: getattr(self, name) for name in names}}


def main_loop(program: Program) -> Loop:
    """Return the innermost loop with the most matrix instructions; of equals the longest.

    Raises:
        ValueError: no loop has one.
    """
    instructions = program.instructions
    loops = [
        (program.at[branch_target(i)], k)
        for k, i in enumerate(instructions)
        if end_of(i) in (End.JUMP, End.BRANCH) and branch_target(i) <= i.pc
    ]
    inner = [
        (first, last)
        for first, last in loops
        if not any(first <= one and other <= last and (one, other) != (first, last) for one, other in loops)
    ]

    def weight(loop: tuple[int, int]) -> tuple[int, int]:
        inside = instructions[loop[0] : loop[1] + 1]
        return sum(i.name.startswith("v_mfma") for i in inside), len(inside)

    best = max(inner, key=weight, default=None)
    if best is None or not weight(best)[0]:
        raise ValueError("no loop with a matrix instruction")
    return _described(instructions[best[0] : best[1] + 1])


def _described(inside: list[Instruction]) -> Loop:
    counts: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    matrix = issue = 0
    for i in inside:
        kind = _kind(i)
        counts[kind] += 1
        moved[kind] += _bytes(i)
        cycles = issue_cycles(i)[1]
        matrix += cycles * (kind == "mfma")
        issue += ISSUE if kind == "mfma" else cycles
    ordered = {name: counts[name] for name in CLASSES if counts[name]}
    loaded, copied = moved["load"] + moved["load_to_lds"], moved["load_to_lds"]
    read, written = moved["lds_read"], moved["lds_write"]
    return Loop(inside[0].pc, inside[-1].pc, ordered, loaded, copied, read, written, matrix, issue)


def _kind(i: Instruction) -> str:
    kind = class_of(i.mnemonic)
    if kind == "mfma_scaled":
        return "mfma"
    if kind == "convert":
        return "valu"
    if kind == "lds":
        return "lds_read" if "read" in i.name else "lds_write"
    if kind == "load" and ("lds" in i.name or i.modifiers.get("lds")):
        return "load_to_lds"
    if i.name == "s_barrier":
        return "barrier"
    return "salu" if kind in ("branch", "smem") else kind


def _bytes(i: Instruction) -> int:
    if "dwordx" in i.name:
        return 4 * int(i.name.split("dwordx")[1][0])
    width = i.name.rsplit("_b", 1)[-1]
    return int(width) // 8 * (2 if "read2" in i.name else 1) if width.isdigit() else 4
