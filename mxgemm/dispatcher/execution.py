"""The places where a built kernel can run, and what each of them lacks on this machine."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mxgemm import files
from mxgemm.device import default_device, machine_of
from mxgemm.dispatcher.arch import fp8_is_ocp
from mxgemm.dispatcher.codecs import RESULTS
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.errors import DispatcherError
from mxgemm.dispatcher.library import Library
from mxgemm.dispatcher.operation import Inputs
from mxgemm.dispatcher.several import FIELDS, OUTPUT_WORD, Call
from mxgemm.errors import Refusal
from mxgemm.triton.support import interpreting

RUNTIME_VARIABLE: Final = "MXGEMM_LIBAMDHIP64"
"""Where a native library looks for the HIP runtime first."""


class Execution(ABC):
    """A place where a built kernel can run."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Where, for people: ``AMD GPU``, ``gfx950 emulator``."""

    @abstractmethod
    def missing(self, config: KernelConfig, source: str) -> Refusal | None:
        """Say what is missing to run a kernel here, or None."""

    @abstractmethod
    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[Any], float | None]:
        """Run it.

        Returns:
            C ``[m, n]`` (fp16, or the bits of bf16) and the time of a launch in milliseconds, or None where that means
            nothing.
        """


class LibraryExecution(Execution):
    """The library itself, on this machine's AMD GPU."""

    @property
    def name(self) -> str:
        """The GPU of the library's own architecture."""
        return "AMD GPU"

    def missing(self, config: KernelConfig, source: str) -> Refusal | None:
        """Return why the library cannot run here: no AMD GPU, or another one."""
        if not torch.version.hip or not torch.cuda.is_available():
            return _missing("device", "none", "an AMD GPU", "no AMD GPU (torch sees none)")
        here = machine_of(torch.device("cuda", torch.cuda.current_device())).arch
        if here == config.arch:
            return None
        return _missing("arch", here, str(config.arch), f"the GPU is {here}, the kernel is for {config.arch}")

    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[Any], float | None]:
        """Run it on host memory, timed by the library."""
        out = _result(config, inputs)
        kernel = Library(library, config)
        operands = Call(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales)
        try:
            if config.several:
                return out, kernel.run_several([operands])
            return out, kernel.run(*operands, k_batch=inputs.problem.k_batch)
        finally:
            kernel.close()  # a library keeps the runtime that it found, and the emulator brings another


class EmulatorExecution(Execution):
    """A native library, whole, on the CPU: its own code object in the gfx950 emulator of the source tree."""

    @property
    def name(self) -> str:
        """The emulator."""
        return "gfx950 emulator"

    def missing(self, config: KernelConfig, source: str) -> Refusal | None:
        """Return why the emulator cannot run it: another source, another architecture, or no emulator."""
        if source != "native" or config.arch != "gfx950":
            kernel = f"{source} for {config.arch}"
            return _missing("kernel", kernel, "native for gfx950", "the emulator runs native kernels for gfx950")
        try:
            found = importlib.util.find_spec("gfx950emu.hip_runtime")
        except ModuleNotFoundError:
            found = None
        words = "the emulator (gfx950emu) is not in this installation; run from the source tree"
        return None if found else _missing("gfx950emu", "not installed", "the source tree", words)

    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[Any], float | None]:
        """Run it on host memory, waits and hazards checked; the emulator has no clock."""
        from gfx950emu.hip_runtime import EmulatedHip
        from mxgemm.dispatcher.native import argument_table

        description = files.read_json(described(library))
        out = _result(config, inputs)
        with tempfile.TemporaryDirectory() as folder:
            hip = EmulatedHip.build(Path(folder))
            table = argument_table(description["variants"][0])
            if config.several:
                hip.emulate_several(table, outputs=(OUTPUT_WORD,), fields=FIELDS, strict=True)
            else:
                hip.emulate(table, strict=True)
            kernel = Library(library, config)
            kernel.close()  # it may have a real runtime open
            before = os.environ.get(RUNTIME_VARIABLE)
            os.environ[RUNTIME_VARIABLE] = str(hip.path)
            try:
                operands = Call(inputs.a, inputs.b, out, inputs.a_scales, inputs.b_scales)
                kernel.run_several([operands], timed=False) if config.several else kernel.run(*operands, timed=False)
            except DispatcherError as error:
                raise DispatcherError(f"{error}: {hip.error}") from hip.error
            finally:
                kernel.close()
                if before is None:
                    del os.environ[RUNTIME_VARIABLE]
                else:
                    os.environ[RUNTIME_VARIABLE] = before
        if not hip.launches:
            raise DispatcherError(f"{config.name}: the library launched nothing in the emulator")
        return out, None


class TritonExecution(Execution):
    """The kernel of a native library, but not the library: the same Triton source with the same tile.

    Compiled for the GPU that is here, or run by Triton's interpreter (``TRITON_INTERPRET=1``).
    """

    @property
    def name(self) -> str:
        """The GPU, or the interpreter."""
        if interpreting():
            return "Triton interpreter, same kernel source"
        where = machine_of(default_device()).name if torch.cuda.is_available() else "GPU"
        return f"{where} through Triton, same kernel source"

    def missing(self, config: KernelConfig, source: str) -> Refusal | None:
        """Return why Triton cannot run it here."""
        if source != "native":
            return _missing("source", source, "native", "Triton runs native kernels")
        if config.several:
            return _missing("several", True, "False", "only the library makes the table of several problems")
        if importlib.util.find_spec("triton") is None:
            return _missing("triton", "not installed", "triton", "triton is not installed")
        if interpreting():
            return None
        if not torch.cuda.is_available():
            words = "no GPU, and TRITON_INTERPRET=1 is not set"
            return _missing("device", "cpu", "a GPU, or TRITON_INTERPRET=1", words)
        if (
            torch.version.hip is None
            and config.arch is not None
            and {"fp8", "bf8"} & {config.scheme.a, config.scheme.b, config.scheme.compute}
            and not fp8_is_ocp(config.arch)
        ):
            needed = "one of AMD's, or an architecture with OCP types"
            return _missing("device", "one of NVIDIA's", needed, "NVIDIA's GPUs have no FNUZ types")
        return None

    def run(self, config: KernelConfig, library: Path, inputs: Inputs) -> tuple[NDArray[Any], float | None]:
        """Run it on the default device, untimed: a time of another GPU would say nothing of the library."""
        from mxgemm.dispatcher.jit import run_config

        return run_config(config, inputs, default_device()), None


def described(library: Path) -> Path:
    """Return the file that says what is in a native library: beside it by its name, or in its build's folder."""
    own = library.with_suffix(".native.json")
    return own if own.is_file() else library.parent / "native.json"


def _result(config: KernelConfig, inputs: Inputs) -> NDArray[Any]:
    return np.zeros((inputs.problem.m, inputs.problem.n), dtype=RESULTS[config.scheme.c])


def _missing(field: str, value: object, needed: str, words: str) -> Refusal:
    return Refusal(field, value, needed, "installation", words)


EXECUTIONS: Final[tuple[Execution, ...]] = (LibraryExecution(), EmulatorExecution(), TritonExecution())
