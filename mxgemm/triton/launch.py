"""One Triton launch as a value: what to launch, and everything a cross-compiler needs to build exactly that."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mxgemm import capture
from mxgemm.native.captured import kernel_launch, with_places
from mxgemm.native.program import KernelStep, Place
from mxgemm.triton.amd import amd_launch, on_amd
from mxgemm.triton.direct import direct
from mxgemm.triton.support import INT32_MAX
from mxgemm.workspace import raw_stream

logger = logging.getLogger("mxgemm")

_first_launch = threading.RLock()
"""One kernel is compiled at a time, once; and triton's interpreter keeps the running program's number in a global."""


def _renew_lock() -> None:
    global _first_launch
    _first_launch = threading.RLock()  # the thread that held the old one does not exist in a forked child


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel with everything but its tensors.

    Attributes:
        kernel: the ``@triton.jit`` function; its parameters are tensors, then scalars, then constants.
        dtypes: of the tensors, in order.
        scalars: the run-time integers, in order.
        constants: the ``tl.constexpr`` parameters by name.
        options: of the compiler: num_warps, num_stages, on AMD waves_per_eu and matrix_instr_nonkdim.
        grid: programs along x, y, z.
    """

    kernel: Any
    dtypes: tuple[torch.dtype, ...]
    scalars: tuple[int, ...]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, int, int]

    def specialisation(self, tensors: Sequence[Tensor]) -> Hashable:
        """Return what decides which compiled kernel a launch on tensors takes: no coarser than Triton's own key."""
        parameters = getattr(self.kernel, "params", None)
        integers: tuple[Any, ...] = self.scalars
        if parameters is not None:
            integers = tuple(
                (value > INT32_MAX, not parameter.do_not_specialize and (value == 1, value % 16 == 0))
                for value, parameter in zip(self.scalars, parameters[len(self.dtypes) :], strict=False)
            )
        pointers = tuple((t.data_ptr() % 16 == 0, t.untyped_storage().nbytes() <= INT32_MAX) for t in tensors)
        constants, options = (tuple(values.items()) for values in (self.constants, self.options))
        return self.kernel, tensors[0].device, self.dtypes, integers, pointers, constants, options


_heard: list[KernelCall] | None = None


@contextmanager
def described() -> Iterator[list[KernelCall]]:
    """Give a list that holds, behind the block, what the launchers made in it launch: for whoever compiles ahead.

    One thread of a process at a time, and no block within another.
    """
    global _heard
    heard = _heard = list[KernelCall]()
    try:
        yield heard
    finally:
        _heard = None


_compiled: set[Hashable] = set()
"""What has been launched in this process, so that the same for another M compiles nothing."""


class Launcher:
    """Launch a :class:`KernelCall`, after the first time through the compiled kernel's own launcher.

    Triton's ``kernel[grid](...)`` specialises on the arguments' alignment and sizes at every call; a plan holds for one
    such set only (its key contains them), so the compiled kernel is looked up once. On the first call Triton compiles.
    """

    __slots__ = ("_call", "_compiled", "_launched", "_run", "_tail")

    def __init__(self, call: KernelCall) -> None:
        if _heard is not None:
            _heard.append(call)
        self._call = call
        self._tail = (*call.scalars, *call.constants.values())
        self._run: Callable[..., None] | None = None
        self._compiled: Any = None
        self._launched: tuple[KernelStep, tuple[int, ...]] | None = None

    def step(self, tensors: Sequence[Tensor], places: Sequence[Place]) -> KernelStep | None:
        """Return the launch on such tensors, described for ``mxgemm.native``; once it has been launched.

        What Triton does is captured, so that no release's launcher need be known; on AMD what it compiled is read.

        Args:
            tensors: of the current device, as they are launched on; nothing is done with them.
            places: where each of them lies in a call.

        Returns:
            None in Triton's interpreter, or where the launch is no plain one.

        Raises:
            DriverError: the driver does not capture.
        """
        if self._run is None:
            return None
        if on_amd(self._compiled):
            return amd_launch(self._compiled, self._call.scalars, self._call.grid, tuple(places))
        if self._launched is None:
            found = kernel_launch(lambda: self._launch_as_triton_does(tensors), tensors[0].device)
            if found is None:
                return None
            self._launched = found, tuple(tensor.data_ptr() for tensor in tensors)
        return with_places(*self._launched, tuple(places))

    def _launch_as_triton_does(self, tensors: Sequence[Tensor]) -> Any:
        call = self._call
        return call.kernel[call.grid](*tensors, *call.scalars, **call.constants, **call.options)

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device, which must be the current device."""
        if self._run is not None:
            self._run(tensors)
            return
        with _first_launch:
            if self._run is None:
                self._compile_and_launch(*tensors)
                return
        self(*tensors)  # another thread has compiled it meanwhile

    def _compile_and_launch(self, *tensors: Tensor) -> None:
        call = self._call
        name, key = getattr(call.kernel, "__name__", call.kernel), call.specialisation(tensors)
        if key not in _compiled:
            if tensors[0].is_cuda and capture.under_way():
                raise capture.NotWarm(f"{name}: its first launch compiles it")
            logger.info("first launch of %s: compiled once, then cached by triton", name)
        compiled = self._launch_as_triton_does(tensors)
        _compiled.add(key)
        if compiled is not None:  # the interpreter returns nothing
            self._compiled = compiled
            self._run = direct(compiled, call.grid, self._tail) or _runner(compiled, call.grid, self._tail)


def hooks() -> tuple[tuple[object, str, object], ...]:
    """Return those who may want to hear of Triton's launches, for a ``mxgemm.native.program.Program``."""
    runtime = sys.modules["triton"].knobs.runtime
    names = "launch_enter_hook", "launch_exit_hook"
    return tuple((runtime, name, getattr(runtime, name)) for name in names)


def _runner(compiled: Any, grid: tuple[int, int, int], tail: tuple[Any, ...]) -> Callable[[Sequence[Tensor]], None]:
    run = compiled[grid]

    def launch(tensors: Sequence[Tensor]) -> None:
        run(*tensors, *tail, stream=raw_stream(tensors[0].device))

    return launch
