"""No modifier is dropped in silence: every instruction of the table, with every modifier that the assembler takes."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from gfx950emu.device_memory import Memory
from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError, UnsupportedInstruction
from gfx950emu.forms import find_forms, modified
from gfx950emu.modifiers import reason_for
from gfx950emu.operands import VCC
from gfx950emu.semantics import TABLE, build
from gfx950emu.single import assemble, execute, machine
from gfx950emu.waves import Group
from tests.emulator import require_objdump

ROUNDS = 15
BASE = 4096
WITHOUT_EFFECT = (
    (r"v_cmpx?_(t|tru|f)_", r".*", "the result is the same whatever the sources are"),
    (r"v_cos_f32", r"-source|\|source\|", "the cosine is even"),
    (r"v_cvt_f32_ubyte0", r"sext\(source\)", "the lowest byte is the same"),
    (r"v_(lsh|ash)[lr]+rev_|v_ffbl_", r"sext\(source\)", "what is counted lies below the byte's last bit"),
    (r"v_cmpx?_class_", r"sext\(source\)", "the first source, a byte, is of no class beyond the eighth bit"),
    (r"v_cvt_f32_(ubyte|bf16)", r"dst_unused", "the lower half of the result is 0"),
    (r"v_cvt_f16_u16", r"dst_unused", "the result has no sign"),
    (r"v_mul_hi_u32_u24|v_and_b32", r"sext\(source\)", "the other source, a byte, leaves nothing of the upper bits"),
    (r"v_frexp_exp_", r"-source|\|source\|", "an exponent has no sign of its number"),
    (r"v_div_fixup_", r"-source|\|source\|", "the first source, the quotient, is computed anew"),
    (r"v_cmpx?_[ou]_", r"-source|\|source\|", "a NaN is one with either sign"),
)
"""(instructions, modifiers, reason): what the instruction looks at and what cannot change its result."""


class Case:
    """What one round starts from: floats of ordinary size in each width, a few values that are often equal, bits."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        words = rng.integers(0, 2**32, (64, 64), np.uint32)
        data = rng.integers(0, 2**32, 4 * BASE // 4, np.uint32)
        ordinary = rng.uniform(-4, 4, (64, 128)).astype(np.float32)
        if number % 5 == 0:
            words = ordinary[:, :64].copy().view(np.uint32)
        if number % 5 == 1:
            words = ordinary.astype(np.float16).view(np.uint32)
        if number % 5 == 2:
            words = (ordinary.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
        if number % 5 == 3:
            few = [[0x3C003C00, 0xBC00BC00], [0x3F800000, 0xBF800000], [0, 1, 0x80000000, 0xFFFFFFFF]][number // 5]
            words, data = (rng.choice(np.array(few, np.uint32), x.shape) for x in (words, data))
        self.vectors = {k: words[k] for k in range(2, 64)}
        scalars = rng.integers(0, 2**32, 128, np.uint32)
        self.scalars = {k: int(scalars[k]) for k in (*range(10, 24), VCC, VCC + 1)}
        self.data = data
        self.lds = rng.integers(0, 2**32, 1024, np.uint32)
        self.lanes = 2**64 - 1 if number % 2 else int(rng.integers(0, 2**63)) | 1 << 63

    def run(self, i: Instruction) -> list[np.ndarray]:
        """Return everything that an instruction may change."""
        memory = Memory()
        address = memory.add("data", self.data)
        places = np.arange(64, dtype=np.uint32) * 16
        low = (address + BASE + places.astype(np.uint64)) & np.uint64(0xFFFFFFFF)
        vectors = {**self.vectors, 1: places, 8: low.astype(np.uint32), 9: address >> 32}
        offset = address + BASE
        scalars = {**self.scalars, 40: offset & 0xFFFFFFFF, 41: offset >> 32, 44: offset & 0xFFFFFFFF,
                   45: offset >> 32, 46: BASE, 47: 0}  # fmt: skip
        uniform = "_tr_" in i.name or i.name.startswith("v_permlane")
        lanes = 2**64 - 1 if uniform else self.lanes
        g = machine(vectors, scalars, execute=lanes, lds=self.lds, memory=memory)
        g.run.scratch = np.resize(self.data.view(np.uint8), 64 * 4096)
        g.run.scratch_bytes = 4096
        return _state(execute(i, g), memory)


def _state(g: Group, memory: Memory) -> list[np.ndarray]:
    return [g.v, g.s, g.scc, g.run.lds, memory.get("data", np.uint8, (4 * BASE,)), g.run.scratch, g.flush]


CASES = [Case(number) for number in range(ROUNDS)]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, Instruction, Instruction]]:
    """(modifier, instruction without it, with it), of everything that the assembler takes."""
    require_objdump()
    forms = find_forms(TABLE)
    assert not [name for name, found in forms.items() if not found], "names that gfx950 does not have"
    tried = list(dict.fromkeys(case for found in forms.values() for form in found for case in modified(form)))
    texts = list(dict.fromkeys(text for _, plain, changed in tried for text in (plain, changed)))
    results = dict(zip(texts, assemble(texts), strict=True))
    found = {}
    for modifier, plain, changed in tried:
        base, i = results[plain], results[changed]
        if isinstance(i, Instruction) and isinstance(base, Instruction) and i.words != base.words:
            found.setdefault((tuple(base.words), tuple(i.words)), (modifier, base, i))
    return list(found.values())


def outcome(modifier: str, base: Instruction, i: Instruction) -> str:
    """Say what became of a modifier: "refused", "meaningless", "changes", or "dropped"."""
    try:
        build(i)
    except UnsupportedInstruction:
        return "refused"
    if reason_for(i.name, modifier):
        return "meaningless"
    if any(re.match(name, i.name) and re.fullmatch(what, modifier) for name, what, _ in WITHOUT_EFFECT):
        return "without effect"
    for case in CASES:
        try:
            without = case.run(base)
        except EmulatorError:
            without = None
        try:
            changed = case.run(i)
        except EmulatorError:
            if without is not None:
                return "refused"
            continue
        if without is None or any(not np.array_equal(a, b) for a, b in zip(without, changed, strict=True)):
            return "changes"
    return "dropped"


def test_every_modifier_counts_or_is_refused(pairs: list[tuple[str, Instruction, Instruction]]) -> None:
    found = Counter()
    dropped = []
    for modifier, base, i in pairs:
        what = outcome(modifier, base, i)
        found[what] += 1
        if what == "dropped":
            dropped.append(f"{modifier}: {i.text}")
    assert not dropped, f"{len(dropped)} of {len(pairs)}: " + "\n".join(dropped)
    assert found["changes"] > 2000
    assert found["refused"] > 500


def test_a_modifier_that_no_builder_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a careless builder of an instruction, with each kind of modifier."""
    require_objdump()
    for name in ("v_add_f16", "v_med3_f16"):
        monkeypatch.setitem(TABLE, name, lambda i: lambda g: None)
    texts = {
        "v_add_f16_e64 v20, v2, v4 clamp": "clamp",
        "v_med3_f16 v20, v2, v4, v6 op_sel:[0,1,0,0]": r"op_sel:\[0,1,0,0\]",
        "v_add_f16_e64 v20, -v2, |v4|": r"neg of -v2, abs of \|v4\|",
        "v_add_f16_sdwa v20, v2, v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD": "dst_sel",
        "v_add_f16_dpp v20, v2, v4 row_shr:1 row_mask:0xf bank_mask:0xf": "row_shr:1 is",
    }
    for i, what in zip(assemble(list(texts)), texts.values(), strict=True):
        assert isinstance(i, Instruction), i
        with pytest.raises(UnsupportedInstruction, match=f"{i.mnemonic} with .*{what}"):
            build(i)
    plain, indexed = assemble(["v_add_f16_e32 v20, v2, v4"] * 2)
    assert isinstance(plain, Instruction)
    assert isinstance(indexed, Instruction)
    assert build(plain) is not None
    indexed.modifiers = indexed.modifiers.extended(gpr_idx=[1, 0, 0, 0])
    with pytest.raises(UnsupportedInstruction, match="gpr_idx"):
        build(indexed)
