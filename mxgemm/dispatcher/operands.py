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
from mxgemm.dispatcher.codecs import PACK, check_real, raw_dtype, storage_name
from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.operation import Operation, Pointers, Problem
from mxgemm.dispatcher.schemes import Scale
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
    """Check a call's operands, as they lie in memory, and return their addresses.

    Args:
        operation: the operation.
        config: its kernel.
        arch: the architecture, which decides what fp8 bytes mean.
        a: ``[m, k]``, column-major ``[k, m]``, two fp4 or int4 to a byte; numpy or torch; tensors on a GPU are used
            where they lie.
        b: ``[n, k]``, row-major ``[k, n]``.
        c: ``[m, n]`` fp16 or bf16, contiguous: written in place.
        a_scales: as ``config.scale_shapes`` says; None where A has none.
        b_scales: as ``config.scale_shapes`` says; None where B has none.
        k_batch: splits of K.

    Raises:
        TypeError: an operand is no array, or of a type that the kernel would misread; scales are missing or not wanted.
        ValueError: a shape, a device or the memory of ``c`` is wrong, or an operand's storage was freed.
        RuntimeError: an operand requires grad while gradients are recorded, or carries a forward-mode tangent.
    """
    scheme = config.scheme
    given = {"a": a, "b": b, "c": c}
    for name, value, scale in (("a_scales", a_scales, scheme.a_scale), ("b_scales", b_scales, scheme.b_scale)):
        if scale is not None:
            given[name] = value
        elif value is not None:
            raise TypeError(f"{name}: got {type(value).__name__}, want None: {config.operation} has no such scales")
    device = _common_device(given)
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            check_memory(name, value, as_it_lies=name == "c")
    check_no_grad(**given)
    given |= {name: _resolved(value) for name, value in given.items() if name != "c"}
    a, b = (_stored(name, given[name], dtype, arch) for name, dtype in (("a", scheme.a), ("b", scheme.b)))
    problem = _problem(config, a, b, k_batch)
    operation.check(config, problem)
    shapes = config.scale_shapes(problem.m, problem.n, problem.k)
    inputs = {"a": a, "b": b}
    for name, scale, shape in (("a_scales", scheme.a_scale, shapes[0]), ("b_scales", scheme.b_scale, shapes[1])):
        if scale is not None and shape is not None:
            inputs[name] = _scales(name, given[name], scale, shape, arch)
    _check_output(c, (problem.m, problem.n), scheme.c, device)
    for name, value in inputs.items():
        if _share(c, value):
            raise ValueError(f"c: shares memory with {name}, want memory of its own")
    if device is not None:
        inputs = {name: _aligned(value) for name, value in inputs.items()}
    keep = (inputs["a"], inputs["b"], c, inputs.get("a_scales"), inputs.get("b_scales"))
    return Operands(problem, Pointers(*map(_address, keep)), device, keep)


def _problem(config: KernelConfig, a: Any, b: Any, k_batch: int) -> Problem:
    """Return the sizes that A and B have, each as it lies; both must have the same K."""
    scheme = config.scheme
    a_rows, a_k = (a.shape[1], a.shape[0]) if config.a_is_column_major else a.shape
    b_rows, b_k = (b.shape[1], b.shape[0]) if config.b_is_row_major else b.shape
    m, k = (a_rows * PACK[scheme.a], a_k) if config.a_is_column_major else (a_rows, a_k * PACK[scheme.a])
    n, other = (b_rows * PACK[scheme.b], b_k) if config.b_is_row_major else (b_rows, b_k * PACK[scheme.b])
    if k != other:
        columns = k // PACK[scheme.b] if not config.b_is_row_major else k
        want = f"[{columns}, n]" if config.b_is_row_major else f"[n, {columns}]"
        raise ValueError(f"b: got {tuple(b.shape)}, want {want} like a: both are packed along k")
    return Problem(int(m), int(n), int(k), k_batch)


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


def _stored(name: str, value: Any, dtype: str, arch: str) -> Any:
    """Return an operand's stored values, contiguous: of the very type that the kernel reads, or raw integers."""
    allowed = (raw_dtype(dtype).name, storage_name(dtype, arch))
    got = _dtype_name(value)
    if got not in allowed:
        raise TypeError(f"{name}: got {got}, want {' or '.join(dict.fromkeys(allowed))}: the kernel reads raw bytes")
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name}: got {tuple(value.shape)}, want two dimensions, none of them zero")
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return np.ascontiguousarray(value)


def _scales(name: str, value: Any, scale: Scale, shape: tuple[int, ...], arch: str) -> Any:
    check_real(name, value)
    if not _same_shape(tuple(value.shape), shape):
        raise ValueError(f"{name}: got {tuple(value.shape)}, want {shape}")
    if scale.dtype == "fp32":
        return _as_type(value, np.dtype(np.float32))
    own = "float8_e8m0fnu" if scale.dtype == "e8m0" else storage_name(scale.dtype, arch)
    kind = "E8M0" if scale.dtype == "e8m0" else own
    if _dtype_name(value) == own:
        value = value.view(torch.uint8 if isinstance(value, torch.Tensor) else np.uint8)
    if _dtype_name(value).startswith(("float", "bfloat")):  # 1.0 is byte 127 of E8M0, and would become byte 1
        raise TypeError(f"{name}: got {_dtype_name(value)} numbers, want {kind} bytes (uint8)")
    coerced = _as_type(value, np.dtype(np.uint8))
    if _dtype_name(value) != "uint8" and not bool((coerced == value).all()):  # which would wait for a GPU
        raise TypeError(f"{name}: got {_dtype_name(value)} numbers that are no bytes, want {kind} bytes (uint8)")
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


def _check_output(c: Any, shape: tuple[int, int], dtype: str, device: torch.device | None) -> None:
    allowed = ("float16",) if dtype == "fp16" else ("bfloat16", "uint16")
    if _dtype_name(c) not in allowed:
        raise TypeError(f"c: got {_dtype_name(c)}, want {' or '.join(allowed)}")
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
    if value is None:
        return 0
    return int(value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data)
