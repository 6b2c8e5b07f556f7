"""MXTensor, and how tensors become one and back: by ``mxgemm.mx.codec``, or on GPUs by a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, SupportsIndex

import torch
from torch import Tensor

from mxgemm.ambient import is_differentiated, is_observed
from mxgemm.arguments import shown
from mxgemm.memory import check_memory
from mxgemm.mx.codec import decode_rows, encode_rows, row_chunks
from mxgemm.mx.formats import BLOCK, ElementFormat, FormatName, ScaleRounding, element_format, scale_addend
from mxgemm.mx.layouts import (
    ROW_MAJOR,
    Layout,
    ScaleLayout,
    WeightLayout,
    unpreshuffle_weight,
    unshuffle_scales,
)
from mxgemm.mx.parts import DATA_DTYPES, SCALE_DTYPES, as_bytes, check_parts, describe

if TYPE_CHECKING:
    from mxgemm.mx.freshness import Stamp

Memory = Literal["fast", "compact"]

FLOAT_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)

PREPARED_LAYOUT: Final[dict[str, Layout]] = {"gfx950": Layout("preshuffled", "shuffled")}
"""The layout that the fastest routes of an architecture read; elsewhere they read row-major bytes."""


@dataclass(frozen=True, eq=False)
class MXTensor:
    """A tensor in an MX format: element bytes, scale bytes, and what they mean.

    It is no ``torch.Tensor``. A module that holds one as an attribute neither saves nor moves it: register ``data`` and
    ``scales`` as buffers and hand those to :func:`mxgemm.gemm`, or keep the MXTensor where you move it yourself.
    ``register_buffer`` and ``nn.Parameter`` refuse an MXTensor.

    Pickles, ``torch.save`` files and copies (``copy.copy``, ``copy.deepcopy``, another process's queue) hold the bytes
    and what they mean; what :meth:`prepare` made stays behind, so call it again on what they give. ``torch.load`` takes
    such a file with ``weights_only=True`` once mxgemm is imported.

    Attributes:
        data: uint8 ``[..., K/pack]``; two e2m1 a byte, the low nibble holds the even k.
        scales: E8M0 bytes, uint8 ``[..., K/32]``, or shuffled and padded (two-dimensional tensors only).
        format: the element format.
        shape: the logical shape ``[..., K]``.
        layout: how ``data`` and ``scales`` lie in memory.
        prepared: the same values in the layout that this device's fastest routes read. Derived data: made by
            :meth:`prepare` alone, never saved, rebuilt by :meth:`to`.
        derived_kind: what else :meth:`prepare` made, see ``mxgemm.mx.fold``; "" for nothing.
        derived: the tensors of that kind; derived data too.
        preparation: the arguments of :meth:`prepare`, None before it; :meth:`to` repeats them.
        stamp: the state of ``data``, ``scales`` and the derived data at :meth:`prepare`; None where every call reads
            the bytes themselves.

    Raises:
        TypeError: a part of a wrong type or dtype.
        ValueError: parts that do not belong together (``mxgemm.mx.parts.check_parts``).
    """

    data: Tensor
    scales: Tensor
    format: ElementFormat
    shape: tuple[int, ...]
    layout: Layout = ROW_MAJOR
    prepared: MXTensor | None = field(default=None, init=False)
    derived_kind: str = field(default="", init=False)
    derived: tuple[Tensor, ...] = field(default=(), init=False)
    preparation: tuple[str | None, Memory] | None = field(default=None, init=False)
    stamp: Stamp | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the parts against each other, as construction did: torch can resize a tensor in place.

        Raises:
            TypeError, ValueError: as the constructor.
        """
        check_parts(self.data, self.scales, self.format, self.shape, self.layout)

    @classmethod
    def wrap(
        cls,
        data: Tensor,
        scales: Tensor,
        *,
        format: FormatName = "e2m1",
        weight_layout: WeightLayout = "row_major",
        scale_layout: ScaleLayout = "row_major",
    ) -> MXTensor:
        """Take bytes that a checkpoint or another library holds, without copying them.

        Args:
            data: ``[..., K/pack]``, uint8 or torch's dtype of the format (``float4_e2m1fn_x2``, fp8).
            scales: ``[..., K/32]`` or shuffled, uint8 or ``float8_e8m0fnu``.
            format: the element format of ``data``.
            weight_layout: "row_major" or "preshuffled".
            scale_layout: "row_major" or "shuffled".

        Raises:
            TypeError: a dtype that holds no bytes.
            ValueError: an unknown name, or shapes that do not belong together.
        """
        fmt = element_format(format)
        data, scales = as_bytes(data, "data", DATA_DTYPES[fmt.name]), as_bytes(scales, "scales", SCALE_DTYPES)
        if data.dim() == 0:
            raise ValueError("data: got a scalar, want at least one dimension")
        shape = (*data.shape[:-1], data.shape[-1] * fmt.pack)
        return cls(data, scales, fmt, tuple(shape), Layout(weight_layout, scale_layout))

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales, without what :meth:`prepare` added."""
        return self.data.nbytes + self.scales.nbytes

    def row_major(self) -> MXTensor:
        """Return the same values in row-major layout (itself, if they are)."""
        self.check()
        if self.layout == ROW_MAJOR:
            return self
        n, k = self.shape
        data = unpreshuffle_weight(self.data) if self.layout.data == "preshuffled" else self.data
        shuffled = self.layout.scales == "shuffled"
        scales = unshuffle_scales(self.scales, n, k // BLOCK) if shuffled else self.scales
        return MXTensor(data, scales, self.format, self.shape, ROW_MAJOR)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values, ``[..., K]``; see :func:`dequantize`."""
        return dequantize(self, dtype=dtype)

    def prepare(self, arch: str | None = None, *, memory: Memory = "fast") -> MXTensor:
        """Make, once and off the hot path, what the fastest routes on this device want of a weight.

        On gfx950 that is another layout, in ``prepared``; a shape that cannot be preshuffled (N % 16, K % 64) goes
        without. On sm_90 it is an fp8 or bf16 form of the weight, in ``derived`` (see ``mxgemm.mx.fold``), chosen after
        looking at the scales, which waits for the device. Elsewhere nothing. The bytes stay, so it costs memory.

        The result shares its bytes with this tensor. Once they are changed in place, or what was made of them is,
        multiplications refuse it until ``prepare()`` is called again. They notice what torch counts: see
        ``mxgemm.mx.freshness`` for what it does not (writes through ``.data``, numpy, foreign kernels, a replayed CUDA
        graph). Bytes made under inference mode are not counted, so then the result holds a copy of them.

        Args:
            arch: prepare for this architecture instead of that of the device that holds the bytes.
            memory: "fast", or "compact": only what takes less than a tenth of the weight's own memory.

        Returns:
            an MXTensor with the same values. On the meta device nothing is made until :meth:`to` moves it.

        Raises:
            TypeError: ``arch`` is no text.
            ValueError: not two-dimensional, an unknown ``arch`` or ``memory``, or parts that no longer belong together.
        """
        from mxgemm.prepare import prepare

        return prepare(self, arch, memory)

    def to(self, device: torch.device | str | int) -> MXTensor:
        """Copy to a device; what :meth:`prepare` had made is made anew there, from the bytes as they are now.

        Returns:
            an MXTensor on the device: this one if it is there already and nothing was changed since ``prepare()``.

        Raises:
            TypeError: no device.
            ValueError: no device that torch knows, or parts that no longer belong together.
        """
        self.check()
        if not isinstance(device, (str, int, torch.device)):
            raise TypeError(f"device: got {describe(device)}, want a torch.device or its name")
        try:
            target = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device: got {device!r}, want one that torch knows") from error
        data, scales = self.data.to(target), self.scales.to(target)
        if data is self.data and scales is self.scales and (self.stamp is None or self.stamp.fresh()):
            return self
        moved = MXTensor(data, scales, self.format, self.shape, self.layout)
        return moved if self.preparation is None else moved.prepare(self.preparation[0], memory=self.preparation[1])

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., MXTensor], tuple[Any, ...]]:
        from mxgemm.saved import load

        sizes = tuple(int(size) for size in self.shape)
        return load, (self.data, self.scales, self.format.name, sizes, self.layout.data, self.layout.scales)

    def __setstate__(self, state: object) -> NoReturn:
        # Only a pickle that was not made by __reduce_ex__ comes here, and would go past every check.
        raise UnpicklingError(f"MXTensor: got fields as {describe(state)}, want a call of mxgemm.saved.load")

    def __repr__(self) -> str:
        extra = "" if self.layout == ROW_MAJOR else f", {self.layout.data} data, {self.layout.scales} scales"
        return f"MXTensor({self.format}, shape={self.shape}, device={self.device}{extra})"


def quantize(x: Tensor, *, format: FormatName = "e2m1", scale_rounding: ScaleRounding = "even") -> MXTensor:
    """Quantise to an MX format, in blocks of 32 along the last dimension.

    The scale rule is :func:`mxgemm.mx.formats.scale_addend`. Elements are divided by the scale, rounded to nearest
    (ties to even) and saturated; the sign of a zero is kept. A block of zeros gets scale byte 0 and codes 0. A
    block that holds a NaN or an infinity gets scale byte 255 and codes 0: it decodes to NaN, never to a number.

    Args:
        x: ``[..., K]``, bf16, fp16 or fp32, any strides, K % 32 == 0.
        format: "e2m1", "e4m3" or "e5m2".
        scale_rounding: "even", "floor", "ceil" or "rceil".

    Returns:
        a row-major :class:`MXTensor` on the same device. Its bytes carry no gradient, as torch's own conversions to
        integers do not: ``x`` may require grad, as a model's weights do.

    Raises:
        TypeError: ``x`` is not a tensor of one of those dtypes.
        ValueError: a wrong shape, format or rounding rule.
        RuntimeError: torch.func or forward mode takes a derivative with respect to ``x``.
    """
    fmt = check_quantizable(x, format, scale_rounding)
    if is_observed(x):
        if not torch.compiler.is_compiling():
            refuse_differentiated(x)
            x = x.detach()
        data, scales = torch.ops.mxgemm.quantize(x, fmt.name, scale_rounding)
    else:
        data, scales = encode(x, fmt.name, scale_rounding)
    return MXTensor(data, scales, fmt, tuple(x.shape), ROW_MAJOR)  # torch.compile does not trace that default


def dequantize(x: MXTensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of an MX tensor, exact in fp32 (and in bf16 unless the scale is extreme).

    Args:
        x: any layout.
        dtype: bf16, fp16 or fp32; fp16 overflows to Inf where the value does not fit.

    Returns:
        ``[..., K]`` of ``dtype`` on the same device.

    Raises:
        TypeError: ``x`` is not an MXTensor, or another dtype.
    """
    if not isinstance(x, MXTensor):
        raise TypeError(f"x: got {describe(x)}, want an MXTensor (see MXTensor.wrap)")
    if is_observed(x.data, x.scales):
        layout = x.layout
        return torch.ops.mxgemm.dequantize(x.data, x.scales, x.format.name, layout.data, layout.scales, dtype)  # type: ignore[no-any-return]
    return decode(x, dtype)


def refuse_differentiated(x: Tensor) -> None:
    """Refuse to quantise what a derivative is being taken with respect to: it would be lost without a word.

    Raises:
        RuntimeError: torch.func or forward mode takes one.
    """
    if is_differentiated(x):
        raise RuntimeError("x: a derivative is taken with respect to it, but bytes have none; detach() it")


def check_quantizable(x: object, format: str, scale_rounding: str) -> ElementFormat:
    """Check the arguments of :func:`quantize` and return the format.

    Raises:
        TypeError, ValueError: as :func:`quantize`.
    """
    if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"x: got {describe(x)}, want a bf16, fp16 or fp32 tensor")
    check_memory("x", x)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"x: got shape {tuple(x.shape)}, want a last dimension that is a multiple of {BLOCK}")
    fmt = element_format(format)
    scale_addend(fmt, scale_rounding)
    return fmt


def encode(x: Tensor, format: str, scale_rounding: str) -> tuple[Tensor, Tensor]:
    """Return the row-major bytes and scales of :func:`quantize`, eagerly.

    Raises:
        TypeError, ValueError: as :func:`quantize`.
    """
    data, scales = encoded_like(x, format, scale_rounding)
    if x.is_meta:
        return data, scales
    fmt = element_format(format)
    addend, k = scale_addend(fmt, scale_rounding), x.shape[-1]
    rows = math.prod(x.shape[:-1])
    # What follows reads bits, which a lazily negated view negates later.
    flat = x.detach().resolve_neg().reshape(rows, k)
    flat_data, flat_scales = data.view(rows, k // fmt.pack), scales.view(rows, k // BLOCK)
    if x.is_cuda and rows and k and _kernel_available(x.device):
        from mxgemm.triton.quantize import quantize_rows

        with torch.cuda.device(x.device):
            quantize_rows(flat, fmt, addend, flat_data, flat_scales)
    else:
        for part in row_chunks(rows, k):
            flat_data[part], flat_scales[part] = encode_rows(flat[part], fmt, addend)
    return data, scales


def encoded_like(x: Tensor, format: str, scale_rounding: str) -> tuple[Tensor, Tensor]:
    """Return the memory of :func:`encode`, unfilled: all there is to it on meta or fake tensors."""
    fmt = check_quantizable(x, format, scale_rounding)
    *leading, k = x.shape
    data = torch.empty((*leading, k // fmt.pack), dtype=torch.uint8, device=x.device)
    return data, torch.empty((*leading, k // BLOCK), dtype=torch.uint8, device=x.device)


def decode(x: MXTensor, dtype: torch.dtype) -> Tensor:
    """Return the values of :func:`dequantize`, eagerly.

    Raises:
        TypeError: another dtype.
    """
    out = decoded_like(x, dtype)
    if out.is_meta:
        return out
    x = x.row_major()
    k = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    data, scales = x.data.reshape(rows, k // x.format.pack), x.scales.reshape(rows, k // BLOCK)
    flat = out.view(rows, k)
    for part in row_chunks(rows, k):
        flat[part] = decode_rows(data[part], scales[part], x.format)
    return out


def decoded_like(x: MXTensor, dtype: torch.dtype) -> Tensor:
    """Return the memory of :func:`decode`, unfilled: all there is to it on meta or fake tensors."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_DTYPES:
        raise TypeError(f"dtype: got {shown(dtype)}, want torch.bfloat16, torch.float16 or torch.float32")
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _kernel_available(device: torch.device) -> bool:
    from mxgemm.triton.quantize import available

    return available(device)
