"""Compile a route's kernels for a GPU that is not here, exactly as a launch would, and say what came out.

Run as a program it reads a JSON list of jobs on standard input and writes one JSON line of figures for each; that is
how the tests compile with another triton than their own (PYTHONPATH names it) and outside the interpreter.

    {"route": "a16wfp4", "arch": "gfx950", "m": 16, "n": 2112, "k": 7168, "config": {...}, "problem": {...}}

A configuration that the library refuses is an error, unless the job is "unchecked": to count what it is refused for.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from typing import Any

import torch

from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.mx.formats import FORMATS
from mxgemm.mx.layouts import padded_scale_shape
from mxgemm.problem import Config, Problem, contiguous_strides
from mxgemm.routes import ROUTES, Route
from mxgemm.routes.fold_calls import quantize_fold_call, wide_rows_call
from mxgemm.routes.fp8_fold import FP8Fold
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.triton.compile import compile_call
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.tile_config import TileConfig

_MATRIX = re.compile(r"\b(wgmma\.mma_async\b[\w.:]*|tcgen05\.mma\b[\w.:]*|mma\.sync[\w.:]*|v_wmma\w+)")


def problem_of(m: int, n: int, k: int, arch: str, **options: Any) -> Problem:
    """Describe a problem with freshly allocated operands; ``options`` are fields of ``Problem``."""
    machine = KNOWN_MACHINES.get(arch) or Machine(arch, 256, arch)
    for name, value in options.items():
        if name in ("a_dtype", "out_dtype"):
            options[name] = getattr(torch, value) if isinstance(value, str) else value
    b = FORMATS[options.get("b_format", "e2m1")]
    scale_columns = padded_scale_shape(n, k)[1] if options.get("scale_layout") == "shuffled" else k // 32
    strides = contiguous_strides(n, k, b, scale_columns)
    if options.get("a_quantized"):
        a = FORMATS[options["a_format"]]
        a_columns = padded_scale_shape(m, k)[1] if options.get("a_scale_layout") == "shuffled" else k // 32
        strides = dataclasses.replace(strides, a=(k // a.pack, 1), a_scales=(a_columns, 1))
        options["a_dtype"] = torch.uint8
    return Problem.of(m, n, k, machine, strides=strides, **options)


def describe_job(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile every launch of a job and return their figures."""
    from evidence.isa import analyse
    from evidence.scaled_compile import describe_scaled

    if "experts" in job:
        from evidence.experts_compile import describe_experts

        return describe_experts(job)

    if "scaled" in job:
        return describe_scaled(job)
    arch = job["arch"]
    problem = problem_of(job["m"], job["n"], job["k"], arch, **job.get("problem", {}))
    route = ROUTES[job["route"]]
    config = route.config_type.from_mapping(job["config"]) if "config" in job else route.configs(problem)[0]
    refusal = route.check_config(problem, config)
    if refusal and not job.get("unchecked"):
        raise ValueError(str(refusal))
    results = []
    for call in calls_of(route, problem, config):
        compiled = compile_call(call, arch)
        found: dict[str, Any] = {"kernel": call.kernel.__name__, "config": config.to_mapping(), "grid": call.grid}
        if arch in ("gfx950", "gfx942"):
            figures = analyse(
                compiled.asm["amdgcn"], waves=call.options["num_warps"], lds=compiled.metadata.shared, arch=arch
            )
            found |= dataclasses.asdict(figures) | {"valu_per_mfma": figures.valu_per_mfma}
            if job.get("text"):
                found["text"] = compiled.asm["amdgcn"]
        else:
            text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
            found["matrix"] = dict(Counter(_MATRIX.findall(text)))
            found["lds"] = compiled.metadata.shared
            found["spills"] = sum(map(int, re.findall(r"vgpr_spill_count:\s*(\d+)", text)))
        results.append(found)
    return results


def calls_of(route: Route, problem: Problem, config: Config) -> list[KernelCall]:
    """Describe the launches of a route that are Triton's."""
    if isinstance(route, FP8Fold):
        return [quantize_fold_call(problem), wide_rows_call(problem)]
    assert isinstance(route, TritonGemm)
    assert isinstance(config, TileConfig)
    return route.calls(problem, config)


def main() -> None:
    """Read jobs, write a line of JSON for each: a list of figures, or {"error": ...}."""
    for job in json.load(sys.stdin):
        try:
            line: Any = describe_job(job)
        except Exception as error:  # a compiler's failure is a result here, and the caller judges it
            line = {"error": " <- ".join(_causes(error))}
        print(json.dumps(line), flush=True)


def _causes(error: BaseException | None) -> list[str]:
    """Return what went wrong and, as triton wraps errors, why."""
    found = []
    while error is not None:
        found.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return found


if __name__ == "__main__":
    main()
