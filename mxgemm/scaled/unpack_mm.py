"""Route ``unpack_mm`` of ``quant_gemm``: packed operands as e4m3 in scratch, exactly, then a product of fp8.

e2m1 and int4 are e4m3 without loss, so a launch a packed operand makes the problem one of fp8, whose product is the
vendor's or mxgemm's own, by the rules of such a problem. Converting costs as much as moving the operand (0.5 bytes read
and one written an element); converted in registers instead, it is done again by every tile that reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.scaled.formats import FORMATS, ScaleName, decode_scale
from mxgemm.scaled.problem import Operands, QuantProblem
from mxgemm.scaled.route import Launch, QuantRoute
from mxgemm.scaled.rules import named
from mxgemm.scaled.scaled_mm import ScaledMM
from mxgemm.scaled.tile import NATIVE
from mxgemm.scaled.triton_gemm import TritonGemm
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import next_power_of_two, triton_missing

PRODUCTS: Final[dict[str, QuantRoute]] = {route.name: route for route in (TritonGemm(), ScaledMM())}
"""Routes of the fp8 problem: that of the first rule which names one that takes it, else the first that does."""
WORD: Final = 8
"""Packed elements of a word of 32 bits."""
_LEAST_K: Final = 16
_BLOCK_WORDS: Final = 1024


class UnpackMM(QuantRoute):
    """A launch for each packed operand, and the product."""

    name = "unpack_mm"
    takes = "int4 or fp4 on either side with fp32 or fp8 scales, rows contiguous, K % 16 == 0"

    def missing(self, machine: Machine) -> Refusal | None:
        """Triton, and a matrix unit that multiplies e4m3; or Triton's interpreter."""
        lacking = triton_missing(machine)
        if lacking is None and machine.arch != "cpu" and "e4m3" not in NATIVE.get(machine.arch, ()):
            have = ", ".join(arch for arch, formats in NATIVE.items() if "e4m3" in formats)
            return Refusal("arch", machine.arch, f"one of {have}, which multiply e4m3", "machine")
        return lacking

    def can_implement(self, problem: QuantProblem) -> Refusal | None:
        """One problem with a packed operand whose words can be read."""
        p = problem
        if p.groups:
            return Refusal("groups", p.groups, "one problem")
        if p.scheme.b_powers:
            return Refusal("scheme", p.scheme, "fp32 or fp8 scales")
        packed = [(fmt, strides) for fmt, strides in _sides(p) if FORMATS[fmt].pack == 2]
        if not packed:
            return Refusal("b.format", p.b_format, "int4 or e2m1, or one of them for a")
        if p.k % _LEAST_K:
            return Refusal("k", p.k, f"a multiple of {_LEAST_K}")
        for _, strides in packed:
            if strides[1] != 1 or strides[0] % 4 or not p.aligned:
                return Refusal("strides", (p.strides.a, p.strides.b), "packed rows of whole words, aligned")
        refusals = [product.refusal(unpacked(p)) for product in PRODUCTS.values()]
        return None if None in refusals else refusals[0]

    def fills_output(self, problem: QuantProblem) -> bool:
        """As the product does."""
        return product_of(problem).fills_output(unpacked(problem))

    def accumulate_bits(self, problem: QuantProblem) -> int:
        """As the product does."""
        return product_of(problem).accumulate_bits(unpacked(problem))

    def bind(self, problem: QuantProblem) -> Launch:
        """Return the launcher."""
        p, multiply = problem, product_of(problem).bind(unpacked(problem))
        left, right = (
            _Unpack(*side) for side in ((p.m, p.k, p.a_format, p.strides.a), (p.n, p.k, p.b_format, p.strides.b))
        )

        def launch(operands: Operands) -> Tensor | None:
            a, a_scales, b, b_scales, bias, out, offsets = operands
            scales = _fp32(a_scales, p.a_scale), _fp32(b_scales, p.b_scale)
            with workspace.take(left.nbytes + right.nbytes, out.device) as arena:
                wide_a, wide_b = left(a, arena, 0), right(b, arena, left.nbytes)
                return multiply(Operands(wide_a, scales[0], wide_b, scales[1], bias, out, offsets))

        return launch


def product_of(problem: QuantProblem) -> QuantRoute:
    """Return the route of the fp8 problem."""
    fp8 = unpacked(problem)
    names = [*(name for name in named(fp8) if name in PRODUCTS), *PRODUCTS]
    return next(PRODUCTS[name] for name in names if PRODUCTS[name].refusal(fp8) is None)


def unpacked(problem: QuantProblem) -> QuantProblem:
    """Return the problem with e4m3 in place of packed formats, contiguous, and fp32 scales."""
    p, st, s = problem, problem.strides, problem.scheme
    a, b = (FORMATS[fmt].pack == 2 for fmt, _ in _sides(p))
    columns = [-(-p.k // group) for group in (s.a_group, s.b_group[1])]
    return replace(
        p,
        options=p.options._replace(a_format="e4m3" if a else p.a_format, b_format="e4m3" if b else p.b_format),
        strides=replace(
            st,
            a=(p.k, 1) if a else st.a,
            b=(p.k, 1) if b else st.b,
            a_scales=st.a_scales if p.a_scale == "fp32" else (columns[0], 1),
            b_scales=st.b_scales if p.b_scale == "fp32" else (columns[1], 1),
        ),
        a_scale="fp32",
        b_scale="fp32",
    )


def unpack_call(rows: int, k: int, fmt: str, stride: int) -> KernelCall:
    """Return the launch that makes e4m3 ``[rows, k]`` of packed elements.

    Args:
        rows: of the operand.
        k: elements of a row, a multiple of 16.
        fmt: "int4" or "e2m1".
        stride: bytes from one row to the next, a multiple of 4.
    """
    from mxgemm.triton.kernels.unpack_e4m3 import unpack_e4m3_kernel

    words = k // WORD
    block_w = min(256, next_power_of_two(words))
    block_r = min(_BLOCK_WORDS // block_w, next_power_of_two(rows))
    constants = {
        "TYPE": fmt,
        "BLOCK_R": block_r,
        "BLOCK_W": block_w,
        "EVEN_R": rows % block_r == 0,
        "EVEN_W": words % block_w == 0,
    }
    grid = (-(-rows // block_r), -(-words // block_w), 1)
    dtypes = torch.int32, torch.int32
    return KernelCall(unpack_e4m3_kernel, dtypes, (rows, words, stride // 4), constants, {"num_warps": 4}, grid)


class _Unpack:
    """One operand: its launch and its part of the scratch; nothing of either where it is fp8 already."""

    def __init__(self, rows: int, k: int, fmt: str, strides: tuple[int, int]) -> None:
        packed = FORMATS[fmt].pack == 2
        self.nbytes = -(-rows * k // 256) * 256 if packed else 0
        self._shape = rows, k
        self._run = Launcher(unpack_call(rows, k, fmt, strides[0])) if packed else None

    def __call__(self, data: Tensor, arena: workspace.Arena, offset: int) -> Tensor:
        if self._run is None:
            return data
        (rows, k), words = self._shape, self._shape[1] // 4
        target, made = workspace.views(
            arena, ((offset, torch.int32, (rows, words), (words, 1)), (offset, torch.uint8, (rows, k), (k, 1)))
        )
        self._run(data.view(torch.int32), target)
        return made


def _sides(problem: QuantProblem) -> tuple[tuple[str, tuple[int, int]], tuple[str, tuple[int, int]]]:
    return (problem.a_format, problem.strides.a), (problem.b_format, problem.strides.b)


def _fp32(scales: Tensor | None, name: ScaleName) -> Tensor | None:
    return scales if scales is None or name == "fp32" else decode_scale(scales, name).contiguous()
