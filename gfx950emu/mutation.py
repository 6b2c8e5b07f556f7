"""Take one wait, barrier or cache operation out of a kernel, as a careless hand would: does strict mode notice?

Not every one that stays unnoticed is a gap: compilers wait where nothing is in flight, and use barriers that order
nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from gfx950emu.errors import EmulatorError
from gfx950emu.launch import Stats
from gfx950emu.program import Program

S_NOP: Final = 0xBF800000
REMOVABLE: Final = ("s_waitcnt", "s_barrier", "buffer_wbl2", "buffer_inv")


@dataclass
class Mutants:
    """What became of a kernel's mutants.

    Attributes:
        caught: how many each kind of error, or a wrong result, gave away.
        survived: the instructions that could go unnoticed.
        equivalent: those that could because they order nothing: idle barriers, and waits in front of them alone.
    """

    caught: Counter[str] = field(default_factory=Counter)
    survived: list[str] = field(default_factory=list)
    equivalent: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of mutants that are not equivalent to the kernel, as far as is known."""
        return sum(self.caught.values()) + len(self.survived)

    @property
    def share(self) -> float:
        """Share of the mutants that were caught."""
        return sum(self.caught.values()) / self.total

    def __str__(self) -> str:
        how = ", ".join(f"{name} {count}" for name, count in self.caught.most_common())
        caught = f"{sum(self.caught.values())} of {self.total} caught ({how})"
        return f"{caught}; unnoticed: {self.survived}; equivalent: {self.equivalent}"


def mutate(
    code: bytes, runs: Iterable[Stats], is_right: Callable[[bytes], bool], idle: Collection[int] = ()
) -> Mutants:
    """Take out each wait, barrier and cache operation that ran, in turn.

    Args:
        code: the code object.
        runs: statistics of the original's launches, for what was executed.
        is_right: runs a mutant in strict mode and says whether the result is still right.
        idle: pcs of barriers that order nothing (``gfx950emu/idle.py``).
    """
    program = Program(code)
    executed = {i.pc: i for stats in runs for pc in stats.blocks for i in program.block(pc).instructions}
    mutants = Mutants()
    for pc, i in sorted(executed.items()):
        if i.name not in REMOVABLE:
            continue
        at, nops = program.elf.offset_of(pc), struct.pack("<I", S_NOP) * len(i.words)
        try:
            right = is_right(code[:at] + nops + code[at + len(nops) :])
        except EmulatorError as error:
            mutants.caught[type(error).__name__] += 1
        else:
            if right:
                before_idle = i.name == "s_waitcnt" and pc + i.size in idle
                (mutants.equivalent if pc in idle or before_idle else mutants.survived).append(str(i))
            else:
                mutants.caught["wrong result"] += 1
    return mutants
