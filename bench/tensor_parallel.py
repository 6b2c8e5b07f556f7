"""Linear layers that several GPUs share, over NCCL: right or not, and how long a call takes.

    python bench/tensor_parallel.py [-o bench/results/tensor_parallel_h200x2.json] [--backend nccl] [--count 2]

A process a GPU. Column-parallel layers (results gathered), row-parallel ones (sums of fp32 partial products, rounded
once) and rows that are quantised, gathered as bytes and multiplied are compared with float64 by the two gates of
docs/numbers.md, on random data whose block scales differ, and with the single process's layer by their bits. DTensors
of the operators are compared in the same way. Times are those of 50 calls in a CUDA graph between two events, the
slowest process's, the best of five, beside those of the whole layer on one GPU. The weights of one layer stay in the
GPU's cache from call to call.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor

import mxgemm
from mxgemm.measure import output
from mxgemm.measure.environment import describe_environment
from mxgemm.mx.accuracy import Accuracy, judge
from mxgemm.nn import MXLinear
from mxgemm.parallel import ColumnParallelMXLinear, RowParallelMXLinear, gather_quantized
from mxgemm.routes import ROUTES

KIND: Final = "mxgemm-tensor-parallel"
SIZES: Final = ((1, 8192, 8192), (16, 8192, 8192), (33, 2880, 4096), (256, 8192, 8192), (2, 66, 192))
SMALL: Final = ((2, 66, 192), (4, 64, 128))
FORMATS: Final = ("e2m1", "e4m3", "bf16")
COLUMNS: Final = 256
CALLS: Final = 50
REPEATS: Final = 5


def main() -> None:
    """Run, write, and exit with status 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--count", type=int, default=2, help="processes")
    parser.add_argument("--small", action="store_true", help="small sizes, for a try on a CPU")
    options = parser.parse_args()
    keep = output.json_file(options, KIND)
    with tempfile.TemporaryDirectory() as folder:
        given = (options.count, options.backend, folder, SMALL if options.small else SIZES)
        processes.spawn(process, given, nprocs=options.count)  # type: ignore[attr-defined, no-untyped-call]
        document = json.loads(Path(folder, "document.json").read_text())
    wrong = [row for row in document["rows"] if not row["right"]]
    print(json.dumps({"rows": len(document["rows"]), "wrong": wrong}, indent=1))
    keep(document)
    raise SystemExit(1 if wrong else 0)


def process(rank: int, count: int, backend: str, folder: str, sizes: tuple[tuple[int, int, int], ...]) -> None:
    """Be one of the processes; the first writes what it found."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meet = f"file://{folder}/meet"
    dist.init_process_group(backend, init_method=meet, rank=rank, world_size=count, timeout=timedelta(seconds=60))
    rows = []
    with torch.no_grad():
        for seed, size in enumerate(sizes):
            for a_format in FORMATS:
                rows += layers(*size, a_format, seed, device)
            rows += tensors(*size, seed, device)
    if rank == 0:
        document = {
            "kind": KIND,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "environment": describe_environment(device),
            "nccl": list(torch.cuda.nccl.version()) if backend == "nccl" else None,  # type: ignore[no-untyped-call]
            "variables": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
            "backend": backend,
            "processes": count,
            "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
            "rows": rows,
        }
        Path(folder, "document.json").write_text(json.dumps(document))
    dist.barrier()
    dist.destroy_process_group()


def drawn(m: int, n: int, k: int, seed: int, device: torch.device) -> tuple[Tensor, mxgemm.MXTensor, Tensor]:
    """Return operands, the same in every process: N(0, 1) times a power of two for each block."""
    generator = torch.Generator().manual_seed(seed)

    def blocks(rows: int) -> Tensor:
        powers = torch.randint(-3, 4, (rows, k // 32), generator=generator).float()
        values = torch.randn(rows, k, generator=generator) * torch.exp2(powers).repeat_interleave(32, 1)
        return values.to(device, torch.bfloat16)

    return blocks(m), mxgemm.quantize(blocks(n)), torch.randn(n, generator=generator).to(device, torch.bfloat16)


def layers(m: int, n: int, k: int, a_format: Any, seed: int, device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each way of sharing a layer."""
    x, weight, bias = drawn(m, n, k, seed, device)
    count, rank = dist.get_world_size(), dist.get_rank()
    how = {"a_format": a_format}
    weight = weight.prepare()
    whole = MXLinear.from_mx(weight, bias, **how)
    want = whole(x)
    column = ColumnParallelMXLinear.from_mx(weight, bias, **how)
    gathered = ColumnParallelMXLinear.from_mx(weight, bias, **how, output="whole")
    row = RowParallelMXLinear.from_mx(weight, bias, **how)
    columns = x.chunk(count, 1)[rank].contiguous()
    ways: dict[str, Callable[[], Tensor]] = {
        "column, gathered": lambda: gathered(x),
        "column": lambda: column(x),
        "row": lambda: row(columns),
    }
    if m % count == 0 and a_format != "bf16":
        mine = x.chunk(count, 0)[rank].contiguous()
        own = column.mx_tensor()
        ways["rows quantised and gathered"] = lambda: mxgemm.gemm_mx(
            gather_quantized(mine, format=a_format), own, bias=column.bias
        )
    alone = timed(lambda: whole(x), device)
    rows = []
    for name, call in ways.items():
        out = call()
        if name in ("column", "rows quantised and gathered"):
            parts = [torch.empty_like(out) for _ in range(count)]
            dist.all_gather(parts, out.contiguous())
            out = torch.cat(parts, 1)
        own_n, own_k = (n // count, k) if name.startswith("column") else (n, k // count)
        bits = 24 if name.startswith("rows") else accumulate_bits(m, own_n, own_k, a_format, device)
        found = judged(out, x, weight, bias, a_format, bits)
        rows.append(
            {
                **{"m": m, "n": n, "k": k, "a_format": a_format, "way": name, "right": everywhere(found.passed)},
                **distances(found),
                "bits_of_one_process": everywhere(torch.equal(out, want)),
                "us": timed(call, device),
                "one_gpu_us": alone,
            }
        )
    return rows


def tensors(m: int, n: int, k: int, seed: int, device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each way in which DTensors of the operator are split."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    x, weight, _ = drawn(m, n, k, seed, device)
    rows = []
    for name, on_x, on_w, dtype in (
        ("DTensor, rows of the weight", Replicate(), Shard(0), torch.bfloat16),
        ("DTensor, columns of both, fp32", Shard(1), Shard(1), torch.float32),
        ("DTensor, columns of both, bf16", Shard(1), Shard(1), torch.bfloat16),
    ):
        a, b, s = (distribute_tensor(t, mesh, [p]) for t, p in ((x, on_x), (weight.data, on_w), (weight.scales, on_w)))
        out = torch.ops.mxgemm.gemm(a, b, s, out_dtype=dtype)
        found = judged(out.full_tensor(), x, weight, None, "e2m1")
        rows.append(
            {
                **{"m": m, "n": n, "k": k, "a_format": "e2m1", "way": name, "right": everywhere(found.passed)},
                **distances(found),
                "placements": str(out.placements),
            }
        )
    return rows


def accumulate_bits(m: int, n: int, k: int, a_format: Any, device: torch.device) -> int:
    """Return by which gate the route of a slice is judged."""
    chosen = mxgemm.explain(m, n, k, device=device, a_format=a_format, prepared=True)
    return ROUTES[chosen.route].accumulate_bits


def judged(
    out: Tensor, x: Tensor, weight: mxgemm.MXTensor, bias: Tensor | None, a_format: str, bits: int = 24
) -> Accuracy:
    """Compare columns drawn at random with float64."""
    rows, generator = weight.row_major(), torch.Generator().manual_seed(7)
    some = torch.randperm(len(rows.data), generator=generator)[:COLUMNS].to(out.device)
    part = mxgemm.MXTensor.wrap(rows.data[some], rows.scales[some])
    return judge(
        out[:, some], x, part, a_format=a_format, bias=None if bias is None else bias[some], accumulate_bits=bits
    )


def distances(found: Accuracy) -> dict[str, float]:
    """Return what was found, and how large it may be."""
    return {
        **{"norm": found.norm, "norm_limit": found.norm_limit},
        **{"element": found.element, "element_limit": found.element_limit},
    }


def everywhere(answer: bool) -> bool:
    """Say whether every process says so."""
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, bool(answer))
    return all(answers)


def timed(call: Callable[[], Tensor], device: torch.device) -> float | None:
    """Return microseconds of a call, the slowest process's; None on a CPU."""
    if device.type != "cuda":
        return None
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    best = float("inf")
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        dist.barrier()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / CALLS * 1e3)
    slowest = torch.tensor(best, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return round(float(slowest), 2)


if __name__ == "__main__":
    main()
