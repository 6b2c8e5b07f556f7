"""Texts of every instruction of the table: operands, encodings and modifiers that the assembler takes.

There is no list of what an instruction can be written with, so shapes are tried, the likely ones first. The same
registers stand in the same places: results in 20 and above, sources in 2, 4 and 6 (SGPRs in 10, 12 and 14), addresses
in v1 and v[8:9], an array's address in s[40:41] and a buffer's descriptor in s[44:47].
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gfx950emu.single import refusals

_V2, _V4, _V6 = ("v2", "v[2:3]"), ("v4", "v[4:5]"), ("v6", "v[6:7]")


def _vector_shapes() -> Iterator[str]:
    results = ("v20", "v[20:21]", "vcc", "s[20:21]", "s20")
    for sources in (
        [(a, b) for a, b in itertools.product(_V2, _V4)],
        [(a,) for a in _V2],
        [(a, b, c) for a, b, c in itertools.product(_V2, _V4, _V6)],
    ):
        for result, source in itertools.product(results, sources):
            yield ", ".join((result, *source))
    for carry, result in itertools.product(("vcc", "s[20:21]"), ("v20", "v[20:21]")):
        for rest in ("v2, v4", "v2, v4, vcc", "v2, v4, s[10:11]", "v2, v4, v[6:7]", "v2, v4, v6",
                     "v[2:3], v[4:5], v[6:7]"):  # fmt: skip
            yield f"{result}, {carry}, {rest}"
    yield from (
        "v20, v2, v4, vcc", "v20, v2, v4, s[10:11]", "v20, s10, s12", "s20, v2, s12", "v20, s10, 5",
        "v20, v2, 0x40490fdb, v4", "v20, v2, v4, 0x40490fdb", "v20, a2", "a20, v2", "a20, a2", "",
    )  # fmt: skip
    for count in (4, 16):
        result = f"v[20:{19 + count}]"
        for a, b in itertools.product(("v2", "v[2:3]", "v[2:5]", "v[2:9]", "v[2:7]"), repeat=2):
            second = re.sub(r"\d+", lambda found: str(int(found[0]) + 8), b)
            yield f"{result}, {a}, {second}, {result}"
            yield f"{result}, {a}, {second}, {result}, v18, v19"


def _scalar_shapes() -> Iterator[str]:
    yield from (
        "s20, s10, s12", "s[20:21], s[10:11], s[12:13]", "s20, s10", "s[20:21], s[10:11]", "s[20:21], s[10:11], s12",
        "s20, s[10:11]", "s[20:21], s10, s12", "s10, s12", "s[10:11], s[12:13]", "s20, 0x1234", "s[20:21]",
    )  # fmt: skip
    for first, last in ((20, 20), (20, 21), (20, 22), (20, 23), (20, 27), (20, 35)):
        result = f"s[{first}:{last}]" if last > first else "s20"
        yield from (f"{result}, s[40:41], 0x10", f"{result}, s[44:47], 0x10")
    yield from ("s12, gpr_idx(SRC0)", "hwreg(HW_REG_MODE, 4, 2), s10", "hwreg(HW_REG_MODE, 4, 2), 0x3",
                "s20, hwreg(HW_REG_XCC_ID)", "s12", "", "0x1", "vmcnt(0)")  # fmt: skip


_RESULTS: Final = ("v20", "v[20:21]", "v[20:22]", "v[20:23]")
_DATA: Final = ("v2", "v[2:3]", "v[2:4]", "v[2:5]")


def _memory_shapes(name: str) -> list[str]:
    segment, _, operation = name.partition("_")
    is_load = operation.startswith(("read", "load", "swizzle"))
    values = _RESULTS if is_load else _DATA
    if segment == "ds":
        if is_load:
            return [f"{value}, v1" for value in values]
        if "permute" in operation or "_rtn_" in operation:
            return ["v20, v1, v2"]
        return ["v1, v2, v4", "v1, v[2:3], v[4:5]", *(f"v1, {value}" for value in values), ""]
    if segment == "buffer":
        return [*(f"{value}, v1, s[44:47], 0 offen" for value in values), "sc1", ""]
    off = "" if segment == "flat" else ", off"
    address = "v1" if segment == "scratch" else "v[8:9]"
    if operation.startswith("load_lds"):
        return [f"{address}{off}"]
    return [f"{value}, {address}{off}" if is_load else f"{address}, {value}{off}" for value in values]


_VECTOR: Final = list(_vector_shapes())
_SCALAR: Final = list(_scalar_shapes())
_AT_ONCE: Final = 10
ENCODINGS: Final = {
    "_e64": "", "_sdwa": "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
    "_dpp": "row_shr:1 row_mask:0xf bank_mask:0xf",
}  # fmt: skip
"""Suffix of a mnemonic -> what else such an instruction is written with."""


@dataclass(frozen=True)
class Form:
    """One way to write an instruction.

    Attributes:
        mnemonic: with the encoding's suffix.
        operands: as text.
        rest: modifiers that it has anyway.
    """

    mnemonic: str
    operands: str
    rest: str = ""

    def text(self, more: str = "") -> str:
        """Return the instruction, with more modifiers."""
        return f"{self.mnemonic} {self.operands} {self.rest} {more}".strip()


def _with_rest(mnemonic: str, operands: str, suffix: str) -> list[Form]:
    """Return the forms to try: SDWA's fields depend on whether there is a result and a second source."""
    words = ENCODINGS[suffix].split()
    if suffix != "_sdwa":
        return [Form(mnemonic, operands, " ".join(words))]
    return [Form(mnemonic, operands, " ".join(chosen)) for chosen in (words, words[:3], words[2:], words[2:3])]


def find_forms(names: Iterable[str]) -> dict[str, list[Form]]:
    """Return for each name one form in each encoding that it has."""
    found: dict[str, list[Form]] = {name: [] for name in names}
    shapes = {name: _shapes(name) for name in found}
    for start in range(0, max(map(len, shapes.values()), default=0), _AT_ONCE):
        tries = [Form(n, shape) for n in found if not found[n] for shape in shapes[n][start : start + _AT_ONCE]]
        for form in _taken(tries):
            found[form.mnemonic] = found[form.mnemonic] or [form]
    first = [(name, forms[0].operands) for name, forms in found.items() if forms and name.startswith("v_")]
    tries = [
        form
        for name, shape in first
        for suffix in ENCODINGS
        for operands in _other_shapes(shape)
        for form in _with_rest(name + suffix, operands, suffix)
    ]
    seen = set()
    for form in _taken(tries):
        if form.mnemonic not in seen:
            seen.add(form.mnemonic)
            found[form.mnemonic.rpartition("_")[0]].append(form)
    return found


def _other_shapes(shape: str) -> Iterator[str]:
    """Yield what another encoding of an instruction may be written with: masks other than VCC, or VCC named."""
    yield from dict.fromkeys((shape.replace("vcc", "s[20:21]", 1), shape, shape.replace("s[20:21]", "vcc")))
    yield from (f"{shape}, {mask}" for mask in ("s[10:11]", "vcc"))


def _shapes(name: str) -> list[str]:
    if name.startswith("v_"):
        return _VECTOR
    return _SCALAR if name.startswith("s_") else _memory_shapes(name)


def _taken(tries: list[Form]) -> list[Form]:
    if not tries:
        return []
    return [form for form, why in zip(tries, refusals([form.text() for form in tries]), strict=True) if not why]


def modified(form: Form) -> Iterator[tuple[str, str, str]]:
    """Yield (modifier, text without it, text with it) of all that might be taken: most are not.

    A modifier of an operand is named as in "sext(source)".
    """
    name, count = form.mnemonic, form.operands.count(",") + 1
    plain = form.text("bitop3:0x6a" if name.startswith("v_bitop3") else "")
    words = _VECTOR_WORDS if name.startswith("v_") else _MEMORY_WORDS
    for word in _SWIZZLES if name == "ds_swizzle_b32" else words:
        yield word.partition(":")[0], plain, form.text(word)
    lists: dict[str, tuple[int, ...]] = {}
    if name.startswith("v_"):
        lists = {"op_sel": (count - 1, count, count + 1)}
    if name.startswith(("v_pk_", "v_dot2", "v_mfma_")):
        lists = {"op_sel": (count - 1, 3), "op_sel_hi": (count - 1, 3), "neg_lo": (count - 1,), "neg_hi": (count - 1,)}
    for modifier, lengths in lists.items():
        neutral = int(modifier == "op_sel_hi")
        for length in set(lengths):
            for which in range(length):
                bits = ",".join(str(neutral ^ (k == which)) for k in range(length))
                yield modifier, plain, f"{plain} {modifier}:[{bits}]"
    for old, new in _REPLACEMENTS:
        if old in form.rest:
            yield new.partition(":")[0], plain, plain.replace(old, new)
    for unused in ("UNUSED_SEXT", "UNUSED_PRESERVE"):
        if "dst_sel" in form.rest:
            part = plain.replace("dst_sel:DWORD", "dst_sel:WORD_0")
            yield "dst_unused", part, part.replace("UNUSED_PAD", unused)
    yield from _of_operands(form)


def _of_operands(form: Form) -> Iterator[tuple[str, str, str]]:
    rest = re.sub(r"(src._sel):DWORD", r"\1:BYTE_1", form.rest)
    for register in re.findall(r"\b[vs](?:\d+|\[\d+:\d+\])", form.operands):
        before, _, after = form.operands.rpartition(register)
        for change in ("-{}", "|{}|", "sext({})"):
            changed = Form(form.mnemonic, before + change.format(register) + after, form.rest)
            if change.startswith("sext"):
                if "_sel" in rest:
                    yield "sext(source)", replace(form, rest=rest).text(), replace(changed, rest=rest).text()
            else:
                yield change.format("source"), form.text(), changed.text()


_VECTOR_WORDS: Final = (
    "clamp", "mul:2", "mul:4", "div:2", "bound_ctrl:1", "fi:1", "bitop3:0x96", "cbsz:1", "abid:1", "blgp:1",
)  # fmt: skip
_MEMORY_WORDS: Final = (
    "sc0", "sc1", "nt", "glc", "gds", "lds", "idxen", "offset:4", "offset:8", "offset0:1", "offset1:2",
)  # fmt: skip
_SWIZZLES: Final = ("offset:0x041f", "offset:0x8055", "offset:0xc000", "offset:0xe000")
_REPLACEMENTS: Final = (
    ("dst_sel:DWORD", "dst_sel:BYTE_3"), ("dst_sel:DWORD", "dst_sel:WORD_1"),
    ("src0_sel:DWORD", "src0_sel:BYTE_2"), ("src0_sel:DWORD", "src0_sel:WORD_1"),
    ("src1_sel:DWORD", "src1_sel:BYTE_2"), ("src1_sel:DWORD", "src1_sel:WORD_1"),
    ("row_mask:0xf", "row_mask:0x5"), ("bank_mask:0xf", "bank_mask:0x3"),
    *(("row_shr:1", control) for control in (
        "quad_perm:[1,0,3,2]", "row_shl:2", "row_ror:3", "wave_shl:1", "wave_rol:1", "wave_shr:1", "wave_ror:1",
        "row_mirror", "row_half_mirror", "row_bcast:15", "row_bcast:31", "row_newbcast:3",
    )),
)  # fmt: skip
