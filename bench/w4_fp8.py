"""Is w4_fp8 right on this GPU, and how fast is it? Stand-alone: no plugin, no pytest.

    PYTHONPATH=. python bench/w4_fp8.py check [--cases 120] [--seed 0] [-o check.json]
    PYTHONPATH=. python bench/w4_fp8.py time [--shapes 64,7168,2048 ...] [--forms prepared compact]
                                             [--width 24] [-o time.json]

``check`` draws cases (bench/fp8_cases.py) and judges them against float64: two launches each on data of several kinds,
both gates of docs/numbers.md for sums of 13 bits, equal bits.

``time`` measures device time by graph replay over rotating weights (mxgemm.measure.timing), heated, beside torch.mm in
bf16 in the same run: many configurations briefly, the fastest of them again.

Kernels are built by processes that are forked before CUDA is started. Exit status 1 if anything failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from bench import fp8_cases
from bench.fp8_cases import drawn
from bench.mma_cases import Case, described
from bench.w4_kernels import Bench, Kit, Planned, Shape, run
from mxgemm.cuda.w4_fp8 import Fp8Config
from mxgemm.cuda.w4_fp8_choice import candidates
from mxgemm.problem import Problem
from mxgemm.routes.w4_fp8 import instances

KIND: Final = "mxgemm-w4-fp8"
ROUTE: Final = "w4_fp8"
FORMS: Final = {"prepared": "fp8_fold", "compact": "fp8_fold_compact"}
KIT: Final = Kit(fp8_cases.DATA, fp8_cases.make, fp8_cases.judged, FORMS, fp8_cases.made_of, ())
WEIGHTS: Final = ((5120, 2880), (2880, 4096), (7168, 2048), (7168, 16384), (10240, 8192), (57344, 8192), (8192, 28672))
SHAPES: Final = tuple((m, n, k) for n, k in WEIGHTS for m in (64, 128, 256, 512))
UNITS: Final = 132
"""Multiprocessors of an H200, for the choice of what to build before the GPU is asked."""


def timed_problem(shape: Shape, a_format: str, form: str) -> Problem:
    """Return the problem of contiguous operands."""
    m, n, k = shape
    problem = described(Case(m, n, k, Fp8Config(), a_format, derived=FORMS[form]))  # type: ignore[arg-type]
    return replace(problem, machine=replace(problem.machine, cu_count=UNITS))


def planned(shape: Shape, a_format: str, form: str, width: int) -> Planned:
    """Return the problem and what to time on it: the better ones by estimate, of each division the best first."""
    problem = timed_problem(shape, a_format, form)
    found: list[Fp8Config] = []
    seen: Counter[tuple[int, ...]] = Counter()
    for config in candidates(problem):
        division = (config.columns, config.groups_n, config.groups_k, config.resident)
        once = (*division, config.splits)
        seen[once] += 1
        if seen[once] > 1:  # with more of the weight in shared memory
            continue
        seen[division] += 1
        if seen[division] <= (3 if len(found) < width // 2 else 2) and len(found) < width:
            found.append(config)
    return Planned(problem, found, found[0])


if __name__ == "__main__":
    run(Bench(ROUTE, KIND, SHAPES, instances, drawn, planned, kit=KIT), __doc__)
