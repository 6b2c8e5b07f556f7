"""Compile for another GPU, with any triton, in a process of its own: this one runs the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

from evidence.tritons import MISSING, ROOT, compiler_environment, other_triton

TRITONS = ("own", "3.6")


def available(name: str) -> str | None:
    """Say why a triton cannot be used, or None."""
    return MISSING if name != "own" and other_triton() is None else None


@cache
def _results(name: str, jobs: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-m", "evidence.cross_compile"],
        input=jobs,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=compiler_environment(None if name == "own" else other_triton()),
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in lines]


def compile_jobs(name: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """Compile jobs of evidence/cross_compile.py with the named triton; each gives figures or {"error": ...}."""
    results = _results(name, json.dumps(jobs))
    assert len(results) == len(jobs)
    return results
