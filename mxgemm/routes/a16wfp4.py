"""Route ``a16wfp4``: one Triton launch that quantises A in registers and multiplies by the scaled dot.

Native on gfx950 (scaled MFMA, hardware convert to fp4). Elsewhere Triton decodes both operands to bf16 first: right,
but slow. ``a_format="e4m3"`` is a8w4 by the same kernel.
"""

from __future__ import annotations

import torch

from mxgemm.errors import Refusal
from mxgemm.mx.formats import E4M3, scale_addend
from mxgemm.problem import Problem
from mxgemm.routes.triton_gemm import TritonGemm, tensor_dtypes
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.tile import compiler_options, tile_constants, tiles
from mxgemm.triton.tile_config import TileConfig


class A16WFP4(TritonGemm):
    """Quantise in registers, multiply by the scaled dot, one launch."""

    name = "a16wfp4"
    takes = 'bf16, fp16 or fp32 A, a_format "e2m1" or "e4m3"; a weight in any layout'

    def format_refusal(self, problem: Problem) -> Refusal | None:
        """A as floats, to be quantised."""
        if problem.a_quantized:
            return Refusal("a", "quantised already", "bf16, fp16 or fp32 activations")
        if problem.a_format == "bf16":
            return Refusal("a_format", "bf16", 'a_format "e2m1" or "e4m3"; route w4a16 takes bf16')
        return None

    def main_call(self, problem: Problem, config: TileConfig) -> KernelCall:
        """Describe the launch of ``gemm_a16w_kernel``."""
        from mxgemm.triton.kernels.gemm_a16w import gemm_a16w_kernel

        p, s = problem, problem.strides
        assert s is not None
        constants = {
            "A_FORMAT": p.a_format,
            "B_FORMAT": p.b_format,
            "ADDEND": scale_addend(p.a or E4M3, p.scale_rounding),
            "CONVERT": convert_of(p),
            **tile_constants(p, config),
        }
        return KernelCall(
            gemm_a16w_kernel,
            tensor_dtypes(p, config, torch.float32),
            (p.m, p.n, p.k, *s.a, *s.b, *s.b_scales, *s.out, s.bias),
            constants,
            compiler_options(p, config),
            (tiles(p, config) * config.split_k, 1, 1),
        )


def convert_of(problem: Problem) -> str:
    """Choose how the kernel gets e2m1 codes: plain arithmetic, or gfx950's instruction from fp32 or from bf16 pairs."""
    if problem.arch != "gfx950" or problem.a_format != "e2m1":
        return "arithmetic"
    s = problem.strides
    words = s is not None and s.a[1] == 1 and s.a[0] % 2 == 0 and problem.aligned
    return "bf16_pairs" if problem.a_dtype == torch.bfloat16 and words else "f32"
