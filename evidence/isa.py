"""Read AMDGPU assembly text: registers, LDS, spills, occupancy, and what the main loop is made of.

    figures = analyse(compiled.asm["amdgcn"], waves=4, lds=compiled.metadata.shared)

Works on what LLVM prints (Triton's ``asm["amdgcn"]``, ``clang -S``). The main loop is the innermost loop with the most
matrix instructions; a kernel without one is taken as a whole. Occupancy follows the registers and the LDS
of ``mxgemm.device.KNOWN_MACHINES``: registers come in steps of 8, for at most 8 waves (AMD Instinct CDNA4 ISA, 3.6).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from mxgemm.device import KNOWN_MACHINES

LOAD_BYTES: Final = {
    "ubyte": 1,
    "sbyte": 1,
    "ushort": 2,
    "sshort": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}
MAX_WAVES: Final = 8


@dataclass(frozen=True)
class Figures:
    """What one kernel's machine code consists of.

    Attributes:
        vgprs: vector registers of a lane, accumulation registers included.
        sgprs: scalar registers.
        lds: bytes of a workgroup.
        scratch: bytes of a lane; above 0 something did not fit registers.
        spills: vector and scalar registers spilled.
        waves_per_simd: how many waves fit by registers and LDS.
        in_loop: the counts below are of the main loop, not of the whole kernel.
        scaled_mfma: scaled matrix instructions.
        other_mfma: other matrix instructions.
        fp4_converts: hardware converts to fp4.
        loads: global loads by width in bytes.
        lds_reads: LDS reads.
        lds_writes: LDS writes.
        valu: vector instructions other than matrix ones.
        salu: scalar instructions.
        whole: mnemonic -> count over the whole kernel.
    """

    vgprs: int
    sgprs: int
    lds: int
    scratch: int
    spills: int
    waves_per_simd: int
    in_loop: bool
    scaled_mfma: int
    other_mfma: int
    fp4_converts: int
    loads: dict[int, int]
    lds_reads: int
    lds_writes: int
    valu: int
    salu: int
    whole: dict[str, int]

    @property
    def valu_per_mfma(self) -> float | None:
        """Vector instructions for each matrix instruction, None without any."""
        mfma = self.scaled_mfma + self.other_mfma
        return round(self.valu / mfma, 1) if mfma else None


def analyse(text: str, *, waves: int, lds: int, arch: str = "gfx950") -> Figures:
    """Analyse the one kernel in ``text``.

    Args:
        text: assembly as LLVM prints it.
        waves: waves of a workgroup.
        lds: bytes of LDS that the launch asks for (Triton: ``metadata.shared``).
        arch: the target.
    """
    stream = _instructions(text)
    loop = _main_loop(stream)
    ops = [op for op, _ in (stream[loop[0] : loop[1] + 1] if loop else stream) if op]
    counts = Counter(ops)
    vgprs = _metadata(text, "vgpr_count")
    machine = KNOWN_MACHINES[arch]
    registers = MAX_WAVES if not vgprs else min(MAX_WAVES, machine.registers // (-(-vgprs // 8) * 8))
    by_lds = MAX_WAVES if not lds else max(1, machine.lds_bytes // lds) * waves // machine.simds
    return Figures(
        vgprs=vgprs,
        sgprs=_metadata(text, "sgpr_count"),
        lds=lds,
        scratch=_metadata(text, "private_segment_fixed_size"),
        spills=_metadata(text, "vgpr_spill_count") + _metadata(text, "sgpr_spill_count"),
        waves_per_simd=max(1, min(registers, by_lds)),
        in_loop=loop is not None,
        scaled_mfma=sum(n for op, n in counts.items() if op.startswith("v_mfma_scale")),
        other_mfma=sum(n for op, n in counts.items() if op.startswith("v_mfma") and "scale" not in op),
        fp4_converts=sum(n for op, n in counts.items() if op.startswith("v_cvt_scalef32_pk_fp4")),
        loads=_loads(counts),
        lds_reads=sum(n for op, n in counts.items() if op.startswith("ds_read")),
        lds_writes=sum(n for op, n in counts.items() if op.startswith("ds_write")),
        valu=sum(n for op, n in counts.items() if op.startswith("v_") and not op.startswith("v_mfma")),
        salu=sum(n for op, n in counts.items() if op.startswith("s_") and not op.startswith(("s_wait", "s_nop"))),
        whole=dict(Counter(op for op, _ in stream if op)),
    )


def without_cold_blocks(text: str) -> str:
    """Cut the blocks that nothing falls into and that jump back: what the source calls unlikely.

    LLVM puts them behind a loop or behind the end of the program; they would be taken for loops.
    """
    kept: list[str] = []
    block: list[str] = []
    seen: set[str] = set()
    falls_into = True
    for line in [*text.splitlines(), ".Lend_of_text:"]:
        label = re.match(r"^([\w.$]+):", line)
        if label:
            instructions = [words for raw in block if (words := raw.split(";")[0].split()) and words[0][0] not in ".;"]
            last = [words for words in instructions if not words[0].endswith(":")][-1:]
            cold = not falls_into and bool(last) and last[0][0] == "s_branch" and last[0][1] in seen
            if not cold:
                kept += block
            if last:
                falls_into = last[0][0] not in ("s_branch", "s_endpgm")
            seen.add(label[1])
            block = []
        block.append(line)
    return "\n".join(kept)


def instruction_order(text: str) -> list[tuple[str, str]]:
    """Return (mnemonic, operands) of the kernel in program order."""
    return [(op, arguments) for op, arguments in _instructions(text) if op]


def _instructions(text: str) -> list[tuple[str, str]]:
    """Return (mnemonic, operands) in order; a label is ("", its name)."""
    found: list[tuple[str, str]] = []
    for raw in text.splitlines():
        line = re.split(r";|//", raw, maxsplit=1)[0].rstrip()
        label = re.match(r"^([\w.$]+):", line)
        if label:
            if label[1].startswith(".Lfunc_end"):
                break
            found.append(("", label[1]))
            continue
        # Lines of an inline assembly start in column 0. A mnemonic has an underscore, a directive starts with a dot.
        instruction = re.match(r"^\s*([a-z]+_\w+)\s*(.*)$", line)
        if instruction:
            found.append((instruction[1], instruction[2]))
    return found


def _main_loop(stream: list[tuple[str, str]]) -> tuple[int, int] | None:
    labels = {name: index for index, (op, name) in enumerate(stream) if not op}
    ends: dict[int, int] = {}
    for index, (op, arguments) in enumerate(stream):
        if op.startswith(("s_cbranch", "s_branch")):
            target = labels.get(arguments.split(",")[-1].strip())
            if target is not None and target <= index:
                ends[target] = max(index, ends.get(target, -1))
    loops = list(ends.items())
    inner = [
        (start, end)
        for start, end in loops
        if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in loops)
    ]

    def mfmas(loop: tuple[int, int]) -> int:
        return sum(op.startswith("v_mfma") for op, _ in stream[loop[0] : loop[1]])

    best = max(inner, key=lambda loop: (mfmas(loop), loop[1] - loop[0]), default=None)
    return best if best and mfmas(best) else None


def _loads(counts: Counter[str]) -> dict[int, int]:
    loads: Counter[int] = Counter()
    for op, count in counts.items():
        match = re.match(r"(?:global|buffer|flat)_load_(\w+?)(?:_d16(?:_hi)?)?$", op)
        if match:
            loads[LOAD_BYTES.get(match[1], 0)] += count
    return dict(sorted(loads.items()))


def _metadata(text: str, field: str) -> int:
    match = re.search(rf"\.{field}:\s*(\d+)", text)
    return int(match[1]) if match else 0
