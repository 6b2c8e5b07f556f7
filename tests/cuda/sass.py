"""What a cubin's machine code holds: by NVIDIA's disassembler, which triton's wheel brings."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

OF_ALL = " of all warps"


class Code(NamedTuple):
    """Instructions by name and suffixes, of a kernel and of the first loop with the most matrix instructions.

    ``names`` are those of the kernel in their order.
    """

    kernel: Counter[str]
    loop: Counter[str]
    registers: int
    names: tuple[str, ...]

    def count(self, name: str) -> int:
        """Return how many instructions of the loop have a name, whatever its suffixes."""
        return sum(number for whole, number in self.loop.items() if whole.split(".")[0] == name)


def tool(name: str) -> str:
    """Return the path of a tool, or skip the test."""
    found = importlib.util.find_spec("triton")
    folder = Path(found.origin or "").parent / "backends" / "nvidia" / "bin" if found else Path()
    path = shutil.which(name, path=str(folder)) or shutil.which(name)
    if path is None:
        pytest.skip(f"no {name}: it is in triton's wheel and in CUDA's toolkit")
    return path


def disassemble(image: bytes, folder: Path) -> Code:
    """Disassemble a cubin of one kernel."""
    file = folder / "kernel.cubin"
    file.write_bytes(image)
    text = _run(tool("nvdisasm"), "-c", file)
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _run(tool("cuobjdump"), "-res-usage", file))
    assert usage
    assert (int(usage[2]), int(usage[3])) == (0, 0), f"registers are spilled: {usage[0]}"
    names, labels, branches = list[str](), dict[str, int](), list[tuple[int, str]]()
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(names)
        elif code := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(\w[\w.]*)(.*)", line):
            if target := re.search(r"`\((\.L_x_\d+)\)", code[2]):
                branches.append((len(names), target[1]))
            names.append(code[1] + (OF_ALL if code[1].startswith("BAR") and code[2].startswith(" 0x0 ") else ""))
    loops = sorted((labels[to], at + 1) for at, to in branches if labels[to] < at)
    best = max(loops, key=lambda loop: (_products(names[slice(*loop)]), -loop[0], loop[0] - loop[1]), default=(0, 0))
    return Code(Counter(names), Counter(names[slice(*best)]), int(usage[1]), tuple(names))


def _products(names: list[str]) -> int:
    """Count matrix instructions; none in what holds a barrier of all warps: that is a jump back, not a loop."""
    return 0 if any(name.endswith(OF_ALL) for name in names) else sum(name.startswith("HMMA") for name in names)


def _run(*command: str | Path) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout
