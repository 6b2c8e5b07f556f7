"""Linear layers with MXFP4 weights that several processes share, for serving: each holds a slice.

A column-parallel layer holds rows of the weight, N / size of them, and computes those columns of the result. A
row-parallel one holds columns of the weight, K / size of them in whole blocks of 32: block scales are those of the
whole, since no block is cut. Its products are added up in fp32 over the processes and rounded once, as one process
does it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch import Tensor

from mxgemm import ops
from mxgemm.ambient import check_no_grad, is_observed
from mxgemm.arguments import as_int, one_of
from mxgemm.gemm import gemm, gemm_mx
from mxgemm.mx.formats import BLOCK, ActivationFormat, ScaleRounding
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.nn import MXLinear
from mxgemm.nn.linear import DEFAULT_FORMAT
from mxgemm.parallel.exchange import add_up, add_up_rows, gather, gather_columns, gather_mx
from mxgemm.parallel.ranks import Ranks, ranks_of
from mxgemm.problem import Options
from mxgemm.quantize import quantize

_CHOICES: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "column": {"input": ("whole", "rows"), "output": ("split", "whole")},
    "row": {"input": ("split", "whole"), "output": ("whole", "rows")},
}


class ParallelMXLinear(MXLinear):
    """What both kinds have in common; :class:`ColumnParallelMXLinear` and :class:`RowParallelMXLinear` are to be made.

    ``in_features``, ``out_features`` and ``state_dict()`` are those of this process's slice. The bias requires no grad,
    and an ``x`` that does is refused while gradients are recorded: theirs would want exchanges of their own.
    """

    kind: Literal["column", "row"]
    ranks: Ranks
    input: str
    output: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        group: Any = None,
        input: str | None = None,
        output: str | None = None,
    ) -> None:
        k, n = as_int("in_features", in_features), as_int("out_features", out_features)
        ranks = ranks_of(group)
        rows, columns = self.slices(n, k, ranks)
        super().__init__(
            k if columns is None else columns.stop - columns.start,
            n if rows is None else rows.stop - rows.start,
            bias,
            a_format=a_format,
            scale_rounding=scale_rounding,
            device=device,
            dtype=dtype,
        )
        self._share(ranks, input, output)

    def _share(self, ranks: Ranks, input: str | None, output: str | None) -> None:
        choices = _CHOICES[self.kind]
        self.ranks = ranks
        self.input = one_of("input", choices["input"][0] if input is None else input, choices["input"])
        self.output = one_of("output", choices["output"][0] if output is None else output, choices["output"])
        if self.bias is not None:
            self.bias.requires_grad_(False)

    @classmethod
    def slices(cls, n: int, k: int, ranks: Ranks) -> tuple[slice | None, slice | None]:
        """Return which rows and which columns of a weight (N, K) a process holds; None for all.

        Raises:
            ValueError: ``out_features`` or ``in_features`` cannot be divided evenly.
        """
        if cls.kind == "column":
            return ranks.part("out_features", n), None
        return None, ranks.part("in_features", k, BLOCK)

    @classmethod
    def from_mx(
        cls,
        weight: MXTensor,
        bias: Tensor | None = None,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        group: Any = None,
        input: str | None = None,
        output: str | None = None,
    ) -> Any:
        """Make this process's layer of a whole weight and a whole bias, copying its slice.

        Args:
            weight: (N, K), e2m1, any layout; what ``prepare()`` had been asked of it is asked of the slice.
            bias: ``[N]``.
            a_format: what activations are rounded to.
            scale_rounding: rule for the block scales of activations.
            group: as in the constructor.
            input: as in the constructor.
            output: as in the constructor.

        Raises:
            TypeError, ValueError: as :meth:`mxgemm.nn.MXLinear.from_mx`; a size that cannot be divided evenly.
        """
        whole = MXLinear.from_mx(weight, bias, a_format=a_format, scale_rounding=scale_rounding).mx_tensor()
        ranks = ranks_of(group)
        n, k = whole.shape
        rows, columns = cls.slices(n, k, ranks)
        part = take(whole, rows, columns)
        if weight.prepared is not None:
            asked = weight.prepared.arguments
            part = asked.of(part)
        if bias is not None:
            bias = bias.detach()[slice(None) if rows is None else rows].clone()
        return cls.from_slice(
            part, bias, a_format=a_format, scale_rounding=scale_rounding, group=ranks, input=input, output=output
        )

    @classmethod
    def from_slice(
        cls,
        weight: MXTensor,
        bias: Tensor | None = None,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        group: Any = None,
        input: str | None = None,
        output: str | None = None,
    ) -> Any:
        """Make this process's layer of its own slice, sharing the bytes; the bias of a row-parallel layer is whole.

        Raises:
            TypeError, ValueError: as :meth:`mxgemm.nn.MXLinear.from_mx`.
        """
        ranks = ranks_of(group)
        if bias is not None:
            bias = bias.detach()
        layer = super().from_mx(weight, bias, a_format=a_format, scale_rounding=scale_rounding)
        assert isinstance(layer, cls)
        layer._share(ranks, input, output)
        return layer

    def _check(self, x: Tensor, k: int, rows: bool) -> None:
        shape = f"[M, {k}]" if rows else f"[..., {k}]"
        if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
            raise TypeError(f"x: got {describe(x)}, want a bf16, fp16 or fp32 tensor {shape}")
        if x.dim() == 0 or x.shape[-1] != k or (rows and x.dim() != 2):
            raise ValueError(f"x: got shape {tuple(x.shape)}, want {shape}")
        check_no_grad(x=x)

    def extra_repr(self) -> str:
        """Name the slice beside what MXLinear names."""
        ranks = f"rank {self.ranks.rank} of {self.ranks.size}, input={self.input}, output={self.output}"
        return f"{super().extra_repr()}, {ranks}"


class ColumnParallelMXLinear(ParallelMXLinear):
    """An :class:`mxgemm.nn.MXLinear` of which each process has N / size rows of the weight and of the bias.

    Args:
        in_features: K, a multiple of 32.
        out_features: N of the whole layer, a multiple of the number of processes.
        bias: with one, of zeros.
        a_format: what activations are rounded to.
        scale_rounding: rule for the block scales of activations.
        device: of the parameters.
        dtype: of the bias.
        group: the processes: a ``ProcessGroup``, a ``DeviceMesh`` of one dimension, or None for all.
        input: "whole" (the default): every process has all of x, ``[..., K]``. "rows": each has as many rows of it,
            ``[M / size, K]``, which are quantised first and sent as bytes, 4.25 bits an element of e2m1; bf16
            activations are sent as they are.
        output: "split" (the default): ``[..., N / size]``, as a row-parallel layer takes it. "whole": ``[..., N]``.

    Raises:
        TypeError, ValueError: as :class:`mxgemm.nn.MXLinear`; ``out_features`` cannot be divided evenly.
        RuntimeError: torch.distributed is not initialised.
    """

    kind = "column"

    def forward(self, x: Tensor) -> Tensor:
        """Multiply; the result has the dtype of ``x``.

        Raises:
            TypeError, ValueError: as of :meth:`mxgemm.nn.MXLinear.forward`.
            RuntimeError: ``x`` requires grad.
        """
        rows = self.input == "rows"
        self._check(x, self.in_features, rows)
        if rows and self.a_format != "bf16":
            a = gather_mx(quantize(x, format=self.a_format, scale_rounding=self.scale_rounding), self.ranks)
            own = gemm_mx(a, self.mx_tensor(), bias=self.bias, out_dtype=x.dtype)
        else:
            own = super().forward(gather(x, self.ranks) if rows else x)
        return gather_columns(own, self.ranks) if self.output == "whole" else own


class RowParallelMXLinear(ParallelMXLinear):
    """An :class:`mxgemm.nn.MXLinear` of which each process has K / size columns of the weight, in blocks of 32.

    The sum over the processes is in fp32: rounding to bf16 before it would be a second rounding. The first process adds
    the bias.

    Args:
        in_features: K of the whole layer, a multiple of 32 times the number of processes.
        out_features: N.
        bias: with one, of zeros; every process has all of it.
        a_format: what activations are rounded to.
        scale_rounding: rule for the block scales of activations.
        device: of the parameters.
        dtype: of the bias.
        group: the processes: a ``ProcessGroup``, a ``DeviceMesh`` of one dimension, or None for all.
        input: "split" (the default): ``[..., K / size]``, as a column-parallel layer leaves it. "whole": ``[..., K]``,
            of which each process takes its columns.
        output: "whole" (the default): ``[..., N]`` in every process. "rows": of ``[M, K / size]`` each process gets
            M / size rows of the sum.

    Raises:
        TypeError, ValueError: as :class:`mxgemm.nn.MXLinear`; ``in_features`` cannot be divided evenly.
        RuntimeError: torch.distributed is not initialised.
    """

    kind = "row"

    def forward(self, x: Tensor) -> Tensor:
        """Multiply; the result has the dtype of ``x``.

        Raises:
            TypeError, ValueError: as of :meth:`mxgemm.nn.MXLinear.forward`; M cannot be divided evenly.
            RuntimeError: ``x`` requires grad.
        """
        own, ranks = self.in_features, self.ranks
        whole = self.input == "whole"
        self._check(x, own * ranks.size if whole else own, self.output == "rows")
        if whole:
            x = x[..., ranks.rank * own : (ranks.rank + 1) * own]
        if self.output == "rows":
            ranks.part("x", x.shape[0])  # before anything is sent
        partial = self._partial(x)
        total = add_up_rows(partial, ranks) if self.output == "rows" else add_up(partial, ranks)
        return total.to(x.dtype)

    def _partial(self, x: Tensor) -> Tensor:
        """Return this process's share of the sum, fp32."""
        bias = self.bias if self.ranks.rank == 0 else None
        a_format, rounding = self.a_format, self.scale_rounding
        if not is_observed(x, *self._bytes(), bias):
            weight = self._read()
            if weight is not None:
                return gemm(x, weight, a_format=a_format, scale_rounding=rounding, bias=bias, out_dtype=torch.float32)
        data, scales, layout, kind, derived = self.operand()
        options = Options(
            a_format, "e2m1", rounding, layout.data, layout.scales, "row_major", torch.float32, None, kind
        )
        return ops.call_gemm(x, None, data, scales, bias, None, options, derived)


def take(weight: MXTensor, rows: slice | None, columns: slice | None) -> MXTensor:
    """Return rows and columns (whole blocks) of a weight (N, K) as a weight of its own, with bytes of its own."""
    whole = weight.row_major()
    data, scales = whole.data, whole.scales
    if rows is not None:
        data, scales = data[rows], scales[rows]
    if columns is not None:
        pack = whole.format.pack
        data = data[:, columns.start // pack : columns.stop // pack]
        scales = scales[:, columns.start // BLOCK : columns.stop // BLOCK]
    return MXTensor.wrap(*(part.detach().clone(memory_format=torch.contiguous_format) for part in (data, scales)))
