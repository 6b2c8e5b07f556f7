"""What surrounds a call in torch, and how it is kept out of results.

Two questions. Must torch itself see the call, as one operator (:func:`is_observed`)? Then it goes through
``torch.ops.mxgemm``, so that a mode, a transform or a tracer meets one operator and not a launch that it cannot see.
And which settings would change torch's own products (:func:`plain_products`)? Autocast, and two of the process: the
precision of fp32 products, and whether cuBLAS may add the parts of a bf16 product in bf16.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _in_transform
from torch._C import _get_tracing_state as _tracing_state
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C import _len_torch_function_stack as _function_modes
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_PLAIN: Final = (Tensor, Parameter)
_FULL_PRECISION: Final = ("ieee", "none")
_PRECISION_BY_BACKEND: Final = hasattr(torch.backends, "fp32_precision")  # from torch 2.9; one setting before
_ALLOWED: Final = (True, (True, True))  # newer releases tell splitting K from adding in bf16
_NOTHING: Final = nullcontext()


def is_observed(
    a: object, b: object = None, c: object = None, d: object = None, e: object = None, f: object = None
) -> bool:
    """Say whether torch's dispatcher must see a call with these arguments.

    So it is while torch.compile, export or torch.jit.trace records, inside a torch.func transform, at a level of
    forward-mode differentiation, under a mode of torch, and for tensor subclasses (fake, functional, a user's).
    """
    if is_compiling() or _dispatch_modes() or _in_transform() or _tracing_state() or forward_ad._current_level >= 0:
        return True
    if _function_modes() and not only_default_device():
        return True
    if (
        type(a) is Tensor
        and (type(b) is Tensor or b is None or type(b) is Parameter)
        and (type(c) is Tensor or c is None or type(c) is Parameter)
        and (type(d) is Tensor or d is None or type(d) is Parameter)
        and (e is None or type(e) is Tensor)
        and (f is None or type(f) is Tensor)
    ):
        return False  # the common case, spelt out because every call asks
    return any(
        # A nested tensor, which no operator takes, is left to validation, which says so.
        isinstance(value, Tensor) and type(value) not in _PLAIN and not value.is_nested
        for value in (a, b, c, d, e, f)
    )


def only_default_device() -> bool:
    """The default device is a mode too, but one for calls that name no device, and no such call is made here."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return all(type(mode) is DeviceContext for mode in modes)


def has_tangent(tensor: Tensor) -> bool:
    """Say whether forward-mode differentiation is under way and carries a tangent with this tensor."""
    if forward_ad._current_level < 0 or _below_autograd():
        return False
    inner = _unbatched(tensor)
    if inner.is_inference():  # made under inference mode, which records nothing; torch asserts when it is asked
        return False
    return forward_ad.unpack_dual(inner).tangent is not None  # type: ignore[no-untyped-call]


def _below_autograd() -> bool:
    """Say whether an operator has left derivatives behind, where torch asserts when it is asked for a tangent.

    torch before 2.13 calls operators that write to an argument so. Whoever entered the operator has been checked.
    """
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)


def check_no_grad(**tensors: object) -> None:
    """Refuse tensors that expect a gradient while gradients are recorded, or that carry a forward-mode tangent."""
    recording = torch.is_grad_enabled()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            continue
        if recording and tensor.requires_grad:
            raise RuntimeError(
                f"{name}: requires grad, but mxgemm has no backward; call under torch.no_grad() or detach() it"
            )
        if has_tangent(tensor):
            raise RuntimeError(
                f"{name}: carries a forward-mode tangent, but mxgemm has no forward derivative; detach() it"
            )


def is_differentiated(tensor: Tensor) -> bool:
    """Say whether a derivative is being taken with respect to this very tensor, by torch.func or in forward mode.

    A tensor that only requires grad, as every parameter of a model does, is not.
    """
    inner = _unbatched(tensor)
    return (torch._C._functorch.is_gradtrackingtensor(inner) and inner.requires_grad) or has_tangent(inner)


def _unbatched(tensor: Tensor) -> Tensor:
    """Return what torch.vmap has wrapped: questions about derivatives have no batching rule."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def plain_products(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which torch's matrix products on a device are what they are by torch's defaults.

    Autocast is the thread's own. The other two settings are the process's: what is off its default is put back while
    any thread is inside, and as it was when the last one leaves; products that others start meanwhile see the default.
    """
    if _defaults.may_be_wanted(device_type):
        return _defaults.held(device_type)
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else _NOTHING


class _Defaults:
    """The settings of the process at their defaults, held by any number of threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = 0
        self._undo = ExitStack()
        self._turns = 0
        """Goes up when the first thread puts the defaults in place and when the last has undone that: odd between."""

    def may_be_wanted(self, device_type: str) -> bool:
        """Say whether a setting is off its default, or only at it because of a thread inside; without the lock."""
        before = self._turns
        changed = _Precision.changed(device_type) or _Reduction.changed(device_type)
        return bool(before & 1) or changed or self._turns != before

    @contextmanager
    def held(self, device_type: str) -> Iterator[None]:
        """Hold the defaults, autocast off in this thread."""
        with torch.autocast(device_type, enabled=False):
            with self._lock:
                self._inside += 1
                if self._inside == 1:
                    self._turns += 1
                for setting in _changed(device_type):
                    self._undo.callback(setting.reset(device_type))
            try:
                yield
            finally:
                with self._lock:
                    self._inside -= 1
                    if self._inside == 0:
                        self._undo.close()
                        self._turns += 1

    def renewed(self) -> _Defaults:
        """Return what a forked child goes on with: the threads inside are not there, nor is who has the lock."""
        self._undo.close()
        return _Defaults()


def _changed(device_type: str) -> list[type[_Precision] | type[_Reduction]]:
    return [setting for setting in (_Precision, _Reduction) if setting.changed(device_type)]


class _Precision:
    """Of fp32 products: by default fp32's own, else TF32 or bf16."""

    @staticmethod
    def changed(device_type: str) -> bool:
        if not _PRECISION_BY_BACKEND:
            return torch.get_float32_matmul_precision() != "highest"
        return torch._C._get_fp32_precision_getter(_backend(device_type), "matmul") not in _FULL_PRECISION

    @staticmethod
    def reset(device_type: str) -> Callable[[], object]:
        """Put the default in place and return what undoes it."""
        if not _PRECISION_BY_BACKEND:
            name = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            return partial(torch.set_float32_matmul_precision, name)
        read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
        backend = _backend(device_type)
        before, of_all = read(backend, "matmul"), read(backend, "all")
        write(backend, "matmul", "ieee")
        # Products follow their backend's setting by default, and are left to follow it.
        return partial(write, backend, "matmul", "none" if before == of_all else before)


class _Reduction:
    """Of the parts of a bf16 product on CUDA: by default cuBLAS may split K, and may add the parts in bf16."""

    @staticmethod
    def changed(device_type: str) -> bool:
        return device_type == "cuda" and torch._C._get_cublas_allow_bf16_reduced_precision_reduction() not in _ALLOWED

    @staticmethod
    def reset(device_type: str) -> Callable[[], object]:
        """Put the default in place and return what undoes it."""
        del device_type
        before = torch._C._get_cublas_allow_bf16_reduced_precision_reduction()
        name = "allow_bf16_reduced_precision_reduction"
        setattr(torch.backends.cuda.matmul, name, True)
        return partial(setattr, torch.backends.cuda.matmul, name, before)


def _backend(device_type: str) -> str:
    return "cuda" if device_type == "cuda" else "mkldnn"


_defaults = _Defaults()


def _renew_defaults() -> None:
    global _defaults
    _defaults = _defaults.renewed()


os.register_at_fork(after_in_child=_renew_defaults)
