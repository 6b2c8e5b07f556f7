"""One GEMM as routes, tables and rules see it: sizes, formats, layouts, machine, decisions. No tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import BLOCK, FORMATS, ElementFormat
from mxgemm.mx.layouts import scale_shape


class Options(NamedTuple):
    """What a call says besides its tensors; the fields are those of ``mxgemm.gemm`` and of its MX tensors."""

    a_format: str = "e2m1"
    b_format: str = "e2m1"
    scale_rounding: str = "even"
    weight_layout: str = "row_major"
    scale_layout: str = "row_major"
    a_scale_layout: str = "row_major"
    out_dtype: torch.dtype = torch.bfloat16
    route: str | None = None
    derived: str = ""
    a_shape: tuple[int, ...] | None = None
    """Logical shape of the MXTensor that A is, to be checked against its bytes; None for loose tensors."""
    b_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides in elements (bytes for MX data) of the two-dimensional views that a kernel gets.

    ``a`` is (row, column) of A, or of its bytes where A comes quantised; ``a_scales`` the same of its scales.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    b_scales: tuple[int, int]
    out: tuple[int, int]
    a_scales: tuple[int, int] = (0, 0)
    bias: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """``C[m, n] = A[m, k] @ B[n, k].T``, described.

    Attributes:
        m: rows of A, all leading dimensions multiplied.
        n: rows of B.
        k: elements along the contraction.
        machine: where it runs.
        options: formats, layouts and dtypes that the call names; those that routes read are attributes here too.
        a_quantized: A comes as MX bytes (``gemm_mx``).
        a_dtype: dtype of A; uint8 where it comes quantised.
        has_bias: a bias of n values is added in fp32 before the one rounding.
        strides: of every operand.
        aligned: every data pointer is a multiple of 16 bytes.
        bias_dtype: dtype of the bias, if there is one.
    """

    m: int
    n: int
    k: int
    machine: Machine
    options: Options = field(default_factory=Options)
    a_quantized: bool = False
    a_dtype: torch.dtype = torch.bfloat16
    has_bias: bool = False
    strides: Strides | None = None
    aligned: bool = True
    bias_dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, m: int, n: int, k: int, machine: Machine, **values: Any) -> Problem:
        """Describe a GEMM by fields of its own and of its options alike, in any order."""
        options = {name: values.pop(name) for name in Options._fields if name in values}
        return cls(m, n, k, machine, Options(**options), **values)

    @property
    def a_format(self) -> str:
        """What A is rounded to ("e2m1", "e4m3", "bf16"), or the format it comes in."""
        return self.options.a_format

    @property
    def b_format(self) -> str:
        """Name of B's element format."""
        return self.options.b_format

    @property
    def scale_rounding(self) -> str:
        """Rule for A's block scales."""
        return self.options.scale_rounding

    @property
    def weight_layout(self) -> str:
        """Layout of B's bytes."""
        return self.options.weight_layout

    @property
    def scale_layout(self) -> str:
        """Layout of B's scales."""
        return self.options.scale_layout

    @property
    def a_scale_layout(self) -> str:
        """Layout of A's scales where A comes quantised."""
        return self.options.a_scale_layout

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of C."""
        return self.options.out_dtype

    @property
    def derived(self) -> str:
        """What ``prepare()`` made of the weight besides a layout ("fp8_fold", ...), "" for nothing."""
        return self.options.derived

    @property
    def arch(self) -> str:
        """Architecture of the machine."""
        return self.machine.arch

    @property
    def b(self) -> ElementFormat:
        """Element format of B."""
        return FORMATS[self.b_format]

    @property
    def a(self) -> ElementFormat | None:
        """Element format of A, None for bf16."""
        return FORMATS.get(self.a_format)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that must cross memory once: A as given, B, its scales, C."""
        a_bytes = self.m * self.k * self.a_dtype.itemsize
        if self.a_quantized and self.a is not None:
            a_bytes = self.m * (self.k // self.a.pack + self.k // BLOCK)
        b_bytes = self.n * (self.k // self.b.pack + self.k // BLOCK)
        return a_bytes + b_bytes + self.m * self.n * self.out_dtype.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"({self.m}, {self.n}, {self.k}) {self.a_format} x {self.b_format} on {self.arch}"


def matrix_strides(tensor: Tensor) -> tuple[int, int]:
    """Return (row, column) strides of a matrix, in elements."""
    row, column = tensor.stride()
    return row, column


def contiguous_strides(n: int, k: int, b: ElementFormat, scale_columns: int) -> Strides:
    """Return the strides of freshly allocated operands."""
    return Strides(a=(k, 1), b=(k // b.pack, 1), b_scales=(scale_columns, 1), out=(n, 1))


def contiguity_refusal(problem: Problem) -> Refusal | None:
    """Refuse a strided view of a shuffled operand: it is a block of memory in an order of its own."""
    s = problem.strides
    if s is None:
        return None
    columns = problem.k // problem.b.pack
    for name, layout, got, want in (
        ("b", problem.weight_layout, s.b, columns),
        ("b_scales", problem.scale_layout, s.b_scales, scale_shape(problem.scale_layout, 1, problem.k)[1]),
        ("a_scales", problem.a_scale_layout, s.a_scales, scale_shape(problem.a_scale_layout, 1, problem.k)[1]),
    ):
        if layout != "row_major" and got != (want, 1):
            return Refusal(f"strides of {name}", got, f"{(want, 1)}: a contiguous {layout} operand")
    return None


ConfigT = TypeVar("ConfigT", bound="Config")


@dataclass(frozen=True, slots=True)
class Config:
    """The decisions of a route that depend on the shape: none here; subclasses add fields, tables name them."""

    @classmethod
    def from_mapping(cls: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
        """Build a configuration from a table row.

        Raises:
            ValueError: an unknown field, or a value of another type than the field's default.
        """
        known = {field.name: field for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"config: got field {name!r}, want some of {', '.join(known) or 'none'}")
            default = known[name].default
            if type(value) is not type(default):
                raise ValueError(f"config.{name}: got {value!r}, want {type(default).__name__}")
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as a table row holds them."""
        return asdict(self)

    def __str__(self) -> str:
        """Name the fields, but for what is off or empty by default and has stayed so."""
        named = [(field.name, field.default, getattr(self, field.name)) for field in fields(self)]
        return (
            ", ".join(f"{name}={value}" for name, default, value in named if default or value != default)
            or "no options"
        )
