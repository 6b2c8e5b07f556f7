"""Route ``cpu_native`` of grouped products: the C kernels of :mod:`mxgemm.cpu`, an expert after the other.

Offsets are the host's memory there. Every group is multiplied by the same method, whatever its rows: each method adds
a row's products in an order of its own, and so a token's result is the same beside any others. It is the one for many
rows, which costs a group of one or two rows up to half as much again, and saves half of a large one's time.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mxgemm.cpu import build
from mxgemm.cpu.launch import Product, method_for_many_rows, swiglu
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.experts.problem import GroupedProblem, Operands, Routing
from mxgemm.experts.reference import Reference, clear_the_rest, groups_of, rows_of_a, write_rows
from mxgemm.experts.route import Combine, ExpertsRoute, Launch, Sort
from mxgemm.problem import Options, Problem, Strides

_TORCH = Reference()


class CpuNative(ExpertsRoute):
    """Multiply slices of rows in C."""

    name = "cpu_native"
    takes = "MXFP4 weights on a CPU"

    def missing(self, machine: Machine) -> Refusal | None:
        """A CPU of a kind that has a variant, and a C compiler."""
        if machine.arch != "cpu":
            return Refusal("arch", machine.arch, "a CPU", "machine")
        found = build.library()
        return found if isinstance(found, Refusal) else None

    def can_implement(self, problem: GroupedProblem) -> Refusal | None:
        """An MXFP4 weight."""
        return None if problem.b_format == "e2m1" else Refusal("w.format", problem.b_format, "e2m1")

    def bind(self, problem: GroupedProblem) -> Launch:
        """Return the launcher."""
        library = build.library()
        assert not isinstance(library, Refusal)
        p = problem
        through = p.activation is not None or p.writes_index or p.out_format != "" or p.reads_index
        multiply = _Groups(library, p, through)

        def launch(o: Operands) -> None:
            groups = groups_of(o.offsets, p.rows)
            whole = slice(groups[0].start, groups[-1].stop)
            if not through:
                multiply(o.a, o.a_scales, o, groups, 0, o.out)
            elif whole.start < whole.stop:
                a, scales, absent = rows_of_a(p, o, whole)
                sums = torch.empty((a.shape[0], p.n), dtype=torch.float32, device=a.device)
                multiply(a, scales, o, groups, whole.start, sums)
                if p.activation is not None:
                    s = p.activation
                    sums = swiglu(library, sums, s.interleaved, s.alpha, s.limit, s.offset)
                write_rows(p, o, whole, sums, absent)
            clear_the_rest(p, o)

        return launch

    def bind_sort(self, routing: Routing, block_rows: int) -> Sort:
        """Return torch's sort."""
        return _TORCH.bind_sort(routing, block_rows)

    def bind_combine(self, routing: Routing) -> Combine:
        """Return torch's sums."""
        return _TORCH.bind_combine(routing)


class _Groups:
    """The products of all groups, one :class:`Product` at different addresses."""

    def __init__(self, library: ctypes.CDLL, problem: GroupedProblem, through: bool) -> None:
        p, s = problem, problem.strides
        self._problem = p
        gathered = p.reads_index  # rows that were gathered are contiguous
        self._a = (p.k // (1 if p.a is None else p.a.pack), 1) if gathered else s.a
        self._a_scales = (p.k // 32, 1) if gathered and p.a is not None else s.a_scales
        self._out = (p.n, 1) if through else s.out
        self._out_bytes = 4 if through else p.out_dtype.itemsize
        described = Problem(
            1,
            p.n,
            p.k,
            p.machine,
            Options(p.a_format, p.b_format, out_dtype=torch.float32 if through else p.out_dtype),
            a_quantized=p.a is not None,
            a_dtype=p.a_dtype,
            has_bias=p.bias_dtype is not None,
            strides=Strides(
                a=self._a, b=s.w[1:], b_scales=s.w_scales[1:], out=self._out, a_scales=self._a_scales, bias=s.bias[1]
            ),
            bias_dtype=p.bias_dtype or torch.float32,
        )
        method = method_for_many_rows(library.mx_variant().decode(), p.a_format)
        self._product = Product(library, described, method, alike=True)

    def __call__(
        self, a: Tensor, a_scales: Tensor | None, o: Operands, groups: list[slice], origin: int, out: Tensor
    ) -> None:
        """Fill rows of ``out`` with products of rows of ``a``; row ``origin`` of the groups is row 0 of both."""
        s, run = self._problem.strides, self._product.at
        first_a, first_out, w, w_scales = a.data_ptr(), out.data_ptr(), o.w.data_ptr(), o.w_scales.data_ptr()
        a_row, out_row = self._a[0] * a.element_size(), self._out[0] * self._out_bytes
        scales = None if a_scales is None else a_scales.data_ptr()
        bias = None if o.bias is None else o.bias.data_ptr()
        bias_expert = 0 if o.bias is None else s.bias[0] * o.bias.element_size()
        for expert, rows in enumerate(groups):
            if rows.start == rows.stop:
                continue
            at = rows.start - origin
            run(
                rows.stop - rows.start,
                first_a + at * a_row,
                None if scales is None else scales + at * self._a_scales[0],
                w + expert * s.w[0],
                w_scales + expert * s.w_scales[0],
                None if bias is None else bias + expert * bias_expert,
                first_out + at * out_row,
            )
