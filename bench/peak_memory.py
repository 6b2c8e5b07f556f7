"""Peak memory of one gemm on the CPU, beyond its operands and its result.

    python bench/peak_memory.py [M N K] [ROUTE]     default 4 57344 8192, the widest linear layer of Llama-3-405B's kind

Prints and checks: peak resident memory of the process during the call, minus what it held before, stays under 64 MB, by
route ``reference`` under 256 MB.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
from datetime import datetime, timezone

import torch

import mxgemm

LIMIT_MB = {"reference": 256}
OTHERS_MB = 64


def main() -> None:
    """Measure in this fresh process; exit status 1 when over the limit."""
    m, n, k = (int(text) for text in sys.argv[1:4]) if len(sys.argv) > 3 else (4, 57344, 8192)
    route = sys.argv[4] if len(sys.argv) > 4 else mxgemm.explain(m, n, k, device="cpu").route
    limit = LIMIT_MB.get(route, OTHERS_MB)
    warm_up = mxgemm.quantize(torch.ones(64, 64))
    mxgemm.gemm(torch.ones(2, 64), warm_up, route=route)  # thread pools and lazy imports
    data = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scales = torch.randint(120, 132, (n, k // 32), dtype=torch.uint8)
    a = torch.randn(m, k, dtype=torch.bfloat16)
    before = _peak_mb()
    out = mxgemm.gemm(a, data, scales, route=route)
    extra = _peak_mb() - before
    record = {
        "kind": "mxgemm-peak-memory",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "route": route,
        "shape": [m, n, k],
        "operands_mb": round((data.nbytes + scales.nbytes + a.nbytes) / 1e6, 1),
        "output_mb": round(out.nbytes / 1e6, 1),
        "extra_mb": round(extra, 1),
        "limit_mb": limit,
        "method": "growth of the process's peak resident set (ru_maxrss) during the call, output included",
    }
    print(json.dumps(record, indent=1))
    sys.exit(extra > limit + out.nbytes / 1e6)


def _peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


if __name__ == "__main__":
    main()
