"""What ``MXTensor.prepare()`` makes: the forms of a weight that routes read, and what holds one.

A route names the forms that it reads and owns the functions that make them (``Route.forms``). ``mxgemm.routes``
registers them here, for ``prepare()`` lies below the routes and must not import them; the order is the router's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.errors import Refusal
from mxgemm.mx.formats import E2M1, ActivationFormat, ElementFormat
from mxgemm.mx.freshness import Stamp, countable, remember
from mxgemm.mx.layouts import Layout
from mxgemm.mx.parts import describe

if TYPE_CHECKING:
    from mxgemm.mx.tensor import MXTensor

Memory = Literal["fast", "compact"]

ALIGNMENT: Final = 16
"""Of the tensors of a form, in bytes: kernels are compiled for it."""


class Preparation(NamedTuple):
    """The arguments of :meth:`mxgemm.MXTensor.prepare`, which ``to()`` repeats."""

    arch: str | None = None
    memory: Memory = "fast"
    keep: bool = True
    a_format: ActivationFormat = "e2m1"

    def of(self, weight: MXTensor) -> MXTensor:
        """Prepare a weight with these arguments."""
        return weight.prepare(self.arch, memory=self.memory, keep=self.keep, a_format=self.a_format)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWeight:
    """What :meth:`mxgemm.MXTensor.prepare` made of a weight; derived data, never saved.

    Attributes:
        kind: name of the :class:`WeightForm`; "" where the architecture's routes want nothing but the bytes.
        tensors: in the order of the form.
        layout: of ``tensors``, where these are bytes and scales that are read instead of the weight's own; None where
            they are read beside those.
        arguments: of ``prepare()``.
        stamp: the state of the weight's bytes and of ``tensors``; None where nothing can go stale, because ``tensors``
            are the weight's own bytes, or there are none.
    """

    kind: str
    tensors: tuple[Tensor, ...]
    layout: Layout | None
    arguments: Preparation
    stamp: Stamp | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of ``tensors``."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class WeightForm:
    """One form of a weight that a route reads, and how it is made.

    Attributes:
        kind: its name; rules of routing tables and the torch operators' ``derived_kind`` say it.
        archs: architectures on which ``prepare()`` makes it.
        memory: of ``prepare()``: "fast", or "compact" for what takes less than a tenth of the weight's own memory.
        refusal: says of a format, N and K why such a weight has no such form, or None.
        make: makes its tensors of a row-major weight; None for a weight whose values do not allow it.
        parts: dtype and shape of each tensor, for N and K. At most two, as torch operators have arguments for two.
            Not asked where there is a ``layout``, whose shapes are known.
        layout: where the form is bytes and scales in another order, this order: they are read instead of the row-major
            ones, which can be made again from them to the byte. None: the tensors are read beside the weight's bytes.
        a_formats: of activations for which ``prepare()`` makes it; () for all.
        alone: only where the weight's own bytes may go (``keep=False``), and then before all that are read beside them.
        stacked: of a stack of weights (E, N, K), which the routes of grouped products read; else of an (N, K) weight.
    """

    kind: str
    archs: tuple[str, ...]
    memory: Memory
    refusal: Callable[[ElementFormat, int, int], Refusal | None]
    make: Callable[[MXTensor], tuple[Tensor, ...] | None]
    parts: Callable[[int, int], tuple[tuple[torch.dtype, tuple[int, ...]], ...]] = lambda n, k: ()
    layout: Layout | None = None
    a_formats: tuple[ActivationFormat, ...] = ()
    alone: bool = False
    stacked: bool = False

    def __str__(self) -> str:
        return self.kind if self.layout is None else str(self.layout)


def only_e2m1(fmt: ElementFormat, n: int, k: int) -> Refusal | None:
    """Refuse a weight that is not MXFP4; a ``refusal`` of a :class:`WeightForm`."""
    del n, k
    return None if fmt is E2M1 else Refusal("b_format", fmt, "e2m1")


_forms: Final[dict[str, WeightForm]] = {}


def register(forms: Iterable[WeightForm]) -> None:
    """Make forms known to ``prepare()``, each behind those that are known.

    Raises:
        ValueError: another form has this name.
    """
    for form in forms:
        if _forms.setdefault(form.kind, form) is not form:
            raise ValueError(f"kind: got {form.kind!r}, want a name that no other weight form has")


def wanted(
    arch: str,
    memory: Memory,
    fmt: ElementFormat,
    n: int,
    k: int,
    *,
    keep: bool = True,
    a_format: ActivationFormat = "e2m1",
    stacked: bool = False,
) -> Iterator[WeightForm]:
    """Yield the forms that the routes of an architecture want of a weight, that of the fastest first.

    Which of them ``prepare()`` makes, its values decide: the first whose ``make`` gives something.

    Args:
        arch: of the machine.
        memory: of ``prepare()``.
        fmt: element format.
        n: rows of the weight.
        k: elements of a row.
        keep: of ``prepare()``.
        a_format: of ``prepare()``.
        stacked: it is a stack of such weights.
    """
    for form in sorted(_forms.values(), key=lambda form: not form.alone):
        here = arch in form.archs and memory == form.memory and not (form.alone and keep) and form.stacked == stacked
        serves = not form.a_formats or a_format in form.a_formats
        if here and serves and form.refusal(fmt, n, k) is None:
            yield form


def wanted_on(arch: str) -> WeightForm | None:
    """Return the form that ``prepare()`` makes on an architecture first of all, None for nothing."""
    fast = (form for form in _forms.values() if form.memory == "fast" and not (form.alone or form.stacked))
    return next((form for form in fast if arch in form.archs), None)


def is_made_on(kind: str, arch: str) -> bool:
    """Say whether ``prepare()`` makes a form on an architecture; "", a weight's own bytes, are there everywhere."""
    return not kind or (kind in _forms and arch in _forms[kind].archs)


def prepare(weight: MXTensor, arguments: Preparation) -> MXTensor:
    """Do what :meth:`mxgemm.MXTensor.prepare` says, with checked arguments.

    Raises:
        ValueError: the bytes may go, but the form that is wanted is read beside them.
    """
    if weight.device.type == "meta":
        return _complete(weight, PreparedWeight("", (), None, arguments))
    with torch.inference_mode(False), torch.no_grad():  # so that torch counts the changes of what is made here
        return _prepare(weight, arguments)


def _prepare(weight: MXTensor, arguments: Preparation) -> MXTensor:
    arch = machine_of(weight.device).arch if arguments.arch is None else arguments.arch
    n, k = weight.shape[-2:]
    counted, rows, stacked = weight, None, len(weight.shape) == 3
    _, memory, keep, a_format = arguments
    for form in wanted(arch, memory, weight.format, n, k, keep=keep, a_format=a_format, stacked=stacked):
        if form.layout is not None and weight.layout == form.layout:  # the same bytes: nothing to go stale
            return _complete(weight, PreparedWeight(form.kind, (weight.data, weight.scales), form.layout, arguments))
        if form.layout is None and not arguments.keep:
            raise ValueError(
                f"keep: got False, but on {arch} the form {form.kind!r} is read beside the weight's own bytes, which "
                "cannot be made again from it; want True"
            )
        if rows is None:
            counted = replace(weight, data=countable(weight.data), scales=countable(weight.scales))
            rows = counted.row_major()
        tensors = form.make(rows)
        if tensors is None:
            continue
        if form.layout is not None and not arguments.keep:
            alone = replace(weight, data=tensors[0], scales=tensors[1], layout=form.layout)
            return _complete(alone, PreparedWeight(form.kind, tensors, form.layout, arguments))
        stamp = Stamp(counted.data, counted.scales, tensors)
        remember(tensors, Stamp(counted.data, counted.scales))
        return _complete(counted, PreparedWeight(form.kind, tensors, form.layout, arguments, stamp))
    return _complete(weight, PreparedWeight("", (), None, arguments))


def _complete(weight: MXTensor, prepared: PreparedWeight) -> MXTensor:
    result = replace(weight)
    object.__setattr__(result, "prepared", prepared)  # not the constructor's: nobody else can vouch for it
    return result


def check_form(
    kind: str, tensors: tuple[Tensor, ...], fmt: ElementFormat, n: int, k: int, device: torch.device
) -> None:
    """Check that tensors are a form of an (N, K) weight that is read beside its bytes, as far as metadata says it.

    Args:
        kind: name of the form, "" for none.
        tensors: as ``make`` gave them.
        fmt: element format of the weight.
        n: rows of the weight.
        k: elements of a row.
        device: of the weight.

    Raises:
        TypeError: a wrong dtype.
        ValueError: an unknown kind, one that such a weight does not have, or a wrong number, shape, device or place in
            memory.
    """
    beside = {form.kind: form for form in _forms.values() if form.layout is None and not form.stacked}
    if kind and kind not in beside:
        raise ValueError(f"derived_kind: got {kind!r}, want one of {', '.join(map(repr, ('', *beside)))}")
    reason = beside[kind].refusal(fmt, n, k) if kind else None
    if reason:
        raise ValueError(f"derived_kind: got {kind!r} for b, but {reason.reason}")
    parts = beside[kind].parts(n, k) if kind else ()
    if len(tensors) != len(parts):
        raise ValueError(f"derived_data, derived_base: got {len(tensors)} tensors, want {len(parts)} of {kind!r}")
    for name, tensor, (dtype, shape) in zip(("derived_data", "derived_base"), tensors, parts, strict=False):
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: got {describe(tensor)}, want {dtype} for {kind!r}")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, want {shape} for {kind!r}, N = {n}, K = {k}")
        if tensor.device != device:
            raise ValueError(f"{name}: got device {tensor.device}, want {device} like b")
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            raise ValueError(f"{name}: got strides {tensor.stride()}, want contiguous and {ALIGNMENT}-byte aligned")
