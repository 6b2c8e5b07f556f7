"""The extension module, told where everything is; or None, and why is said once.

``MXGEMM_NATIVE=0`` leaves it out: every call goes the way of Python, with the same results.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch._C import _len_torch_function_stack as _function_modes
from torch.autograd import forward_ad
from torch.nn import Parameter

from mxgemm import ambient, workspace
from mxgemm.errors import BuildError
from mxgemm.hip.runtime import CUDA, DriverError, driver
from mxgemm.memory import freed
from mxgemm.mx.freshness import mark_written
from mxgemm.native import build, offsets
from mxgemm.native.program import Program
from mxgemm.native.vendor import VendorError, library
from mxgemm.notices import say_once

VARIABLE: Final = "MXGEMM_NATIVE"
_TENSOR_FUNCTIONS: Final = ("data_ptr", "sizes", "strides", "dim", "dtype", "device_type", "device_index")


class Native:
    """The module's parts.

    Attributes:
        call: multiplies where it knows a plan, else returns None.
        table: makes the table of a weight.
    """

    def __init__(self, module: Any) -> None:
        self.call, self.table, self._program = module.call, module.Table, module.Program

    def program(self, described: Program) -> Any:
        """Return the launches of a plan as the module runs them."""
        steps = tuple(step.packed() for step in described.steps)
        return self._program(steps, described.scratch_bytes, described.counters, described.hooks, described.owners())


def wanted() -> bool:
    """Say whether the module may be used in this process."""
    return os.environ.get(VARIABLE, "1") != "0"


def load(weight_type: type, known_type: type, plans: Mapping[str, Any]) -> Native | None:
    """Return the module, built at the first call, or None where it cannot be.

    Args:
        weight_type: what a weight is; its ``known`` is asked for.
        known_type: what this has to be; its ``table`` is asked for.
        plans: the namespace whose ``_plans`` is exchanged when plans are forgotten.
    """
    return _load(weight_type, known_type, _Namespace(plans)) if wanted() else None


class _Namespace:
    """A module's dictionary that can be a key."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Namespace) and self.names is other.names

    def __hash__(self) -> int:
        return id(self.names)


@cache
def _load(weight_type: type, known_type: type, plans: _Namespace) -> Native | None:
    try:
        module = build.built()
        objects = (
            *(Tensor, Parameter, weight_type, known_type, plans.names, vars(forward_ad), vars(workspace)),
            (_len_torch_dispatch_stack, _are_functorch_transforms_active, _get_tracing_state),
            *(_function_modes, ambient.only_default_device, torch.is_grad_enabled),
            *(getattr(torch._C, "_cuda_getDevice", _no_gpu), getattr(torch._C, "_cuda_getCurrentRawStream", _no_gpu)),
            *(_take, mark_written, freed),
        )
        functions = *_tensor_functions(), *_driver_functions(), *_vendor_functions()
        module.configure(objects, functions, offsets.find())
    except (BuildError, OSError, ImportError, AttributeError) as error:
        say_once(f"steady calls go through Python, some microseconds longer: {error}")
        return None
    return Native(module)


def _no_gpu(*arguments: object) -> int:
    raise BuildError(f"this torch has no GPUs ({arguments})")


def _take(nbytes: int, device: torch.device, counters: int) -> workspace.Arena:
    return workspace.take(nbytes, device, counters=counters)


def _tensor_functions() -> tuple[int, ...]:
    """Return the addresses of torch's C functions that read a tensor."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    return tuple(_address(getattr(library, f"aoti_torch_get_{name}")) for name in _TENSOR_FUNCTIONS)


def _driver_functions() -> tuple[int, int, int]:
    """Return the addresses of what launches on CUDA and on HIP, and of what asks whether a stream is captured.

    Of what launches one is 0; all are without a GPU.
    """
    try:
        found = driver()
    except DriverError:
        return 0, 0, 0
    pointer = ctypes.c_void_p
    capturing = _address(found.declare("StreamIsCapturing", pointer, pointer))
    if found.api is CUDA:
        return _address(found.declare("LaunchKernelEx", *(pointer,) * 4)), 0, capturing
    return 0, _address(found.launch), capturing


def _vendor_functions() -> tuple[int, int]:
    """Return the addresses of cublasLt's product and of what writes into its description; 0 where it is not there."""
    try:
        found = library()
    except VendorError:
        return 0, 0
    return found.address("Matmul"), found.address("MatmulDescSetAttribute")


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
