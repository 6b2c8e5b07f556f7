"""MXTensor, and how one becomes a tensor again; ``mxgemm.quantize`` makes one of a tensor."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import Final, NoReturn, SupportsIndex, get_args

import torch
from torch import Tensor

from mxgemm.ambient import is_observed
from mxgemm.arguments import check_bool, one_of, shown
from mxgemm.device import arch_of
from mxgemm.mx.codec import decode_into
from mxgemm.mx.formats import ACTIVATION_FORMATS, BLOCK, ActivationFormat, ElementFormat, FormatName, element_format
from mxgemm.mx.fragments import row_major_parts
from mxgemm.mx.layouts import (
    FRAGMENTS,
    ROW_MAJOR,
    Layout,
    ScaleLayout,
    WeightLayout,
    row_major_scales,
    unpreshuffle_weight,
)
from mxgemm.mx.parts import DATA_DTYPES, SCALE_DTYPES, as_bytes, check_parts, describe
from mxgemm.mx.prepared import Memory, Preparation, PreparedWeight, prepare

FLOAT_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, eq=False)
class MXTensor:
    """A tensor in an MX format: element bytes, scale bytes, and what they mean.

    It is no ``torch.Tensor``. A module that holds one as an attribute neither saves nor moves it: an
    ``mxgemm.nn.MXWeight`` does both, and an ``mxgemm.nn.MXLinear`` multiplies by it. ``register_buffer`` and
    ``nn.Parameter`` refuse an MXTensor.

    Pickles, ``torch.save`` files and copies (``copy.copy``, ``copy.deepcopy``, another process's queue) hold the bytes
    and what they mean; what :meth:`prepare` made stays behind, so call it again on what they give. ``torch.load`` takes
    such a file with ``weights_only=True`` once mxgemm is imported.

    Attributes:
        data: uint8 ``[..., K/pack]``; two e2m1 a byte, the low nibble holds the even k.
        scales: E8M0 bytes, uint8 ``[..., K/32]``, or shuffled or swizzled and padded (two-dimensional tensors only).
        format: the element format.
        shape: the logical shape ``[..., K]``.
        layout: how ``data`` and ``scales`` lie in memory.
        prepared: what this device's fastest routes read, None before :meth:`prepare`. Derived data: made by
            :meth:`prepare` alone, never saved, rebuilt by :meth:`to`.
        known: what multiplications keep for the next one (``mxgemm.steady``), never saved.

    Raises:
        TypeError: a part of a wrong type or dtype.
        ValueError: parts that do not belong together (``mxgemm.mx.parts.check_parts``).
    """

    data: Tensor
    scales: Tensor
    format: ElementFormat
    shape: tuple[int, ...]
    layout: Layout = ROW_MAJOR
    prepared: PreparedWeight | None = field(default=None, init=False)
    known: object = field(default=None, init=False, repr=False)

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
            scales: ``[..., K/32]``, shuffled or swizzled, uint8 or ``float8_e8m0fnu``.
            format: the element format of ``data``.
            weight_layout: "row_major" or "preshuffled".
            scale_layout: "row_major", "shuffled" (AITER's order) or "swizzled_32_4_4" (torch's ``SwizzleType``, as
                torchao and cuBLAS have them: ``[32*ceil(N/128), 16*ceil(K/128)]``).

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
        """Bytes of data and scales, and of what :meth:`prepare` added to them."""
        own = self.data.nbytes + self.scales.nbytes
        added = self.prepared is not None and not any(tensor is self.data for tensor in self.prepared.tensors)
        return own + (self.prepared.nbytes if added and self.prepared is not None else 0)

    def operand(self) -> tuple[Tensor, Tensor, Layout, str, tuple[Tensor, ...]]:
        """Return what a route gets of this weight: bytes, scales, their layout, and the form read beside them.

        The form is its kind and its tensors, "" and none where there is none.
        """
        prepared = self.prepared
        if prepared is None:
            return self.data, self.scales, self.layout, "", ()
        if prepared.layout is None:
            return self.data, self.scales, self.layout, prepared.kind, prepared.tensors
        data, scales = prepared.tensors
        return data, scales, prepared.layout, "", ()

    def row_major(self) -> MXTensor:
        """Return the same values in row-major layout (itself, if they are)."""
        self.check()
        if self.layout == ROW_MAJOR:
            return self
        n, k = self.shape
        if self.layout.data == FRAGMENTS:
            return MXTensor(*row_major_parts(self.data, self.scales), self.format, self.shape, ROW_MAJOR)
        data = unpreshuffle_weight(self.data) if self.layout.data == "preshuffled" else self.data
        scales = row_major_scales(self.scales, self.layout.scales, n, k // BLOCK)
        return MXTensor(data, scales, self.format, self.shape, ROW_MAJOR)

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> MXTensor:
        """Return a part of the leading dimensions that shares these bytes: expert ``w[e]`` of a stack, rows ``w[a:b]``.

        Args:
            index: integers and slices, for every dimension but the last one, whose blocks are whole.

        Returns:
            a row-major MXTensor, without what :meth:`prepare` had made.

        Raises:
            TypeError: anything but integers and slices.
            IndexError: an integer that is outside.
            ValueError: more of them than leading dimensions, or a layout that has no parts.
        """
        self.check()
        given = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(one, slice | SupportsIndex) and not isinstance(one, bool | Tensor) for one in given):
            raise TypeError(f"index: got {', '.join(map(shown, given))}, want integers and slices")
        parts = tuple(one if isinstance(one, slice) else operator.index(one) for one in given)
        if len(parts) >= len(self.shape):
            raise ValueError(
                f"index: got {len(parts)} for shape {self.shape}, want at most {len(self.shape) - 1}: K stays whole"
            )
        if self.layout != ROW_MAJOR:
            raise ValueError(f"index: got a {self.layout} tensor, want row-major (see MXTensor.row_major)")
        data, scales = self.data[parts], self.scales[parts]
        return MXTensor(data, scales, self.format, (*data.shape[:-1], self.shape[-1]), ROW_MAJOR)

    def clone(self) -> MXTensor:
        """Copy to fresh memory on the same device; what :meth:`prepare` had made is made anew there.

        Raises:
            ValueError: parts that no longer belong together.
        """
        self.check()
        return self._made_again(self.data.clone(), self.scales.clone())

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values, ``[..., K]``; see :func:`dequantize`."""
        return dequantize(self, dtype=dtype)

    def prepare(
        self,
        arch: str | None = None,
        *,
        memory: Memory = "fast",
        keep: bool = True,
        a_format: ActivationFormat = "e2m1",
    ) -> MXTensor:
        """Make, once and off the hot path, what the fastest routes on this device want of a weight.

        The routes say what that is (``Route.forms``). On gfx950 it is another order of the bytes; a shape that cannot
        be preshuffled (N % 16, K % 64) goes without. On sm_90 it is an fp8 or bf16 form of the weight for many rows of
        activations, and its bytes in another order for few: 1.5 or 2.5 bytes an element more. e2m1 activations get fp8
        if the scales allow it, which waits for the device; others bf16. Elsewhere nothing. Of a stack of experts
        (E, N, K) it is, on sm_90 alone, every expert's bytes in that order, beside them: 17/32 of a byte an element
        more.

        The result shares its bytes with this tensor. Once they are changed in place, or what was made of them is,
        multiplications refuse it until ``prepare()`` is called again. They notice what torch counts: see
        ``mxgemm.mx.freshness`` for what it does not (writes through ``.data``, numpy, foreign kernels, a replayed CUDA
        graph). Bytes made under inference mode are not counted, so then the result holds a copy of them.

        Args:
            arch: prepare for this architecture instead of that of the device that holds the bytes.
            memory: "fast", or "compact": only what takes less than a tenth of the weight's own memory.
            keep: False lets go of the bytes as they lie here, where the form is the same bytes in another order: the
                result's ``data``, ``scales`` and ``layout`` are the form's. :meth:`row_major` makes the row-major bytes
                again, to the byte; pickles, ``torch.save`` files, copies and :meth:`to` do so by themselves. Memory is
                free once nobody else holds the bytes either. Where no form is wanted, nothing is let go.
            a_format: format of the activations that the weight will be multiplied by most, as of ``mxgemm.gemm``:
                which form is the fastest depends on it. Whatever is made, every format is multiplied right.

        Returns:
            an MXTensor with the same values. On the meta device nothing is made until :meth:`to` moves it.

        Raises:
            TypeError: ``arch`` is no text, ``keep`` no bool.
            ValueError: neither a weight nor a stack of them, an unknown ``arch``, ``memory`` or ``a_format``, or parts
                that no longer belong together; or ``keep`` is False and the form is read beside the bytes: on sm_90
                that of a stack, and of a weight with N % 32 or K % 128. Others keep their fragment order there, which
                is fastest up to M = 32 and slow above.
        """
        self.check()
        if len(self.shape) not in (2, 3):
            raise ValueError(f"prepare: got shape {self.shape}, want a weight (N, K) or a stack of them (E, N, K)")
        one_of("memory", memory, get_args(Memory))
        check_bool("keep", keep)
        one_of("a_format", a_format, ACTIVATION_FORMATS)
        return prepare(self, Preparation(None if arch is None else arch_of(arch), memory, keep, a_format))

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
        stamp = None if self.prepared is None else self.prepared.stamp
        if data is self.data and scales is self.scales and (stamp is None or stamp.fresh()):
            return self
        return self._made_again(data, scales)

    def _made_again(self, data: Tensor, scales: Tensor) -> MXTensor:
        copy = MXTensor(data, scales, self.format, self.shape, self.layout)
        if self.prepared is None:
            return copy
        return prepare(copy if self.prepared.arguments.keep else copy.row_major(), self.prepared.arguments)

    def __setstate__(self, state: object) -> NoReturn:
        # Only a pickle that mxgemm.saved did not make comes here, and would go past every check.
        raise UnpicklingError(f"MXTensor: got fields as {describe(state)}, want a call of mxgemm.saved.load")

    def __repr__(self) -> str:
        extra = "" if self.layout == ROW_MAJOR else f", {self.layout.data} data, {self.layout.scales} scales"
        if self.prepared is not None and self.prepared.kind:
            extra += f", prepared as {self.prepared.kind}"
        return f"MXTensor({self.format}, shape={self.shape}, device={self.device}{extra}, {self.nbytes} bytes)"


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
    decode_into(data, scales, x.format, out.view(rows, k))
    return out


def decoded_like(x: MXTensor, dtype: torch.dtype) -> Tensor:
    """Return the memory of :func:`decode`, unfilled: all there is to it on meta or fake tensors."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_DTYPES:
        raise TypeError(f"dtype: got {shown(dtype)}, want torch.bfloat16, torch.float16 or torch.float32")
    return torch.empty(x.shape, dtype=dtype, device=x.device)
