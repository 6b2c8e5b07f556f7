"""What an operation of the bridge is: all that differs from one to the next, said once, as data.

Building, loading, guarding, running and checking are the same for every operation; each of them asks the operation's
own object, which lives in the operation's file beside its configuration. What its numbers are is its configuration's
:class:`Scheme`.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from numpy.typing import NDArray

from mxgemm.arguments import as_int, shown
from mxgemm.dispatcher.codecs import PACK
from mxgemm.dispatcher.config import KernelConfig

INT_MAX: Final = 2**31 - 1
"""Sizes cross into C as ints, which ctypes would cut off without a word."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``C[m, n] = A[m, k] * B[n, k]``, transposed, with ``k_batch`` splits of K.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not from 1 to 2^31 - 1.
    """

    m: int
    n: int
    k: int
    k_batch: int = 1

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "k_batch"):
            size = as_int(name, getattr(self, name))
            if not 1 <= size <= INT_MAX:
                raise ValueError(f"{name}: got {shown(size)}, want an int from 1 to {INT_MAX}, C's largest")
            object.__setattr__(self, name, size)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands of a call, on the host, as they lie in memory.

    Attributes:
        problem: the sizes.
        a: ``[m, k]`` bytes, ``[m, k / 2]`` for fp4 and int4; column-major ``[k, m]``. bf16: uint16.
        b: ``[n, k]``, row-major ``[k, n]``; the same of B.
        a_scales: scales of A, or None.
        b_scales: scales of B, or None.
    """

    problem: Problem
    a: NDArray[Any]
    b: NDArray[Any]
    a_scales: NDArray[Any] | None
    b_scales: NDArray[Any] | None


class Pointers(NamedTuple):
    """Addresses of a call's operands, on the host or on the device; 0 where there is none."""

    a: int
    b: int
    c: int
    a_scales: int
    b_scales: int


POINTERS: Final = {
    "A": "a",
    "B": "b",
    "C": "c",
    "AQ": "a_scales",
    "BQ": "b_scales",
    "scale_a": "a_scales",
    "scale_b": "b_scales",
}
"""The operand of each pointer that a C function takes."""
SIZES: Final = {"M": "m", "N": "n", "K": "k", "k_batch": "k_batch"}


class Operation(ABC):
    """One operation: its C function, as data, and its default kernels."""

    name: ClassVar[str]
    symbol: ClassVar[str]
    """The C function for host pointers; ``<symbol>_device`` takes device pointers."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names under which the library exports the same functions."""
    parameters: ClassVar[tuple[str, ...]]
    """The C function's parameters before ``time_ms`` (and before ``stream`` of the device function), in order."""
    size_type: ClassVar[str] = "int64_t"
    """C's type of sizes, strides and counts; ``k_batch`` is an int."""
    config_type: ClassVar[type[KernelConfig]]
    least_k: ClassVar[int] = 1
    """K must be a multiple of this."""

    @abstractmethod
    def default_configs(self, gfx_arch: str) -> tuple[KernelConfig, ...]:
        """Return the kernel of each type that the self-test builds for an architecture."""

    @property
    def argument_types(self) -> tuple[Any, ...]:
        """Ctypes of the parameters."""
        size = ctypes.c_int if self.size_type == "int" else ctypes.c_int64
        return tuple(
            ctypes.c_void_p if name in POINTERS else ctypes.c_int if name == "k_batch" else size
            for name in self.parameters
        )

    def arguments(self, config: KernelConfig, at: Pointers, problem: Problem) -> tuple[Any, ...]:
        """Return the C function's arguments, in the order of its parameters."""
        given: dict[str, int] = {name: getattr(at, operand) for name, operand in POINTERS.items()}
        given |= {name: getattr(problem, size) for name, size in SIZES.items()}
        given |= {name: extent.of(problem.m, problem.n, problem.k) for name, extent in config.extents().items()}
        return tuple(given[name] for name in self.parameters)

    def check(self, config: KernelConfig, problem: Problem) -> None:
        """Raise ValueError if no kernel of this operation can take the problem."""
        if problem.k % self.least_k:
            raise ValueError(f"k: got {problem.k}, want a positive multiple of {self.least_k}")
        scheme = config.scheme
        packed_by_rows = config.a_is_column_major and PACK[scheme.a] > 1
        for name, size, packed in (
            ("m", problem.m, packed_by_rows),
            ("k", problem.k, max(PACK[scheme.a], PACK[scheme.b]) > 1),
        ):
            if packed and size % 2:
                raise ValueError(f"{name}: got {size}, want an even number: two elements share a byte")
