"""Which configuration of the fused kernel to try first: a guess of its time, before anything was measured or compiled.

The guess is the arithmetic of ``evidence/predict.py``, which does it on machine code and lists where each number
comes from, with instruction counts that were seen in compiled kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mxgemm.hip.fused import (
    BLOCKS_K,
    BLOCKS_M,
    BLOCKS_N,
    MAX_LOADS,
    MAX_WAVES,
    SIMDS,
    FusedConfig,
    blocks,
    config_refusal,
    fused_refusal,
    loads_in_flight,
    rounds,
    workspace,
)
from mxgemm.hip.prepared import TILE, TILE_K
from mxgemm.problem import Problem

SPLITS: Final = (1, 2, 3, 4, 7, 8, 14)
"""Parts of K that are considered; ``split_k`` may be others."""

_QUANTIZE: Final = 78
"""Instructions that load, quantise and hand over a 16 x 128 tile of A."""
_AROUND: Final = 130
"""Instructions around a wave's steps: addresses, sums to LDS, the result."""
_HANDING_OVER: Final = 60
"""More of them where workgroups share a block."""
_CYCLES_AN_INSTRUCTION: Final = 4
_L1_BYTES_A_CYCLE: Final = 64
_HBM_BYTES_A_CYCLE: Final = 5e12 / 2.4e9
_PARTIAL_BYTES_A_CYCLE: Final = 10e12 / 2.4e9
_MISS_CYCLES: Final = 2160
"""From a load to its data, when that comes from HBM: 0.9 us."""
_HANDOVER_CYCLES: Final = 3600
"""Store, counter and load one after the other, past L2: 1.5 us."""


def candidates(p: Problem) -> Sequence[FusedConfig]:
    """Return legal configurations, the one that should be fastest by :func:`estimate` first."""
    if fused_refusal(p):
        return []
    legal = [c for c in _considered(p) if config_refusal(p, c) is None]
    return sorted(legal, key=lambda c: (estimate(p, c), c.split_k, -c.block_k, -c.unroll, c.waves, c.block_m))


def _considered(p: Problem) -> Iterator[FusedConfig]:
    """Yield configurations whose waves all have the same number of steps, and those with the most waves."""
    for block_m in BLOCKS_M:
        for block_n in BLOCKS_N:
            for block_k in (b for b in BLOCKS_K if p.k % b == 0):
                for split in SPLITS:
                    whole = FusedConfig(block_m, block_n, block_k)
                    if p.k // block_k % split == 0 and (split == 1 or blocks(p, whole) < p.machine.cu_count):
                        yield from _of_waves(whole, p.k // block_k // split, split)


def _of_waves(c: FusedConfig, steps: int, split: int) -> Iterator[FusedConfig]:
    most = min(MAX_WAVES, steps)
    for waves in (w for w in range(1, most + 1) if steps % w == 0 or w == most):
        for unroll in (u for u in (1, 2, 3, 4) if steps // waves % u == 0):
            yield FusedConfig(c.block_m, c.block_n, c.block_k, waves, unroll, split)


def estimate(p: Problem, c: FusedConfig) -> float:
    """Return cycles from the first load to the last store, on the busiest CU.

    Bytes must come from HBM and pass the CU's L1, what takes longer counts; then its waves issue their instructions,
    on the SIMD that has most of them; first loads of a round are waited for, every second round's behind another.
    """
    tiles_m, tiles_n, tiles_k = c.block_m // TILE, c.block_n // TILE, p.k // TILE_K // c.split_k
    steps = p.k // c.block_k // c.split_k
    on_one_cu = -(-blocks(p, c) * c.split_k // max(1, p.machine.cu_count))
    sharing = c.split_k > 1
    adding = 3 * c.waves * -(-tiles_m * tiles_n // c.waves)
    multiplying = -(-steps // c.waves) * (tiles_k / steps) * (tiles_m * _QUANTIZE + tiles_n + tiles_m * tiles_n)
    instructions = _AROUND + adding + multiplying + sharing * (_HANDING_OVER + 8 * c.split_k)
    issued = -(-on_one_cu * c.waves // SIMDS) * instructions * _CYCLES_AN_INSTRUCTION
    a_bytes, b_bytes = 2 * c.block_m * p.k // c.split_k, c.block_n * p.k // 2 // c.split_k
    passed = on_one_cu * (a_bytes + b_bytes) / _L1_BYTES_A_CYCLE
    moved = p.traffic_bytes / _HBM_BYTES_A_CYCLE
    summed = 2 * workspace(p, c)[0] / _PARTIAL_BYTES_A_CYCLE
    first = -(-loads_in_flight(c) // MAX_LOADS)
    waited = max(first, -(-rounds(p.k, c) // 2)) * _MISS_CYCLES
    return max(passed, moved) + summed + issued + waited + sharing * _HANDOVER_CYCLES
