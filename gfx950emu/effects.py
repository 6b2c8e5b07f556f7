"""Which registers an instruction reads and writes, for the checks that look at code without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gfx950emu.disassemble import Instruction
from gfx950emu.operands import EXEC, VCC, Operand

TWO_RESULTS: Final = ("v_add_co_", "v_sub_co_", "v_subrev_co_", "v_addc_co_", "v_subb_co_", "v_subbrev_co_",
                       "v_mad_u64_u32", "v_mad_i64_i32", "v_div_scale_")  # fmt: skip
_SWAPS: Final = ("v_swap_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32")
_ACCUMULATE: Final = ("v_fmac_", "v_mac_", "v_dot2c_", "v_writelane_b32")
PARTIAL_CONVERTS: Final = (
    "v_cvt_scalef32_pk_fp4_", "v_cvt_scalef32_pk_fp8_", "v_cvt_scalef32_pk_bf8_", "v_cvt_pk_fp8_f32",
    "v_cvt_pk_bf8_f32",
)  # fmt: skip
"""Converts that write a part of their destination and leave the rest."""


@dataclass(frozen=True)
class Effects:
    """Registers by number in the emulator's files, reads first."""

    vector_reads: frozenset[int]
    vector_writes: frozenset[int]
    scalar_reads: frozenset[int]
    scalar_writes: frozenset[int]


def is_vector_alu(i: Instruction) -> bool:
    """Say whether the vector ALU or the matrix unit executes it."""
    return i.name.startswith("v_")


def is_vector_memory(i: Instruction) -> bool:
    """Say whether it goes to device memory or scratch by lanes."""
    return i.name.startswith(("global_", "buffer_", "flat_", "scratch_"))


def is_matrix(i: Instruction) -> bool:
    """Say whether the matrix unit executes it."""
    return i.name.startswith("v_mfma_")


def effects_of(i: Instruction) -> Effects:
    """Return what an instruction reads and writes; scalar memory and the program counter are left out."""
    count = _results(i)
    writes, reads = i.operands[:count], list(i.operands[count:])
    if i.name in _SWAPS:
        writes, reads = i.operands, list(i.operands)
    if keeps_part(i):
        reads += i.operands[:1]
    vector_reads, scalar_reads = _registers(reads)
    vector_writes, scalar_writes = _registers(writes)
    if i.name.startswith("v_cmpx_") or "saveexec" in i.name or "wrexec" in i.name:
        scalar_writes |= {EXEC, EXEC + 1}
    if i.name.startswith("v_div_fmas_"):
        scalar_reads |= {VCC, VCC + 1}
    return Effects(*(frozenset(x) for x in (vector_reads, vector_writes, scalar_reads, scalar_writes)))


def keeps_part(i: Instruction) -> bool:
    """Say whether the old value of the destination takes part: accumulation, or a write of some of its bytes."""
    return (
        i.name.startswith((*_ACCUMULATE, *PARTIAL_CONVERTS))
        or i.modifiers.get("dst_unused") == "UNUSED_PRESERVE"
        or writes_high_half(i)
        or "_d16" in i.name
    )


def writes_high_half(i: Instruction) -> bool:
    """Say whether op_sel sends a 16-bit result to the upper half."""
    op_sel = i.modifiers.get("op_sel", ())
    return is_vector_alu(i) and not i.name.startswith("v_pk_") and len(op_sel) == 4 and bool(op_sel[3])


def _results(i: Instruction) -> int:
    name = i.name
    if name.startswith(TWO_RESULTS):
        return 2
    is_load = "_load_" in name and not i.modifiers.get("lds") and "_load_lds_" not in name
    if is_vector_memory(i):
        return int(is_load or ("_atomic_" in name and bool(i.modifiers.get("sc0"))))
    if name.startswith("ds_"):
        return int(name.startswith(("ds_read", "ds_bpermute", "ds_permute", "ds_swizzle")) or "_rtn_" in name)
    if name.startswith(("s_cmp", "s_bitcmp", "s_setreg", "s_set_gpr", "s_cbranch", "s_branch", "s_setpc")):
        return 0
    return 1


def _registers(operands: list[Operand]) -> tuple[set[int], set[int]]:
    vector: set[int] = set()
    scalar: set[int] = set()
    for o in operands:
        span = range(o.index, o.index + o.count)
        if o.is_vector:
            vector.update(span)
        elif o.kind == "s":
            scalar.update(span)
    return vector, scalar
