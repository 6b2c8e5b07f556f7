"""Program flow, waits, mode and hardware registers (CDNA3 ISA, chapters 4 and 12.5; LLVM, AMDGPUUsage).

Branches, barriers and the end of a program end a basic block, and the scheduler carries them out; see ``program.py``.
"""

from __future__ import annotations

import re

import numpy as np

from gfx950emu import pending
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError, UnsupportedInstruction
from gfx950emu.numeric import U32, U64, Array
from gfx950emu.operands import EXEC, M0, VCC
from gfx950emu.registers import read, write_scalar
from gfx950emu.table import Step, define
from gfx950emu.waves import Group

KEEP_SUBNORMALS = 3
"""Of the two denormal fields of MODE: neither inputs nor outputs are flushed."""
_PLACE = re.compile(r"hwreg\(HW_REG_(?:HW|XCC)_ID\b")
_MODE = re.compile(r"hwreg\(HW_REG_MODE(?:, (\d+), (\d+))?\)")


@define("s_nop s_sleep s_setprio s_sendmsg s_wakeup s_icache_inv s_dcache_wb s_dcache_inv s_set_gpr_idx_off")
def _nothing(i: Instruction) -> None:
    """Neither time nor caches are modelled. s_nop counts in ``hazards.py``."""


@define("v_nop ds_nop s_incperflevel s_decperflevel s_ttracedata s_sethalt")
def _nothing_either(i: Instruction) -> None:
    """Traces and padding."""


@define("s_waitcnt")
def _wait(i: Instruction) -> Step:
    vm, lgkm = wait_counts(i.immediate)

    def step(g: Group) -> None:
        if g.run.strict:
            pending.wait(g, vm, lgkm)

    return step


def wait_counts(immediate: int) -> tuple[int | None, int | None]:
    """Decode s_waitcnt: what vmcnt and lgkmcnt may stay at, None where it does not wait."""
    vm, lgkm = (immediate & 15) | (immediate >> 14 & 3) << 4, immediate >> 8 & 15
    return (None if vm == 63 else vm), (None if lgkm == 15 else lgkm)


@define("s_set_gpr_idx_on s_set_gpr_idx_idx")
def _index_on(i: Instruction) -> Step:
    offset = read(i.operands[0], "u32", vector=False)
    keep, bits = (U32(0xFFFFFF00), U32(0))
    if i.name == "s_set_gpr_idx_on":
        keep, bits = U32(0xFFFF0F00), U32((i.words[0] >> 8 & 15) << 12)

    def step(g: Group) -> None:
        g.s[M0] = (g.s[M0] & keep) | (offset(g) & U32(0xFF)) | bits

    return step


@define("s_getpc_b64")
def _program_counter(i: Instruction) -> Step:
    store, value = write_scalar(i.operands[0], "u64"), np.array([i.pc + 4], U64)
    return lambda g: store(g, value)


@define("s_memtime s_memrealtime")
def _time(i: Instruction) -> Step:
    store = write_scalar(i.operands[0], "u64")

    def step(g: Group) -> None:
        g.time += 64
        store(g, np.array([g.time], U64))

    return step


@define("s_getreg_b32")
def _get_register(i: Instruction) -> Step:
    """A wave's place on the chip reads as 0; no other hardware register is modelled."""
    if not _PLACE.search(i.text):
        raise UnsupportedInstruction(f"{i.arguments[-1]}: only HW_ID and XCC_ID can be read")
    store = write_scalar(i.operands[0], "u32")
    return lambda g: store(g, np.zeros(1, U32))


@define("s_setreg_b32 s_setreg_imm32_b32")
def _set_register(i: Instruction) -> Step:
    """Of MODE, float32's denormal bits can change (LLVM brackets divisions with that); nothing else can be written."""
    match = _MODE.search(i.text)
    offset, size = (int(match[1] or 0), int(match[2] or 32)) if match else (0, 0)
    if offset < 4 or offset + size > 8:
        raise UnsupportedInstruction(f"{i.text}: only MODE's FP_DENORM, its bits 4 to 7, can be written")
    source = read(i.operands[-1], "u32", vector=False)

    def step(g: Group) -> None:
        value = np.broadcast_to(source(g) & U32((1 << size) - 1), (g.width,)).astype(int) << offset
        if offset <= 4 and offset + size >= 6:
            g.flush[:] = (value >> 4 & 3) != KEEP_SUBNORMALS
            g.flushes = bool(g.flush.any())
        if offset + size >= 8 and ((value >> 6 & 3) != KEEP_SUBNORMALS).any():
            raise EmulatorError("MODE flushes float16 and float64 subnormals, which is not modelled")

    return step


def condition(g: Group, name: str) -> Array:
    """Evaluate the condition of s_cbranch_NAME for each wave."""
    if name in ("scc0", "scc1"):
        return g.scc if name == "scc1" else ~g.scc
    first = {"vccz": VCC, "vccnz": VCC, "execz": EXEC, "execnz": EXEC}.get(name)
    if first is None:
        raise EmulatorError(f"branch condition {name} is not modelled")
    zero: Array = (g.s[first] | g.s[first + 1]) == 0
    return ~zero if name.endswith("nz") else zero
