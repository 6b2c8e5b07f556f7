"""Route ``gemm_mx``: one Triton launch for two operands that are quantised already, in any mix of formats."""

from __future__ import annotations

import torch

from mxgemm.errors import Refusal
from mxgemm.problem import Problem
from mxgemm.routes.triton_gemm import TritonGemm, tensor_dtypes
from mxgemm.triton.launch import KernelCall
from mxgemm.triton.tile import compiler_options, tile_constants, tiles
from mxgemm.triton.tile_config import TileConfig


class GemmMX(TritonGemm):
    """Load both operands' bytes and scales, multiply by the scaled dot."""

    name = "gemm_mx"
    takes = "A quantised already (mxgemm.gemm_mx), any MX formats; a weight in any layout"

    def format_refusal(self, problem: Problem) -> Refusal | None:
        """Quantised A only."""
        if not problem.a_quantized:
            return Refusal("a", problem.a_dtype, "activations quantised already (mxgemm.gemm_mx)")
        return None

    def main_call(self, problem: Problem, config: TileConfig) -> KernelCall:
        """Describe the launch of ``gemm_mx_kernel``."""
        from mxgemm.triton.kernels.gemm_mx import gemm_mx_kernel

        p, s = problem, problem.strides
        assert s is not None
        constants = {
            "A_FORMAT": p.a_format,
            "B_FORMAT": p.b_format,
            "A_SCALE_ORDER": _a_scale_order(p, config),
            **tile_constants(p, config),
        }
        return KernelCall(
            gemm_mx_kernel,
            tensor_dtypes(p, config, torch.float32),
            (p.m, p.n, p.k, *s.a, *s.a_scales, *s.b, *s.b_scales, *s.out, s.bias),
            constants,
            compiler_options(p, config),
            (tiles(p, config) * config.split_k, 1, 1),
        )


def _a_scale_order(problem: Problem, config: TileConfig) -> str:
    """Load the scales of a small tile as words if their rows allow it: it has fewer bytes than lanes."""
    s = problem.strides
    assert s is not None
    words = s.a_scales[1] == 1 and s.a_scales[0] % 4 == 0 and problem.aligned and config.block_k >= 128
    if words and problem.a_scale_layout == "row_major" and config.block_m < 64:
        return "row_major_words"
    return problem.a_scale_layout
