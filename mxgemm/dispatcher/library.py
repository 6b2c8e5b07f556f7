"""A built kernel as Python calls it: one shared library, loaded with ctypes, guarded on every call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd.graph import increment_version

from mxgemm import shared_library
from mxgemm.arguments import as_path, check_bool
from mxgemm.dispatcher.arch import bare_arch
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.errors import DispatcherError, DispatcherUnsupported
from mxgemm.dispatcher.operands import Operands, gather
from mxgemm.dispatcher.operations import operation_of
from mxgemm.dispatcher.several import SYMBOL, Call, CProblem, c_problems, gather_several

UNSUPPORTED: Final = -2


class Library:
    """One kernel's ``.so``. Loading it needs no device; the first run does.

    Attributes:
        path: the file.
        config: the kernel that it must hold.
        operation: the operation of ``config``.
    """

    def __init__(self, path: Path | str, config: KernelConfig) -> None:
        """Load the library.

        Args:
            path: the file.
            config: the kernel that it must hold.

        Raises:
            TypeError: ``path`` is no path, or ``config`` no configuration.
            FileNotFoundError: there is no such file.
            OSError: it is no shared library of this machine, its end is missing, or it is not what was built.
            ValueError: it exports another interface, holds another kernel, or was built for another architecture.
        """
        self.operation = operation_of(config)
        self.config = config
        self.path = as_path("path", path)
        if not self.path.is_file():
            raise FileNotFoundError(f"path: got {self.path}, want the shared library of {config.name}")
        self._c = shared_library.load(self.path)
        try:
            self._declare()
        except AttributeError as error:
            raise ValueError(f"path: got {self.path}, want a library of the bridge: {error}") from None
        self._check_identity()

    def _declare(self) -> None:
        for name in ("kernel_name", "arch", "source"):
            getattr(self._c, f"dispatcher_get_{name}").restype = ctypes.c_char_p
        self._c.dispatcher_last_error.restype = ctypes.c_char_p
        self._c.dispatcher_get_kernel_count.restype = ctypes.c_int
        self._c.dispatcher_initialize.restype = ctypes.c_int
        self._c.dispatcher_cleanup.restype = None
        time_ms = ctypes.POINTER(ctypes.c_float)
        several = (ctypes.POINTER(CProblem), ctypes.c_int)
        symbol, types = self.operation.symbol, self.operation.argument_types
        if self.config.several:
            symbol, types = SYMBOL, several
        self._host = getattr(self._c, symbol)
        self._host.argtypes = [*types, time_ms]
        self._device = getattr(self._c, f"{symbol}_device")
        self._device.argtypes = [*types, ctypes.c_void_p, time_ms]

    def _check_identity(self) -> None:
        if self.name != self.config.name:
            raise ValueError(f"path: got the library of {self.name}, want {self.config.name}")
        wanted = self.config.arch
        if wanted is not None and self.arch != bare_arch(wanted):
            raise ValueError(f"path: got a library for {self.arch}, want one for {bare_arch(wanted)}")

    def _text(self, function: str) -> str:
        raw: bytes | None = getattr(self._c, function)()
        return raw.decode(errors="replace") if raw else ""

    @property
    def name(self) -> str:
        """The kernel's name, as the library says it."""
        return self._text("dispatcher_get_kernel_name")

    @property
    def count(self) -> int:
        """Kernels in the library: 1."""
        return int(self._c.dispatcher_get_kernel_count())

    @property
    def arch(self) -> str:
        """The architecture that the kernel was compiled for."""
        return self._text("dispatcher_get_arch")

    @property
    def source(self) -> str:
        """Where the kernel comes from: ``native`` or ``ck_tile``."""
        return self._text("dispatcher_get_source")

    @property
    def last_error(self) -> str:
        """What the library said of this thread's last failed call."""
        return self._text("dispatcher_last_error")

    def initialize(self) -> None:
        """Load the kernel onto the current device, unless it is loaded.

        The library is asked each time: another object of the same file may have closed it.

        Raises:
            DispatcherError: there is no HIP runtime, no device, or the device is of another architecture.
        """
        self._require(self._c.dispatcher_initialize(), "initialize")  # libraries lock by themselves

    def close(self) -> None:
        """Unload the kernel, for every object of the same file; the next run loads it again."""
        self._c.dispatcher_cleanup()

    def run(
        self,
        a: Any,
        b: Any,
        c: Any,
        a_scales: Any = None,
        b_scales: Any = None,
        *,
        k_batch: int = 1,
        timed: bool = True,
    ) -> float | None:
        """Multiply into ``c``.

        Args:
            a: A as it lies: ``[m, k]`` bytes (``[m, k / 2]`` for fp4 and int4), column-major ``[k, m]``, bf16 values;
                numpy arrays or torch tensors, all on the host or on one GPU.
            b: B as it lies: ``[n, k]`` bytes (``[n, k / 2]``), row-major ``[k, n]``.
            c: ``[m, n]`` fp16, of the MX types of bquant bf16 (numpy: its bits, uint16), contiguous.
            a_scales: scales of A, as ``config.scale_shapes(m, n, k)`` has them: E8M0 ``[m, k / 32]`` (mx_gemm), fp32
                ``[m]`` (rowcolquant), ``[m, groups of k]`` (aquant); None where A has none.
            b_scales: the same of B: BQ of bquant, column-major, is ``[groups of n, groups of k]``.
            k_batch: splits of K; the kernels take 1.
            timed: launch it many times and time it (``CK_TILE_BENCH_WARMUP``, ``CK_TILE_BENCH_REPEAT``).

        Returns:
            The mean time of a launch in milliseconds, or None if not timed. GPU tensors without timing: the launch is
            queued on torch's current stream.

        Raises:
            TypeError: an operand of a wrong type.
            ValueError: an operand of a wrong shape, device or memory.
            RuntimeError: an operand requires grad while gradients are recorded, or carries a forward-mode tangent.
            DispatcherUnsupported: the kernel cannot take these sizes.
            DispatcherError: no usable device, or a HIP call failed.
        """
        check_bool("timed", timed)
        operands = self._prepare(a, b, c, a_scales, b_scales, k_batch)
        milliseconds = ctypes.c_float() if timed else None
        self._call(operands, milliseconds)
        return None if milliseconds is None else float(milliseconds.value)

    def bind(
        self, a: Any, b: Any, c: Any, a_scales: Any = None, b_scales: Any = None, *, k_batch: int = 1
    ) -> Callable[[], None]:
        """Check a call once and return it as a function without arguments, for a benchmark to repeat.

        Raises:
            TypeError: an operand of a wrong type.
            ValueError: an operand of a wrong shape, device or memory.
            RuntimeError: an operand requires grad while gradients are recorded, or carries a forward-mode tangent.
            DispatcherError: there is no usable device.
        """
        operands = self._prepare(a, b, c, a_scales, b_scales, k_batch)
        return lambda: self._call(operands, None)

    def run_several(self, calls: Sequence[Call], *, timed: bool = True) -> float | None:
        """Multiply several problems in one launch, each into its ``c``; the kernel's configuration says ``several``.

        Args:
            calls: the problems, of any sizes, empty ones too; all on the host or all on one GPU.
            timed: launch it many times and time it.

        Returns:
            The mean time of a launch in milliseconds, or None if not timed. It waits for the kernel either way.

        Raises:
            TypeError: no sequence of calls, or an operand of a wrong type.
            ValueError: an operand of a wrong shape, device or memory, or the kernel takes one problem.
            RuntimeError: an operand requires grad while gradients are recorded, or carries a forward-mode tangent.
            DispatcherUnsupported: the kernel cannot take these sizes.
            DispatcherError: no usable device, or a HIP call failed.
        """
        check_bool("timed", timed)
        if not self.config.several:
            raise ValueError(f"calls: {self.name} takes one problem; want a configuration with several=True")
        problems = gather_several(self.operation, self.config, self.arch, calls)
        device = problems[0].device if problems else None
        with _current(device):
            self.initialize()
        milliseconds = ctypes.c_float() if timed else None
        self._invoke((c_problems(problems), len(problems)), device, milliseconds)
        for problem in problems:
            _written(problem)
        return None if milliseconds is None else float(milliseconds.value)

    def _prepare(self, a: Any, b: Any, c: Any, a_scales: Any, b_scales: Any, k_batch: int) -> Operands:
        if self.config.several:
            raise ValueError(f"a: {self.name} takes several problems: call run_several")
        operands = gather(self.operation, self.config, self.arch, a, b, c, a_scales, b_scales, k_batch)
        with _current(operands.device):
            self.initialize()
        return operands

    def _call(self, operands: Operands, milliseconds: ctypes.c_float | None) -> None:
        self._invoke(
            self.operation.arguments(self.config, operands.at, operands.problem), operands.device, milliseconds
        )
        _written(operands)

    def _invoke(
        self, arguments: tuple[Any, ...], device: torch.device | None, milliseconds: ctypes.c_float | None
    ) -> None:
        time_ms = None if milliseconds is None else ctypes.byref(milliseconds)
        if device is None:
            code = self._host(*arguments, time_ms)
        else:
            stream = torch.cuda.current_stream(device).cuda_stream
            with _current(device):
                code = self._device(*arguments, stream, time_ms)
        self._require(code, SYMBOL if self.config.several else self.operation.symbol)

    def _require(self, code: int, what: str) -> None:
        if code == 0:
            return
        said = self.last_error or f"failed with code {code} and no text"
        text = said if self.config.name in said else f"{self.config.name}: {what}: {said}"
        raise DispatcherUnsupported(text) if code == UNSUPPORTED else DispatcherError(text)


def _written(operands: Operands) -> None:
    written = operands.keep[2]
    if isinstance(written, torch.Tensor):
        increment_version(written)  # torch does not see the kernel write, and autograd may have saved this tensor


def _current(device: torch.device | None) -> AbstractContextManager[Any]:
    return nullcontext() if device is None else torch.cuda.device(device)
