"""Run the emulator's table against the pseudo-code: random operands, every kind of operand and modifier."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gfx950emu.disassemble import Instruction
from gfx950emu.errors import EmulatorError
from gfx950emu.forms import Form, find_forms, modified
from gfx950emu.numeric import Array
from gfx950emu.operands import EXEC, M0, VCC
from gfx950emu.pcode.expected import DIFFERENCES, SKIPPED
from gfx950emu.pcode.functions import Functions
from gfx950emu.pcode.language import Reader, Statement
from gfx950emu.pcode.operands import Roles, register_bits, roles, source_bits, type_of
from gfx950emu.pcode.targets import Elements
from gfx950emu.pcode.values import Unsupported, Value, of_bits
from gfx950emu.semantics import TABLE
from gfx950emu.single import assemble, execute, machine
from gfx950emu.waves import Group

_ENTRY = re.compile(r"^\s*\w+\.(\w+): (.+),\s*$", re.M)
ENTRIES: Final = ("_e32", "_e64")
SPECIAL: Final = (
    0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 1, 0x007FFFFF, 0x3EFFFFFF,
    0x3C003C00, 0x7C017E00, 0x80007C00, 0x0001FC00, 31, 32, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FF00000, 0x7FF80000,
)  # fmt: skip


@dataclass
class Outcome:
    """What a comparison found.

    Attributes:
        texts: instruction texts that were run.
        results: results of lanes, or of waves for scalar ones, that were compared.
        refused: texts that the emulator refuses.
        skipped: names that are not compared, with the reason.
        differences: for each instruction the first few.
        counts: how many results differ, by instruction.
        instructions: names that were compared.
    """

    texts: int = 0
    results: int = 0
    refused: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    differences: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    instructions: set[str] = field(default_factory=set)

    @property
    def unexpected(self) -> list[str]:
        """Names that differ and are not in the list of differences."""
        return [name for name in self.differences if reason_of(name, DIFFERENCES) is None]


def reason_of(name: str, table: tuple[tuple[str, str], ...]) -> str | None:
    """Return a table's reason for a name."""
    return next((reason for names, reason in table if re.fullmatch(names, name)), None)


def read_texts(path: Path) -> dict[str, str]:
    """Read the texts of a file of lines ``Group.NAME: 'text',`` by the instruction's name without its encoding."""
    found: dict[str, str] = {}
    for name, text in _ENTRY.findall(path.read_text(encoding="utf-8")):
        plain = name.lower()
        for suffix in ENTRIES:
            plain = plain.removesuffix(suffix)
        found.setdefault(plain, ast.literal_eval(text))
    return found


def programs_of(texts: Mapping[str, str]) -> dict[str, Statement]:
    """Read every text that the language covers."""
    found = {}
    for name, text in texts.items():
        try:
            found[name] = Reader(text).program()
        except Unsupported:
            continue
    return found


def compare(texts: Mapping[str, str], rounds: int = 3, names: set[str] | None = None) -> Outcome:
    """Compare every instruction that both the table and the texts have."""
    outcome, programs = Outcome(), programs_of(texts)
    chosen = []
    for name in sorted(TABLE if names is None else names):
        if not name.startswith(("v_", "s_")):
            continue
        reason = reason_of(name, SKIPPED) or ("no text" if name not in texts else None)
        reason = reason or (None if name in programs else "a text that the reader does not understand")
        if reason:
            outcome.skipped[name] = reason
        else:
            chosen.append(name)
    cases = [text for form in _forms(chosen) for text in _texts(form)]
    functions = Functions(programs)
    seen = set()
    for i in assemble(list(dict.fromkeys(cases))):
        if isinstance(i, str) or tuple(i.words) in seen:
            continue
        seen.add(tuple(i.words))
        try:
            Trial(i, texts[i.name], programs[i.name], functions, outcome).run(rounds)
        except Unsupported as error:
            outcome.skipped[i.name] = str(error)
        except EmulatorError:
            outcome.refused += 1
    return outcome


def _forms(names: list[str]) -> Iterator[Form]:
    for forms in find_forms(names).values():
        yield from (form for form in forms if not form.mnemonic.endswith(("_sdwa", "_dpp")))


def _texts(form: Form) -> Iterator[str]:
    """Yield the plain text, other kinds of sources, and modifiers that keep the text's meaning."""
    yield form.text()
    first = form.operands.partition(", ")[0]
    sources = re.findall(r"\bv(?:\d+|\[\d+:\d+\])|\bs1\d\b|\bs\[1\d:1\d\]", form.operands)
    for register in dict.fromkeys(register for register in sources if register != first):
        wide = "[" in register
        for other in ("s[10:11]" if wide else "s14", "7", "-3", "64", "1.0", "-4.0", "0x3e123456"):
            changed = re.sub(rf"(?<=, ){re.escape(register)}", other, form.operands)
            yield Form(form.mnemonic, changed, form.rest).text()
            if form.mnemonic.startswith("v_pk_"):
                yield Form(form.mnemonic, changed, form.rest).text("op_sel_hi:[1,0]")
    for modifier, _, text in modified(form):
        if modifier in ("-source", "|source|", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "bitop3"):
            yield text
        if modifier == "clamp" and re.search(r"_(f16|f32|f64)(_|$)", form.mnemonic):
            yield text


class Trial:
    """One instruction against its text."""

    def __init__(self, i: Instruction, text: str, program: Statement, functions: Functions, outcome: Outcome) -> None:
        self.i, self.text, self.program, self.functions, self.outcome = i, text, program, functions, outcome
        self.roles: Roles = roles(i)
        self.types = [self._type(k) for k in range(len(self.roles.sources))]
        self.result = type_of(text, "D0") or type_of(text, "D") or "b32"
        self.is_scalar = i.name.startswith("s_")

    def _type(self, which: int) -> str:
        kind = type_of(self.text, f"S{which}") or "u32"
        if self.i.name.startswith("v_pk_") and self.i.name.endswith("16"):
            return f"{kind[0]}16"
        if self.i.name == "v_cvt_f32_bf16":
            return "bf16"  # the text has its bits, b16
        return f"{kind[0]}32" if kind.endswith(("24", "8")) and kind[0] in "ui" else kind

    def run(self, rounds: int) -> None:
        """Compare some rounds; raise what the emulator or the reader raises."""
        for number in range(rounds * (4 if self.is_scalar else 1)):
            g = _machine(number, self.i)
            before = g.v.copy(), g.s.copy(), bool(g.scc[0])
            try:
                execute(self.i, g)
            except EmulatorError:
                if number == 0:
                    raise
                return
            if number == 0:
                self.outcome.texts += 1
                self.outcome.instructions.add(self.i.name)
            lanes = int(before[1][EXEC, 0]) | int(before[1][EXEC + 1, 0]) << 32
            if self.is_scalar:
                self._compare(g, before, 0)
                continue
            for lane in range(64):
                if not lanes >> lane & 1:
                    self._check("an inactive lane", 0, int((g.v[:, 0, lane] != before[0][:, 0, lane]).any()))
                elif lane % 4 == number % 4:
                    self._compare(g, before, lane)

    def _names(self, before: tuple[Array, Array, bool], lane: int) -> dict[str, Any]:
        v, s, scc = before
        names: dict[str, Any] = {"laneId": of_bits("u", 32, lane), "SCC": of_bits("u", 1, int(scc))}
        for k, o in enumerate(self.roles.sources):
            names[f"S{k}"] = of_bits("b", 64, source_bits(self.i, k, o, self.types[k], v, s, lane))
        if self.roles.literal is not None:
            value = self.roles.literal.value
            bits = int(value) if isinstance(value, int) else int(np.float32(value).view(np.uint32))
            names["SIMM32"] = of_bits("b", 32, bits)
        mask = self.roles.mask
        names["VCC"] = of_bits("b", 64, 0 if mask is None else register_bits(mask, v, s, 0))
        names["EXEC"] = of_bits("b", 64, int(s[EXEC, 0]) | int(s[EXEC + 1, 0]) << 32)
        names["D0"] = of_bits("b", 64, register_bits(self.roles.result, v, s, lane) if self.roles.result else 0)
        op_sel = sum(self.i.modifiers.bit("op_sel", k) << k for k in range(4))
        names["OPSEL"] = of_bits("u", 4, op_sel)
        table = self.i.modifiers.get("bitop3", 0)
        for part, shift, width in (("OMOD", 6, 2), ("ABS", 3, 3), ("NEG", 0, 3)):
            names[f"INST.{part}"] = of_bits("u", width, table >> shift)
        first = self.roles.sources[0] if self.roles.sources else None
        if first is not None and not isinstance(first, int) and first.is_vector:
            names["SRC0"] = of_bits("u", 32, first.index)
        return names

    def _compare(self, g: Group, before: tuple[Array, Array, bool], lane: int) -> None:
        scope = self.functions.scope(self._names(before, lane))
        scope.arrays["VGPR"] = Elements(2, lambda at, index: of_bits("b", 32, int(before[0][index, 0, at])), _no_write)
        self.program(scope)
        names = scope.names
        self.outcome.results += 1
        if self.is_scalar:
            self._check("SCC", names["SCC"].bits & 1, int(g.scc[0]))
            self._check("EXEC", names["EXEC"].bits, int(g.s[EXEC, 0]) | int(g.s[EXEC + 1, 0]) << 32)
        result = self.roles.result
        if result is None:
            return
        got = register_bits(result, g.v, g.s, lane)
        if self.i.name.startswith("v_cmp"):
            self._check("mask", names["D0"].bits >> lane & 1, got >> lane & 1)
            return
        if self.roles.second is not None:
            mask = register_bits(self.roles.second, g.v, g.s, 0)
            wanted = names["D1"].bits if "D1" in names else names["VCC"].bits >> lane
            self._check("carry", wanted & 1, mask >> lane & 1)
        self._check_result(names.get("D", names["D0"]), got)

    def _check_result(self, wanted: Value, got: int) -> None:
        kinds = _parts(self.i.name, self.result)
        clamp = bool(self.i.modifiers.get("clamp"))
        high = len(kinds) == 1 and kinds[0].endswith("16") and self.i.modifiers.bit("op_sel", len(self.types))
        bits, got = wanted.bits, got >> 16 if high else got
        for kind in kinds:
            width = int(kind.lstrip("bfui"))
            to = "bf" if kind == "bf16" else "f" if kind[0] == "f" else "u"
            a, b = (of_bits(to, width, x) for x in (bits, got))
            if clamp and a.is_float:
                a = Value(a.kind, a.width, 0.0 if not a.x > 0 else min(a.x, 1.0))
            if not (a.is_float and a.x != a.x and b.x != b.x):
                self._check("result", a.bits, b.bits)
            bits, got = bits >> width, got >> width

    def _check(self, what: str, wanted: int, got: int) -> None:
        if wanted != got:
            self._differs(what, wanted, got)

    def _differs(self, what: str, wanted: int, got: int) -> None:
        name = self.i.name
        self.outcome.counts[name] = self.outcome.counts.get(name, 0) + 1
        found = self.outcome.differences.setdefault(name, [])
        if len(found) < 3:
            found.append(f"{self.i.text}: {what} 0x{got:x}, text 0x{wanted:x}")


def _no_write(*_: Any) -> None:
    raise Unsupported("a write to another lane")


def _parts(name: str, result: str) -> list[str]:
    """Return the types that a result is made of, the lowest first."""
    if name.startswith("v_pk_") or name in ("v_cvt_pk_f16_f32", "v_cvt_pkrtz_f16_f32", "v_pack_b32_f16"):
        match = re.search(
            r"(f16|f32|u16|i16|b16|b32)$", name.replace("pkrtz_f16_f32", "f16").replace("pk_f16_f32", "f16")
        )
        kind = "f16" if name == "v_pack_b32_f16" else match[1] if match else "u16"
        return [kind, kind]
    if name == "v_cvt_pk_bf16_f32":
        return ["bf16", "bf16"]
    return [result]


def _machine(number: int, i: Instruction) -> Group:
    """Return a wave for one round: bits at random, floats of ordinary size, special values; EXEC full and random."""
    rng = np.random.default_rng([number, len(i.name)])
    words = rng.integers(0, 2**32, (64, 64), np.uint32)
    if number % 4 == 1:
        words = rng.permuted(np.resize(np.array(SPECIAL, np.uint32), words.shape), axis=1)
    if number % 4 == 2:
        words = rng.uniform(-8, 8, (64, 64)).astype(np.float32).view(np.uint32)
    if number % 4 == 3:
        words = rng.uniform(-8, 8, (64, 128)).astype(np.float16).view(np.uint32)
    lanes = 2**64 - 1 if number % 2 else int(rng.integers(1, 2**63))
    numbers = [*range(10, 24), VCC, VCC + 1, M0]
    scalars = {k: int(words[k % 64, (7 * k) % 64]) for k in numbers}
    return machine({k: words[k] for k in range(64)}, scalars, scc=number >> 1 & 1, execute=lanes)
