"""Every kernel we ship for gfx950, as the machine code it compiles to, executed in the emulator and judged.

The counts of executed instructions are compared with bench/results/gfx950_executed.json. A change that is meant is
committed with `python evidence/gfx950_evidence.py`, which also writes docs/gfx950-evidence.md.
"""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evidence.gfx950_cases import CASES, MUTATED, Case, compile_cases, execute, mutants
from evidence.gfx950_evidence import DOCUMENT, RESULTS, render
from evidence.tritons import MISSING, other_triton
from tests.emulator import require_objdump
from tests.marks import EXHAUSTIVE, first_of

COMMITTED = json.loads(RESULTS.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile every case once for all of pytest's workers; the first that asks does it."""
    root = tmp_path_factory.getbasetemp()
    if root.name.startswith("popen-"):
        root = root.parent

    def folder_of(which: str) -> Path:
        require_objdump()
        pytest.importorskip("triton")
        installation = other_triton() if which == "other" else None
        if which == "other" and installation is None:
            pytest.skip(MISSING)
        folder = root / f"gfx950-{which}"
        with (root / f"gfx950-{which}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / f"{CASES[-1].name}.json").exists():
                compile_cases(CASES, folder, installation)
        return folder

    return folder_of


@pytest.mark.parametrize(
    "mode, triton",
    [("strict", "environment"), ("strict", "other"), pytest.param("normal", "environment", marks=EXHAUSTIVE)],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_and_counts(case: Case, mode: str, triton: str, compiled: Callable[[str], Path]) -> None:
    """In strict mode whatever compiled it: that judges the result as normal mode does, and the waits besides."""
    outcome = execute(case, compiled(triton), strict=mode == "strict")
    assert outcome.passed, outcome.detail
    committed = COMMITTED["cases"].get(case.name, {}).get(outcome.triton)
    if committed is not None:
        check_counts(case.name, committed["counts"], outcome.counts)


@pytest.mark.parametrize("case", first_of(reversed(MUTATED), 2), ids=lambda case: case.name)
def test_a_missing_wait_or_barrier_is_noticed(case: Case, compiled: Callable[[str], Path], tmp_path: Path) -> None:
    found = mutants(case, compiled("environment"), tmp_path)
    print(f"{case.name}: {found}")
    assert found.share >= 0.8, found
    if "one-launch" in case.name:
        # The stores' wait, the write-back, its wait, the invalidation: what hands partial sums from XCD to XCD.
        assert found.caught["OrderError"] == 4, found


def check_counts(name: str, committed: dict[str, int], now: dict[str, int]) -> None:
    moved = [
        f"{kind}: {committed.get(kind, 0)} -> {now.get(kind, 0)}"
        for kind in sorted(committed.keys() | now.keys())
        if committed.get(kind, 0) != now.get(kind, 0)
    ]
    assert not moved, (
        f"{name} executes other instructions than bench/results/gfx950_executed.json says: {'; '.join(moved)}. "
        "If that is meant, run: python evidence/gfx950_evidence.py"
    )


def test_a_moved_count_is_named() -> None:
    with pytest.raises(AssertionError, match="mfma: 4 -> 5; valu: 9 -> 0. If that is meant"):
        check_counts("x", {"mfma": 4, "valu": 9, "lds": 1}, {"mfma": 5, "lds": 1})


def test_every_case_is_committed_and_documented() -> None:
    assert list(COMMITTED["cases"]) == [case.name for case in CASES]
    assert render(COMMITTED) == DOCUMENT.read_text(encoding="utf-8"), "run: python evidence/gfx950_evidence.py --render"
