"""Route ``quant_gemm_mx``: A quantised once, its scales in the order that gfx950's lanes want, then ``gemm_mx``.

Two launches. A fused kernel quantises A anew for each tile of columns: at large M that is most of what it issues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mxgemm import workspace
from mxgemm.errors import Refusal
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.mx.layouts import padded_scale_shape
from mxgemm.problem import Config, Problem
from mxgemm.routes.base import Launch, Operands
from mxgemm.routes.gemm_mx import GemmMX
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.quantize import MAX_COLUMNS, MAX_ROWS, quantize_call
from mxgemm.triton.releases import old_release
from mxgemm.triton.tile import tile_refusal
from mxgemm.triton.tile_config import TileConfig

_GEMM = GemmMX()
_SCALES_AT = 256
"""Scales start at a multiple of this many bytes in the workspace."""


class QuantGemmMX(TritonGemm):
    """Quantise in one launch, multiply in another."""

    name = "quant_gemm_mx"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1"; a weight in any layout, best after prepare(); large M'

    def format_refusal(self, problem: Problem) -> Refusal | None:
        """A as floats, to be quantised to e2m1."""
        return float_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[TileConfig]:
        """Return a square tile on gfx950 where rows fill it: 32 matrix instructions for 34 others a step."""
        quantized = quantized_problem(problem)
        if problem.arch == "gfx950" and problem.m > 64:
            block_n = 128 if problem.weight_layout == "preshuffled" else 64
            square = TileConfig(block_m=128, block_n=block_n, block_k=256 if problem.k >= 256 else 128)
            old = old_release(problem.arch)
            if old is not None:
                square = replace(square, num_stages=old.quantized_stages)
            if tile_refusal(quantized, square) is None:
                return [square]
        return _GEMM.configs(quantized)

    def candidates(self, problem: Problem) -> Sequence[TileConfig]:
        """See :func:`mxgemm.triton.tile.tile_candidates`; and 256 x 256 with eight waves."""
        return [*super().candidates(problem), TileConfig(256, 256, 256, num_warps=8)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """See :func:`mxgemm.triton.tile.tile_refusal`."""
        assert isinstance(config, TileConfig)
        return tile_refusal(quantized_problem(problem), config)

    def main_call(self, problem: Problem, config: TileConfig) -> KernelCall:
        """Describe the launch of ``gemm_mx_kernel``."""
        return _GEMM.main_call(quantized_problem(problem), config)

    def calls(self, problem: Problem, config: TileConfig) -> list[KernelCall]:
        """Describe the launch that quantises, and those of ``gemm_mx``."""
        return [quantizing_call(problem), *_GEMM.calls(quantized_problem(problem), config)]

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher of the chain."""
        return quantizing(problem, _GEMM.bind(quantized_problem(problem), config))


def float_refusal(problem: Problem) -> Refusal | None:
    """Say why the launch that quantises does not take A, or None if it does."""
    if problem.a_quantized:
        return Refusal("a", "quantised already", "bf16, fp16 or fp32 activations; route gemm_mx takes MX bytes")
    if problem.a_format != "e2m1":
        return Refusal("a_format", problem.a_format, '"e2m1"')
    if problem.m > MAX_ROWS:
        return Refusal("m", problem.m, f"at most {MAX_ROWS}, what one launch quantises")
    if problem.k > MAX_COLUMNS:
        return Refusal("k", problem.k, f"at most {MAX_COLUMNS}, what one launch quantises")
    return None


def quantizing(problem: Problem, multiply: Launch) -> Launch:
    """Return the launcher of the chain: A to e2m1 with shuffled scales in the workspace, then ``multiply``."""
    quantize = Launcher(quantizing_call(problem))
    m, row_bytes = problem.m, problem.k // E2M1.pack
    rows, columns = padded_scale_shape(m, problem.k)
    scales_at = -(-m * row_bytes // _SCALES_AT) * _SCALES_AT
    end = scales_at + rows * columns

    def launch(operands: Operands) -> None:
        with workspace.take(end, operands.a.device) as arena:
            data = arena.memory[: m * row_bytes].view(m, row_bytes)
            scales = arena.memory[scales_at:end].view(rows, columns)
            quantize(operands.a, data, scales)
            multiply(operands._replace(a=data, a_scales=scales))

    return launch


def quantized_problem(problem: Problem) -> Problem:
    """Return the problem that is left once A is e2m1 bytes in rows, its scales shuffled."""
    s = problem.strides
    if s is not None:
        columns = padded_scale_shape(problem.m, problem.k)[1]
        s = replace(s, a=(problem.k // E2M1.pack, 1), a_scales=(columns, 1))
    options = problem.options._replace(a_scale_layout="shuffled")
    return replace(problem, a_quantized=True, a_dtype=torch.uint8, options=options, strides=s)


def quantizing_call(problem: Problem) -> KernelCall:
    """Describe the launch that quantises A: x, data, scales."""
    p, s = problem, problem.strides
    assert s is not None
    rows, columns = padded_scale_shape(p.m, p.k)
    addend = scale_addend(E2M1, p.scale_rounding)
    strides = (p.k // E2M1.pack, columns)
    return quantize_call(p.machine, (p.m, p.k), s.a, p.a_dtype, E2M1, addend, strides, rows)
