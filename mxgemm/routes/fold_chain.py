"""The launches of route ``fp8_fold``: quantise and decode a compact weight, multiply, finish, recompute rows.

The vendor's product applies the bases of rows. Another chain, where it does not, is ``mxgemm.routes.fold_plain``.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from mxgemm import workspace
from mxgemm.ambient import plain_products
from mxgemm.mx.fold import FOLD_ROWS
from mxgemm.mx.layouts import round_up, scale_row
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, Place, ProductStep, Program, Step, fixed, joined
from mxgemm.native.vendor import VendorError, VendorProduct, run
from mxgemm.native.vendor_kernel import product_kernel
from mxgemm.notices import say_once
from mxgemm.problem import Problem
from mxgemm.routes.base import Operands
from mxgemm.routes.decode import decode_call, weight_slices
from mxgemm.routes.fold_calls import (
    finish_call,
    finish_folded_call,
    fold_both_call,
    quantize_fold_call,
    wide_rows_call,
)
from mxgemm.routes.fold_forms import FP8_FOLD_COMPACT, FP8_FOLD_FNUZ
from mxgemm.triton.launch import Launcher, hooks

_ALIGN: Final = 256
_FEW_A_UNIT: Final = 4


class FoldChain:
    """The chain for one problem: scratch offsets and kernels bound once."""

    def __init__(self, problem: Problem) -> None:
        """Bind."""
        p = self.problem = problem
        self.compact = p.derived == FP8_FOLD_COMPACT.kind
        fnuz = p.derived == FP8_FOLD_FNUZ.kind
        self.fp8 = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
        self.slices = weight_slices(p, 1) if self.compact else [(0, p.n)]
        sizes = {stop - start for start, stop in self.slices}
        # The vendor's call wants N % 16 == 0 and results contiguous and aligned, and adds a bias in bf16 to bf16 only.
        assert p.strides is not None
        plain_bias = p.bias_dtype == p.out_dtype == torch.bfloat16 and p.strides.bias == 1 and p.aligned
        whole = len(self.slices) == 1 and p.n % FOLD_ROWS == 0
        self.direct = whole and p.aligned and p.strides.out == (p.n, 1) and (plain_bias or not p.has_bias)
        # AMD's gives bf16 alone.
        self.vendor_adds_bias = p.has_bias and plain_bias and (self.direct or fnuz)
        bias_after = p.has_bias and not self.vendor_adds_bias
        self.product_dtype = torch.float32 if bias_after else p.out_dtype

        # Of a compact weight the first slice is decoded by the launch that quantises A.
        first = self.slices[0][1]
        self.quantize = Launcher(fold_both_call(p, first) if self.compact else quantize_fold_call(p))
        later = {stop - start for start, stop in self.slices[1:]}
        self.decode = {rows: Launcher(decode_call(p, rows, to_fp8=True)) for rows in later}
        self.packed = len(self.slices) > 1  # or all of the weight is in e4m3 when the last launch begins
        finish = {rows: finish_call(p, rows, self.product_dtype, has_bias=bias_after) for rows in sizes}
        # One launch finishes and recomputes rows where its programs, whose registers are many, all start soon.
        few = finish[first].grid[0] <= _FEW_A_UNIT * max(p.machine.cu_count, 1)
        self.finishes_last = few and not self.direct and not self.packed
        apart = not self.direct and not self.finishes_last
        self.finish = {rows: Launcher(call) for rows, call in finish.items()} if apart else {}
        if self.finishes_last:
            self.last = Launcher(finish_folded_call(p, self.product_dtype, has_bias=bias_after))
        else:
            self.last = Launcher(wide_rows_call(p, packed=self.packed))

        most = round_up(max(sizes), FOLD_ROWS)
        self.base_at = round_up(p.m * p.k, _ALIGN)
        self.wide_at = self.base_at + round_up(4 * p.m, _ALIGN)
        self.weight_at = self.wide_at + round_up(4 * p.m, _ALIGN)
        self.factors_at = self.weight_at + (round_up(most * p.k, _ALIGN) if self.compact else 0)
        self.product_at = self.factors_at + (round_up(4 * most, _ALIGN) if self.compact else 0)
        product_bytes = 0 if self.direct else p.m * most * self.product_dtype.itemsize
        self.nbytes = self.product_at + round_up(product_bytes, _ALIGN)
        self.vendor: VendorProduct | Literal[False] | None = None

    def __call__(self, operands: Operands) -> None:
        """Launch on the current stream of the operands' device."""
        with workspace.take(self.nbytes, operands.a.device) as arena:
            self._launch(operands, arena.memory)

    def _launch(self, operands: Operands, memory: Tensor) -> None:
        a, _, b, b_scales, bias, out, derived = operands
        folded, base, wide = self._parts(memory)
        self.quantize(*self._quantized(operands, memory))
        for start, stop in self.slices:
            if start:
                self.decode[stop - start](*self._decoded(operands, start, stop, memory))
            right = self._right(derived, stop - start, memory)
            columns, some = out[:, start:stop], None if bias is None else bias[start:stop]
            product = out if self.direct else self._product_in(memory, stop - start)
            self._multiply((folded, base), right, some, product)
            if self.finish:
                self.finish[stop - start](product, columns if some is None else some, columns)
        added = out if bias is None else bias
        if self.packed:
            self.last(wide, a, b, b_scales, added, out)
        else:
            self.last(wide, *((product,) if self.finishes_last else ()), a, *right, added, out)

    def program(self, operands: Operands) -> Program | None:
        """Describe the launches, where the weight is multiplied whole and the vendor's product gives torch's bits."""
        on_nvidia = self.problem.machine.arch.startswith("sm_")  # AMD's product is asked of torch
        if not on_nvidia or len(self.slices) > 1 or self.vendor is False:
            return None
        if self.vendor is None:
            self.vendor = self._vendor_product(operands)
            if not self.vendor:
                return None
        a, _, b, b_scales, bias, out, derived = operands
        n = self.problem.n
        base_at, wide_at, weight_at, factors_at = (
            SCRATCH + at for at in (self.base_at, self.wide_at, self.weight_at, self.factors_at)
        )
        added, added_at = (out, OUT) if bias is None else (bias, BIAS)
        bases = self._bases(derived)
        product = self._step(self.vendor, a.device, weight_at if self.compact else fixed(derived[0].data_ptr()), bases)
        nbytes = self.nbytes + product.memory_bytes
        with workspace.take(nbytes, a.device) as arena:
            wide = self._parts(arena.memory)[2]
            decoded = (*map(_place, (b, b_scales, derived[0])), weight_at, factors_at) if self.compact else ()
            places = (A, SCRATCH, base_at, wide_at, *decoded)
            steps: list[Step | None] = [
                self.quantize.step(self._quantized(operands, arena.memory), places),
                product_kernel(self.vendor, product, a.device) or product,
            ]
            read = self._right(derived, n, arena.memory)
            read_at = (weight_at, factors_at) if self.compact else map(_place, read)
            sums = () if self.direct else (self._product_in(arena.memory, n),)
            sums_at = () if self.direct else (SCRATCH + self.product_at,)
            if self.finish:
                steps.append(self.finish[n].step((*sums, added, out), (*sums_at, added_at, OUT)))
                sums, sums_at = (), ()
            last = (wide, *sums, a, *read, added, out), (wide_at, *sums_at, A, *read_at, added_at, OUT)
            steps.append(self.last.step(*last))
        return joined(steps, scratch_bytes=nbytes, hooks=hooks(), owned=(bases,))

    def _vendor_product(self, operands: Operands) -> VendorProduct | Literal[False]:
        """Return the product asked of the library directly, if it gives the bits that it gives through torch."""
        p, device = self.problem, operands.a.device
        n, bias = round_up(p.n, FOLD_ROWS), operands.bias
        bias_dtype = p.bias_dtype if self.vendor_adds_bias else None
        vendor = VendorProduct(p.m, n, p.k, self.fp8, self.product_dtype, bias_dtype, fast=False)
        try:
            bases = self._bases(operands.derived)  # held until they have been read
            step = self._step(vendor, device, SCRATCH, bases)
            with workspace.take(self.nbytes + step.memory_bytes, device) as arena:
                folded, base, _ = self._parts(arena.memory)
                self.quantize(*self._quantized(operands, arena.memory))
                right = self._right(operands.derived, p.n, arena.memory)
                ours, theirs = (torch.empty((p.m, n), dtype=self.product_dtype, device=device) for _ in range(2))
                self._multiply((folded, base), right, bias, theirs)
                run(
                    step, right[0].data_ptr(), folded.data_ptr(), base.data_ptr(),
                    0 if bias is None else bias.data_ptr(), ours.data_ptr(), arena.address + self.nbytes,
                    workspace.raw_stream(device),
                )  # fmt: skip
        except VendorError as error:
            say_once(f"fp8_fold multiplies through torch at every call: {error}")
            return False
        same = torch.equal(ours[:, : p.n].view(torch.uint8), theirs[:, : p.n].view(torch.uint8))
        return vendor if same else False

    def _step(self, vendor: VendorProduct, device: torch.device, weight: Place, bases: Tensor) -> ProductStep:
        out = OUT if self.direct else SCRATCH + self.product_at
        bias = None if vendor.bias_dtype is None else BIAS
        base, memory = SCRATCH + self.base_at, SCRATCH + self.nbytes
        return vendor.step(device, weight, bases.data_ptr(), SCRATCH, base, bias, out, memory)

    def _parts(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A in e4m3, its bases and which of its rows do not fold."""
        p = self.problem
        return (
            memory[: p.m * p.k].view(p.m, p.k),
            memory[self.base_at : self.base_at + 4 * p.m].view(torch.float32),
            memory[self.wide_at : self.wide_at + 4 * p.m].view(torch.int32),
        )

    def _product_in(self, memory: Tensor, rows: int) -> Tensor:
        m, columns, dtype = self.problem.m, round_up(rows, FOLD_ROWS), self.product_dtype
        at = self.product_at
        return memory[at : at + m * columns * dtype.itemsize].view(dtype).view(m, columns)

    def _bases(self, derived: tuple[Tensor, ...]) -> Tensor:
        return _fp32_bases(derived[0], round_up(self.problem.n, FOLD_ROWS)) if self.compact else derived[1]

    def _quantized(self, operands: Operands, memory: Tensor) -> tuple[Tensor, ...]:
        """Return what the first launch reads and writes."""
        first = operands.a, *self._parts(memory)
        return (*first, *self._decoded(operands, *self.slices[0], memory)) if self.compact else first

    def _decoded(self, operands: Operands, start: int, stop: int, memory: Tensor) -> tuple[Tensor, ...]:
        """Return what a launch that decodes rows of a compact weight reads and writes."""
        scales = operands.b_scales[scale_row(self.problem.scale_layout, start) :]
        made = self._right(operands.derived, stop - start, memory)
        return operands.b[start:stop], scales, operands.derived[0][start:stop], *made

    def _right(self, derived: tuple[Tensor, ...], rows: int, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of the weight in e4m3, padded to whole sixteens, and their bases; of a compact one in scratch."""
        k, padded = self.problem.k, round_up(rows, FOLD_ROWS)
        if not self.compact:
            return derived[0].as_strided((padded, k), (k, 1)), derived[1]
        factors = memory[self.factors_at : self.factors_at + 4 * padded].view(torch.float32)
        return memory[self.weight_at : self.weight_at + padded * k].view(padded, k), factors

    def _multiply(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], bias: Tensor | None, out: Tensor
    ) -> None:
        """``out = left @ right.T``, with the bias that the vendor's call adds."""
        data, weight = left[0].view(self.fp8), right[0].view(self.fp8)
        bias = _padded(bias, len(weight)) if self.vendor_adds_bias and bias is not None else None
        with plain_products(data.device.type):
            torch._scaled_mm(
                data, weight.t(), scale_a=left[1].view(-1, 1), scale_b=right[1].view(1, -1), bias=bias,
                out_dtype=out.dtype, use_fast_accum=False, out=out,
            )  # fmt: skip


def _fp32_bases(base: Tensor, rows: int) -> Tensor:
    """Return exponent bytes as fp32, 1 for rows behind them."""
    scale = torch.ones(rows, dtype=torch.float32, device=base.device)
    scale[: len(base)] = (base.to(torch.int32) << 23).view(torch.float32)
    return scale


def _padded(bias: Tensor, size: int) -> Tensor:
    return bias if bias.numel() == size else torch.nn.functional.pad(bias, (0, size - bias.numel()))


def _place(tensor: Tensor) -> Place:
    return fixed(tensor.data_ptr())
