"""Which tritons kernels are compiled with besides running them, and the environment of a process that compiles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VARIABLE: Final = "MXGEMM_TRITON36"
MISSING: Final = (
    f"triton 3.6.0 is installed neither in .cache/triton36 (make test does it) nor where {VARIABLE} names it"
)


def other_triton() -> Path | None:
    """Return where triton 3.6.0 is installed, beside the environment's own, or None."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else ROOT / ".cache" / "triton36"
    return path if (path / "triton").is_dir() else None


def compiler_environment(triton: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Return the environment of a process that compiles: outside the interpreter, with the triton named or its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([*([os.fspath(triton)] if triton else []), str(ROOT)])
    return environment
