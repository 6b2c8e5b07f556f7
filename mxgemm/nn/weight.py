"""The bytes of an MX weight as the state of a module: two uint8 parameters, saved and moved as any others.

They are named as AMD Quark names them, ``weight`` and ``weight_scale``, so that its files load as they are. What
``prepare()`` makes of them is derived data: never saved or copied, and made anew whenever the bytes are others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from mxgemm.ambient import is_observed
from mxgemm.mx.formats import BLOCK, E2M1, E8M0_NAN, ActivationFormat
from mxgemm.mx.freshness import countable
from mxgemm.mx.layouts import ROW_MAJOR, Layout
from mxgemm.mx.parts import DATA_DTYPES, SCALE_DTYPES, describe
from mxgemm.mx.prepared import Memory, Preparation
from mxgemm.mx.tensor import MXTensor
from mxgemm.notices import say_once

_MANY: Final = 8
"""Times that a prepared form is made anew because the bytes were written, from which on it is said."""


class MXWeight(nn.Module):
    """An :class:`mxgemm.MXTensor` as a part of a module: saved, loaded, moved and copied with it.

    ``state_dict`` holds ``weight`` and ``weight_scale``, row-major. Loading takes uint8 or torch's own dtypes of these
    bytes; a file of another dtype or shape is an error, never a conversion. Optimisers leave both alone: they are
    integers and require no grad.

    Args:
        tensor: bytes that this module shares from now on; what ``prepare()`` had been asked of it is repeated here.

    Attributes:
        weight: uint8 ``[..., K/pack]`` in ``layout``.
        weight_scale: uint8 ``[..., K/32]``, or shuffled and padded, in ``layout``.
        format: the element format.
        shape: the logical shape ``[..., K]``.
        layout: row-major, but after ``prepare(keep=False)`` on a device whose form is another order of the bytes.

    Raises:
        TypeError: no MXTensor.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter

    def __init__(self, tensor: MXTensor) -> None:
        super().__init__()
        if not isinstance(tensor, MXTensor):
            raise TypeError(f"tensor: got {describe(tensor)}, want an MXTensor (see mxgemm.quantize)")
        self.format, self.shape = tensor.format, tensor.shape
        self._asked: Preparation | None = None
        self._form: MXTensor | None = None  # of which a form is read; None where the parameters are all that is read
        self._plain: MXTensor | None = None  # the parameters as one, for _read()
        self._made_anew = 0
        self._hold(tensor)
        if tensor.prepared is not None:
            self._asked = tensor.prepared.arguments
            self._prepare_as_asked()

    # ---- the bytes

    def mx_tensor(self) -> MXTensor:
        """Return the bytes as an :class:`mxgemm.MXTensor` that shares them, without what ``prepare()`` made."""
        data, scales = self.weight.detach(), self.weight_scale.detach()
        return MXTensor(data, scales, self.format, self.shape, self.layout)

    def prepared_tensor(self) -> MXTensor:
        """Return :meth:`mx_tensor` with what :meth:`prepare` made, up to date; without it where torch looks on."""
        read = None if is_compiling() else self._read()
        return self.mx_tensor() if read is None else read

    def operand(self) -> tuple[Tensor, Tensor, Layout, str, tuple[Tensor, ...]]:
        """Return what a multiplication reads, as :meth:`mxgemm.MXTensor.operand` does, up to date.

        A form whose bytes were written, loaded or replaced is made anew, but while torch.compile traces: a compiled
        graph reads bytes that were replaced as they are, and refuses a form whose bytes were written.
        """
        weight, scale = self._bytes()
        form = self._form
        if form is not None and is_compiling():
            form = form if self._is_of(form, weight, scale) else None
        elif form is not None:
            form = self._fresh(form, weight, scale)
            weight, scale = self._bytes()
        if form is None:
            return weight, scale, self.layout, "", ()
        return form.operand()

    def _read(self) -> MXTensor | None:
        """Return :meth:`operand` as one object, the same until something changes; None for what is no plain tensor."""
        weight, scale = self._bytes()
        form = self._form
        if form is not None:
            form = self._fresh(form, weight, scale)
            if form is not None:
                return form
            weight, scale = self._bytes()
        plain = self._plain
        if plain is None or not self._is_of(plain, weight, scale):
            if not self._is_plain():
                return None
            plain = self._plain = MXTensor(weight, scale, self.format, self.shape, self.layout)
        return plain

    def _bytes(self) -> tuple[Tensor, Tensor]:
        own = self._parameters  # past Module.__getattr__: this is on the path of every call
        weight, scale = own.get("weight"), own.get("weight_scale")
        if weight is None or scale is None:  # a replica's, or parametrised: then they are plain attributes
            return self.weight, self.weight_scale
        return weight, scale

    @staticmethod
    def _is_of(tensor: MXTensor, weight: Tensor, scale: Tensor) -> bool:
        return tensor.data is weight and tensor.scales is scale

    def _fresh(self, form: MXTensor, weight: Tensor, scale: Tensor) -> MXTensor | None:
        made = form.prepared
        if self._is_of(form, weight, scale) and made is not None and made.stamp is not None and made.stamp.fresh():
            return form
        return self._make_anew()

    def _is_plain(self) -> bool:
        """Say whether the parameters are torch's own: not shards, and nothing that stands in for tensors."""
        plain = (nn.Parameter, Tensor)
        return type(self.weight) in plain and type(self.weight_scale) in plain

    def _hold(self, tensor: MXTensor) -> None:
        with torch.inference_mode(False), torch.no_grad():  # so that torch counts what is written to them
            self.weight = nn.Parameter(countable(tensor.data), requires_grad=False)
            self.weight_scale = nn.Parameter(countable(tensor.scales), requires_grad=False)
        self.layout = tensor.layout

    # ---- what is derived of them

    def prepare(
        self,
        arch: str | None = None,
        *,
        memory: Memory = "fast",
        keep: bool = True,
        a_format: ActivationFormat | None = None,
    ) -> None:
        """Make what this device's fastest routes read of a (N, K) weight: see :meth:`mxgemm.MXTensor.prepare`.

        From then on the module makes it again by itself: after ``.to()``, after loading, and at the first call after
        the bytes were written in place. It notices what torch counts, so not a write through ``weight.data``, numpy or
        a replayed CUDA graph: call :meth:`prepare` again after one.

        Args:
            arch: for this architecture instead of that of the device.
            memory: "fast", or "compact": only what takes less than a tenth of the weight's own memory.
            keep: False: where the form is the same bytes in another order, the parameters hold that order alone;
                ``state_dict`` gives the row-major bytes all the same.
            a_format: of the activations that it will be multiplied by most; None for those of the layer, and for e2m1
                where the module is no layer.

        Raises:
            TypeError, ValueError: as :meth:`mxgemm.MXTensor.prepare`; or the weight is sharded (a DTensor).
        """
        if not self._is_plain():
            raise ValueError(
                f"prepare: got a weight that is a {type(self.weight).__name__}, want one that lies whole on one "
                "device: what is made of a shard, or before every gathering, is of no use"
            )
        layers: ActivationFormat = getattr(self, "a_format", "e2m1")
        asked = Preparation(arch, memory, keep, a_format or layers)
        self._accept(asked.of(self._own()))
        self._asked = asked
        self._made_anew = 0

    def _own(self) -> MXTensor:
        """Return the parameters themselves as an MXTensor, whose stamp notices ``parameter.data = ...`` as well."""
        if self.weight.is_inference() or self.weight_scale.is_inference():
            self._hold(self.mx_tensor())  # copies whose changes torch counts
        return MXTensor(self.weight, self.weight_scale, self.format, self.shape, self.layout)

    def _accept(self, prepared: MXTensor) -> None:
        made = prepared.prepared
        assert made is not None
        if made.stamp is not None:
            self._form = prepared
            return
        self._form = None
        if prepared.layout != self.layout:  # keep=False: the form is the bytes
            self._hold(prepared)

    def _prepare_as_asked(self) -> None:
        """Make the form anew, of bytes that are others than before."""
        self._form = None
        asked = self._asked
        if asked is None or not self._is_plain() or is_observed(None):
            return
        try:
            self._accept(asked.of(self._own()))
        except ValueError as error:
            if asked.keep:
                raise
            say_once(f"a weight on {self.weight.device} is read as its bytes lie: {error}", key=("nn keep", str(error)))

    def _make_anew(self) -> MXTensor | None:
        if not self._is_plain() or is_observed(None):  # replaced for a call by torch.func, or a mode looks on
            return None
        self._prepare_as_asked()
        self._made_anew += 1
        if self._made_anew == _MANY:
            say_once(
                "a prepared weight was written, moved or replaced before many calls, each of which made its form anew; "
                "such a weight is better left unprepared",
                key="nn made anew",
            )
        return self._form

    # ---- saved, loaded, moved, copied

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.layout == ROW_MAJOR:
            return
        if not self._is_plain():
            raise ValueError(
                f"{prefix}weight: got {self.layout} bytes in a {type(self.weight).__name__}, which cannot be put "
                "in order by shards; want prepare(keep=True), or none, for what is sharded"
            )
        rows = self.mx_tensor().row_major()
        destination[prefix + "weight"], destination[prefix + "weight_scale"] = rows.data, rows.scales

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = {prefix + "weight": DATA_DTYPES[self.format.name], prefix + "weight_scale": SCALE_DTYPES}
        given = {name: state_dict[name] for name in names if name in state_dict}
        if given and self.layout != ROW_MAJOR:
            self._hold(self.mx_tensor().row_major())
        taken = dict(state_dict)
        for name, value in given.items():
            if not isinstance(value, Tensor) or value.dtype not in names[name]:
                error_msgs.append(_not_bytes(name, value, self.shape))
                taken[name] = getattr(self, name.removeprefix(prefix)).data  # itself, so that nothing is converted
            elif value.dtype != torch.uint8:
                taken[name] = value.view(torch.uint8)
        super()._load_from_state_dict(taken, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if given:
            self._prepare_as_asked()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MXWeight:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._prepare_as_asked()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_form": None, "_plain": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._prepare_as_asked()

    def extra_repr(self) -> str:
        """Name what the parameters mean."""
        return ", ".join([str(self.format), f"shape={tuple(self.shape)}", *self._how_it_lies()])

    def _how_it_lies(self) -> list[str]:
        """Name what is unusual about the layout, and the form that is read."""
        made = None if self._form is None else self._form.prepared
        return [
            *([] if self.layout == ROW_MAJOR else [str(self.layout)]),
            *([f"prepared as {made.kind}"] if made else []),
        ]


def unloaded(*shape: int, device: torch.device | str | int | None = None) -> MXTensor:
    """Return room for an e2m1 weight ``[..., K]``, whose values are NaN until bytes are loaded."""
    data = torch.zeros(*shape[:-1], shape[-1] // E2M1.pack, dtype=torch.uint8, device=device)
    scales = torch.full((*shape[:-1], shape[-1] // BLOCK), E8M0_NAN, dtype=torch.uint8, device=device)
    return MXTensor.wrap(data, scales)


def _not_bytes(name: str, value: object, shape: tuple[int, ...]) -> str:
    text = f"{name}: got {describe(value)}, want bytes: uint8, [..., K/2] of e2m1 or [..., K/{BLOCK}] of scales"
    if isinstance(value, Tensor) and tuple(value.shape) == tuple(shape):
        text += "; these are the values of an unquantised weight: load them first, then mxgemm.quantize_ the model"
    return text
