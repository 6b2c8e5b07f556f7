"""What an operation of the bridge is: all that differs from one to the next, said once.

Building, loading, guarding, running and checking are the same for every operation; each of them asks the operation's
own object, which lives in the operation's file beside its configuration.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxgemm.arguments import as_int, shown
from mxgemm.dispatcher.codecs import Bytes, Float32
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
    """Operands of a call, on the host.

    Attributes:
        problem: the sizes.
        a: ``[m, k]`` bytes, ``[m, k / 2]`` for fp4.
        b: ``[n, k]`` bytes, ``[n, k / 2]`` for fp4.
        a_scales: scales of A.
        b_scales: scales of B.
    """

    problem: Problem
    a: Bytes
    b: Bytes
    a_scales: NDArray[Any]
    b_scales: NDArray[Any]


class Pointers(NamedTuple):
    """Addresses of a call's operands, on the host or on the device."""

    a: int
    b: int
    c: int
    a_scales: int
    b_scales: int


class Operation(ABC):
    """One operation: its C function, its scales, its reference."""

    name: ClassVar[str]
    symbol: ClassVar[str]
    """The C function for host pointers; ``<symbol>_device`` takes device pointers."""
    argument_types: ClassVar[tuple[Any, ...]]
    """ctypes of its arguments before ``time_ms`` (and before ``stream`` of the device function)."""
    config_type: ClassVar[type[KernelConfig]]
    scale_dtype: ClassVar[np.dtype[Any]]
    least_k: ClassVar[int]
    """K must be a multiple of this."""

    @abstractmethod
    def default_configs(self, gfx_arch: str) -> tuple[KernelConfig, ...]:
        """Return the kernel of each type that the self-test builds for an architecture."""

    @abstractmethod
    def scale_shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the scales of A and of B."""

    @abstractmethod
    def arguments(self, at: Pointers, problem: Problem) -> tuple[Any, ...]:
        """Return the C function's arguments, in the order of ``argument_types``."""

    @abstractmethod
    def draw_scales(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return scales that differ from one another and keep sums within fp16."""

    @abstractmethod
    def scaled_product(self, a: Float32, b: Float32, a_scales: NDArray[Any], b_scales: NDArray[Any]) -> Float32:
        """Return C in fp32 from decoded operands ``[m, k]`` and ``[n, k]``."""

    def check(self, problem: Problem) -> None:
        """Raise ValueError if no kernel of this operation can take the problem."""
        if problem.k % self.least_k:
            raise ValueError(f"k: got {problem.k}, want a positive multiple of {self.least_k}")


POINTER = ctypes.c_void_p
