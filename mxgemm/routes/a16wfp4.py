"""Route ``a16wfp4``: one Triton launch that quantises A in registers and multiplies by the scaled dot.

Native on gfx950 (scaled MFMA). Elsewhere Triton decodes both operands to bf16 first: right, but slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.formats import E4M3, scale_addend
from mxgemm.layouts import padded_scale_shape, preshuffle_refusal
from mxgemm.problem import Problem
from mxgemm.routes.base import Config, Launch, Route
from mxgemm.routes.triton_support import interpreting, is_power_of_two, triton_refusal, wide_offsets


@dataclass(frozen=True, slots=True)
class A16WConfig(Config):
    """Tile of one program and how it is compiled.

    Attributes:
        block_m: rows of A.
        block_n: rows of B.
        block_k: elements of one step along K.
        num_warps: warps (waves) of a program.
        num_stages: software pipeline depth of the K loop.
        waves_per_eu: AMD only, waves per SIMD that the compiler should leave registers for; 0 lets it choose.
        cache: cache modifier of the weight loads, "" or ".cg".
    """

    block_m: int = 16
    block_n: int = 64
    block_k: int = 256
    num_warps: int = 4
    num_stages: int = 2
    waves_per_eu: int = 0
    cache: str = ""


class A16WFP4(Route):
    """Quantise in registers, multiply by the scaled dot, one launch."""

    name = "a16wfp4"
    config_type = A16WConfig

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Any shape and any layout on a GPU that Triton compiles for; A as floats."""
        refusal = triton_refusal(self.name, problem)
        if refusal:
            return refusal
        if problem.a_quantized:
            return Refusal(self.name, "a", "quantised already", "bf16, fp16 or fp32 activations")
        if problem.weight_layout == "preshuffled":
            reason = preshuffle_refusal(problem.n, problem.k // problem.b.pack)
            if reason:
                return Refusal(self.name, "weight_layout", "preshuffled", f"another shape: {reason}")
        return _contiguity_refusal(self.name, problem)

    def configs(self, problem: Problem) -> Sequence[Config]:
        """Return the tile that fits the shape."""
        block_m = min(64, max(16, _next_power_of_two(problem.m)))
        block_k = min(256, max(64, _next_power_of_two(problem.k)))
        guess = A16WConfig(block_m=block_m, block_k=block_k)
        if not problem.arch.startswith("gfx"):
            # Decoding to bf16 fills registers and shared memory with the decoded tile: keep it small.
            guess = replace(guess, block_k=min(block_k, 128))
        return [guess]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Blocks are powers of two that the layouts' tiles divide."""
        assert isinstance(config, A16WConfig)
        for field, least in (("block_m", 16), ("block_n", 16), ("block_k", 64), ("num_warps", 1)):
            value = getattr(config, field)
            if not is_power_of_two(value) or value < least:
                return Refusal(self.name, field, value, f"a power of two from {least} up")
        if config.block_n > 256:
            return Refusal(
                self.name,
                "block_n",
                config.block_n,
                "at most 256, the rows that shuffled scales are padded to",
            )
        if config.cache not in ("", ".cg"):
            return Refusal(self.name, "cache", config.cache, '"" or ".cg"')
        return None

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, A16WConfig)
        from mxgemm.triton_kernels.gemm_a16w import gemm_a16w_kernel

        p, c = problem, config
        strides = p.strides
        assert strides is not None
        sizes = (p.m, p.n, p.k, *strides.a, *strides.b, *strides.b_scales, *strides.out, strides.bias)
        options: dict[str, Any] = {
            "A_FORMAT": p.a_format,
            "B_FORMAT": p.b_format,
            "ADDEND": scale_addend(p.a or E4M3, p.scale_rounding),
            "PRESHUFFLED": p.weight_layout == "preshuffled",
            "SHUFFLED": p.scale_layout == "shuffled",
            "HAS_BIAS": p.has_bias,
            "BLOCK_M": c.block_m,
            "BLOCK_N": c.block_n,
            "BLOCK_K": c.block_k,
            "EVEN_M": p.m % c.block_m == 0,
            "EVEN_N": p.n % c.block_n == 0,
            "EVEN_K": p.k % c.block_k == 0,
            "WIDE": wide_offsets(p),
            "CACHE": c.cache,
            "INTERPRETED": interpreting(),
            "num_warps": c.num_warps,
            "num_stages": c.num_stages,
        }
        if p.arch.startswith("gfx"):
            options.update(waves_per_eu=c.waves_per_eu, matrix_instr_nonkdim=16)
        grid = (-(-p.m // c.block_m) * -(-p.n // c.block_n),)
        kernel = gemm_a16w_kernel[grid]

        def launch(
            a: Tensor, a_scales: Tensor | None, b: Tensor, b_scales: Tensor, bias: Tensor | None, out: Tensor
        ) -> None:
            del a_scales
            kernel(a, b, b_scales, out if bias is None else bias, out, *sizes, **options)

        return launch


def _contiguity_refusal(route: str, problem: Problem) -> Refusal | None:
    """A shuffled operand is a block of memory in an order of its own; a strided view of one has no meaning here."""
    s, columns = problem.strides, problem.k // problem.b.pack
    if s is None:
        return None
    if problem.weight_layout == "preshuffled" and s.b != (columns, 1):
        return Refusal(route, "strides of b", s.b, f"{(columns, 1)}: a contiguous preshuffled weight")
    want = (padded_scale_shape(problem.n, problem.k)[1], 1)
    if problem.scale_layout == "shuffled" and s.b_scales != want:
        return Refusal(route, "strides of b_scales", s.b_scales, f"{want}: contiguous shuffled scales")
    return None


def _next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
