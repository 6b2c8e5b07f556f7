"""MXFP4 on Hopper: each route in each form of the weight against torch.mm on bf16 weights, in one run.

    python bench/hopper.py -o bench/results/hopper_h200.json [--m 1 16 256] [--seconds 0.05]

A recipe for mxgemm.measure: device times only, of seven weights. What is written is what ``mxgemm bench`` writes, to be
compared and drawn (``mxgemm plot``). Forms are measured at the M where somebody would take them. Printed last:
geometric means of the ratios to torch.mm.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mxgemm import measure
from mxgemm.measure import text
from mxgemm.measure.identity import identity, names
from mxgemm.measure.routes import Form
from mxgemm.mx.formats import ActivationFormat

WEIGHTS = ((5120, 2880), (2880, 4096), (7168, 2048), (7168, 16384), (10240, 8192), (57344, 8192), (8192, 28672))
MS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PEER = "torch_mm"


@dataclass(frozen=True)
class Variant:
    """One way to call, and the M at which it is measured."""

    route: str
    a_format: ActivationFormat
    form: Form
    m_min: int = 1
    m_max: int = 1 << 30


MAX_MMA = 32
"""Up to this M w4_mma takes it; compact weights are raw to it."""
MAX_WGMMA = 512

VARIANTS = (
    Variant("fp8_fold", "e2m1", "fast"),
    Variant("fp8_fold", "e2m1", "compact", m_min=64),
    Variant("dequant_mm", "e2m1", "raw", m_min=16),
    Variant("a16wfp4", "e2m1", "raw", m_max=64),
    Variant("dequant_mm", "bf16", "raw", m_min=16),
    Variant("w4a16", "bf16", "raw", m_max=256),
    Variant("w4_mma", "e2m1", "fast", m_max=MAX_MMA),
    Variant("w4_mma", "e2m1", "raw", m_max=MAX_MMA),
    Variant("w4_mma", "e4m3", "fast", m_max=MAX_MMA),
    Variant("w4_mma", "bf16", "fast", m_max=MAX_MMA),
    Variant("w4_mma", "bf16", "raw", m_max=MAX_MMA),
    Variant("w4_wgmma", "e2m1", "fast", m_min=64, m_max=MAX_WGMMA),
    Variant("w4_wgmma", "e2m1", "compact", m_min=64, m_max=MAX_WGMMA),
    Variant("w4_fp8", "e2m1", "compact", m_min=64, m_max=MAX_WGMMA),
    Variant("w4_wgmma", "e4m3", "fast", m_min=64, m_max=MAX_WGMMA),
    Variant("w4_wgmma", "bf16", "fast", m_min=64, m_max=2 * MAX_WGMMA),
    Variant("w4_wgmma", "bf16", "raw", m_min=64, m_max=MAX_WGMMA),
)


def main() -> int:
    """Measure; 1 where something was wrong or broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the document here")
    parser.add_argument("--force", action="store_true", help="replace a file that mxgemm bench did not write")
    parser.add_argument("--m", type=int, nargs="+", default=list(MS))
    parser.add_argument("--seconds", type=float, default=0.05, help="to spend on each time, at least three runs")
    arguments = parser.parse_args()
    keeper = measure.Keeper(arguments.output, force=arguments.force) if arguments.output else None
    requests = requests_for(torch.device("cuda", 0), arguments.m, arguments.seconds)
    total = len(measure.sizes_of(requests))

    def tell(done: int, what: str) -> None:
        print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)

    document = measure.run(requests, tell, keeper.keep if keeper else None)
    if keeper:
        keeper.finish(document)
    print(text.title(document))
    print(text.aligned(*summary(document["results"])))
    print("\n".join(text.notes(document)))
    return int(not measure.passed(document))


def requests_for(device: torch.device, ms: Iterable[int], seconds: float) -> list[measure.Request]:
    """Return a request for each variant; the first, which takes every M, brings the peer."""
    wanted = sorted(set(ms))
    return [
        measure.Request(
            shapes=[(m, n, k) for n, k in WEIGHTS for m in wanted if variant.m_min <= m <= variant.m_max],
            device=device,
            a_format=variant.a_format,
            form=variant.form,
            route=variant.route,
            peers=() if i else (PEER,),
            times=("device",),
            effort=measure.Effort(seconds=seconds),
        )
        for i, variant in enumerate(VARIANTS)
    ]


def summary(results: list[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and rows: for each variant and M the geometric mean, over the weights, of ratios to the peer."""
    timed = [record for record in results if record["device"]]
    theirs = {_size(record): record["device"]["us"] for record in timed if record["name"] == PEER}
    ratios: dict[tuple[Any, int], list[float]] = {}
    for record in timed:
        if record["kind"] == "route" and _size(record) in theirs:
            key = identity(record), record["m"]
            ratios.setdefault(key, []).append(record["device"]["us"] / theirs[_size(record)])
    ms = sorted({m for _, m in ratios})

    def cell(who: Any, m: int) -> str:
        return f"{statistics.geometric_mean(ratios[who, m]):.3f}" if (who, m) in ratios else ""

    named = {who: name for who, name in names(timed).items() if who.kind == "route"}
    rows = [(name, f"/ {PEER}", *(cell(who, m) for m in ms)) for who, name in named.items()]
    return ["variant", "", *(f"M {m}" for m in ms)], rows


def _size(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return record["m"], record["n"], record["k"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:  # a file that is somebody else's
        sys.exit(f"bench/hopper.py: {error}")
