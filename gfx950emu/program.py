"""A code object as a program: kernels, and basic blocks whose instructions have become steps."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final

from gfx950emu.disassemble import Instruction, disassemble
from gfx950emu.elf import Elf, KernelDescriptor
from gfx950emu.errors import EmulatorError, UnsupportedInstruction
from gfx950emu.operands import parse_operand
from gfx950emu.semantics import TABLE, Step, build
from gfx950emu.waves import Group

SPARE: Final = 8
"""Registers behind those that the code names, for s_set_gpr_idx."""


PRELOAD_SKIP: Final = 256
"""A kernel with preloaded arguments starts this far in; before that is code for firmware that cannot preload."""


class End(enum.Enum):
    """How a basic block ends."""

    FALL = enum.auto()
    JUMP = enum.auto()
    BRANCH = enum.auto()
    BARRIER = enum.auto()
    STOP = enum.auto()
    INDIRECT = enum.auto()


_ENDS: Final = {
    "s_branch": End.JUMP,
    "s_barrier": End.BARRIER,
    "s_endpgm": End.STOP,
    "s_endpgm_saved": End.STOP,
    "s_setpc_b64": End.INDIRECT,
    "s_swappc_b64": End.INDIRECT,
}


def end_of(i: Instruction) -> End | None:
    """Say how a basic block ends with an instruction, None if it does not."""
    return End.BRANCH if i.name.startswith("s_cbranch_") else _ENDS.get(i.name)


def branch_target(i: Instruction) -> int:
    """Return where a branch goes."""
    return i.pc + 4 + 4 * i.signed_immediate


@dataclass(frozen=True)
class Kernel:
    """One kernel of a code object.

    Attributes:
        name: its name.
        descriptor: what the command processor reads.
        arguments: of the metadata: dictionaries with ".offset", ".size", ".value_kind", ".name".
        kernarg_size: bytes of the argument segment.
    """

    name: str
    descriptor: KernelDescriptor
    arguments: list[dict[str, Any]]
    kernarg_size: int

    @property
    def entry(self) -> int:
        """Where waves start."""
        return self.descriptor.entry + (PRELOAD_SKIP if self.descriptor.preload_dwords else 0)


@dataclass(slots=True)
class Block:
    """A basic block.

    Attributes:
        start: pc of its first instruction.
        steps: what its instructions do; those that do nothing have none.
        stepped: the instruction of each step.
        instructions: all of them, the last included.
        end: how it ends.
        following: pc behind it.
        last: the instruction that ends it, or the first of the next block.
    """

    start: int
    steps: list[Step] = field(default_factory=list)
    stepped: list[Instruction] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    end: End = End.FALL
    following: int = 0
    last: Instruction | None = None


class Program:
    """A loaded code object.

    Vector and accumulation registers share one file: ``a0`` lies behind the last VGPR that the code names.
    """

    def __init__(self, code: bytes) -> None:
        self.elf = Elf(code)
        self.instructions = disassemble(code)
        self.at = {i.pc: k for k, i in enumerate(self.instructions)}
        self.registers = self._place_registers()
        self.kernels = self._kernels()
        self.targets = {branch_target(i) for i in self.instructions if end_of(i) in (End.JUMP, End.BRANCH)}
        self._blocks: dict[int, Block] = {}

    def kernel(self, name: str) -> Kernel:
        """Return a kernel by name."""
        if name not in self.kernels:
            raise ValueError(f"no kernel {name!r} in this code object; it has {', '.join(sorted(self.kernels))}")
        return self.kernels[name]

    def block(self, pc: int) -> Block:
        """Return the basic block that starts at a pc."""
        found = self._blocks.get(pc)
        if found is None:
            found = self._blocks[pc] = self._build(pc)
        return found

    def unsupported(self) -> dict[str, str]:
        """Return the instructions that cannot be executed, {text: reason}, one of each name."""
        found: dict[str, tuple[str, str]] = {}
        for i in self.instructions:
            if end_of(i) is None and i.name not in found:
                try:
                    build(i)
                except UnsupportedInstruction as error:
                    found[i.name] = str(i), str(error)
        return dict(found.values())

    def _place_registers(self) -> int:
        """Parse operands, number accumulation registers behind the vector ones, and return the size of the file."""
        last = {"v": 0, "a": 0}
        for i in self.instructions:
            i.operands = [parse_operand(text) for text in i.arguments]
            for o in i.operands:
                if o.is_vector:
                    last[o.kind] = max(last[o.kind], o.index + o.count)
        first_accumulator = last["v"] + SPARE
        for i in self.instructions:
            for o in i.operands:
                if o.kind == "a":
                    o.index += first_accumulator
        return first_accumulator + last["a"] + SPARE

    def _kernels(self) -> dict[str, Kernel]:
        described = {
            str(kernel.get(".symbol", f"{kernel.get('.name')}.kd")).removesuffix(".kd"): kernel
            for kernel in self.elf.metadata.get("amdhsa.kernels", [])
        }
        kernels = {}
        for name, descriptor in self.elf.descriptors().items():
            metadata = described.get(name, {})
            size = descriptor.kernarg_size or metadata.get(".kernarg_segment_size", 0)
            kernels[name] = Kernel(name, descriptor, metadata.get(".args", []), size)
        return kernels

    def _build(self, pc: int) -> Block:
        if pc not in self.at:
            raise EmulatorError(f"jump to 0x{pc:x}, where no instruction is")
        block = Block(pc)
        for i in self.instructions[self.at[pc] :]:
            block.last, block.following = i, i.pc
            if i.pc in self.targets and i.pc != pc:
                return block
            block.following = i.pc + i.size
            block.instructions.append(i)
            end = end_of(i)
            if end is not None:
                block.end = end
                return block
            step = _step(i)
            if step is not None:
                block.steps.append(step)
                block.stepped.append(i)
        raise EmulatorError("ran off the end of the code")


def _step(i: Instruction) -> Step | None:
    """Build a step; an instruction that is not supported fails when it is executed, not before."""
    try:
        return build(i)
    except UnsupportedInstruction as error:
        reason = str(error)

        def fail(g: Group) -> None:
            raise UnsupportedInstruction(f"unsupported instruction: {reason}")

        return fail


assert not set(_ENDS) & set(TABLE)
