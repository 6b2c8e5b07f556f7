"""Route ``dequant_mm``: the weight as bf16, A rounded to its format and back to bf16, the vendor's bf16 GEMM.

bf16 holds every decoded e2m1, e4m3 and e5m2 element exactly, so this is the MX definition at bf16 speed: for large M,
for bf16 and e4m3 activations, and for weights that do not fold. The weight is decoded by ``prepare()``, or a bounded
slice at a time at each call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.hip.runtime import DriverError
from mxgemm.mx.formats import BLOCK, scale_addend
from mxgemm.mx.fragments import fragment_bytes, fragment_order, row_major_parts
from mxgemm.mx.layouts import FRAGMENTS, round_up, scale_row
from mxgemm.mx.prepared import WeightForm, only_e2m1
from mxgemm.mx.tensor import MXTensor, dequantize
from mxgemm.native.captured import relaxed
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Place, ProductStep, Program, Step, fixed, joined
from mxgemm.native.vendor import VendorError, VendorProduct, run
from mxgemm.native.vendor_kernel import product_kernel
from mxgemm.notices import say_once
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.decode import decode_call, decode_refusal, weight_slices
from mxgemm.routes.fold_forms import FP8_FOLD, FP8_FOLD_COMPACT
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
    alike = (("", FP8_FOLD.kind, FP8_FOLD_COMPACT.kind),)

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
    """The chain for one problem: scratch offsets and kernels bound once."""

    def __init__(self, problem: Problem) -> None:
        self.problem, p = problem, _row_major(problem)
        self.decoded = p.derived == BF16.kind
        self.round = None if p.a_format == "bf16" else Launcher(round_call(p))
        self.slices = [] if self.decoded else weight_slices(p, 2)
        sizes = {stop - start for start, stop in self.slices}
        self.decode = {rows: Launcher(decode_call(p, rows, to_fp8=False)) for rows in sizes}
        self.both = None
        """Rounds A and decodes the first slice in one launch."""
        if self.round is not None and self.slices:
            both = round_and_decode_call(p, self.slices[0][1])
            if grid_refusal(p, both.grid, 4, ("m", "k")) is None:
                self.both = Launcher(both)
        # In scratch: a slice of the weight, A, what the vendor's product asks for.
        self.left_at = round_up(max((2 * rows * p.k for rows in sizes), default=0), _ALIGN)
        self.vendor_at = self.left_at + (0 if self.round is None else round_up(2 * p.m * p.k, _ALIGN))
        bias_dtype = p.bias_dtype if p.has_bias else None
        self.vendor: VendorProduct | None = None
        """Where cublasLt is asked directly, not through torch."""
        if self._is_plain():
            alignment = 16 if p.aligned else torch.bfloat16.itemsize
            self.vendor = VendorProduct(p.m, p.n, p.k, torch.bfloat16, p.out_dtype, bias_dtype, alignment=alignment)
        self.product: ProductStep | None = None

    def _is_plain(self) -> bool:
        """Say whether one product of contiguous bf16 writes the result, with a bias that cublasLt adds to it."""
        p = self.problem
        assert p.strides is not None
        left = self.round is not None or (p.a_dtype == torch.bfloat16 and p.strides.a == (p.k, 1))
        right = len(self.slices) <= 1 and p.weight_layout != FRAGMENTS
        bias = not p.has_bias or (p.bias_dtype == p.out_dtype and p.strides.bias == 1 and p.aligned)
        out = p.out_dtype in (torch.bfloat16, torch.float32) and p.strides.out == (p.n, 1)
        return left and right and bias and out and p.machine.arch.startswith("sm_")

    def __call__(self, operands: Operands) -> None:
        a = operands.a
        product = self._product(a.device)
        nbytes = self.vendor_at + (0 if product is None else product.memory_bytes)
        with workspace.take(nbytes, a.device) as arena:
            left, right = self._first(operands, arena.memory)
            if product is not None:
                self._multiply(product, left, right, operands, arena.memory)
            elif self.decoded:
                multiply_bf16(left, right, operands.bias, operands.out)
            else:
                self._multiply_slices(left, right, operands, arena.memory)

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches, where cublasLt is asked directly and has been."""
        if self.vendor is None or self.product is None:
            return None
        a, _, b, b_scales, _, _, derived = operands
        weight = fixed(derived[0].data_ptr()) if self.decoded else SCRATCH
        product = self._step(self.vendor, a.device, weight)
        nbytes = self.vendor_at + product.memory_bytes
        steps: list[Step | None] = []
        with workspace.take(nbytes, a.device) as arena:
            left, left_at = (a, A) if self.round is None else (self._left_in(arena.memory), SCRATCH + self.left_at)
            scales_at = fixed(b_scales.data_ptr())
            weight_at = fixed(b.data_ptr()), scales_at, scales_at, SCRATCH, scales_at
            decoded = () if self.decoded else self._decoded(b, b_scales, self.problem.n, arena.memory)
            if self.both is not None:
                steps.append(self.both.step((a, left, *decoded), (A, left_at, *weight_at)))
            elif self.round is not None:
                steps.append(self.round.step((a, left), (A, left_at)))
            elif not self.decoded:
                steps.append(self.decode[self.problem.n].step(decoded, weight_at))
        last = product_kernel(self.vendor, product, a.device) or product
        return joined((*steps, last), scratch_bytes=nbytes, hooks=hooks() if steps else ())

    def _product(self, device: torch.device) -> ProductStep | None:
        """Return what cublasLt chose: the same for every call of a plan, from Python and from C."""
        if self.product is None and self.vendor is not None:
            try:
                with relaxed():  # the library sets itself up, of which a capture is to see nothing
                    self.product = self._step(self.vendor, device, SCRATCH)
            except (VendorError, DriverError) as error:
                say_once(f"dequant_mm multiplies through torch: {error}")
                self.vendor = None
        return self.product

    def _step(self, vendor: VendorProduct, device: torch.device, weight: Place) -> ProductStep:
        left = A if self.round is None else SCRATCH + self.left_at
        bias = BIAS if self.problem.has_bias else None
        return vendor.step(device, weight, 0, left, None, bias, OUT, SCRATCH + self.vendor_at)

    def _left(self, a: Tensor, memory: Tensor) -> Tensor:
        if self.round is None:
            return a.to(torch.bfloat16)
        left = self._left_in(memory)
        self.round(a, left)
        return left

    def _left_in(self, memory: Tensor) -> Tensor:
        m, k = self.problem.m, self.problem.k
        return memory[self.left_at : self.left_at + 2 * m * k].view(torch.bfloat16).view(m, k)

    def _first(self, operands: Operands, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and the weight, or its first slice, as they are multiplied."""
        if self.decoded:
            return self._left(operands.a, memory), operands.derived[0]
        start, stop = self.slices[0]
        data, scales = self._slice(operands, start, stop)
        if self.both is None:
            return self._left(operands.a, memory), self._right(data, scales, stop - start, memory)
        left, decoded = self._left_in(memory), self._decoded(data, scales, stop - start, memory)
        self.both(operands.a, left, *decoded)
        return left, decoded[3]

    def _right(self, b: Tensor, b_scales: Tensor, rows: int, memory: Tensor) -> Tensor:
        decoded = self._decoded(b, b_scales, rows, memory)
        self.decode[rows](*decoded)
        return decoded[3]

    def _decoded(self, b: Tensor, b_scales: Tensor, rows: int, memory: Tensor) -> tuple[Tensor, ...]:
        """Return what a launch that decodes rows of the weight reads and writes; of bases there are none."""
        return b, b_scales, b_scales, self._right_in(memory, rows), b_scales

    def _slice(self, operands: Operands, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return rows of the weight and their scales, row-major where they come in fragment order."""
        p = self.problem
        data, scales = operands.b[start:stop], operands.b_scales[scale_row(p.scale_layout, start) :]
        if p.weight_layout != FRAGMENTS:
            return data, scales
        return row_major_parts(data, scales[: stop - start])  # slices start where pairs of tiles do

    def _right_in(self, memory: Tensor, rows: int) -> Tensor:
        k = self.problem.k
        return memory[: 2 * rows * k].view(torch.bfloat16).view(rows, k)

    def _multiply(self, product: ProductStep, left: Tensor, right: Tensor, operands: Operands, memory: Tensor) -> None:
        bias, out = operands.bias, operands.out
        run(
            product, right.data_ptr(), left.data_ptr(), 0, 0 if bias is None else bias.data_ptr(), out.data_ptr(),
            memory.data_ptr() + self.vendor_at, workspace.raw_stream(out.device),
        )  # fmt: skip

    def _multiply_slices(self, left: Tensor, right: Tensor, operands: Operands, memory: Tensor) -> None:
        bias, out = operands.bias, operands.out
        for start, stop in self.slices:
            if start:
                right = self._right(*self._slice(operands, start, stop), stop - start, memory)
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
    options = {"num_warps": 4}
    return KernelCall(round_values_kernel, (p.a_dtype, torch.bfloat16), (p.m, p.k, *s.a), constants, options, _grid(p))


def round_and_decode_call(problem: Problem, rows: int) -> KernelCall:
    """Describe the launch of that and of ``decode_call`` for ``rows`` rows of the weight: its tensors, then those."""
    from mxgemm.triton.kernels.dequant import round_and_decode_kernel

    left, right = round_call(problem), decode_call(problem, rows, to_fp8=False)
    a, b = dict(left.constants), dict(right.constants)
    constants = {
        **{name: a[name] for name in ("EMAX", "ADDEND", "BLOCK_M")},
        **{"A_BLOCK_K": a["BLOCK_K"]},
        **b,
    }
    return KernelCall(
        round_and_decode_kernel,
        (*left.dtypes, *right.dtypes),
        (*left.scalars, rows, *right.scalars[2:]),
        constants,
        left.options,
        (left.grid[0] * left.grid[1] + right.grid[0], 1, 1),
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
