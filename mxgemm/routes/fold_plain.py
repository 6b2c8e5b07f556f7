"""The launches of route ``fp8_fold`` where its last one applies the bases of rows: quantise, multiply, finish.

cublasLt has one kernel for e4m3 with a base a row, of 128 x 128 tiles, and several without, which are mostly quicker
(docs/lab-notes.md). Bases are powers of two, so that a sum rounded before them is the sum rounded behind them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products
from mxgemm.cuda.fold_last import fold_last
from mxgemm.hip.runtime import DriverError
from mxgemm.mx.fold import FOLD_ROWS
from mxgemm.mx.layouts import round_up
from mxgemm.native.captured import relaxed
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Place, ProductStep, Program, Step, fixed, joined
from mxgemm.native.vendor import VendorError, VendorProduct, run
from mxgemm.native.vendor_kernel import product_kernel
from mxgemm.notices import say_once
from mxgemm.problem import Problem
from mxgemm.routes.base import Operands
from mxgemm.routes.fold_forms import FP8_FOLD_COMPACT
from mxgemm.routes.fold_rows import first_launch
from mxgemm.triton.launch import hooks

_ALIGN: Final = 256
_E4M3: Final = torch.float8_e4m3fn


class PlainFoldChain:
    """The chain for one problem: scratch offsets and kernels bound once."""

    def __init__(self, problem: Problem, place: int) -> None:
        """Bind.

        Args:
            problem: the whole one, whose weight is multiplied whole.
            place: which of the vendor's products.

        Raises:
            BuildError: the compiler refuses the last launch's source.
        """
        p = self.problem = problem
        self.compact = p.derived == FP8_FOLD_COMPACT.kind
        self.columns = round_up(p.n, FOLD_ROWS)
        self.quantize = first_launch(p, p.n if self.compact else 0)
        assert p.strides is not None
        # fp16 may not hold sums without their bases, and a bias is added to what was not rounded.
        wide = p.has_bias or p.out_dtype == torch.float16
        self.product_dtype = torch.float32 if wide else p.out_dtype
        self.in_place = not wide and p.aligned and p.strides.out == (p.n, 1) and self.columns == p.n
        """The product lies where the result is to be."""
        self.last = fold_last(p, self.product_dtype, self.columns).build(p.machine)

        self.base_at = round_up(p.m * p.k, _ALIGN)
        self.wide_at = self.base_at + round_up(4 * p.m, _ALIGN)
        self.weight_at = self.wide_at + round_up(4 * p.m, _ALIGN)
        self.factors_at = self.weight_at + (round_up(self.columns * p.k, _ALIGN) if self.compact else 0)
        self.product_at = self.factors_at + (round_up(4 * self.columns, _ALIGN) if self.compact else 0)
        product_bytes = 0 if self.in_place else p.m * self.columns * self.product_dtype.itemsize
        self.vendor_at = self.product_at + round_up(product_bytes, _ALIGN)
        self.vendor: VendorProduct | None = VendorProduct(
            p.m, self.columns, p.k, _E4M3, self.product_dtype, None, bases=False, place=place
        )
        """Where cublasLt is asked directly, not through torch."""
        self.product: ProductStep | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        a, out, bias = operands.a, operands.out, operands.bias
        step = self._product(a.device)
        with workspace.take(self.vendor_at + (0 if step is None else step.memory_bytes), a.device) as arena:
            memory = arena.memory
            folded, base, wide = self._parts(memory)
            self.quantize(*self._quantized(operands, memory))
            right = self._right(operands.derived, memory)
            product = out if self.in_place else self._product_in(memory)
            self._multiply(step, folded, right[0], product, memory)
            added = 0 if bias is None else bias.data_ptr()
            read = (wide, product, base, a, *right)
            self.last(a.device, *(one.data_ptr() for one in read), added, out.data_ptr())

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches, where cublasLt is asked directly and has been."""
        if self.vendor is None or self.product is None or self.last.loaded is None:
            return None
        a, _, b, b_scales, bias, _, derived = operands
        weight, factors = SCRATCH + self.weight_at, SCRATCH + self.factors_at
        if not self.compact:
            weight, factors = (fixed(one.data_ptr()) for one in derived)
        base, wide = SCRATCH + self.base_at, SCRATCH + self.wide_at
        decoded = (*(fixed(one.data_ptr()) for one in (b, b_scales, derived[0])), weight, factors)
        product = self._step(self.vendor, a.device, weight)
        nbytes = self.vendor_at + product.memory_bytes
        with workspace.take(nbytes, a.device) as arena:
            places = (A, SCRATCH, base, wide, *(decoded if self.compact else ()))
            quantize = self.quantize.step(self._quantized(operands, arena.memory), places)
        sums, added = OUT if self.in_place else SCRATCH + self.product_at, fixed(0) if bias is None else BIAS
        last = self.last.step(a.device, wide, sums, base, A, weight, factors, added, OUT)
        steps: list[Step | None] = [quantize, product_kernel(self.vendor, product, a.device) or product, last]
        return joined(steps, scratch_bytes=nbytes, hooks=hooks())

    def _product(self, device: torch.device) -> ProductStep | None:
        """Return what cublasLt chose: the same for every call of a plan, from Python and from C."""
        if self.product is None and self.vendor is not None:
            try:
                with relaxed():  # the library sets itself up, of which a capture is to see nothing
                    self.product = self._step(self.vendor, device, SCRATCH)
            except (VendorError, DriverError) as error:
                say_once(f"fp8_fold multiplies through torch: {error}")
                self.vendor = None
        return self.product

    def _step(self, vendor: VendorProduct, device: torch.device, weight: Place) -> ProductStep:
        out = OUT if self.in_place else SCRATCH + self.product_at
        return vendor.step(device, weight, 0, SCRATCH, None, None, out, SCRATCH + self.vendor_at)

    def _parts(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A in e4m3, its bases and which of its rows do not fold."""
        p = self.problem
        return (
            memory[: p.m * p.k].view(p.m, p.k),
            memory[self.base_at : self.base_at + 4 * p.m].view(torch.float32),
            memory[self.wide_at : self.wide_at + 4 * p.m].view(torch.int32),
        )

    def _product_in(self, memory: Tensor) -> Tensor:
        m, columns, dtype, at = self.problem.m, self.columns, self.product_dtype, self.product_at
        return memory[at : at + m * columns * dtype.itemsize].view(dtype).view(m, columns)

    def _right(self, derived: tuple[Tensor, ...], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight in e4m3, padded to whole sixteens of rows, and its bases; of a compact one in scratch."""
        k, columns = self.problem.k, self.columns
        if not self.compact:
            return derived[0].as_strided((columns, k), (k, 1)), derived[1]
        factors = memory[self.factors_at : self.factors_at + 4 * columns].view(torch.float32)
        return memory[self.weight_at : self.weight_at + columns * k].view(columns, k), factors

    def _quantized(self, operands: Operands, memory: Tensor) -> tuple[Tensor, ...]:
        """Return what the first launch reads and writes."""
        first = operands.a, *self._parts(memory)
        if not self.compact:
            return first
        return *first, operands.b, operands.b_scales, operands.derived[0], *self._right(operands.derived, memory)

    def _multiply(self, step: ProductStep | None, left: Tensor, right: Tensor, out: Tensor, memory: Tensor) -> None:
        """``out = left @ right.T`` of elements without their bases."""
        if step is not None:
            addresses = right.data_ptr(), left.data_ptr(), 0, 0, out.data_ptr(), memory.data_ptr() + self.vendor_at
            run(step, *addresses, workspace.raw_stream(left.device))
            return
        one = torch.ones((), dtype=torch.float32, device=left.device)
        with plain_products(left.device.type):
            torch._scaled_mm(
                left.view(_E4M3), right.view(_E4M3).t(), scale_a=one, scale_b=one, out_dtype=out.dtype,
                use_fast_accum=False, out=out,
            )  # fmt: skip
