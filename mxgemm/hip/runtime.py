"""Load code objects and launch their kernels through the GPU driver's C interface, on torch's current stream.

HIP and CUDA have the same functions under other names, so a driver is data (:class:`Api`) and there is one path: what
is tested on an NVIDIA GPU is the code that an AMD GPU runs, down to the packed arguments. Nothing is opened before the
first :func:`load`.

A launch is one call into the driver: the argument segment is copied into a buffer that the function keeps, beside the
list (``extra``) that tells the driver where the buffer is and how long.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from mxgemm.device import machine_of
from mxgemm.errors import Refusal
from mxgemm.hip import code_object, libraries
from mxgemm.hip.code_object import CodeObjectError, KernelInfo
from mxgemm.workspace import raw_stream

MAX_KERNARG_BYTES: Final = 4096
"""More than any kernel here takes; every driver takes that much."""
_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2


class DriverError(RuntimeError):
    """The driver is missing, or refused a call; then the message has its own words."""


@dataclass(frozen=True, slots=True)
class Api:
    """A driver's names and constants.

    Attributes:
        name: for messages.
        library: stem of its shared library.
        versions: of the library's soname, the newest first.
        prefix: of its functions.
        launch: its launch function.
        end: ends the ``extra`` list; the keys of buffer and size are 1 and 2 in both.
        error_by_pointer: its error text comes through a pointer argument, not as the result.
        contexts: it has a current context for each thread, and launches fail with status 201 on a thread without one.
    """

    name: str
    library: str
    versions: tuple[str, ...]
    prefix: str
    launch: str
    end: int
    error_by_pointer: bool
    contexts: bool


HIP: Final = Api(
    name="HIP",
    library="libamdhip64",
    versions=("7", "6", "5"),
    prefix="hip",
    launch="hipModuleLaunchKernel",
    end=3,
    error_by_pointer=False,
    contexts=False,
)
CUDA: Final = Api(
    name="CUDA",
    library="libcuda",
    versions=("1",),
    prefix="cu",
    launch="cuLaunchKernel",
    end=0,
    error_by_pointer=True,
    contexts=True,
)
INVALID_CONTEXT: Final = 201
"""CUDA's status of a launch on a thread without a context."""


class Driver:
    """An opened driver library.

    Attributes:
        api: its names.
        path: what it was opened by.
        launch: the launch function itself, which returns a status.
    """

    def __init__(self, api: Api, library: ctypes.CDLL, path: str) -> None:
        handle, uint, text = ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p
        out = ctypes.POINTER(handle)
        self.api, self.path, self._library = api, path, library
        self._load = self.declare("ModuleLoadData", out, text)
        self._get = self.declare("ModuleGetFunction", out, handle, text)
        self._error = self.declare("GetErrorString", ctypes.c_int, *((ctypes.POINTER(text),) * api.error_by_pointer))
        self.launch = getattr(library, api.launch)
        self.launch.argtypes = (handle, *(uint,) * 7, handle, handle, handle)
        self.launch.restype = ctypes.c_int
        if api.contexts:
            self._device_of = self.declare("DeviceGet", ctypes.POINTER(ctypes.c_int), ctypes.c_int)
            self._primary_context = self.declare("DevicePrimaryCtxRetain", out, ctypes.c_int)
            self._get_context = self.declare("CtxGetCurrent", out)
            self._set_context = self.declare("CtxSetCurrent", handle)
        if not api.error_by_pointer:
            self._error.restype = text

    @classmethod
    def open(cls, api: Api, path: str | None = None) -> Driver:
        """Open a driver: the library at ``path``, or torch's own, or one that is installed.

        Raises:
            DriverError: there is none, or it lacks a function.
        """
        try:
            if path is not None:
                return cls(api, ctypes.CDLL(path), path)
            folders = [*libraries.torch_folders(), libraries.rocm_folder() / "lib"] if api is HIP else []
            return cls(api, *libraries.open_library(api.library, folders, api.versions))
        except (OSError, AttributeError) as error:
            raise DriverError(f"{api.name}: {api.library} cannot be used ({error})") from error

    def load(self, image: bytes) -> int:
        """Load a code object into the current context and return its handle."""
        module = ctypes.c_void_p()
        self.check(self._load(ctypes.byref(module), image), "ModuleLoadData")
        return int(module.value or 0)

    def function(self, module: int, name: str) -> int:
        """Return the handle of a kernel of a loaded module."""
        function = ctypes.c_void_p()
        self.check(self._get(ctypes.byref(function), module, name.encode()), f"ModuleGetFunction({name})")
        return int(function.value or 0)

    def context(self) -> int:
        """Return this thread's current context, 0 where the driver has no such thing."""
        if not self.api.contexts:
            return 0
        context = ctypes.c_void_p()
        self.check(self._get_context(ctypes.byref(context)), "CtxGetCurrent")
        return int(context.value or 0)

    def enter(self, index: int) -> None:
        """Give a thread that has no current context the device's primary one, which is torch's."""
        if not self.api.contexts or self.context():
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self._device_of(ctypes.byref(device), index), "DeviceGet")
        self.check(self._primary_context(ctypes.byref(context), device), "DevicePrimaryCtxRetain")
        self.make_current(int(context.value or 0))

    def make_current(self, context: int) -> None:
        """Make a context this thread's current one."""
        self.check(self._set_context(context), "CtxSetCurrent")

    def check(self, status: int, what: str) -> None:
        """Raise :class:`DriverError` with the driver's words unless ``status`` is 0."""
        if status:
            raise DriverError(f"{self.api.prefix}{what}: {self.error_text(status)} (error {status})")

    def error_text(self, status: int) -> str:
        """Return what the driver says a status means."""
        text = ctypes.c_char_p()
        if self.api.error_by_pointer:
            self._error(status, ctypes.byref(text))
            words = text.value
        else:
            words = self._error(status)
        return words.decode(errors="replace") if words else "unknown error"

    def declare(self, name: str, *argument_types: Any) -> Any:
        """Return a function of the driver by its name without the prefix; it returns a status.

        Raises:
            AttributeError: the driver has no such function.
        """
        function = getattr(self._library, self.api.prefix + name)
        function.argtypes = argument_types
        function.restype = ctypes.c_int
        return function


@cache
def driver() -> Driver:
    """Return the driver of this torch's GPUs.

    Raises:
        DriverError: torch is a CPU build, or the library is missing.
    """
    if torch.version.hip:
        return Driver.open(HIP)
    if torch.version.cuda:
        return Driver.open(CUDA)
    raise DriverError(f"torch {torch.__version__} is a CPU build: it has neither HIP nor CUDA")


def driver_refusal() -> Refusal | None:
    """Say why there is no driver to load code objects with, or return None."""
    try:
        driver()
    except DriverError as error:
        return Refusal("driver", "missing", "a driver of this torch's GPUs", "installation", str(error))
    return None


def load(image: bytes, device: torch.device, *, using: Driver | None = None) -> Module:
    """Load a code object on a GPU. It stays loaded: kernels of it may be in flight at any time.

    Args:
        image: an AMD code object or a cubin.
        device: a ``cuda`` device; without an index, the current one.
        using: a driver other than torch's.

    Raises:
        CodeObjectError: damaged, or for another architecture.
        DriverError: the driver refuses it.
        ValueError: the device is no GPU.
    """
    if device.type != "cuda":
        raise ValueError(f"device: got {device}, want a CUDA/ROCm device")
    index = torch.cuda.current_device() if device.index is None else device.index
    device = torch.device("cuda", index)
    found = code_object.inspect(image)
    reason = code_object.refusal(found, machine_of(device).arch)
    if reason:
        raise CodeObjectError(f"image: {reason}")
    chosen = using or driver()
    with torch.cuda.device(device):
        _start(device)
        chosen.enter(index)
        return Module(chosen, chosen.load(image), chosen.context(), found, device)


def _start(device: torch.device) -> None:
    """Make torch's context on a device exist; a thread for which torch has memory at hand does not enter it by that."""
    torch.empty(1, dtype=torch.uint8, device=device)


class Module:
    """A code object on a device.

    Attributes:
        code: what the file says about itself.
        device: where it is loaded.
    """

    def __init__(
        self, driver: Driver, handle: int, context: int, code: code_object.CodeObject, device: torch.device
    ) -> None:
        self.driver, self.context, self.code, self.device = driver, context, code, device
        self._handle = handle
        self._functions: dict[str, Function] = {}

    def function(self, name: str) -> Function:
        """Return a kernel by its name in the source (``extern "C"``).

        Raises:
            DriverError: there is no such kernel.
        """
        known = self._functions.get(name)
        if known is None:
            info = self.code.kernels.get(name)
            if info is None:
                raise DriverError(f"kernel: got {name!r}, want one of {', '.join(sorted(self.code.kernels)) or 'none'}")
            known = self._functions.setdefault(name, Function(self, info, self.driver.function(self._handle, name)))
        return known


class Arguments:
    """Memory for one launch's arguments, laid out as the driver reads it."""

    __slots__ = ("_buffer", "bytes", "extra", "extra_address", "size")

    def __init__(self, end: int) -> None:
        self._buffer = ctypes.create_string_buffer(MAX_KERNARG_BYTES)
        self.bytes = memoryview(self._buffer).cast("B")
        self.size = ctypes.c_size_t()
        self.extra = (ctypes.c_void_p * 5)(
            *(_BUFFER_POINTER, ctypes.addressof(self._buffer), _BUFFER_SIZE, ctypes.addressof(self.size), end)
        )
        self.extra_address = ctypes.addressof(self.extra)


class Function:
    """A kernel that can be launched.

    Attributes:
        info: its arguments, registers and shared memory.
        module: what it belongs to.
        handle: the driver's.
        shared_limit: bytes of dynamic shared memory that the driver was asked to allow; 0 for what it gives unasked.
    """

    def __init__(self, module: Module, info: KernelInfo, handle: int) -> None:
        self.info, self.module, self.handle = info, module, handle
        self.shared_limit = 0
        self._device = module.device
        self._index = module.device.index
        self._launch = module.driver.launch
        # Threads launch at once (the interpreter's lock is not held in the driver): each takes memory of its own.
        self._spare: list[Arguments] = []

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        kernarg: bytes,
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Launch on the current stream of the module's device.

        Args:
            grid: workgroups along x, y, z.
            block: threads of a workgroup along x, y, z.
            kernarg: the argument segment, see ``mxgemm.hip.kernarg``; the driver adds AMD's hidden arguments itself.
            shared_bytes: dynamic LDS or shared memory.

        Raises:
            ValueError: the segment is shorter than the kernel's arguments, or longer than 4096 bytes.
            DriverError: the driver refuses the launch.
        """
        size = len(kernarg)
        if not self.info.kernarg_bytes <= size <= MAX_KERNARG_BYTES:
            wanted = f"{self.info.kernarg_bytes} to {MAX_KERNARG_BYTES}"
            raise ValueError(f"kernarg: got {size} bytes for {self.info.name}, want {wanted}")
        if torch.cuda.current_device() == self._index:
            self._launch_here(grid, block, kernarg, size, shared_bytes)
        else:
            with torch.cuda.device(self._index):
                self._launch_here(grid, block, kernarg, size, shared_bytes)

    def _launch_here(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        kernarg: bytes,
        size: int,
        shared_bytes: int,
    ) -> None:
        try:
            arguments = self._spare.pop()
        except IndexError:
            arguments = Arguments(self.module.driver.api.end)
        arguments.bytes[:size] = kernarg
        arguments.size.value = size
        stream = raw_stream(self._device)
        call = (self.handle, *grid, *block, shared_bytes, stream, None, arguments.extra_address)
        status = self._launch(*call)
        if status == INVALID_CONTEXT and self.module.context:
            self.module.driver.make_current(self.module.context)
            status = self._launch(*call)
        self._spare.append(arguments)
        if status:
            driver = self.module.driver
            raise DriverError(
                f"{driver.api.launch}({self.info.name}, grid {grid}, block {block}, {shared_bytes} bytes shared): "
                f"{driver.error_text(status)} (error {status})"
            )
