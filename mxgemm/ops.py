"""``torch.ops.mxgemm.*``: the multiplications as torch operators, for torch.compile, export and tensor subclasses.

Eager calls go past them (an operator's dispatch costs tens of microseconds). Schemas are exact: ``gemm`` and
``gemm_mx`` mutate nothing and return fresh memory, the ``_out`` forms mutate ``out`` and return nothing.
"""

# No `from __future__ import annotations`: torch reads the schema from the annotations themselves.

import torch
from torch import Tensor

from mxgemm import validation
from mxgemm.formats import element_format
from mxgemm.plan import Options, multiply


@torch.library.custom_op("mxgemm::gemm", mutates_args=())
def gemm_op(
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype = torch.bfloat16,
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    b_format: str = "e2m1",
    route: str | None = None,
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
) -> Tensor:
    """``mxgemm.gemm`` on tensors."""
    options = Options(
        a_format, b_format, scale_rounding, weight_layout, scale_layout, "row_major", out_dtype, route, derived_kind
    )
    return multiply(a, None, b, b_scales, bias, None, options, given(b, b_scales, options, derived_data, derived_base))


@torch.library.custom_op("mxgemm::gemm_out", mutates_args=("out",))
def gemm_out_op(
    a: Tensor,
    b: Tensor,
    b_scales: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    scale_rounding: str = "even",
    out_dtype: torch.dtype = torch.bfloat16,
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    b_format: str = "e2m1",
    route: str | None = None,
    derived_kind: str = "",
    derived_data: Tensor | None = None,
    derived_base: Tensor | None = None,
) -> None:
    """``mxgemm.gemm`` into ``out``."""
    options = Options(
        a_format, b_format, scale_rounding, weight_layout, scale_layout, "row_major", out_dtype, route, derived_kind
    )
    multiply(a, None, b, b_scales, bias, out, options, given(b, b_scales, options, derived_data, derived_base))


@torch.library.custom_op("mxgemm::gemm_mx", mutates_args=())
def gemm_mx_op(
    a: Tensor,
    a_scales: Tensor,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    b_format: str = "e2m1",
    a_scale_layout: str = "row_major",
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> Tensor:
    """``mxgemm.gemm_mx`` on tensors."""
    options = Options(a_format, b_format, "even", weight_layout, scale_layout, a_scale_layout, out_dtype, route)
    return multiply(a, a_scales, b, b_scales, bias, None, options, given(b, b_scales, options))


@torch.library.custom_op("mxgemm::gemm_mx_out", mutates_args=("out",))
def gemm_mx_out_op(
    a: Tensor,
    a_scales: Tensor,
    b: Tensor,
    b_scales: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    a_format: str = "e2m1",
    b_format: str = "e2m1",
    a_scale_layout: str = "row_major",
    weight_layout: str = "row_major",
    scale_layout: str = "row_major",
    out_dtype: torch.dtype = torch.bfloat16,
    route: str | None = None,
) -> None:
    """``mxgemm.gemm_mx`` into ``out``."""
    options = Options(a_format, b_format, "even", weight_layout, scale_layout, a_scale_layout, out_dtype, route)
    multiply(a, a_scales, b, b_scales, bias, out, options, given(b, b_scales, options))


@gemm_op.register_fake
def _(a, b, b_scales, bias=None, a_format="e2m1", scale_rounding="even", out_dtype=torch.bfloat16, *rest):  # type: ignore[no-untyped-def]
    return _fake(a, b, a.shape[-1], element_format(rest[2] if len(rest) > 2 else "e2m1", "b_format").pack, out_dtype)


@gemm_out_op.register_fake
def _(a, b, b_scales, out, *rest):  # type: ignore[no-untyped-def]
    return None


@gemm_mx_op.register_fake
def _(  # type: ignore[no-untyped-def]
    a, a_scales, b, b_scales, bias=None, a_format="e2m1", b_format="e2m1", a_scale_layout="row_major",
    weight_layout="row_major", scale_layout="row_major", out_dtype=torch.bfloat16, route=None,
):  # fmt: skip
    return _fake(
        a,
        b,
        a.shape[-1] * element_format(a_format, "a_format").pack,
        element_format(b_format, "b_format").pack,
        out_dtype,
    )


@gemm_mx_out_op.register_fake
def _(a, a_scales, b, b_scales, out, *rest):  # type: ignore[no-untyped-def]
    return None


def given(b: Tensor, b_scales: Tensor, options: Options, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return the derived tensors that are there, checked: no MXTensor vouches for what comes here."""
    derived = tuple(tensor for tensor in tensors if tensor is not None)
    validation.check_derived(b, b_scales, options, derived)
    return derived


def _fake(a: Tensor, b: Tensor, k: int, pack: int, out_dtype: torch.dtype) -> Tensor:
    if b.dim() != 2 or b.shape[1] * pack != k:
        raise ValueError(f"b: got shape {tuple(b.shape)}, want [N, {k // pack}] for K = {k}")
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype)
