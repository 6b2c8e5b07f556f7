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
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_PLAIN: Final = frozenset({Tensor, Parameter, type(None)})
_FULL_PRECISION: Final = ("ieee", "none")
_PRECISION_BY_BACKEND: Final = hasattr(torch.backends, "fp32_precision")  # from torch 2.9; one setting before

_process_settings = threading.RLock()


def is_observed(*arguments: object) -> bool:
    """Say whether torch's dispatcher must see a call with these arguments.

    So it is while torch.compile, export or torch.jit.trace records, inside a torch.func transform, at a level of
    forward-mode differentiation, under a mode of torch, and for tensor subclasses (fake, functional, a user's).
    """
    if torch.compiler.is_compiling():
        return True
    c = torch._C
    if c._len_torch_dispatch_stack() or c._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    # The default device is a mode too, but one for calls that name no device, and no such call is made here.
    if c._len_torch_function_stack() and any(
        type(mode) is not DeviceContext for mode in _get_current_function_mode_stack()
    ):
        return True
    if c._get_tracing_state() is not None:
        return True
    return not _PLAIN.issuperset(map(type, arguments)) and any(
        isinstance(value, Tensor) and type(value) not in _PLAIN for value in arguments
    )


def has_tangent(tensor: Tensor) -> bool:
    """Say whether forward-mode differentiation is under way and carries a tangent with this tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(_unbatched(tensor)).tangent is not None


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

    Autocast is the thread's own. The other two settings are the process's: one that is off its default is put back for
    as long as the context is open, by one thread at a time, and products that other threads start meanwhile see it.
    """
    changed = [setting for setting in (_Precision, _Reduction) if setting.changed(device_type)]
    if changed:
        return _defaults(device_type, [setting.reset for setting in changed])
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


@contextmanager
def _defaults(device_type: str, resets: list[Callable[[str], Callable[[], None]]]) -> Iterator[None]:
    with _process_settings, ExitStack() as stack:
        stack.enter_context(torch.autocast(device_type, enabled=False))
        for reset in resets:
            stack.callback(reset(device_type))
        yield


class _Precision:
    """Of fp32 products: by default fp32's own, else TF32 or bf16."""

    @staticmethod
    def changed(device_type: str) -> bool:
        if not _PRECISION_BY_BACKEND:
            return torch.get_float32_matmul_precision() != "highest"
        return _backend(device_type).matmul.fp32_precision not in _FULL_PRECISION

    @staticmethod
    def reset(device_type: str) -> Callable[[], None]:
        """Put the default in place and return what undoes it."""
        if not _PRECISION_BY_BACKEND:
            name = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            return partial(torch.set_float32_matmul_precision, name)
        backend = _backend(device_type)
        before = backend.matmul.fp32_precision
        # cudnn's own setting is the one of all CUDA operations; "none" is to follow it, as products do by default.
        general = torch.backends.cudnn if device_type == "cuda" else backend
        restored = "none" if before == general.fp32_precision else before
        backend.matmul.fp32_precision = "ieee"
        return partial(setattr, backend.matmul, "fp32_precision", restored)


class _Reduction:
    """Of the parts of a bf16 product on CUDA: by default cuBLAS may split K, and may add the parts in bf16."""

    name: Final = "allow_bf16_reduced_precision_reduction"

    @classmethod
    def changed(cls, device_type: str) -> bool:
        return device_type == "cuda" and cls._values() not in (True, (True, True))

    @classmethod
    def reset(cls, device_type: str) -> Callable[[], None]:
        """Put the default in place and return what undoes it."""
        del device_type
        matmul = torch.backends.cuda.matmul
        undo = partial(setattr, matmul, cls.name, cls._values())
        setattr(matmul, cls.name, True)
        return undo

    @classmethod
    def _values(cls) -> bool | tuple[bool, bool]:
        """Return the setting as its setter takes it: newer releases of torch tell splitting from adding."""
        matmul = torch.backends.cuda.matmul
        adding: bool = getattr(matmul, cls.name)
        try:
            return adding, getattr(matmul, f"{cls.name}_split_k")
        except AttributeError:
            return adding


def _backend(device_type: str) -> Any:
    return torch.backends.cuda if device_type == "cuda" else torch.backends.mkldnn


def _renew_lock() -> None:
    global _process_settings
    _process_settings = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may have held it
