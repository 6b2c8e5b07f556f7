"""A launch of ``quant_gemm`` compiled for a GPU that is not here, for jobs of evidence/cross_compile.py.

{"scaled": "dense" | "small" | "offsets" | "table", "arch": "gfx950", "scheme": "abquant", "sizes": [128, 128, 128],
"a": "e4m3", "b": "e4m3", "m": 33, "n": 7168, "k": 2048}

or, for B as e4m3 in memory, {"scaled": "unpack", "arch": "gfx950", "b": "int4", "n": 33, "k": 272}
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from mxgemm.device import KNOWN_MACHINES
from mxgemm.scaled import table
from mxgemm.scaled.formats import FORMATS, ScaleName
from mxgemm.scaled.problem import Options, QuantProblem, Strides
from mxgemm.scaled.schemes import scheme_of
from mxgemm.scaled.tile import tile_for, tiles
from mxgemm.scaled.triton_gemm import call_for
from mxgemm.scaled.unpack_mm import unpack_call
from mxgemm.triton.compile import compile_call
from mxgemm.triton.launch import KernelCall

GROUPS = 8


def problem_of(job: dict[str, Any], groups: int = 0) -> QuantProblem:
    """Describe a problem with operands and scales as quantize_for makes them."""
    scheme = scheme_of(job["scheme"], job["sizes"])
    m, n, k = job["m"], job["n"], job["k"]
    a, b = k // FORMATS[job["a"]].pack, k // FORMATS[job["b"]].pack
    left = {"group": (1, m), "row": (1, 0)}.get(scheme.a_kind, (0, 0))
    columns = -(-k // scheme.b_group[1])
    rows_first = scheme.b_group[0] == 1 and not scheme.b_powers
    right = {"group": (1, n) if rows_first else (columns, 1), "row": (1, 0)}.get(scheme.b_kind, (0, 0))
    shape = scheme.b_scale_shape(n, k)
    of_matrix = 1 if scheme.b_kind == "tensor" else 0 if shape is None else math.prod(shape)
    strides = Strides((a, 1), (b, 1), left, right, (n, 1))
    if groups:
        strides = replace(strides, b_group=n * b, b_scales_group=of_matrix)
    options = Options(scheme, job["a"], job["b"])
    scale: ScaleName = "e8m0" if scheme.b_powers else "fp32"
    return QuantProblem(m, n, k, KNOWN_MACHINES[job["arch"]], options, strides, "fp32", scale, groups=groups)


def scaled_call(job: dict[str, Any]) -> KernelCall:
    """Describe the launch of a job."""
    if job["scaled"] == "unpack":
        return unpack_call(job["n"], job["k"], job["b"], job["k"] // 2)
    if job["scaled"] == "table":
        problem = problem_of(job)
        tile = tile_for(problem)
        return table.call_for([problem], tile, tiles(problem, tile), GROUPS)
    problem = problem_of(job, GROUPS if job["scaled"] == "offsets" else 0)
    return call_for(problem, tile_for(problem))


def describe_scaled(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile, and return what :func:`figures_of` finds."""
    call = scaled_call(job)
    return [figures_of(call, compile_call(call, job["arch"]), job["arch"])]


def figures_of(call: KernelCall, compiled: Any, arch: str) -> dict[str, Any]:
    """Return a kernel's matrix instructions, loads of 8 bytes a lane or more and spilled vector registers."""
    text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    if arch.startswith("sm_"):
        matrix, spills = r"\b(wgmma\.mma_async|mma\.sync)", "0"
        wide = r"cp\.async\.c[ag]\S+ .*?, 0x(?:10|8)|ld\.global\.v[24]"
    else:
        matrix, wide = r"\b(v_mfma_\w+|v_smfmac\w+)", r"(?:global|buffer)_load(?:_lds)?_dwordx[24]"
        spills = re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)[0]
    return {
        "kernel": call.kernel.__name__,
        "matrix": dict(Counter(re.findall(matrix, text))),
        "wide_loads": len(re.findall(wide, text)),
        "vector_spills": int(spills),
    }
