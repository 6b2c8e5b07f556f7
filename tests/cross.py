"""Compile for another GPU, with any triton, in a process of its own: this one runs the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRITON36_VARIABLE = "MXGEMM_TRITON36"


def tritons() -> dict[str, Path | None]:
    """Name the tritons to compile with: the environment's own, and 3.6 where it was put aside (see the Makefile)."""
    aside = Path(os.environ.get(TRITON36_VARIABLE, ROOT / ".cache" / "triton36"))
    return {"own": None, "3.6": aside}


def available(name: str) -> str | None:
    """Say why a triton cannot be used, or None."""
    folder = tritons()[name]
    if folder is not None and not (folder / "triton").is_dir():
        return f"triton 3.6.0 is not in {folder} (make test puts it there; {TRITON36_VARIABLE} names another folder)"
    return None


@cache
def _results(name: str, jobs: str) -> list[Any]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    folder = tritons()[name]
    path = [str(ROOT), *([str(folder)] if folder else [])]
    environment["PYTHONPATH"] = os.pathsep.join(reversed(path))
    done = subprocess.run(
        [sys.executable, "-m", "tools.cross_compile"],
        input=jobs,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in lines]


def compile_jobs(name: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """Compile jobs of tools/cross_compile.py with the named triton; each gives a list of figures or {"error": ...}."""
    results = _results(name, json.dumps(jobs))
    assert len(results) == len(jobs)
    return results
