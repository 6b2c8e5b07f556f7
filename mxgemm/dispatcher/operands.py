"""The guards in front of a C function that trusts its pointers: types, shapes and memory of a call's five operands.

A wrong operand raises before anything is launched. Inputs that only need a copy (not contiguous, off the alignment,
scales of another type) get one; the output never does, for a copy would swallow the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from mxgemm.ambient import check_no_grad
from mxgemm.dispatcher.codecs import PACK, check_real, storage_name
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operation import Operation, Pointers, Problem
from mxgemm.memory import check_memory

ALIGNMENT: Final = 16
"""Bytes that the address of a tensor on the device is a multiple of."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What a call passes on.

    Attributes:
        problem: its sizes.
        at: addresses, of host memory or of one device's.
        device: the device, or None for host memory.
        keep: the arrays behind the addresses, some of them copies; to be held until the kernel has run.
    """

    problem: Problem
    at: Pointers
    device: torch.device | None
    keep: tuple[Any, ...]


def gather(
    operation: Operation,
    config: KernelConfig,
    arch: str,
    a: Any,
    b: Any,
    c: Any,
    a_scales: Any,
    b_scales: Any,
    k_batch: int,
) -> Operands:
    """Check a call's operands and return their addresses.

    Args:
        operation: the operation.
        config: its kernel.
        arch: the architecture, which decides what fp8 bytes mean.
        a: ``[m, k]`` bytes (``[m, k / 2]`` for fp4), numpy or torch; torch tensors on a GPU are used where they lie.
        b: ``[n, k]`` bytes (``[n, k / 2]``).
        c: ``[m, n]`` fp16, contiguous: written in place.
        a_scales: as ``operation.scale_shapes`` says.
        b_scales: as ``operation.scale_shapes`` says.
        k_batch: splits of K.

    Raises:
        TypeError: an operand is no array, or of a type that the kernel would misread.
        ValueError: a shape, a device or the memory of ``c`` is wrong, or an operand's storage was freed.
        RuntimeError: an operand requires grad while gradients are recorded, or carries a forward-mode tangent.
    """
    given = {"a": a, "b": b, "c": c, "a_scales": a_scales, "b_scales": b_scales}
    device = _common_device(given)
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            check_memory(name, value, as_it_lies=name == "c")
    check_no_grad(**given)
    a, b, a_scales, b_scales = map(_resolved, (a, b, a_scales, b_scales))
    names = ("uint8", storage_name(config.dtype, arch))
    a, b = (_bytes(name, value, names) for name, value in (("a", a), ("b", b)))
    pack = PACK[config.dtype]
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"b: got {tuple(b.shape)}, want [n, {a.shape[1]}] like a: both are packed along k")
    problem = Problem(int(a.shape[0]), int(b.shape[0]), int(a.shape[1]) * pack, k_batch)
    operation.check(problem)
    shapes = operation.scale_shapes(problem)
    a_scales = _scales("a_scales", a_scales, operation.scale_dtype, shapes[0])
    b_scales = _scales("b_scales", b_scales, operation.scale_dtype, shapes[1])
    _check_output(c, (problem.m, problem.n), device)
    for name, value in (("a", a), ("b", b), ("a_scales", a_scales), ("b_scales", b_scales)):
        if _share(c, value):
            raise ValueError(f"c: shares memory with {name}, want memory of its own")
    if device is not None:
        a, b, a_scales, b_scales = map(_aligned, (a, b, a_scales, b_scales))
    keep = (a, b, c, a_scales, b_scales)
    return Operands(problem, Pointers(*map(_address, keep)), device, keep)


def _common_device(operands: dict[str, Any]) -> torch.device | None:
    devices: dict[str, torch.device | None] = {}
    for name, value in operands.items():
        if not isinstance(value, np.ndarray | torch.Tensor):
            raise TypeError(f"{name}: got {type(value).__name__}, want a numpy.ndarray or a torch.Tensor")
        devices[name] = _device(value)
    if len(set(devices.values())) != 1:
        where = ", ".join(f"{name} on {device or 'the host'}" for name, device in devices.items())
        raise ValueError(f"operands: got {where}, want all on one device or all on the host")
    return next(iter(devices.values()))


def _device(value: Any) -> torch.device | None:
    on_gpu = isinstance(value, torch.Tensor) and value.device.type != "cpu"
    return value.device if on_gpu else None


def _resolved(value: Any) -> Any:
    """Give a lazily negated view's values memory of their own; an array has no such views."""
    return value.resolve_neg() if isinstance(value, torch.Tensor) else value


def _share(left: Any, right: Any) -> bool:
    """Say whether two contiguous operands have a byte in common."""
    starts_before = _address(left) < _address(right) + int(right.nbytes)
    return starts_before and _address(right) < _address(left) + int(left.nbytes)


def _dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _bytes(name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    got = _dtype_name(value)
    if got not in allowed:
        raise TypeError(f"{name}: got {got}, want {' or '.join(allowed)}: the kernel reads raw bytes")
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name}: got {tuple(value.shape)}, want two dimensions, none of them zero")
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return np.ascontiguousarray(value)


def _scales(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    check_real(name, value)
    if not _same_shape(tuple(value.shape), shape):
        raise ValueError(f"{name}: got {tuple(value.shape)}, want {shape}")
    if dtype != np.uint8:
        return _as_type(value, dtype)
    if _dtype_name(value) == "float8_e8m0fnu":
        value = value.view(torch.uint8 if isinstance(value, torch.Tensor) else np.uint8)
    if _dtype_name(value).startswith(("float", "bfloat")):  # 1.0 is byte 127, and would become byte 1
        raise TypeError(f"{name}: got {_dtype_name(value)} numbers, want E8M0 bytes (uint8)")
    coerced = _as_type(value, dtype)
    if not bool((coerced == value).all()):
        raise TypeError(f"{name}: got {_dtype_name(value)} numbers that are no bytes, want E8M0 bytes (uint8)")
    return coerced


def _same_shape(got: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """A vector of scales may come as a column or as a row."""
    return got == want or (len(want) == 1 and sorted(got) == sorted((*want, *[1] * (len(got) - 1))))


def _as_type(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous().to(torch.uint8 if dtype == np.uint8 else torch.float32)
    return np.ascontiguousarray(value).astype(dtype, copy=False)


def _aligned(value: Any) -> Any:
    """A kernel reads up to 16 bytes at a time, which a view into a tensor need not start at."""
    return value if value.data_ptr() % ALIGNMENT == 0 else value.clone()


def _check_output(c: Any, shape: tuple[int, int], device: torch.device | None) -> None:
    if _dtype_name(c) != "float16":
        raise TypeError(f"c: got {_dtype_name(c)}, want float16")
    if tuple(c.shape) != shape:
        raise ValueError(f"c: got {tuple(c.shape)}, want {shape}")
    contiguous = c.is_contiguous() if isinstance(c, torch.Tensor) else c.flags["C_CONTIGUOUS"]
    if not contiguous:
        raise ValueError("c: got strided memory, want C-contiguous memory: the kernel writes in place")
    if isinstance(c, np.ndarray) and not c.flags["WRITEABLE"]:
        raise ValueError("c: got a read-only array, want a writeable one: the kernel writes in place")
    if device is not None and c.data_ptr() % ALIGNMENT:
        raise ValueError(f"c: got an address off a multiple of {ALIGNMENT} bytes, want one on it, as a new tensor has")


def _address(value: Any) -> int:
    return int(value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data)
