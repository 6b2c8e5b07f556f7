"""Is w4_wgmma right on this GPU, and how fast is it? Stand-alone: no plugin, no pytest.

    PYTHONPATH=. python bench/w4_wgmma.py check [--cases 120] [--seed 0] [-o check.json]
    PYTHONPATH=. python bench/w4_wgmma.py time  [--shapes 64,7168,2048 ...] [--a-formats e2m1 ...]
                                                [--forms raw prepared] [--width 24] [-o time.json]

``check`` draws cases as bench/w4_mma.py does, with more rows of A and this kernel's configurations, and judges them
alike: two launches each on data of several kinds, both gates of docs/numbers.md against float64, equal bits. Where
single blocks outweigh all others ("spread"), elements may be off by what truncated sums cost (docs/lab-notes.md).

``time`` measures device time by graph replay over rotating weights (mxgemm.measure.timing), heated, beside torch.mm in
bf16 in the same run: many configurations briefly, the fastest of them again.

Kernels are built by processes that are forked before CUDA is started. Exit status 1 if anything failed.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from bench.mma_cases import DTYPES, Case, described
from bench.w4_kernels import FORMS, Bench, Planned, Shape, run
from mxgemm.cuda.w4_wgmma import WgmmaConfig, wgmma_refusal
from mxgemm.cuda.w4_wgmma_choice import candidates
from mxgemm.cuda.warpgroups import COLUMNS
from mxgemm.mx import layouts
from mxgemm.problem import Problem
from mxgemm.routes.w4_wgmma import instances

KIND = "mxgemm-w4-wgmma"
ROUTE = "w4_wgmma"
SHAPES = tuple((m, n, k) for n, k in ((7168, 2048), (2880, 4096), (10240, 8192), (57344, 8192)) for m in (64, 128, 256))
UNITS = 132
"""Multiprocessors of an H200, for the choice of what to build before the GPU is asked."""


def drawn(count: int, seed: int, most: float = 1e7) -> list[Case]:
    """Draw cases that the kernel takes, the plain ones of every format first."""
    draw = random.Random(seed)
    cases = [
        Case(m, 528, 1152, WgmmaConfig(1, 64, 2, 1, 4), a_format, derived=derived)  # type: ignore[arg-type]
        for a_format, m, derived in itertools.product(("e2m1", "e4m3", "bf16"), (33, 64, 200), ("", "fp8_fold"))
    ]
    while len(cases) < count:
        layout = (draw.choice(layouts.WEIGHT_LAYOUTS), draw.choice(layouts.SCALE_LAYOUTS))
        shuffled = layout[0] == "preshuffled"
        config = WgmmaConfig(
            tiles=draw.choice((1, 1, 2, 4)),
            columns=draw.choice(COLUMNS),
            groups_n=draw.choice((1, 2, 2, 3, 4)),
            groups_k=draw.choice((1, 1, 2, 3, 4)),
            stages=draw.choice((2, 3, 4, 5, 8)),
            depth=draw.choice((1, 1, 2, 3, 4)),
            splits=draw.choice((1, 1, 1, 2, 3, 5, 8)),
        )
        case = Case(
            draw.choice((1, 8, 33, 48, 64, 65, 100, 128, 129, 200, 256, 257, 300, 513)),
            n=draw.choice((16, 32, 80, 272, 2112, 2880) if shuffled else (1, 7, 16, 33, 80, 257, 2112, 2880)),
            k=draw.choice((64, 128, 512, 2880, 7168) if shuffled else (32, 64, 96, 128, 160, 512, 2880, 7168)),
            config=config,  # type: ignore[arg-type]
            a_format=draw.choice(("e2m1", "e2m1", "e4m3", "bf16")),
            scale_rounding=draw.choice(("even", "even", "floor", "ceil", "rceil")),
            a_dtype=draw.choice((torch.bfloat16, *DTYPES)),
            a_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed", "unaligned")),
            layout=layout,
            w_layout="contiguous" if shuffled else draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            out_dtype=draw.choice(DTYPES),
            out_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            bias=draw.choice((None, None, *DTYPES)),
            derived=draw.choice(("", "fp8_fold", "bf16")),
        )
        if case.n * case.k < most and wgmma_refusal(described(case), config) is None:
            cases.append(case)
    return cases


def truncated(text: str, case: Case) -> bool:
    """Say whether an element is off by no more than truncation costs where few of all blocks carry a sum.

    Tensor cores truncate a sum at each product, here for 16 of K, by up to two roundoffs and one on average.
    """
    config: Any = case.config
    found = re.match(r"element (\S+) roundoffs", text)
    products = -(-case.k // (16 * config.groups_k * config.splits))
    return found is not None and case.data == "spread" and float(found[1]) <= 32.0 + products


def timed_problem(shape: Shape, a_format: str, form: str) -> Problem:
    """Return the problem of contiguous operands."""
    m, n, k = shape
    case = Case(m, n, k, WgmmaConfig(), a_format, derived=FORMS[form])  # type: ignore[arg-type]
    problem = described(case)
    return replace(problem, machine=replace(problem.machine, cu_count=UNITS))


def planned(shape: Shape, a_format: str, form: str, width: int) -> Planned:
    """Return the problem and what to time on it: the better ones by estimate, of each division the best first."""
    problem = timed_problem(shape, a_format, form)
    found: list[WgmmaConfig] = []
    seen: Counter[tuple[int, ...]] = Counter()
    for config in candidates(problem):
        division = (config.tiles, config.columns, config.groups_n, config.groups_k)
        seen[division] += 1
        if seen[division] <= (2 if len(found) < width // 3 else 1) and len(found) < width:
            found.append(config)
    return Planned(problem, found, found[0])


if __name__ == "__main__":
    run(Bench(ROUTE, KIND, SHAPES, instances, drawn, planned, allowed=truncated), __doc__)
