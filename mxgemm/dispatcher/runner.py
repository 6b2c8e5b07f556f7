"""Run a kernel on inputs whose product is known, and judge what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mxgemm.arguments import as_int, as_path, check_type, one_of, shown
from mxgemm.dispatcher import codecs
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.execution import Execution
from mxgemm.dispatcher.operation import Inputs, Problem
from mxgemm.dispatcher.operations import operation_of
from mxgemm.dispatcher.schemes import Scale, scaled_product
from mxgemm.mx.formats import E8M0_BIAS

TOLERANCE: Final = 2.0**-10
"""One fp16 ulp, relative: sums of grid values are exact in fp32, so only the scales and the last rounding differ."""
LEAST_NORMAL: Final = 2.0**-14
"""fp16's smallest normal number: errors of smaller results are measured against it."""
TOLERANCES: Final = {"fp16": TOLERANCE, "bf16": 2.0**-7}
"""One ulp, relative, of each type of C."""
GRID: Final = np.arange(-2.0, 2.5, 0.5)
"""Values that fp8, bf8, fp4 and bf16 hold exactly, in every flavour; of int4, its own from -4 to 4."""
SCALE_GRID: Final = np.array([m * 2.0**e for e in (-2, -1, 0) for m in (1.0, 1.25, 1.5, 1.75)])
"""Scales that fp8 and bf8 hold exactly."""


def make_inputs(config: KernelConfig, problem: Problem, *, seed: int = 0) -> Inputs:
    """Draw operands from the grid, and scales that all differ.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: the configuration names no architecture, or the operation cannot take the problem.
    """
    operation, scheme = operation_of(config), config.scheme
    operation.check(config, check_type("problem", problem, Problem, "a Problem"))
    random, arch = np.random.default_rng(_seed(seed)), _arch(config)
    m, n, k = problem.m, problem.n, problem.k
    a = _drawn(random, (m, k), scheme.a, config.a_is_column_major, arch)
    b = _drawn(random, (n, k), scheme.b, config.b_is_row_major, arch)
    shapes = config.scale_shapes(m, n, k)
    a_scales, b_scales = (
        _drawn_scales(random, scale, shape, arch)
        for scale, shape in zip((scheme.a_scale, scheme.b_scale), shapes, strict=True)
    )
    return Inputs(problem, a, b, a_scales, b_scales)


def _drawn(
    random: np.random.Generator, shape: tuple[int, int], dtype: str, transposed: bool, arch: str
) -> NDArray[Any]:
    values = random.integers(-4, 5, size=shape) if dtype == "int4" else random.choice(GRID, size=shape)
    return codecs.encode(values.T if transposed else values, dtype, arch)


def _drawn_scales(
    random: np.random.Generator, scale: Scale | None, shape: tuple[int, ...] | None, arch: str
) -> NDArray[Any] | None:
    """Return scales that differ from one another and keep sums within fp16."""
    if scale is None or shape is None:
        return None
    if scale.dtype == "e8m0":
        return random.integers(E8M0_BIAS - 2, E8M0_BIAS + 3, size=shape, dtype=np.uint8)
    if scale.dtype != "fp32":
        return codecs.encode(random.choice(SCALE_GRID, size=shape), scale.dtype, arch)
    if scale.k:  # sums of several groups stay exact in fp32, or cancellation would be taken for an error
        return (random.integers(8, 64, size=shape) / 32).astype(np.float32)
    return random.uniform(0.25, 2.0, size=shape).astype(np.float32)


def reference(config: KernelConfig, inputs: Inputs) -> NDArray[Any]:
    """Return ``[m, n]``: decoded operands, fp32 accumulation, one rounding to fp16, or to bf16 (as uint16 bits).

    Raises:
        TypeError: an argument of a wrong type, or scales that are no real numbers.
        ValueError: the configuration names no architecture, or the inputs are not of its shapes.
    """
    _check_inputs(config, check_type("inputs", inputs, Inputs, "Inputs (see make_inputs)"))
    arch, scheme = _arch(config), config.scheme
    a, b = codecs.decode(inputs.a, scheme.a, arch), codecs.decode(inputs.b, scheme.b, arch)
    a, b = (a.T if config.a_is_column_major else a), (b.T if config.b_is_row_major else b)
    return codecs.round_result(scaled_product(scheme, a, b, inputs.a_scales, inputs.b_scales, arch), scheme.c)


def _check_inputs(config: KernelConfig, inputs: Inputs) -> None:
    operation_of(config)
    sizes = inputs.problem.m, inputs.problem.n, inputs.problem.k
    shapes: dict[str, tuple[int, ...] | None] = dict(zip("ab", config.operand_shapes(*sizes), strict=True))
    shapes |= zip(("a_scales", "b_scales"), config.scale_shapes(*sizes), strict=True)
    for name, shape in shapes.items():
        found = getattr(inputs, name)
        if shape is None:
            if found is not None:
                raise ValueError(f"inputs.{name}: got {shown(found)}, want None for {config.name}")
            continue
        check_type(f"inputs.{name}", found, np.ndarray, "an array")
        codecs.check_real(f"inputs.{name}" if name in "ab" else name, found)
        if found.shape != shape:
            raise ValueError(f"inputs.{name}: got shape {found.shape}, want {shape} for {config.name}")


def _seed(seed: Any) -> int:
    if as_int("seed", seed) < 0:
        raise ValueError(f"seed: got {shown(seed)}, want at least 0")
    return as_int("seed", seed)


def _arch(config: KernelConfig) -> str:
    if config.arch is None:
        raise ValueError(f"{config.arch_field}: got None, want the architecture: it decides what fp8 bytes mean")
    return config.arch


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run was worth.

    Attributes:
        problem: the sizes.
        max_relative_error: the largest ``|out - ref| / |ref|``, with ``|ref|`` taken as at least 2^-14.
        tolerance: how large it may be.
        time_ms: of a launch, where it was timed.
        complaint: "", or what is wrong.
    """

    problem: Problem
    max_relative_error: float
    tolerance: float
    time_ms: float | None
    complaint: str

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.complaint


def judge(
    problem: Problem, out: NDArray[Any], expected: NDArray[Any], time_ms: float | None, *, c: str = "fp16"
) -> Verdict:
    """Compare a result with the reference; ``c`` is their type, "fp16" or "bf16" (then both are uint16 bits).

    Raises:
        TypeError: an argument of a wrong type, or values that are no real numbers.
        ValueError: a result of another shape than the reference, or than the problem; ``c`` is another type.
    """
    check_type("problem", problem, Problem, "a Problem")
    tolerance = TOLERANCES[one_of("c", c, TOLERANCES)]
    got, want = (_numbers(name, values, problem, c) for name, values in (("out", out), ("expected", expected)))
    if time_ms is not None:
        check_type("time_ms", time_ms, float, "milliseconds as a float, or None")
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want) / np.maximum(np.abs(want), LEAST_NORMAL)
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    worst = float(error.max())
    complaint = ""
    if np.any(want) and not np.any(got):
        complaint = "all zeros from non-zero input: the kernel's matrix instruction is not this architecture's"
    elif worst > tolerance:
        complaint = f"max relative error {worst:.2e} is above {tolerance:.2e}"
    return Verdict(problem, worst, tolerance, time_ms, complaint)


def _numbers(name: str, values: Any, problem: Problem, c: str) -> NDArray[np.float64]:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise TypeError(f"{name}: got {shown(values)}, want real numbers in a numpy array")
    if values.shape != (problem.m, problem.n):
        raise ValueError(f"{name}: got shape {values.shape}, want {(problem.m, problem.n)}")
    if c == "bf16" and values.dtype != np.uint16:
        raise TypeError(f"{name}: got {values.dtype}, want uint16, the bits of bf16")
    return codecs.decode_result(values, c)


def verify(config: KernelConfig, library: Path, execution: Execution, problem: Problem, *, seed: int = 0) -> Verdict:
    """Run a kernel on drawn inputs and judge the result.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: the operation cannot take the problem.
        DispatcherError: the kernel cannot run.
    """
    inputs = make_inputs(config, problem, seed=seed)
    library = as_path("library", library)
    if not isinstance(execution, Execution):
        raise TypeError(f"execution: got {shown(execution)}, want an Execution")
    out, time_ms = execution.run(config, library, inputs)
    return judge(problem, out, reference(config, inputs), time_ms, c=config.scheme.c)
