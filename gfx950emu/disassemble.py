"""Disassemble with llvm-objdump and parse its text into instructions; the result is cached in the temporary folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from gfx950emu.errors import MissingTool
from gfx950emu.modifiers import Modifiers
from gfx950emu.operands import Operand

OBJDUMP: Final = ("llvm-objdump-22", "llvm-objdump-21", "llvm-objdump-20", "llvm-objdump")
ENCODINGS: Final = ("_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp")
_LINE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]{8,}): ((?:[0-9A-F]{8}\s*)+)(?:<.*>)?\s*$")
_RAW = ("s_waitcnt", "s_nop", "s_sleep", "s_setprio", "s_sendmsg", "s_endpgm")


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        pc: address.
        words: machine code.
        mnemonic: as LLVM prints it, with the encoding's suffix.
        name: without it.
        encoding: "sdwa", "dpp" or "": what the suffix says beyond the operation.
        arguments: operands as text.
        modifiers: what follows the operands: True, a number, a list or a name. s_set_gpr_idx_on adds gpr_idx, the
            operands that are relative to M0 (element 0: first source, 3: destination).
        text: the whole line.
        operands: the arguments, parsed; registers are numbered in one file (see ``Program``).
    """

    pc: int
    words: list[int]
    mnemonic: str
    name: str
    encoding: str
    arguments: list[str]
    modifiers: Modifiers
    text: str
    operands: list[Operand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.modifiers = Modifiers(self.modifiers)

    @property
    def size(self) -> int:
        """Bytes of machine code."""
        return 4 * len(self.words)

    @property
    def immediate(self) -> int:
        """The low half of the first word: the constant of s_waitcnt, s_nop and branches."""
        return self.words[0] & 0xFFFF

    @property
    def signed_immediate(self) -> int:
        """The same, sign-extended."""
        return self.immediate - (self.immediate >> 15 << 16)

    def __str__(self) -> str:
        return f"{self.pc:06x}: {self.text}"


def find_tool(variable: str, names: Sequence[str] = OBJDUMP) -> str:
    """Return the path of one of LLVM's tools: what an environment variable names, else the first that is there."""
    named = os.environ.get(variable)
    for candidate in (named, *names) if named else names:
        path = shutil.which(candidate or "")
        if path:
            return path
    raise MissingTool(
        f"{names[-1]} is not installed (looked for {variable}, {', '.join(names)}); "
        "on Debian and Ubuntu: apt install llvm-22"
    )


def disassemble(code: bytes) -> list[Instruction]:
    """Return the instructions of a code object in address order."""
    folder = _own_folder()
    cached = folder / f"{hashlib.sha256(code + _decides()).hexdigest()[:32]}.json" if folder else None
    try:
        parsed = json.loads(cached.read_text(encoding="utf-8")) if cached else parse(_objdump(code))
    except (OSError, ValueError):
        parsed = parse(_objdump(code))
        if cached:
            partial = cached.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            partial.write_text(json.dumps(parsed), encoding="utf-8")
            partial.replace(cached)
    instructions = [Instruction(*fields) for fields in parsed]
    _mark_gpr_index(instructions)
    return instructions


def _own_folder() -> Path | None:
    """Return the folder of results; None where it is not this user's alone, for what lies there is believed."""
    folder = Path(tempfile.gettempdir()) / f"gfx950emu-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if own else None


@cache
def _decides() -> bytes:
    """Return what decides a result besides the code object: this parser and the tool."""
    return Path(__file__).read_bytes() + find_tool("GFX950EMU_OBJDUMP").encode()


def _objdump(code: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as handle:
        handle.write(code)
        handle.flush()
        command = [find_tool("GFX950EMU_OBJDUMP"), "-d", "--mcpu=gfx950", handle.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def parse(listing: str) -> list[tuple[Any, ...]]:
    """Parse what ``llvm-objdump -d`` prints into the fields of instructions."""
    parsed = []
    for line in listing.splitlines():
        match = _LINE.match(line)
        if match:
            parsed.append(_fields(match[1], int(match[2], 16), [int(word, 16) for word in match[3].split()]))
        elif line.startswith("\t") and "//" in line:
            raise ValueError(f"llvm-objdump printed a line that does not parse: {line!r}")
    return parsed


def _fields(text: str, pc: int, words: list[int]) -> tuple[Any, ...]:
    mnemonic, _, rest = text.partition(" ")
    suffix = next((s for s in ENCODINGS if mnemonic.startswith("v_") and mnemonic.endswith(s)), "")
    encoding = suffix.removeprefix("_e64").removeprefix("_").removeprefix("e32")
    arguments: list[str] = []
    modifiers: dict[str, Any] = {}
    if rest.strip() and not mnemonic.startswith(_RAW):
        for piece in _split(rest.strip(), ","):
            for position, word in enumerate(w for w in _split(piece, " ") if w):
                if position == 0 and ":" not in word.split("[")[0]:
                    arguments.append(word)
                else:
                    key, _, value = word.partition(":")
                    modifiers[key] = _value(value)
    return pc, words, mnemonic, mnemonic.removesuffix(suffix), encoding, arguments, modifiers, text


def _split(text: str, separator: str) -> list[str]:
    """Split outside of brackets."""
    out, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in "])")
        if depth == 0 and character == separator:
            out.append(current.strip())
            current = ""
        else:
            current += character
    return [*out, current.strip()]


def _value(text: str) -> Any:
    if text == "":
        return True
    if text.startswith("["):
        return [int(item) for item in text[1:-1].split(",")]
    try:
        return int(text, 0)
    except ValueError:
        return text


def _mark_gpr_index(instructions: list[Instruction]) -> None:
    index = 0
    for i in instructions:
        if i.name == "s_set_gpr_idx_on":
            index = (i.words[0] >> 8) & 15
        elif i.name == "s_set_gpr_idx_off":
            index = 0
        elif index and i.name.startswith("v_"):
            i.modifiers = i.modifiers.extended(gpr_idx=[index >> bit & 1 for bit in range(4)])
