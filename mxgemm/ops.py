"""``torch.ops.mxgemm.*``: the library as torch operators, for whatever looks at calls from inside torch.

torch.compile, export, torch.vmap, modes and tensor subclasses meet these (``mxgemm.ambient`` says when); eager calls go
past them, for an operator's dispatch costs tens of microseconds. Schemas are exact: ``gemm``, ``quantize`` and
``dequantize`` mutate nothing and return fresh memory, ``gemm_out`` mutates ``out`` and returns nothing. No default in a
schema is a dtype, which AOTInductor cannot pass on: None stands for it.

``mx_linear`` is ``gemm`` as a layer with a frozen weight calls it: the result has the dtype of ``x``, and ``x`` and
``bias`` get gradients. The others refuse derivatives.
"""

# No `from __future__ import annotations`: torch reads the schema from the annotations themselves.

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from mxgemm import batching
from mxgemm.ambient import check_no_grad, plain_products
from mxgemm.mx.formats import element_format
from mxgemm.mx.tensor import MXTensor, decode, decoded_like
from mxgemm.plan import multiply, output_like
from mxgemm.problem import Options
from mxgemm.quantize import encode, encoded_like, refuse_differentiated
from mxgemm.validation import check_derived


@torch.library.custom_op("mxgemm::gemm", mutates_args=())
def gemm_op(
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype | None = None,
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    b_format: str = "e2m1",
    route: str | None = None,
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
    a_scales: Tensor | None = None,
    a_scale_layout: str = "row_major",
) -> Tensor:
    """``mxgemm.gemm`` on tensors, or ``gemm_mx`` with ``a_scales``; bf16 unless ``out_dtype`` says otherwise."""
    return _gemm(
        True, a, b, b_scales, None, bias, a_format, scale_rounding, out_dtype, weight_layout, scale_layout, b_format,
        route, derived_kind, derived_data, derived_base, a_scales, a_scale_layout,
    )  # fmt: skip


@torch.library.custom_op("mxgemm::gemm_out", mutates_args=("out",))
def gemm_out_op(
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype | None = None,
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    b_format: str = "e2m1",
    route: str | None = None,
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
    a_scales: Tensor | None = None,
    a_scale_layout: str = "row_major",
) -> None:
    """``mxgemm::gemm`` into ``out``."""
    _gemm(
        True, a, b, b_scales, out, bias, a_format, scale_rounding, out_dtype, weight_layout, scale_layout, b_format,
        route, derived_kind, derived_data, derived_base, a_scales, a_scale_layout,
    )  # fmt: skip


@torch.library.custom_op("mxgemm::quantize", mutates_args=())
def quantize_op(x: Tensor, format: str = "e2m1", scale_rounding: str = "even") -> tuple[Tensor, Tensor]:
    """``mxgemm.quantize`` to element bytes and scales, both row-major."""
    refuse_differentiated(x)
    return encode(x, format, scale_rounding)


@torch.library.custom_op("mxgemm::dequantize", mutates_args=())
def dequantize_op(
    data: Tensor,
    scales: Tensor,
    format: str = "e2m1",
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``mxgemm.dequantize`` of element bytes and scales; fp32 unless ``dtype`` says otherwise."""
    return decode(_wrap(data, scales, format, weight_layout, scale_layout), dtype or torch.float32)


@torch.library.custom_op("mxgemm::mx_linear", mutates_args=())
def mx_linear_op(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
) -> Tensor:
    """``mxgemm.gemm`` on tensors, to the dtype of ``x``; the gradient of ``x`` is ``dy @ dequantize(weight)``."""
    return _gemm(
        True, x, weight, weight_scale, None, bias, a_format, scale_rounding, x.dtype, weight_layout, scale_layout,
        "e2m1", None, derived_kind, derived_data, derived_base,
    )  # fmt: skip


@gemm_op.register_fake
def _(a, b, b_scales, *rest, **named):  # type: ignore[no-untyped-def]
    return _gemm(False, a, b, b_scales, None, *rest, **named)


@gemm_out_op.register_fake
def _(*given, **named):  # type: ignore[no-untyped-def]
    _gemm(False, *given, **named)


@mx_linear_op.register_fake
def _(x, weight, weight_scale, bias=None, a_format="e2m1", scale_rounding="even", *rest, **named):  # type: ignore[no-untyped-def]
    layouts = {**dict(zip(("weight_layout", "scale_layout"), rest, strict=False)), **named}
    kept = {name: layouts[name] for name in ("weight_layout", "scale_layout") if name in layouts}
    return _gemm(False, x, weight, weight_scale, None, bias, a_format, scale_rounding, x.dtype, **kept)


@quantize_op.register_fake
def _(x, format="e2m1", scale_rounding="even"):  # type: ignore[no-untyped-def]
    return encoded_like(x, format, scale_rounding)


@dequantize_op.register_fake
def _(data, scales, format="e2m1", weight_layout="row_major", scale_layout="row_major", dtype=None):  # type: ignore[no-untyped-def]
    return decoded_like(_wrap(data, scales, format, weight_layout, scale_layout), dtype or torch.float32)


def _refuse_derivatives(name: str) -> None:
    """Refuse them where an operator is entered: torch would in the backward pass, and for ``_out`` forms never."""
    operator = getattr(torch.ops.mxgemm, name).default
    names = [argument.name for argument in operator._schema.arguments]

    def check_and_go_on(keys: torch._C.DispatchKeySet, *arguments: object) -> object:
        given = dict(zip(names, arguments, strict=False))
        check_no_grad(**{name: value for name, value in given.items() if isinstance(value, Tensor)})
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    for device in ("CPU", "CUDA", "Meta"):
        _kernels.impl(name, check_and_go_on, f"Autograd{device}", with_keyset=True)  # type: ignore[no-untyped-call]


_kernels = torch.library.Library("mxgemm", "IMPL")  # type: ignore[no-untyped-call]
for _name in ("gemm", "gemm_out"):
    _refuse_derivatives(_name)


def _remember_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, weight, weight_scale, bias, _, _, *layouts = inputs[:8]
    ctx.save_for_backward(weight, weight_scale)  # so that a write to them before the backward pass is an error
    ctx.layouts, ctx.x_dtype, ctx.bias_dtype = layouts, x.dtype, None if bias is None else bias.dtype


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``x`` and ``bias``; rounding ``x`` counts as the identity.

    The weight is dequantised for the time of the call, to bf16 for a bf16 ``dy`` and to fp32 for others, in both of
    which its values are exact; the sums are torch's own.
    """
    dx = dbias = None
    if ctx.needs_input_grad[0]:
        dtype = torch.bfloat16 if dy.dtype == torch.bfloat16 else torch.float32
        weight = torch.ops.mxgemm.dequantize(*ctx.saved_tensors, "e2m1", *ctx.layouts, dtype)
        device = dy.device.type
        # What is compiled keeps the settings of the process that it runs in.
        with torch.autocast(device, enabled=False) if is_compiling() else plain_products(device):
            dx = (dy.to(dtype) @ weight).to(ctx.x_dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[3]:  # torch leaves arguments out that are their defaults
        dbias = dy.reshape(-1, dy.shape[-1]).sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return (dx, None, None, dbias, *(None for _ in range(7)))


mx_linear_op.register_autograd(_linear_backward, setup_context=_remember_weight)

gemm_op.register_vmap(batching.rule("mxgemm::gemm", rows=("a", "a_scales"), layouts=("a_scale_layout",)))
gemm_out_op.register_vmap(batching.rule("mxgemm::gemm_out", rows=("a", "a_scales", "out"), layouts=("a_scale_layout",)))
quantize_op.register_vmap(batching.rule("mxgemm::quantize", rows=("x",)))
mx_linear_op.register_vmap(batching.rule("mxgemm::mx_linear", rows=("x",), derivatives=True))
dequantize_op.register_vmap(
    batching.rule("mxgemm::dequantize", rows=("data", "scales"), layouts=("weight_layout", "scale_layout"))
)


def call_gemm(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
    derived: tuple[Tensor, ...] = (),
) -> Tensor:
    """Call ``mxgemm::gemm`` or ``gemm_out`` and return the result; ``a_scales`` says that A comes quantised.

    Raises:
        RuntimeError: a derivative is asked for.
    """
    check_no_grad(a=a, bias=bias, out=out)
    o = options
    data, base = (*derived, None, None)[:2]
    rest = (
        *(bias, o.a_format, o.scale_rounding, o.out_dtype, o.weight_layout, o.scale_layout, o.b_format, o.route),
        *(o.derived, data, base, a_scales, o.a_scale_layout),
    )
    if out is None:
        return torch.ops.mxgemm.gemm(a, b, b_scales, *rest)  # type: ignore[no-any-return]
    torch.ops.mxgemm.gemm_out(a, b, b_scales, out, *rest)
    return out


def _gemm(
    real: bool,
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    out: Tensor | None,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype | None = None,
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    b_format: str = "e2m1",
    route: str | None = None,
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
    a_scales: Tensor | None = None,
    a_scale_layout: str = "row_major",
) -> Tensor:
    """Compute what an operator is asked for, or for a fake kernel only check it and return an unfilled output."""
    element_format(b_format, "b_format")
    if a_scales is None and a_scale_layout != "row_major":
        raise ValueError(f"a_scale_layout: got {a_scale_layout!r}, want 'row_major' where a_scales is None")
    options = Options(
        a_format, b_format, scale_rounding, weight_layout, scale_layout, a_scale_layout, out_dtype or torch.bfloat16,
        route, derived_kind,
    )  # fmt: skip
    if not real:
        return output_like(a, a_scales, b, b_scales, bias, out, options)
    derived = tuple(tensor for tensor in (derived_data, derived_base) if tensor is not None)
    check_derived(b, b_scales, options, derived)  # no MXTensor vouches for what comes here
    return multiply(a, a_scales, b, b_scales, bias, out, options, derived)


def _wrap(data: Tensor, scales: Tensor, format: str, weight_layout: str, scale_layout: str) -> MXTensor:
    return MXTensor.wrap(data, scales, format=format, weight_layout=weight_layout, scale_layout=scale_layout)  # type: ignore[arg-type]
