"""Strict mode: sequences that the hardware does not interlock, so that the code must put s_nop or work between.

The rules are those of the CDNA3 ISA, section 4.5 "Manually Inserted Wait States", with the numbers that LLVM's
GCNHazardRecognizer uses for gfx950. An instruction is one wait state, ``s_nop N`` is N + 1. Compilers follow the rules
by themselves, but not inside inline assembly, which is what ``mxgemm/triton/kernels/convert_gfx950.py`` is.

Left out: s_nop between SALU's write of M0 and a load to LDS, which AMD's own f4gemm kernels do without on gfx950; what
concerns s_setreg, f64 MFMA, dot products and LDS-direct instructions, which our kernels don't have.

The check looks at code, along every path that can be taken, and costs a run nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gfx950emu.disassemble import Instruction
from gfx950emu.effects import (
    Effects,
    effects_of,
    is_matrix,
    is_vector_alu,
    is_vector_memory,
    writes_high_half,
)
from gfx950emu.operands import EXEC, VCC
from gfx950emu.program import End, Program, branch_target, end_of

TRANSCENDENTAL: Final = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_LANE_ACCESS: Final = ("v_readlane_b32", "v_writelane_b32", "v_readfirstlane_b32")
_PASSES: Final = {
    "16x16x4": 8, "32x32x2": 16, "16x16x16": 4, "32x32x8": 8, "16x16x32": 4, "32x32x16": 8, "16x16x64": 4,
    "32x32x32": 8,
}  # fmt: skip
_READ_AS_ADDEND: Final = {2: 1, 4: 3, 8: 7, 16: 15}


@dataclass(frozen=True)
class Hazard:
    """Two instructions that are too close on some path."""

    first: Instruction
    second: Instruction
    wanted: int
    found: int
    rule: str

    @property
    def missing(self) -> int:
        """Wait states that have to be added."""
        return self.wanted - self.found

    def __str__(self) -> str:
        return (
            f"{self.rule}: {self.wanted} wait states wanted, {self.found} found, "
            f"between pc 0x{self.first.pc:x} `{self.first.text}` and pc 0x{self.second.pc:x} `{self.second.text}`"
        )


@dataclass(frozen=True)
class _Node:
    """An instruction with what the rules ask about it."""

    i: Instruction
    e: Effects
    alu: bool
    matrix: bool
    memory: bool
    passes: int


def passes_of(i: Instruction) -> int:
    """Return how many passes of four cycles a matrix instruction takes."""
    size = next(part for part in i.name.split("_") if "x" in part)
    if "f8f6f4" in i.name:
        eight_bits = i.modifiers.get("cbsz", 0) < 2 or i.modifiers.get("blgp", 0) < 2
        return (8 if eight_bits else 4) * (1 if size == "16x16x128" else 2)
    return _PASSES[size]


def find(program: Program, entry: int) -> list[Hazard]:
    """Return the hazards of the code that can be reached from a kernel's entry, the worst of each pair."""
    nodes = {k: _node(program.instructions[k]) for k in reachable(program, program.at[entry])}
    found: dict[tuple[int, int], Hazard] = {}
    for first, node in nodes.items():
        window = _window(node)
        if window:
            for hazard in _after(program, nodes, first, window):
                key = hazard.first.pc, hazard.second.pc
                if key not in found or hazard.missing > found[key].missing:
                    found[key] = hazard
    return list(found.values())


@lru_cache(maxsize=256)
def first_hazard(program: Program, entry: int) -> Hazard | None:
    """Return one hazard, or None; remembered, since a program does not change."""
    return next(iter(find(program, entry)), None)


def _node(i: Instruction) -> _Node:
    matrix = is_matrix(i)
    memory = is_vector_memory(i) or i.name.startswith("ds_")
    return _Node(i, effects_of(i), is_vector_alu(i), matrix, memory, passes_of(i) if matrix else 0)


def _successors(program: Program, k: int) -> list[int]:
    i = program.instructions[k]
    end = end_of(i)
    following = [k + 1] if end not in (End.JUMP, End.STOP, End.INDIRECT) and k + 1 < len(program.instructions) else []
    if end in (End.JUMP, End.BRANCH):
        following.append(program.at[branch_target(i)])
    return following


def reachable(program: Program, start: int) -> set[int]:
    """Return the positions of instructions that can follow the one at ``start``, itself included."""
    seen, left = set(), [start]
    while left:
        k = left.pop()
        if k not in seen:
            seen.add(k)
            left += _successors(program, k)
    return seen


def _window(node: _Node) -> int:
    """How many wait states behind an instruction a rule can reach."""
    if node.matrix:
        return node.passes + 4
    return 5 if node.alu else 0


def _after(program: Program, nodes: dict[int, _Node], first: int, window: int) -> Iterator[Hazard]:
    """Walk on from an instruction along every path, and forget results that are overwritten on the way."""
    producer = nodes[first]
    everything = producer.e.vector_writes | {-1 - r for r in producer.e.scalar_writes}
    left = [(k, 0, everything) for k in _successors(program, first)]
    seen: set[tuple[int, int]] = set()
    while left:
        k, states, alive = left.pop()
        if states >= window or (k, states) in seen:
            continue
        seen.add((k, states))
        node = nodes[k]
        for wanted, rule in _rules(producer, node, alive):
            if wanted > states:
                yield Hazard(producer.i, node.i, wanted, states, rule)
        overwritten = node.e.vector_writes | {-1 - r for r in node.e.scalar_writes}
        states += node.i.immediate + 1 if node.i.name == "s_nop" else 1
        left += [(following, states, alive - overwritten) for following in _successors(program, k)]


def _rules(p: _Node, n: _Node, alive: frozenset[int]) -> Iterator[tuple[int, str]]:
    """Yield (wait states wanted, rule) for a later instruction ``n``; ``alive``: results of ``p`` not overwritten."""
    vector = {r for r in alive if r >= 0}
    scalar = {-1 - r for r in alive if r < 0}
    reads = bool(vector & n.e.vector_reads)
    if p.matrix:
        yield from _after_matrix(p, n, vector)
        return
    if not p.alu:
        return
    if reads and n.matrix:
        yield 2, "VALU writes a VGPR, MFMA reads it"
    if reads and n.alu:
        yield from _vector_to_vector(p, n)
    yield from _scalar_results(n, scalar)


def _vector_to_vector(p: _Node, n: _Node) -> Iterator[tuple[int, str]]:
    name = p.i.name
    if name.startswith(TRANSCENDENTAL) and not n.i.name.startswith(TRANSCENDENTAL):
        yield 1, "transcendental result, VALU reads it"
    if (
        (name.startswith("v_cvt_scalef32_pk_fp4_") and any(p.i.modifiers.get("op_sel", ())[2:]))
        or writes_high_half(p.i)
        or p.i.modifiers.get("dst_sel", "DWORD") != "DWORD"
    ):
        yield 1, "VALU writes part of a VGPR, VALU reads it"
    if n.i.encoding == "dpp" and n.i.operands[1].index in p.e.vector_writes and n.i.operands[1].is_vector:
        yield 2, "VALU writes a VGPR, DPP reads it"
    if n.i.name in ("v_readlane_b32", "v_readfirstlane_b32"):
        yield 1, "VALU writes a VGPR, v_readlane reads it"
    if n.i.name.startswith("v_permlane"):
        yield 2, "VALU writes a VGPR, v_permlane_swap reads it"


def _scalar_results(n: _Node, scalar: set[int]) -> Iterator[tuple[int, str]]:
    read = scalar & n.e.scalar_reads
    if read and n.alu:
        yield 2, "VALU writes an SGPR, VALU reads it"
        if n.i.name.startswith("v_div_fmas_") and read & {VCC, VCC + 1}:
            yield 4, "VALU writes VCC, v_div_fmas reads it"
        if n.i.name in ("v_readlane_b32", "v_writelane_b32") and n.i.operands[2].index in read:
            yield 4, "VALU writes an SGPR, v_readlane takes it as lane"
    if read and is_vector_memory(n.i):
        yield 5, "VALU writes an SGPR, vector memory reads it"
    if EXEC in scalar:
        if n.matrix:
            yield 4, "VALU writes EXEC, MFMA"
        if n.i.name in _LANE_ACCESS:
            yield 4, "VALU writes EXEC, lane access"
        if n.i.encoding == "dpp":
            yield 5, "VALU writes EXEC, DPP"


def _after_matrix(p: _Node, n: _Node, vector: set[int]) -> Iterator[tuple[int, str]]:
    result = p.i.operands[0]
    more = int(p.passes != 2)  # gfx950 takes one state more than gfx942 there
    if n.matrix:
        first, second, addend = n.i.operands[1:4]
        a_and_b = {r for o in (first, second) for r in range(o.index, o.index + o.count) if o.is_vector}
        scales = {r for o in n.i.operands[4:6] for r in range(o.index, o.index + o.count) if o.is_vector}
        if vector & (a_and_b | scales):
            yield p.passes + 3 + more, "MFMA writes a VGPR, MFMA reads it as A or B"
        same = addend.is_vector and (addend.index, addend.count) == (result.index, result.count)
        if addend.is_vector and vector & set(range(addend.index, addend.index + addend.count)):
            if not same:
                yield p.passes + 1 + more, "MFMA writes a VGPR, MFMA reads an overlapping range as C"
            elif p.passes == 2:
                yield 2, "MFMA writes a VGPR, MFMA reads it as C"
        return
    if vector & n.e.vector_reads and (n.alu or n.memory):
        yield p.passes + 3 + more, "MFMA writes a VGPR, VALU or memory reads it"
    if vector & n.e.vector_writes and (n.alu or n.memory):
        yield p.passes + 3 + int(p.passes > 4), "MFMA writes a VGPR, VALU or memory overwrites it"
    addend = p.i.operands[3]
    if addend.is_vector and n.alu and set(range(addend.index, addend.index + addend.count)) & n.e.vector_writes:
        yield _READ_AS_ADDEND[p.passes], "MFMA reads a VGPR as C, VALU overwrites it"
