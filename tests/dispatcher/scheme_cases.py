"""Kernels of the schemes with scales by groups, small ones, and operands of random bytes with what they are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mxgemm.dispatcher import (
    ABQuantKernelConfig,
    AQuantKernelConfig,
    BQuantKernelConfig,
    GroupedABQuantKernelConfig,
    GroupedAQuantKernelConfig,
    GroupedBQuantKernelConfig,
    GroupedRowColQuantKernelConfig,
    GroupedTensorQuantKernelConfig,
    Inputs,
    KernelConfig,
    Problem,
)
from mxgemm.mx.accuracy import Accuracy, compare

Array = NDArray[Any]
_AB: dict[str, Any] = {"tile_m": 32, "tile_n": 64}
_MX: dict[str, Any] = {"pipeline": "microscale", "tile_m": 32, "tile_n": 64, "tile_k": 128}
_SUM: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 64}
SCHEMES: dict[str, KernelConfig] = {
    "a-fp8-rcr": AQuantKernelConfig(),
    "a-fp8-rrr": AQuantKernelConfig(layout="rrr"),
    "a-bf8-crr": AQuantKernelConfig(variant_key="bf8", layout="crr"),
    "a-bf8-ccr": AQuantKernelConfig(variant_key="bf8", layout="ccr"),
    "a-fp8i4-rcr": AQuantKernelConfig(variant_key="fp8i4"),
    "a-bf8i4-crr": AQuantKernelConfig(variant_key="bf8i4", layout="crr"),
    "ab-fp8": ABQuantKernelConfig(**_AB),
    "ab-bf8-n128": ABQuantKernelConfig(**_AB, variant_key="bf8", bquant_group_n=128, warp_tile_k=32),
    "ab-fp4": ABQuantKernelConfig(**_AB, variant_key="fp4", bquant_group_n=128, warp_tile_k=32),
    "ab-eight": ABQuantKernelConfig(
        pipeline="eightwaves", tile_m=192, tile_n=256, warp_m=4, warp_n=2, eight_waves=True, bquant_group_n=128
    ),
    "b-fp8": BQuantKernelConfig(),
    "b-bf8-n128": BQuantKernelConfig(variant_key="bf8", quant_group_n=128),
    "b-fp8i4": BQuantKernelConfig(variant_key="fp8i4"),
    "b-bf8i4": BQuantKernelConfig(variant_key="bf8i4"),
    "mx-bf16bf16": BQuantKernelConfig(**_MX, variant_key="mx_bf16bf16", quant_group_k=32, warp_tile_k=32),
    "mx-bf16bf8": BQuantKernelConfig(**_MX, variant_key="mx_bf16bf8", quant_group_k=128, warp_tile_k=64),
    "mx-bf16fp4": BQuantKernelConfig(**_MX, variant_key="mx_bf16fp4", quant_group_k=32, warp_tile_k=32),
    "grouped-rowcol": GroupedRowColQuantKernelConfig(**_SUM),
    "grouped-tensor": GroupedTensorQuantKernelConfig(**_SUM, variant_key="bf8"),
    "grouped-a-fp8i4": GroupedAQuantKernelConfig(variant_key="fp8i4"),
    "grouped-ab": GroupedABQuantKernelConfig(**_AB, bquant_group_n=128),
    "grouped-b": GroupedBQuantKernelConfig(variant_key="bf8"),
}
_SIXTEEN: dict[str, KernelConfig] = {
    f"a-{types}-{layout}": AQuantKernelConfig(variant_key=types, layout=layout)
    for types in ("fp8", "bf8", "fp8i4", "bf8i4")
    for layout in ("rcr", "rrr", "crr", "ccr")
}
REST: dict[str, KernelConfig] = {name: config for name, config in _SIXTEEN.items() if name not in SCHEMES}
"""Those of aquant's types by layouts that SCHEMES has not."""
SEVERAL: dict[str, KernelConfig] = {
    "several-ab": ABQuantKernelConfig(**_AB, several=True),
    "several-a-fp8-rcr": AQuantKernelConfig(several=True),
    "several-a-i4-crr": AQuantKernelConfig(variant_key="fp8i4", layout="crr", several=True),
    "several-mx": BQuantKernelConfig(**_MX, variant_key="mx_bf16fp4", quant_group_k=32, warp_tile_k=32, several=True),
}
SEVERAL_AQUANT: dict[str, KernelConfig] = {
    f"several-{name}": replace(config, several=True) for name, config in _SIXTEEN.items() if "i4" not in name
}


@dataclass(frozen=True)
class Case:
    """Operands of a call.

    Attributes:
        config: the kernel, pinned.
        inputs: what it is given.
        a64: what A is worth, scales included, float64 ``[m, k]``.
        b64: what B is worth, float64 ``[n, k]``.
    """

    config: KernelConfig
    inputs: Inputs
    a64: Array
    b64: Array

    def judge(self, out: Array) -> Accuracy:
        """Judge a result against the exact product."""
        raw = torch.from_numpy(out)
        result = raw.view(torch.bfloat16) if out.dtype == np.uint16 else raw
        return compare(result, self.a64 @ self.b64.T, self.a64, self.b64, 24)


def drawn(config: KernelConfig, arch: str, m: int, n: int, k: int, seed: int = 0) -> Case:
    """Draw a case: elements of random bytes, scales that all differ.

    How types, layouts and scales lie is written out here once more, as bridge users see it in docs/dispatcher.md.
    """
    random = np.random.default_rng(seed)
    config = config.pinned(arch)
    scheme = config.scheme
    a, a64 = _elements(random, scheme.a, (m, k), arch, config.layout[0] == "c")
    b, b64 = _elements(random, scheme.b, (n, k), arch, config.layout[1] == "r")
    scales = []
    for scale, values, rows in ((scheme.a_scale, a64, m), (scheme.b_scale, b64, n)):
        if scale is None:
            scales.append(None)
            continue
        per_row, per_k = scale.rows or rows, scale.k or k
        table, worth = _scales(random, scale.dtype, (-(-rows // per_row), -(-k // per_k)), arch)
        values *= worth.repeat(per_row, axis=0)[:rows].repeat(per_k, axis=1)[:, :k]
        stored = table if scale.k else table[:, 0]
        scales.append(np.ascontiguousarray(stored.T if scale.k_slowest else stored))
    return Case(config, Inputs(Problem(m, n, k), a, b, scales[0], scales[1]), a64, b64)


def _fp8(dtype: str, arch: str) -> torch.dtype:
    name = {"fp8": "float8_e4m3", "bf8": "float8_e5m2"}[dtype]
    fn = "fnuz" if arch == "gfx942" else "fn" if dtype == "fp8" else ""
    found: torch.dtype = getattr(torch, name + fn)
    return found


def _elements(
    random: np.random.Generator, dtype: str, shape: tuple[int, int], arch: str, transposed: bool
) -> tuple[Array, Array]:
    lies = shape[::-1] if transposed else shape
    if dtype in ("fp4", "int4"):
        stored = random.integers(0, 256, (lies[0], lies[1] // 2), dtype=np.uint8)
        values = np.empty(lies)
        first, second = (stored >> 4, stored & 15) if dtype == "int4" else (stored & 15, stored >> 4)
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        for at, code in ((0, first), (1, second)):
            e2m1 = table[code & 7] * np.where(code & 8, -1, 1)
            values[:, at::2] = code.astype(float) - 8 if dtype == "int4" else e2m1
    else:
        kind = torch.bfloat16 if dtype == "bf16" else _fp8(dtype, arch)
        rounded = torch.from_numpy(random.standard_normal(lies, dtype=np.float32)).to(kind)
        stored = rounded.view(torch.uint16 if dtype == "bf16" else torch.uint8).numpy()
        values = rounded.double().numpy()
    return stored, np.ascontiguousarray(values.T if transposed else values)


def _scales(random: np.random.Generator, dtype: str, shape: tuple[int, int], arch: str) -> tuple[Array, Array]:
    if dtype == "e8m0":
        stored = random.integers(120, 132, shape, dtype=np.uint8)
        return stored, np.exp2(stored.astype(float) - 127)
    numbers = np.exp2(random.uniform(-3, 1, shape)).astype(np.float32)
    if dtype == "fp32":
        return numbers, numbers.astype(float)
    rounded = torch.from_numpy(numbers).to(_fp8(dtype, arch))
    return rounded.view(torch.uint8).numpy(), rounded.double().numpy()
