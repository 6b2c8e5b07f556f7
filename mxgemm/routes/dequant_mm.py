"""Route ``dequant_mm``: the weight as bf16, A rounded to its format and back to bf16, the vendor's bf16 GEMM.

bf16 holds every decoded e2m1, e4m3 and e5m2 element exactly, so this is the MX definition at bf16 speed: for large M,
for bf16 and e4m3 activations, and for weights that do not fold. The weight is decoded by ``prepare()``, or a bounded
slice at a time at each call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products, products_are_plain
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK, scale_addend
from mxgemm.mx.fragments import fragment_bytes, fragment_order, row_major_parts
from mxgemm.mx.layouts import FRAGMENTS, scale_row
from mxgemm.mx.prepared import WeightForm, only_e2m1
from mxgemm.mx.tensor import MXTensor, dequantize
from mxgemm.native.program import (
    MATRIX_A,
    MATRIX_OUT,
    SCRATCH,
    A,
    KernelStep,
    Program,
    TorchStep,
    View,
    fixed,
    joined,
    own,
    view,
)
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.decode import decode_call, decode_refusal, weight_slices
from mxgemm.triton.launch import KernelCall, Launcher, hooks
from mxgemm.triton.support import grid_refusal, interpreting, size_refusal, triton_missing, wide_offsets

_ROUND_M, _ROUND_K = 4, 512
_ALIGN: Final = 256


def _decoded(weight: MXTensor) -> tuple[Tensor, Tensor]:
    return dequantize(weight, dtype=torch.bfloat16), fragment_order(weight.data, weight.scales)


BF16: Final = WeightForm(
    "bf16",
    archs=("sm_90",),
    memory="fast",
    refusal=only_e2m1,
    make=_decoded,
    parts=lambda n, k: ((torch.bfloat16, (n, k)), (torch.uint8, (fragment_bytes(n, k),))),
)
"""bf16 values ``[N, K]`` and the fragment order for ``w4_mma``, for a weight that does not fold."""


class DequantMM(Route):
    """Decode to bf16, multiply by the vendor's GEMM."""

    name = "dequant_mm"
    takes = "bf16, fp16 or fp32 A, any a_format; an e2m1 weight, prepared or not"
    forms = (BF16,)
    reads_fragments = True

    def missing(self, machine: Machine) -> Refusal | None:
        """A GPU (or the interpreter, to test it)."""
        return triton_missing(machine)

    def can_implement(self, problem: Problem) -> Refusal | None:
        """Any float A times an MXFP4 weight."""
        if problem.a_quantized:
            return Refusal("a", "quantised already", "bf16, fp16 or fp32 activations")
        if problem.b_format != "e2m1":
            return Refusal("b_format", problem.b_format, "e2m1")
        return (
            size_refusal(problem)
            or decode_refusal(problem)
            or grid_refusal(problem, _grid(problem), 4, ("m", "k"))
            or contiguity_refusal(problem)
        )

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        del config
        return _Launch(problem)


class _Launch:
    """The chain for one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, p = problem, _row_major(problem)
        self.decoded = p.derived == BF16.kind
        self.round = None if p.a_format == "bf16" else Launcher(round_call(p))
        self.slices = [] if self.decoded else weight_slices(p, 2)
        sizes = {stop - start for start, stop in self.slices}
        self.decode = {rows: Launcher(decode_call(p, rows, to_fp8=False)) for rows in sizes}
        self.nbytes = max((2 * rows * p.k for rows in sizes), default=0)

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches, where the vendor's product writes the result and one slice is the weight."""
        p = self.problem
        a, _, b, b_scales, bias, _, derived = operands
        assert p.strides is not None
        straight = a.is_cuda and bias is None and p.out_dtype == torch.bfloat16 and p.strides.out == (p.n, 1)
        if not straight or len(self.slices) > 1 or (self.round is None and p.a_dtype != torch.bfloat16):
            return None
        if p.weight_layout == FRAGMENTS:  # which torch puts in order first
            return None
        left_at = -(-self.nbytes // _ALIGN) * _ALIGN
        rounded = View(left_at, torch.bfloat16, (p.m, p.k), (p.k, 1))
        nbytes = self.nbytes if self.round is None else left_at + 2 * p.m * p.k
        views = () if self.round is None else (rounded,)
        left, right = MATRIX_A if self.round is None else view(0), own(0)
        if not self.decoded:
            right, views = view(len(views)), (*views, View(0, torch.bfloat16, (p.k, p.n), (1, p.k)))
        steps: list[KernelStep | TorchStep | None] = []
        with workspace.take(nbytes, a.device) as arena:
            tensors = workspace.views(arena, tuple(map(tuple, views)))  # type: ignore[arg-type]
            if self.round is not None:
                steps.append(self.round.step((a, tensors[0]), (A, SCRATCH + left_at)))
            if not self.decoded:
                weight = fixed(b.data_ptr()), *(fixed(b_scales.data_ptr()),) * 2
                steps.append(self.decode[p.n].step((b, b_scales, b_scales, tensors[-1]), (*weight, SCRATCH)))
        steps.append(TorchStep(MATRIX_OUT, left, right))
        asked = (partial(products_are_plain, a.device.type),)
        return joined(
            steps,
            scratch_bytes=nbytes,
            hooks=(asked, *hooks()),
            views=views,
            own=(derived[0].t(),) if self.decoded else (),
        )

    def __call__(self, operands: Operands) -> None:
        a, _, b, b_scales, bias, out, derived = operands
        p = self.problem
        if self.round is None:
            left = a.to(torch.bfloat16)
        else:
            left = torch.empty(p.m, p.k, dtype=torch.bfloat16, device=a.device)
            self.round(a, left)
        if self.decoded:
            multiply_bf16(left, derived[0], bias, out)
            return
        with workspace.take(self.nbytes, a.device) as arena:
            memory = arena.memory.view(torch.bfloat16)
            for start, stop in self.slices:
                right = memory[: (stop - start) * p.k].view(stop - start, p.k)
                data, scales = b[start:stop], b_scales[scale_row(p.scale_layout, start) :]
                if p.weight_layout == FRAGMENTS:  # slices start where pairs of tiles do
                    data, scales = row_major_parts(data, scales[: stop - start])
                self.decode[stop - start](data, scales, b_scales, right)
                multiply_bf16(left, right, None if bias is None else bias[start:stop], out[:, start:stop])


def _row_major(problem: Problem) -> Problem:
    """Return the problem as it is once a weight in fragment order has been put back in order."""
    if problem.weight_layout != FRAGMENTS or problem.strides is None:
        return problem
    strides = replace(problem.strides, b=(problem.k // 2, 1), b_scales=(problem.k // BLOCK, 1))
    options = problem.options._replace(weight_layout="row_major", scale_layout="row_major")
    return replace(problem, options=options, strides=strides)


def round_call(problem: Problem) -> KernelCall:
    """Describe the launch that rounds A to the problem's ``a_format``, as bf16: x, out."""
    from mxgemm.triton.kernels.round_values import round_values_kernel

    p, s = problem, problem.strides
    assert s is not None
    assert p.a is not None
    constants = {
        "EMAX": p.a.emax,
        "ADDEND": scale_addend(p.a, p.scale_rounding),
        "BLOCK_M": _ROUND_M,
        "BLOCK_K": _ROUND_K,
        "WIDE": wide_offsets(p),
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        round_values_kernel, (p.a_dtype, torch.bfloat16), (p.m, p.k, *s.a), constants, {"num_warps": 4}, _grid(p)
    )


def _grid(problem: Problem) -> tuple[int, int, int]:
    return -(-problem.m // _ROUND_M), -(-problem.k // _ROUND_K), 1


def multiply_bf16(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """``out = left @ right.T + bias``: fp32 sums, one rounding."""
    if bias is None and out.dtype == torch.bfloat16:
        with plain_products(left.device.type):
            torch.mm(left, right.t(), out=out)
        return
    with plain_products(left.device.type):
        if left.is_cuda:
            product = torch.mm(left, right.t(), out_dtype=torch.float32)
        else:  # torch.mm has no out_dtype on a CPU
            product = left.to(torch.float32) @ right.to(torch.float32).t()
    if bias is not None:
        product += bias.to(torch.float32)
    out.copy_(product)
