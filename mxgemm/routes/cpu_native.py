"""Route ``cpu_native``: C kernels that quantise A, decode the weight in registers and add fp32 sums, on a CPU.

With e2m1 activations a block's dot product is exact in integers: doubled elements are 0 1 2 3 4 6 8 12, and 32 products
of two stay below 2^13. Other activations, and all of many rows where the CPU has a matrix unit (AMX), are multiplied as
bf16 or fp32 values, which hold them exactly. The weight is read as it lies, and nothing is decoded into memory but a
panel of it where many rows of A meet it. An output's sum does not depend on the number of threads: they share out its
columns, and rows of A.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mxgemm.cpu import abi, build
from mxgemm.cpu.launch import Product, method_for_many_rows
from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.problem import Config, Problem, contiguity_refusal
from mxgemm.routes.base import Launch, Operands, Route

MOST_ROWS: Final = {"amx_bf16": {"e2m1": 8, "others": 2}, "others": {"e2m1": 4, "others": 4}}
"""By variant and format, rows of A up to which "rows" is the faster method (bench/cpu_native.py). Beyond, a panel that
is decoded once is worth its writing."""


@dataclass(frozen=True, slots=True)
class CpuNativeConfig(Config):
    """How the weight is read.

    Attributes:
        method: "rows", decoded in registers for each four rows of A; "panels", decoded once to integers; "tiles",
            decoded once to values.
    """

    method: str = "rows"


class CpuNative(Route):
    """Quantise, decode and multiply in C."""

    name = "cpu_native"
    takes = "bf16, fp16, fp32 or quantised A, any a_format; an e2m1 weight in any layout"
    config_type = CpuNativeConfig
    fitted = True

    def missing(self, machine: Machine) -> Refusal | None:
        """A CPU of a kind that has a variant, and a C compiler."""
        if machine.arch != "cpu":
            return Refusal("arch", machine.arch, "a CPU", "machine")
        found = build.library()
        return found if isinstance(found, Refusal) else None

    def can_implement(self, problem: Problem) -> Refusal | None:
        """An MXFP4 weight."""
        if problem.b_format != "e2m1":
            return Refusal("b_format", problem.b_format, "e2m1")
        return contiguity_refusal(problem)

    def configs(self, problem: Problem) -> Sequence[CpuNativeConfig]:
        """Return the better method."""
        library = build.library()
        variant = library.mx_variant().decode() if isinstance(library, ctypes.CDLL) else ""
        most = MOST_ROWS.get(variant, MOST_ROWS["others"])
        if problem.m <= most.get(problem.a_format, most["others"]):
            return [CpuNativeConfig("rows")]
        return [CpuNativeConfig(method_for_many_rows(variant, problem.a_format))]

    def candidates(self, problem: Problem) -> Sequence[CpuNativeConfig]:
        """Return the methods that take A's format."""
        return [CpuNativeConfig(method) for method in abi.methods_of(problem.a_format)]

    def check_config(self, problem: Problem, config: Config) -> Refusal | None:
        """Panels take e2m1 alone."""
        assert isinstance(config, CpuNativeConfig)
        if config.method not in abi.METHODS:
            return Refusal("method", repr(config.method), f"one of {', '.join(abi.METHODS)}")
        if config.method not in abi.methods_of(problem.a_format):
            return Refusal("method", "panels", f'a_format "e2m1", got {problem.a_format}')
        return None

    def bind(self, problem: Problem, config: Config) -> Launch:
        """Return the launcher."""
        assert isinstance(config, CpuNativeConfig)
        library = build.library()
        assert not isinstance(library, Refusal)
        product = Product(library, problem, config.method)

        def launch(operands: Operands) -> None:
            product(*operands[:6])

        return launch
