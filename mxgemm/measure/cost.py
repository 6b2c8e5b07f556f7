"""About how long a configuration takes, before anything is run: by this tuning orders what it measures, and no more.

Where a kernel has an estimate of its own (``w4_mma``, ``w4_wgmma``, ``w4_fp8``, ``hip_fused``, ``hip_mx``), that is
taken. All others have

    fixed + hypot(elements of the weight x time of one, operations / rate), both over the share of the machine at work

with three numbers a route, :data:`COSTS`. What a tile adds is arithmetic and was fitted to nothing: what it pads, how
full its last wave of programs is, steps along K that wait one behind the other, and another launch that adds sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from mxgemm.cuda import w4_fp8_choice, w4_mma_choice, w4_wgmma_choice
from mxgemm.cuda.w4_fp8 import Fp8Config
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.hip import fused_choice, mx
from mxgemm.hip.fused import FusedConfig
from mxgemm.hip.mx import MXConfig
from mxgemm.problem import Config, Problem
from mxgemm.triton.tile import split_steps, tiles
from mxgemm.triton.tile_config import TileConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """What a route takes on an architecture.

    Attributes:
        fixed_us: launches, and what else no size changes.
        element_us: for an element of the weight: its bytes over the bandwidth, those of decoded copies included.
        tera_ops: multiplications and additions in a second, times 10^12.
    """

    fixed_us: float
    element_us: float
    tera_ops: float


_HBM_US: Final = 17 / 32 / 5e6
"""Of an element of MXFP4 on gfx950, by 5 TB/s: MI355X data sheet, 8 at peak, of which 60 % are assumed."""

COSTS: Final[dict[str, dict[str, Cost]]] = {
    # Least squares of logarithms over bench/results/hopper_h200.json, device times; gemm_mx and reference over
    # bench_h200.json beside it. Errors are of 8 to 35 %. quant_gemm_mx was not timed there: as gemm_mx, a launch more.
    "sm_90": {
        "fp8_fold": Cost(10.0, 3.1e-7, 1500.0),
        "dequant_mm": Cost(2.9, 1.4e-6, 690.0),
        "a16wfp4": Cost(29.0, 1.2e-6, 31.0),
        "w4a16": Cost(18.0, 9.6e-7, 220.0),
        "gemm_mx": Cost(4.0, 3.6e-6, 68.0),
        "quant_gemm_mx": Cost(6.0, 3.6e-6, 68.0),
        "reference": Cost(47.0, 2.4e-5, 26.0),
    },
    # Nothing was measured: launches of 2.5 us and 1.5 us for each further one as evidence/predict.py assumes them,
    # bytes as above, half of the data sheet's 10 PFLOP/s of MXFP4.
    "gfx950": {
        "a16wfp4": Cost(2.5, _HBM_US, 5000.0),
        "gemm_mx": Cost(2.5, _HBM_US, 5000.0),
        "w4a16": Cost(2.5, _HBM_US, 1250.0),
        "fused_asm": Cost(4.0, _HBM_US, 5000.0),
        "quant_gemm_mx": Cost(4.0, _HBM_US, 5000.0),
        "scaled_mm": Cost(4.0, _HBM_US, 5000.0),
        "ck_gemm": Cost(5.5, _HBM_US, 5000.0),
        "dequant_mm": Cost(4.0, 5 * _HBM_US, 1250.0),
        "reference": Cost(47.0, 100 * _HBM_US, 26.0),
    },
    # The same fit over bench/results/cpu_native_epyc.json, one thread, e2m1; "panels" for "tiles" too, which that CPU
    # has not. What is fixed vanishes at those sizes.
    "cpu": {
        "cpu_native rows": Cost(20.0, 5.2e-5, 0.19),
        "cpu_native panels": Cost(20.0, 9.4e-5, 0.29),
        "cpu_native tiles": Cost(20.0, 9.4e-5, 0.29),
        "cpu_dequant_mm": Cost(20.0, 3.9e-4, 0.175),
        "reference": Cost(200.0, 1e-3, 0.0083),
    },
}
"""By architecture and route; a configuration with a method has one for each."""
OTHER: Final = Cost(100.0, 1e-5, 10.0)
"""Of a route that has none here: behind those that have."""
STEP_US: Final = 0.9
"""A program's step along K waits so long for its data, over as many as are in flight: evidence/predict.py, "miss"."""
SUMMING_US: Final = 1.5
"""Another launch, which quantises or adds partial sums, or a program that waits for its tile's: the same, "launch"."""
_CYCLES_A_US: Final = 2400.0
"""Of gfx950's engine, by which the HIP kernels' estimates count."""
_DISPATCH_US: Final = 2.5


def estimate_us(route: str, problem: Problem, config: Config) -> float:
    """Return about how many microseconds a call takes.

    Args:
        route: its name.
        problem: that it can take.
        config: that is legal for it.
    """
    if isinstance(config, MmaConfig):
        return w4_mma_choice.estimate_us(problem, config)
    if isinstance(config, WgmmaConfig):
        return w4_wgmma_choice.estimate_us(problem, config)
    if isinstance(config, Fp8Config):
        return w4_fp8_choice.estimate_us(problem, config)
    if isinstance(config, FusedConfig):
        return _DISPATCH_US + fused_choice.estimate(problem, config) / _CYCLES_A_US
    if isinstance(config, MXConfig):
        launches = _DISPATCH_US + (0.0 if problem.a_quantized else SUMMING_US)
        return launches + max(_HBM_US * problem.n * problem.k, mx.cycles(problem, config) / _CYCLES_A_US)
    known = COSTS.get(problem.arch, {})
    method = getattr(config, "method", "")
    cost = known.get(f"{route} {method}" if method else route, OTHER)
    if isinstance(config, TileConfig):
        return _tiled_us(cost, problem, config)
    return cost.fixed_us + math.hypot(_weight_us(cost, problem), problem.flops / cost.tera_ops / 1e6)


def _weight_us(cost: Cost, p: Problem) -> float:
    return cost.element_us * p.n * p.k


def _tiled_us(cost: Cost, p: Problem, c: TileConfig) -> float:
    programs, units = tiles(p, c) * c.split_k, max(1, p.machine.cu_count)
    waves = -(-programs // units)
    at_work = programs / (waves * units)
    padded = 2 * (-(-p.m // c.block_m) * c.block_m) * (-(-p.n // c.block_n) * c.block_n) * p.k
    busy_us = math.hypot(_weight_us(cost, p), padded / cost.tera_ops / 1e6) / at_work
    waiting_us = waves * split_steps(p, c)[1] * STEP_US / c.num_stages
    return cost.fixed_us + math.hypot(busy_us, waiting_us) + SUMMING_US * (c.split_k > 1)
