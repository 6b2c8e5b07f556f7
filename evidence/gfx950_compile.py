"""Compile the launches of named jobs to gfx950 code objects in a folder, in a process of its own.

    python -m evidence.gfx950_compile FOLDER < jobs.json

A job is {"name": ..., "route": ..., "m": ..., "n": ..., "k": ..., "problem": {...}, "config": {...} or null}; without
a configuration the router's choice for that route is taken. {"name": ..., "quantize": {...}} is the quantising kernel,
and jobs of evidence/scaled_compile.py and experts_compile.py are those of quant_gemm and of grouped products.
For each job NAME.json lists its launches in order: code object, kernel, grid, block, LDS, scalars. The tests run
Triton's interpreter in their own process, which cannot compile, and compile with another triton than theirs by
putting it on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from evidence.cross_compile import problem_of
from evidence.experts_compile import experts_call
from evidence.scaled_compile import scaled_call
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.formats import FORMATS, scale_addend
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.routing.router import choose
from mxgemm.triton.compile import compile_call
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.quantize import quantize_call
from mxgemm.triton.support import triton_version
from mxgemm.triton.tile_config import TileConfig

ARCH = "gfx950"


def calls_of(job: dict[str, Any]) -> tuple[list[KernelCall], dict[str, Any]]:
    """Return a job's launches and its configuration."""
    if "quantize" in job:
        return [_quantize(job["quantize"])], {}
    if "scaled" in job:
        return [scaled_call(job | {"arch": ARCH})], {}
    if "experts" in job:
        return [experts_call(job | {"arch": ARCH})], {}
    problem = problem_of(job["m"], job["n"], job["k"], ARCH, **job["problem"])
    chosen = choose(problem, route=job["route"], tables=())
    route, config = chosen.route, chosen.config
    assert isinstance(route, TritonGemm)
    if job.get("config"):
        config = TileConfig.from_mapping(job["config"])
    assert isinstance(config, TileConfig)
    refusal = route.check_config(problem, config)
    if refusal:
        raise ValueError(f"{job['name']}: {refusal}")
    return route.calls(problem, config), dict(config.to_mapping())


def _quantize(options: dict[str, Any]) -> KernelCall:
    fmt = FORMATS[options["format"]]
    m, k = options["m"], options["k"]
    return quantize_call(
        KNOWN_MACHINES[ARCH],
        (m, k),
        (k, 1),
        getattr(torch, options["dtype"]),
        fmt,
        scale_addend(fmt, options["rounding"]),
        (k // fmt.pack, options["scale_columns"]),
        options["shuffled_rows"],
    )


def compile_job(job: dict[str, Any], folder: Path) -> None:
    """Compile one job and write what the emulator needs."""
    write_launches(job["name"], *calls_of(job), folder)


def write_launches(name: str, calls: list[KernelCall], config: dict[str, Any], folder: Path) -> list[Any]:
    """Compile launches, write their code objects and ``<name>.json``, and return triton's compiled kernels."""
    launches = []
    kernels = []
    for index, call in enumerate(calls):
        compiled = compile_call(call, ARCH)
        kernels.append(compiled)
        code = folder / f"{name}.{index}.hsaco"
        code.write_bytes(compiled.asm["hsaco"])
        parameters = call.kernel.params[len(call.dtypes) :]
        passed = [
            value
            for value, parameter in zip(call.scalars, parameters, strict=False)
            if value != 1 or parameter.do_not_specialize  # triton makes a constant of a 1
        ]
        launches.append(
            {
                "code": code.name,
                "kernel": compiled.metadata.name,
                "grid": list(call.grid),
                "block": [call.options["num_warps"] * 64, 1, 1],
                "dynamic_lds": compiled.metadata.shared,
                "tensors": len(call.dtypes),
                "scalars": passed,
            }
        )
    found = {"config": config, "triton": ".".join(map(str, triton_version() or ())), "launches": launches}
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    return kernels


def main() -> None:
    """Compile every job on standard input; a failure is written in the job's place."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for job in json.load(sys.stdin):
        try:
            compile_job(job, folder)
        except Exception as error:  # one kernel that does not compile must not hide the others
            text = f"{type(error).__name__}: {error}"
            (folder / f"{job['name']}.json").write_text(json.dumps({"error": text}), encoding="utf-8")


if __name__ == "__main__":
    main()
