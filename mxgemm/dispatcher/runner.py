"""Run a kernel on inputs whose product is known, and judge what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mxgemm.arguments import as_int, as_path, check_type, shown
from mxgemm.dispatcher import codecs
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.execution import Execution
from mxgemm.dispatcher.operation import Inputs, Problem
from mxgemm.dispatcher.operations import operation_of

TOLERANCE: Final = 2.0**-10
"""One fp16 ulp, relative: sums of grid values are exact in fp32, so only the scales and the last rounding differ."""
LEAST_NORMAL: Final = 2.0**-14
"""fp16's smallest normal number: errors of smaller results are measured against it."""
GRID: Final = np.arange(-2.0, 2.5, 0.5)
"""Values that fp8, bf8 and fp4 hold exactly, in every flavour."""


def make_inputs(config: KernelConfig, problem: Problem, *, seed: int = 0) -> Inputs:
    """Draw operands from the grid, and scales that all differ.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: the configuration names no architecture, or the operation cannot take the problem.
    """
    operation = operation_of(config)
    operation.check(check_type("problem", problem, Problem, "a Problem"))
    random = np.random.default_rng(_seed(seed))
    a, b = (
        codecs.encode(random.choice(GRID, size=(rows, problem.k)), config.dtype, _arch(config))
        for rows in (problem.m, problem.n)
    )
    a_scales, b_scales = (operation.draw_scales(random, shape) for shape in operation.scale_shapes(problem))
    return Inputs(problem, a, b, a_scales, b_scales)


def reference(config: KernelConfig, inputs: Inputs) -> NDArray[np.float16]:
    """Return ``[m, n]``: decoded operands, fp32 accumulation, one rounding to fp16.

    Raises:
        TypeError: an argument of a wrong type, or scales that are no real numbers.
        ValueError: the configuration names no architecture, or the inputs are not of its shapes.
    """
    _check_inputs(config, check_type("inputs", inputs, Inputs, "Inputs (see make_inputs)"))
    codecs.check_real("a_scales", inputs.a_scales)
    codecs.check_real("b_scales", inputs.b_scales)
    a, b = (codecs.decode(data, config.dtype, _arch(config)) for data in (inputs.a, inputs.b))
    product = operation_of(config).scaled_product(a, b, inputs.a_scales, inputs.b_scales)
    with np.errstate(over="ignore"):  # beyond fp16 is infinity, in the kernel too
        return product.astype(np.float16)


def _check_inputs(config: KernelConfig, inputs: Inputs) -> None:
    operation, problem = operation_of(config), inputs.problem
    columns = problem.k // codecs.PACK[config.dtype]
    shapes: dict[str, tuple[int, ...]] = {"a": (problem.m, columns), "b": (problem.n, columns)}
    shapes |= zip(("a_scales", "b_scales"), operation.scale_shapes(problem), strict=True)
    for name, shape in shapes.items():
        found = check_type(f"inputs.{name}", getattr(inputs, name), np.ndarray, "an array")
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


def judge(problem: Problem, out: NDArray[Any], expected: NDArray[np.float16], time_ms: float | None) -> Verdict:
    """Compare a result with the reference.

    Raises:
        TypeError: an argument of a wrong type, or values that are no real numbers.
        ValueError: a result of another shape than the reference, or than the problem.
    """
    check_type("problem", problem, Problem, "a Problem")
    got, want = (_numbers(name, values, problem) for name, values in (("out", out), ("expected", expected)))
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
    elif worst > TOLERANCE:
        complaint = f"max relative error {worst:.2e} is above {TOLERANCE:.2e}"
    return Verdict(problem, worst, TOLERANCE, time_ms, complaint)


def _numbers(name: str, values: Any, problem: Problem) -> NDArray[np.float64]:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise TypeError(f"{name}: got {shown(values)}, want real numbers in a numpy array")
    if values.shape != (problem.m, problem.n):
        raise ValueError(f"{name}: got shape {values.shape}, want {(problem.m, problem.n)}")
    return values.astype(np.float64)


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
    return judge(problem, out, reference(config, inputs), time_ms)
