"""Which kernel of the CK bridge a quantised problem is: its configuration, from what the operations say of themselves.

Nothing is listed twice: the types of a variant, its scales and its C are the configuration's own ``scheme``, and what
a configuration refuses, with the reason, is what the route refuses.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.scaled.formats import FORMATS
from mxgemm.scaled.problem import QuantProblem
from mxgemm.scaled.schemes import ABBlock, ABlock, BBlock

if TYPE_CHECKING:
    from mxgemm.dispatcher.config import KernelConfig

TYPES: Final = {
    **{"e4m3": "fp8", "e5m2": "bf8", "e4m3fnuz": "fp8", "e5m2fnuz": "bf8"},
    **{"e2m1": "fp4", "int4": "int4", "bf16": "bf16"},
}
"""CK's name of a format."""
SCALES: Final = {"fp32": "fp32", "e8m0": "e8m0", "fp8": "e4m3", "bf8": "e5m2"}
"""How scales that CK names so are stored."""
RESULTS: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}
STEP: Final = 32
"""K is a multiple of it in every native kernel."""
STAGES: Final = 2
SLACK: Final = 2048
"""Copies of a tile that Triton holds in LDS, and bytes beside them that a deeper tile leaves free."""


def kernel_of(problem: QuantProblem, several: bool = False) -> KernelConfig | Refusal:
    """Return the kernel that multiplies a problem, pinned to its machine, or why there is none.

    Args:
        problem: one problem; bias, offsets and the machine are the route's to judge.
        several: the kernel that takes several problems in one launch.
    """
    from mxgemm.dispatcher.native_kernel import native_refusals

    p = problem
    layout = _layout(p)
    if isinstance(layout, Refusal):
        return layout
    config = _variant(p)
    if isinstance(config, Refusal):
        return config
    refusal = _layout_refusal(config, layout) or _scale_refusal(p, config) or _result_refusal(p, config)
    if refusal is not None:
        return refusal
    config = dataclasses.replace(config, layout=layout, several=several, **_groups(p, config))
    refusals = native_refusals(config, p.arch)
    return refusals[0] if refusals else config


def _layout(p: QuantProblem) -> str | Refusal:
    """Return CK's letters of A, B and C: how the operands lie, if they lie without gaps."""
    letters = []
    for name, fmt, strides, rows, (by_rows, by_columns) in (
        ("a", p.a_format, p.strides.a, p.m, "rc"),
        ("b", p.b_format, p.strides.b, p.n, "cr"),
    ):
        pack = FORMATS[fmt].pack
        row, step = strides
        if step == 1 and (rows == 1 or row == p.k // pack):
            letters.append(by_rows)
        elif row == 1 and step == rows and pack == 1:
            letters.append(by_columns)
        else:
            needed = "contiguous [rows, K]" if pack > 1 else "contiguous, [rows, K] or [K, rows]"
            return Refusal(f"{name}.strides", strides, needed)
    return "".join(letters) + "r"


def _variant(p: QuantProblem) -> KernelConfig | Refusal:
    """Return the first of the operation's own kernels that multiplies these types: a plain one, of its default tile."""
    from mxgemm.dispatcher.operations import OPERATIONS

    fnuz = p.arch == "gfx942"
    for fmt in (p.a_format, p.b_format):
        if FORMATS[fmt].family not in ("any", "fnuz" if fnuz else "ocp"):
            return Refusal("formats", _formats(p), f"{'FNUZ' if fnuz else 'OCP'} fp8 types on {p.arch}")
    kernels = OPERATIONS[p.scheme.name].default_configs(p.arch)
    wanted = TYPES[p.a_format], TYPES[p.b_format]
    for kernel in kernels:
        scheme = kernel.scheme
        powers = scheme.b_scale is not None and scheme.b_scale.dtype == "e8m0"
        if (scheme.a, scheme.b) == wanted and powers == p.scheme.b_powers:
            return kernel
    pairs = [f"{kernel.scheme.a} by {kernel.scheme.b}" for kernel in kernels]
    return Refusal("formats", _formats(p), f"what {p.scheme.name} of the bridge has: {', '.join(dict.fromkeys(pairs))}")


def _formats(p: QuantProblem) -> str:
    return f"{p.a_format} by {p.b_format}"


def _layout_refusal(config: KernelConfig, layout: str) -> Refusal | None:
    if layout in config.layouts:
        return None
    return Refusal("layout", layout, f"{' or '.join(config.layouts)}, those of {config.operation}")


def _scale_refusal(p: QuantProblem, config: KernelConfig) -> Refusal | None:
    for name, got, scale in (("a", p.a_scale, config.scheme.a_scale), ("b", p.b_scale, config.scheme.b_scale)):
        if scale is None:
            continue
        if scale.dtype in ("fp8", "bf8") and p.arch == "gfx942":
            return Refusal(f"{name}.scales", got, f"FNUZ {scale.dtype} on gfx942, which quant_gemm has no scales of")
        if SCALES[scale.dtype] != got:
            return Refusal(f"{name}.scales", got, f"{SCALES[scale.dtype]} ({config.dtype} of the bridge)")
    return None


def _result_refusal(p: QuantProblem, config: KernelConfig) -> Refusal | None:
    if p.out_dtype != RESULTS[config.scheme.c]:
        return Refusal("out_dtype", p.out_dtype, f"{RESULTS[config.scheme.c]} ({config.dtype} of {config.operation})")
    if p.k % STEP:
        return Refusal("k", p.k, f"a multiple of {STEP}")
    return None


def _groups(p: QuantProblem, config: KernelConfig) -> dict[str, Any]:
    """Return the fields that hold a scheme's groups; long ones make the tile deeper, if it fits."""
    fields: dict[str, Any] = {}
    if isinstance(p.scheme, ABlock):
        fields = {"quant_group_k": p.scheme.k}
    elif isinstance(p.scheme, ABBlock):
        fields = {"aquant_group_k": p.scheme.ak, "bquant_group_n": p.scheme.bn, "bquant_group_k": p.scheme.bk}
    elif isinstance(p.scheme, BBlock):
        fields = {"quant_group_n": p.scheme.n, "quant_group_k": p.scheme.k}
    longest = max(p.scheme.a_group, p.scheme.b_group[1])
    in_lds = longest * (config.tile_m + config.tile_n) * (2 if config.scheme.compute == "bf16" else 1)
    deeper = config.tile_k < longest and STAGES * in_lds < KNOWN_MACHINES[p.arch].lds_bytes - SLACK
    return fields | ({"tile_k": longest} if deeper else {})
