"""An all-pairs cover: every value of every parameter meets every value of every other in at least one case."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]


def cover(parameters: Mapping[str, Sequence[Any]], legal: Callable[[Case], bool], seed: int = 0) -> list[Case]:
    """Build the cover greedily, the same for the same seed.

    Args:
        parameters: values by name.
        legal: says whether a full case may be used; pairs that no legal case holds are left out.
        seed: of the candidates' order.
    """
    names = list(parameters)
    generator = random.Random(seed)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in range(len(parameters[a]))
        for y in range(len(parameters[b]))
    }
    cases: list[Case] = []
    given_up = 0
    while missing and given_up < 400:
        best: dict[str, int] | None = None
        gain: set[Any] = set()
        (a, x), (b, y) = generator.choice(sorted(missing))
        for _ in range(60):
            pick = {name: generator.randrange(len(parameters[name])) for name in names}
            pick[a], pick[b] = x, y
            if not legal({name: parameters[name][index] for name, index in pick.items()}):
                continue
            found = {pair for pair in missing if all(pick[name] == index for name, index in pair)}
            if len(found) > len(gain):
                best, gain = pick, found
        if best is None:
            missing.discard(((a, x), (b, y)))  # sixty draws held no legal case with this pair
            given_up += 1
            continue
        missing -= gain
        cases.append({name: parameters[name][index] for name, index in best.items()})
    return cases
