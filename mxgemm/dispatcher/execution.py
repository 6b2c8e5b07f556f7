"""The places where a built kernel can run, and what each of them lacks on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mxgemm.device import machine_of
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.library import Library
from mxgemm.dispatcher.operation import Inputs

RUNTIME_VARIABLE: Final = "MXGEMM_LIBAMDHIP64"
"""Where a native library looks for the HIP runtime first."""


class Execution(ABC):
    """A place where a built kernel can run."""

    name: str
    """Where, for people: ``gfx950 GPU``, ``gfx950 emulator``."""

    @abstractmethod
    def missing(self, config: KernelConfig, source: str) -> str:
        """Return what is missing to run a kernel here, or ""."""

    @abstractmethod
    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[np.float16], float | None]:
        """Run it.

        Returns:
            C ``[m, n]`` and the time of a launch in milliseconds, or None where that means nothing.
        """


class LibraryExecution(Execution):
    """The library itself, on this machine's AMD GPU."""

    name = "AMD GPU"

    def missing(self, config: KernelConfig, source: str) -> str:
        """Return why the library cannot run here: no AMD GPU, or another one."""
        if not torch.version.hip or not torch.cuda.is_available():
            return "no AMD GPU (torch sees none)"
        here = machine_of(torch.device("cuda", torch.cuda.current_device())).arch
        return "" if here == config.arch else f"the GPU is {here}, the kernel is for {config.arch}"

    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[np.float16], float | None]:
        """Run it on host memory, timed by the library."""
        out = np.zeros((inputs.problem.m, inputs.problem.n), dtype=np.float16)
        kernel = Library(library, config)
        time_ms = kernel.run(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales, k_batch=inputs.problem.k_batch)
        return out, time_ms


class EmulatorExecution(Execution):
    """A native library, whole, on the CPU: its own code object in the gfx950 emulator of the source tree."""

    name = "gfx950 emulator"

    def missing(self, config: KernelConfig, source: str) -> str:
        """Return why the emulator cannot run it: another source, another architecture, or no emulator."""
        if source != "native" or config.arch != "gfx950":
            return "the emulator runs native kernels for gfx950"
        try:
            found = importlib.util.find_spec("tools.emulated_hip")
        except ModuleNotFoundError:
            found = None
        return "" if found else "the emulator (tools/) is not in this installation; run from the source tree"

    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[np.float16], float | None]:
        """Run it on host memory, waits and hazards checked; the emulator has no clock."""
        from tools.emulated_hip import EmulatedHip

        from mxgemm.dispatcher.native import DESCRIPTION, argument_table

        described = json.loads((library.parent / DESCRIPTION).read_text(encoding="utf-8"))
        out = np.zeros((inputs.problem.m, inputs.problem.n), dtype=np.float16)
        with tempfile.TemporaryDirectory() as folder:
            hip = EmulatedHip.build(Path(folder))
            hip.emulate(argument_table(described["variants"][0]), strict=True)
            kernel = Library(library, config)
            before = os.environ.get(RUNTIME_VARIABLE)
            os.environ[RUNTIME_VARIABLE] = str(hip.path)
            try:
                kernel.run(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales, timed=False)
            finally:
                kernel.close()
                if before is None:
                    del os.environ[RUNTIME_VARIABLE]
                else:
                    os.environ[RUNTIME_VARIABLE] = before
        return out, None


EXECUTIONS: Final[tuple[Execution, ...]] = (LibraryExecution(), EmulatorExecution())
