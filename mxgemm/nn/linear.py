"""MXLinear: ``torch.nn.Linear`` with a frozen MXFP4 weight."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from mxgemm import steady
from mxgemm.ambient import is_observed
from mxgemm.arguments import as_int, check_bool
from mxgemm.gemm import gemm
from mxgemm.mx.formats import BLOCK, E2M1, E8M0_NAN, ActivationFormat, ScaleRounding
from mxgemm.mx.parts import describe
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.nn.product import is_recorded, linear
from mxgemm.nn.weight import MXWeight, unloaded
from mxgemm.problem import Options
from mxgemm.quantize import quantize
from mxgemm.validation import check_names

DEFAULT_FORMAT: Final[ActivationFormat] = "bf16"
"""Of activations where a layer or a configuration names none: what MXFP4 weights cost alone, and nothing more."""


class MXLinear(MXWeight):
    """A linear layer with an MXFP4 weight: ``y = round(quantize(x) @ dequantize(weight).T + bias)``, as mxgemm.gemm.

    The result has the dtype of ``x``, whatever autocast says. The weight is frozen; gradients reach ``x`` and
    ``bias``, as adapters beside or behind the layer want: the gradient of ``x`` is ``dy @ dequantize(weight)``.

    State: ``weight`` uint8 ``[N, K/2]``, ``weight_scale`` uint8 ``[N, K/32]``, ``bias`` ``[N]``: AMD Quark's names.

    Args:
        in_features: K, a multiple of 32.
        out_features: N, at least 1.
        bias: with one, of zeros.
        a_format: what activations are rounded to: "bf16", "e4m3" or "e2m1".
        scale_rounding: rule for the block scales of activations.
        device: of the parameters, by default torch's default device; "meta" for a layer that is loaded later.
        dtype: of the bias, by default torch's default dtype.

    Until something is loaded every result is NaN.

    Raises:
        TypeError: a size that is no integer, a flag that is no bool, a dtype that is none of bf16, fp16 and fp32.
        ValueError: a size or a name that is none of those.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        k, n = as_int("in_features", in_features), as_int("out_features", out_features)
        if k < 0 or k % BLOCK:
            raise ValueError(f"in_features: got {k}, want a multiple of {BLOCK}")
        if n < 1:
            raise ValueError(f"out_features: got {n}, want at least 1")
        check_bool("bias", bias)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in FLOAT_DTYPES:
            raise TypeError(f"dtype: got {dtype}, want torch.bfloat16, torch.float16 or torch.float32")
        zeros = nn.Parameter(torch.zeros(n, dtype=dtype, device=device)) if bias else None
        self._set(unloaded(n, k, device=device), zeros, a_format, scale_rounding)

    def _set(
        self, weight: MXTensor, bias: nn.Parameter | None, a_format: ActivationFormat, scale_rounding: ScaleRounding
    ) -> None:
        _check(weight, bias, a_format, scale_rounding)
        super().__init__(weight)
        self.out_features, self.in_features = weight.shape
        self.a_format, self.scale_rounding = a_format, scale_rounding
        self.bias = bias

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
    ) -> MXLinear:
        """Quantise a linear layer; the result shares its bias, device and mode.

        Args:
            linear: bf16, fp16 or fp32, K % 32 == 0; it is left as it is.
            a_format: what activations are rounded to.
            scale_rounding: rule for the block scales of the weight and of activations.

        Raises:
            TypeError: no nn.Linear, or a dtype that cannot be quantised.
            ValueError: K is no multiple of 32, or an unknown name.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear: got {describe(linear)}, want a torch.nn.Linear")
        with torch.no_grad():
            weight = quantize(linear.weight, scale_rounding=scale_rounding)
        layer = cls.from_mx(weight, linear.bias, a_format=a_format, scale_rounding=scale_rounding)
        return layer.train(linear.training)

    @classmethod
    def from_mx(
        cls,
        weight: MXTensor,
        bias: Tensor | None = None,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
    ) -> MXLinear:
        """Make a layer of a weight that is MXFP4 already, sharing its bytes and the bias.

        Args:
            weight: (N, K), e2m1, any layout; what ``prepare()`` had been asked of it is repeated.
            bias: ``[N]``; a Parameter stays the one that it is, a tensor becomes one that requires no grad.
            a_format: what activations are rounded to.
            scale_rounding: rule for the block scales of activations.

        Raises:
            TypeError: a weight that is no MXTensor, a bias that is no tensor of bf16, fp16 or fp32.
            ValueError: another format or shape, another device than the weight's, or an unknown name.
        """
        if isinstance(bias, Tensor) and not isinstance(bias, nn.Parameter):
            bias = nn.Parameter(bias.detach(), requires_grad=False)
        layer = cls.__new__(cls)
        layer._set(weight, bias, a_format, scale_rounding)
        return layer

    @classmethod
    def from_parts(
        cls,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        a_format: ActivationFormat = DEFAULT_FORMAT,
        scale_rounding: ScaleRounding = "even",
    ) -> MXLinear:
        """Make a layer of a checkpoint's bytes, sharing them.

        Args:
            weight: ``[N, K/2]``, uint8 or ``float4_e2m1fn_x2``.
            weight_scale: ``[N, K/32]``, uint8 or ``float8_e8m0fnu``.
            bias: as in :meth:`from_mx`.
            a_format: as in :meth:`from_mx`; a checkpoint's metadata says which its activations are meant to be.
            scale_rounding: as in :meth:`from_mx`.

        Raises:
            TypeError, ValueError: as :meth:`mxgemm.MXTensor.wrap` and :meth:`from_mx`.
        """
        tensor = MXTensor.wrap(weight, weight_scale)
        return cls.from_mx(tensor, bias, a_format=a_format, scale_rounding=scale_rounding)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply ``[..., K]``, bf16, fp16 or fp32, any strides; returns ``[..., N]`` of the same dtype.

        Raises:
            TypeError: another dtype.
            ValueError: another K or device.
            RuntimeError: a compiled graph of a weight that was changed after ``prepare()``.
        """
        if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
            raise TypeError(f"x: got {describe(x)}, want a bf16, fp16 or fp32 tensor [..., {self.in_features}]")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"x: got shape {tuple(x.shape)}, want [..., {self.in_features}]")
        own = self._parameters
        bias = own["bias"] if "bias" in own else self.bias  # noqa: SIM401  # which is Module's own look-up, for replicas
        if not is_recorded(x, bias) and not is_observed(x, *self._bytes(), bias):
            weight = self._read()
            if weight is not None:
                return self._multiply(x, weight, bias)
        data, scales, layout, kind, derived = self.operand()
        options = Options(
            self.a_format, "e2m1", self.scale_rounding, layout.data, layout.scales, "row_major", x.dtype, None, kind
        )
        return linear(x, data, scales, bias, options, derived)

    def _multiply(self, x: Tensor, weight: MXTensor, bias: Tensor | None) -> Tensor:
        """Multiply eagerly, by a plan that the weight has kept if there is one."""
        named = (self.a_format, self.scale_rounding, x.dtype, None)
        if steady.quick is not None and (known := steady.quick(weight, x, bias, None, *named)) is not None:
            return known
        known = steady.call(x, weight, bias, None, named)
        if known is not None:
            return known
        return gemm(x, weight, a_format=self.a_format, scale_rounding=self.scale_rounding, bias=bias, out_dtype=x.dtype)

    def reset_parameters(self) -> None:
        """Make the layer what a new one is, as after ``to_empty()``: results are NaN until something is loaded."""
        with torch.no_grad():
            self.weight.zero_()
            self.weight_scale.fill_(E8M0_NAN)
            if self.bias is not None:
                self.bias.zero_()

    def extra_repr(self) -> str:
        """Name sizes and formats, as nn.Linear does."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        formats = f"a_format={self.a_format}, scale_rounding={self.scale_rounding}"
        return ", ".join([sizes, formats, *self._how_it_lies()])


def _check(weight: object, bias: object, a_format: str, scale_rounding: str) -> None:
    if not isinstance(weight, MXTensor):
        raise TypeError(f"weight: got {describe(weight)}, want an MXTensor (see mxgemm.quantize)")
    if weight.format is not E2M1:
        raise ValueError(f"weight: got format {weight.format}, want e2m1")
    if len(weight.shape) != 2:
        raise ValueError(f"weight: got shape {weight.shape}, want (N, K)")
    names = {"weight_layout": "row_major", "scale_layout": "row_major", "route": None}
    check_names(a_format=a_format, scale_rounding=scale_rounding, **names)  # type: ignore[arg-type]
    if bias is None:
        return
    n = weight.shape[0]
    if not isinstance(bias, Tensor) or bias.dtype not in FLOAT_DTYPES:
        raise TypeError(f"bias: got {describe(bias)}, want a bf16, fp16 or fp32 tensor [{n}]")
    if tuple(bias.shape) != (n,):
        raise ValueError(f"bias: got shape {tuple(bias.shape)}, want ({n},)")
    if bias.device != weight.device:
        raise ValueError(f"bias: got device {bias.device}, want {weight.device} like the weight")
