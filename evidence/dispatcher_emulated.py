"""Run a native library of the dispatcher, whole, on the CPU: its own C code and code object, in the gfx950 emulator.

run = EmulatedLibrary(build_native(config, "gfx950", folder), config, EmulatedHip.build(folder), strict=True)
out = run.host(operands("e4m3", "block", 33, 128, 256))
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evidence.quant_cases import Operands
from gfx950emu.hip_runtime import EmulatedHip
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.execution import RUNTIME_VARIABLE
from mxgemm.dispatcher.native import DESCRIPTION, argument_table

POISON: Final = 0xFFFF
"""What the output holds before: a NaN in fp16."""


class EmulatedLibrary:
    """A library whose HIP runtime is :class:`EmulatedHip`."""

    def __init__(self, path: Path, config: KernelConfig, hip: EmulatedHip, *, strict: bool = False) -> None:
        self.path, self.config, self.hip = path, config, hip
        self.library = ctypes.CDLL(str(path))
        for name in ("kernel_name", "arch", "source"):
            getattr(self.library, f"dispatcher_get_{name}").restype = ctypes.c_char_p
        self.library.dispatcher_last_error.restype = ctypes.c_char_p
        described = json.loads((path.parent / DESCRIPTION).read_text(encoding="utf-8"))
        self.variants: list[dict[str, Any]] = described["variants"]
        self.table = argument_table(self.variants[0])
        hip.emulate(self.table, strict=strict)
        self.library.dispatcher_cleanup()  # the process has one copy of the file, which may have another runtime open
        os.environ[RUNTIME_VARIABLE] = str(hip.path)
        try:
            self.checked(self.library.dispatcher_initialize())
        finally:
            del os.environ[RUNTIME_VARIABLE]

    def last_error(self) -> str:
        """Return the library's error text."""
        text: bytes = self.library.dispatcher_last_error()
        return text.decode()

    def checked(self, result: int) -> None:
        """Raise RuntimeError, from what went wrong in the emulator, unless a call returned 0."""
        if result:
            error, self.hip.error = self.hip.error, None
            raise RuntimeError(f"returned {result}: {self.last_error()}") from error

    def host(self, operands: Operands, time_ms: Any = None) -> NDArray[np.float16]:
        """Run the entry that takes host pointers, into poisoned memory between guards."""
        m, n, k = operands.sizes
        guard = 64
        memory = np.full(m * n + 2 * guard, POISON, np.uint16)
        out = memory[guard : guard + m * n]
        pointers = tuple(array.ctypes.data for array in (*operands.arrays, out))
        self.checked(self.call_sizes("", pointers, (m, n, k), time_ms))
        if (memory[:guard] != POISON).any() or (memory[-guard:] != POISON).any():
            raise RuntimeError("the library wrote beside C")
        return np.array(out.view(np.float16).reshape(m, n))

    def device(self, operands: Operands, stream: int = 0, time_ms: Any = None) -> NDArray[np.float16]:
        """Run the entry that takes device pointers, on buffers made here."""
        m, n, k = operands.sizes
        poisoned = np.full((m, n), POISON, np.uint16)
        pointers = tuple(self.hip.upload(array) for array in (*operands.arrays, poisoned))
        try:
            self.checked(self.call_sizes("_device", pointers, (m, n, k), time_ms, stream))
            return np.array(self.hip.memory(pointers[-1]).view(np.float16).reshape(m, n))
        finally:
            for address in pointers:
                self.hip.free(address)

    def call_sizes(
        self, entry: str, pointers: tuple[int, ...], sizes: tuple[int, int, int], time_ms: Any = None,
        stream: int | None = None, *, k_batch: int = 1, strides: tuple[int, int, int] | None = None,
    ) -> int:  # fmt: skip
        """Call an entry point ("" or "_device") with addresses (A, B, scales of A, of B, C) and sizes (M, N, K)."""
        a, b, a_scales, b_scales, out = map(ctypes.c_void_p, pointers)
        tail = [time_ms] if entry == "" else [ctypes.c_void_p(stream), time_ms]
        if self.config.operation == "mx_gemm":
            whole = [*sizes, k_batch]
            function = self.library[f"dispatcher_run_mx_gemm{entry}"]
            return int(function(a, b, out, a_scales, b_scales, *whole, *tail))
        m, n, k = sizes
        wide = [ctypes.c_int64(size) for size in (m, n, k, *(strides or (k, k, n)))]
        function = self.library[f"dispatcher_run_{self.config.operation}_gemm{entry}"]
        return int(function(a, b, a_scales, b_scales, out, *wide, k_batch, *tail))
