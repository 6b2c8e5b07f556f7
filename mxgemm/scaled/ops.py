"""``torch.ops.mxgemm.quant_gemm`` and ``quant_gemm_grouped``: what looks at calls from inside torch sees.

The conventions are those of :mod:`mxgemm.ops`. A scheme is its name and its group sizes.
"""

# No `from __future__ import annotations`: torch reads the schema from the annotations themselves.

import torch
from torch import Tensor

from mxgemm import batching
from mxgemm.mx.parts import describe
from mxgemm.scaled.plan import multiply, output_like
from mxgemm.scaled.problem import Options
from mxgemm.scaled.schemes import check_scheme, described, scheme_of


@torch.library.custom_op("mxgemm::quant_gemm", mutates_args=())
def quant_gemm_op(
    a: Tensor,
    b: Tensor,
    scheme: str,
    groups: list[int],
    a_format: str,
    b_format: str,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    route: str | None = None,
) -> Tensor:
    """``mxgemm.quant_gemm`` on tensors; bf16 unless ``out_dtype`` says otherwise."""
    options = _options(scheme, groups, a_format, b_format, out_dtype, route)
    return multiply(a, a_scales, b, b_scales, bias, None, options)


@torch.library.custom_op("mxgemm::quant_gemm_grouped", mutates_args=())
def quant_gemm_grouped_op(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    scheme: str,
    groups: list[int],
    a_format: str,
    b_format: str,
    a_scales: Tensor | None = None,
    b_scales: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    route: str | None = None,
) -> Tensor:
    """``mxgemm.quant_gemm_grouped`` of rows of A in groups."""
    options = _options(scheme, groups, a_format, b_format, out_dtype, route)
    return multiply(a, a_scales, b, b_scales, None, None, options, offsets, True)


@quant_gemm_op.register_fake
def _(a, b, scheme, groups, a_format, b_format, a_scales=None, b_scales=None, bias=None, out_dtype=None, route=None):  # type: ignore[no-untyped-def]
    options = _options(scheme, groups, a_format, b_format, out_dtype, route)
    return output_like(a, a_scales, b, b_scales, bias, None, options)


@quant_gemm_grouped_op.register_fake
def _(a, b, offsets, scheme, groups, a_format, b_format, a_scales=None, b_scales=None, out_dtype=None, route=None):  # type: ignore[no-untyped-def]
    options = _options(scheme, groups, a_format, b_format, out_dtype, route)
    return output_like(a, a_scales, b, b_scales, None, None, options, offsets, True)


quant_gemm_op.register_vmap(batching.rule("mxgemm::quant_gemm", rows=()))
quant_gemm_grouped_op.register_vmap(batching.rule("mxgemm::quant_gemm_grouped", rows=()))


def call(
    a: Tensor,
    a_scales: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    options: Options,
    offsets: Tensor | None = None,
) -> Tensor:
    """Call the operator of one problem, or with ``offsets`` of the grouped form, and return the result."""
    o = options
    name, groups = described(check_scheme(o.scheme))
    if offsets is None:
        made = torch.ops.mxgemm.quant_gemm(
            a, b, name, groups, o.a_format, o.b_format, a_scales, b_scales, bias, o.out_dtype, o.route
        )
    else:
        made = torch.ops.mxgemm.quant_gemm_grouped(
            a, b, offsets, name, groups, o.a_format, o.b_format, a_scales, b_scales, o.out_dtype, o.route
        )
    if out is None:
        return made  # type: ignore[no-any-return]
    if not isinstance(out, Tensor) or out.dtype != o.out_dtype:
        raise TypeError(f"out: got {describe(out)}, want a {o.out_dtype} tensor (out_dtype says which)")
    if out.shape != made.shape:
        raise ValueError(f"out: got shape {tuple(out.shape)}, want {tuple(made.shape)}")
    return out.copy_(made)


def _options(
    scheme: str, groups: list[int], a_format: str, b_format: str, out_dtype: torch.dtype | None, route: str | None
) -> Options:
    return Options(scheme_of(scheme, groups), a_format, b_format, out_dtype or torch.bfloat16, route)
