"""A toolchain for CK tile without ROCm: ``stand_ins`` for the headers, the host's g++ under the name of hipcc."""

import stat
import sys
from pathlib import Path

HEADERS = Path(__file__).parent / "stand_ins"

HIPCC = """#!{python}
import pathlib, subprocess, sys

here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
with (here / "calls").open("a") as log:
    log.write(" ".join(arguments) + chr(10))
if "--version" in arguments:
    sys.exit(print("stand-in for hipcc"))
if "-" in arguments:  # the probe of a flag
    sys.exit((here / "no_coerce").exists())
kept, skip = [], False
for argument in arguments:
    if skip or argument in ("-mllvm", "-x"):
        skip = not skip
    elif not argument.startswith(("--offload", "-fno-offload")):
        kept.append("-O1" if argument == "-O3" else argument)
sys.exit(subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", *kept]).returncode)
"""


def make_hipcc(folder: Path) -> Path:
    """Write the compiler into a folder; ``calls`` beside it lists how it was called."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hipcc"
    path.write_text(HIPCC.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(hipcc: Path) -> list[str]:
    """Return how the compiler was called."""
    log = hipcc.with_name("calls")
    return log.read_text().splitlines() if log.exists() else []
