"""A HIP runtime without a GPU, for the dispatcher's libraries: their launches run in the gfx950 emulator.

    hip = EmulatedHip.build(folder)
    hip.emulate(strict=True)
    os.environ["MXGEMM_LIBAMDHIP64"] = str(hip.path)    # before the library's dispatcher_initialize

The library under test then does all that it does on a GPU: it allocates, copies, packs arguments, launches, copies
back and frees. The code object is the one embedded in it. Memory is host memory of exactly the size that was asked for,
full of NaN, and the emulator checks every access of the kernel against it; only the output may be written.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gfx950emu import Stats, run_code_object
from gfx950emu.device_memory import Memory

SOURCE: Final = Path(__file__).with_name("hip.c")
FLAGS: Final = ("-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
POINTERS: Final = ("a", "b", "a_scales", "b_scales", "out")


class Arguments(Protocol):
    """How the kernels of a library lay out their argument segment."""

    def pack(self, values: Mapping[str, int]) -> bytes:
        """Return the segment for addresses and integers by name."""

    def unpack(self, segment: bytes) -> dict[str, int]:
        """Return what :meth:`pack` was given."""


class _Launch(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_void_p),
        ("code_bytes", ctypes.c_size_t),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("lds", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("kernarg", ctypes.c_void_p),
        ("kernarg_bytes", ctypes.c_size_t),
    ]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


@dataclass(frozen=True)
class Launch:
    """What a library asked the runtime to launch.

    Attributes:
        code: the code object.
        kernel: its kernel.
        grid: workgroups along x, y, z.
        block: work items of a workgroup along x, y, z.
        lds: bytes of LDS beyond what the kernel declares.
        stream: the stream's handle.
        kernarg: the argument segment as the library packed it.
    """

    code: bytes
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    lds: int
    stream: int
    kernarg: bytes


class EmulatedHip:
    """The runtime, loaded into this process, where the libraries find it by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.launches: list[Launch] = []
        self.stats: list[Stats] = []
        self.error: Exception | None = None
        self._library = library = ctypes.CDLL(str(path))
        library.emulated_log.restype = ctypes.c_char_p
        library.hipMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        library.hipFree.argtypes = [ctypes.c_void_p]
        library.hipMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.set_device("gfx950")
        library.emulated_fail(b"", 0, 0)
        self.on_launch(lambda launch: None)
        self.calls()

    @classmethod
    def build(cls, folder: Path) -> EmulatedHip:
        """Compile the runtime into a folder with the host's C compiler, and load it."""
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise RuntimeError("no C compiler: none of cc, gcc, clang is on PATH")
        path = folder / "libamdhip64_emulated.so"
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(path)], check=True)
        return cls(path)

    def set_device(self, arch: str, *, devices: int = 1, current: int = 0) -> None:
        """Say what device there is."""
        self._library.emulated_set_device(arch.encode(), devices, current)

    def fail(self, function: str, *, after: int = 0, error: int = 999) -> None:
        """Let a call of a function fail, once, after so many that succeed."""
        self._library.emulated_fail(function.encode(), after, error)

    def calls(self) -> list[str]:
        """Return the functions called since the last time this was asked."""
        found: list[str] = self._library.emulated_log().decode().split()
        self._library.emulated_clear_log()
        return found

    def modules(self) -> int:
        """Return how many modules are loaded."""
        return int(self._library.emulated_modules())

    def events(self) -> int:
        """Return how many events there are."""
        return int(self._library.emulated_events())

    def allocations(self) -> dict[int, int]:
        """Return the device memory in use, bytes by address."""
        most = self._library.emulated_most_allocations()
        addresses, sizes = (ctypes.c_void_p * most)(), (ctypes.c_size_t * most)()
        count = self._library.emulated_allocations(addresses, sizes)
        return {int(addresses[i] or 0): int(sizes[i]) for i in range(count)}

    def memory(self, address: int) -> NDArray[np.uint8]:
        """Return the device memory that starts at an address, to read and to write."""
        raw = (ctypes.c_uint8 * self.allocations()[address]).from_address(address)
        return np.ctypeslib.as_array(raw)

    def upload(self, array: NDArray[Any]) -> int:
        """Copy an array into new device memory and return its address."""
        contiguous = np.ascontiguousarray(array)
        pointer = ctypes.c_void_p()
        assert self._library.hipMalloc(ctypes.byref(pointer), contiguous.nbytes) == 0
        assert self._library.hipMemcpy(pointer, contiguous.ctypes.data, contiguous.nbytes, 1) == 0
        return int(pointer.value or 0)

    def free(self, address: int) -> None:
        """Free device memory."""
        assert self._library.hipFree(address) == 0

    def on_launch(self, run: Callable[[Launch], None]) -> None:
        """Call a function for every launch. What it raises is kept in ``error``, and the launch fails."""

        def callback(pointer: Any) -> int:
            raw = pointer.contents
            launch = Launch(
                ctypes.string_at(raw.code, raw.code_bytes),
                raw.kernel.decode(),
                tuple(raw.grid),
                tuple(raw.block),
                raw.lds,
                raw.stream or 0,
                ctypes.string_at(raw.kernarg, raw.kernarg_bytes),
            )
            self.launches.append(launch)
            try:
                run(launch)
            except Exception as error:
                self.error = error
                return 1
            return 0

        self._callback = _CALLBACK(callback)  # C keeps the address only
        self._library.emulated_on_launch(self._callback)

    def emulate(self, table: Arguments, *, strict: bool = False) -> None:
        """Run every launch in the emulator, on the device memory that is allocated at that moment.

        Args:
            table: the argument table of the library's kernels, which says where the pointers are.
            strict: see the emulator.
        """

        def run(launch: Launch) -> None:
            values = table.unpack(launch.kernarg)
            arrays = {name: self.memory(values[name]) for name in POINTERS if values.get(name)}
            after, stats = run_code_object(
                launch.code,
                launch.kernel,
                launch.grid,
                launch.block,
                lambda addresses: table.pack(values | dict(addresses)),
                arrays,
                dynamic_lds=launch.lds,
                strict=strict,
                read_only=set(POINTERS) - {"out"},
            )
            arrays["out"][:] = after["out"]
            self.stats.append(stats)

        self.on_launch(run)

    def emulate_several(self, table: Arguments, *, outputs: Sequence[int], fields: int, strict: bool = False) -> None:
        """Run launches whose operands are addresses in a table of device memory, ``problems``.

        Args:
            table: the argument table of the library's kernels.
            outputs: which of a row's words are addresses of memory that may be written.
            fields: words of 64 bits of a row.
            strict: see the emulator.
        """

        def run(launch: Launch) -> None:
            values = table.unpack(launch.kernarg)
            rows = self.memory(values["problems"]).view(np.uint64).reshape(-1, fields).copy()
            arrays = {str(address): self.memory(address) for address in self.allocations()}
            written = {str(rows[row, word]) for row in range(len(rows)) for word in outputs}
            probe = Memory()  # which deals out the same addresses, in the same order
            moved = {name: probe.add(name, array) for name, array in arrays.items()}
            for row in rows:
                for word, value in enumerate(row):
                    row[word] = moved.get(str(value), value)
            arrays[str(values["problems"])] = rows
            after, stats = run_code_object(
                launch.code,
                launch.kernel,
                launch.grid,
                launch.block,
                lambda addresses: table.pack(values | {"problems": addresses[str(values["problems"])]}),
                arrays,
                dynamic_lds=launch.lds,
                strict=strict,
                read_only=set(arrays) - written,
            )
            for name in written:
                arrays[name][:] = after[name]
            self.stats.append(stats)

        self.on_launch(run)
