"""How torch's DTensor may split mxgemm's operators over a mesh.

Rows of A and of the result, rows of the weight and columns of the result, and columns of both operands in whole blocks
of 32, of which the result is a sum. That sum is offered in fp32 alone: partial sums in bf16 would be rounded before
they are added. Weights in another order than row-major are not split, for a slice of their bytes is none of the weight.

``register_sharding`` keeps an operator's decision by its tensors alone, while these depend on layouts and dtypes as
well, so that the static arguments are named to DTensor, where it has no public way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from mxgemm.mx.formats import BLOCK
from mxgemm.notices import say_once

Placements = list[Any]
Rule = tuple[Placements, Placements]
_GEMM: Final = (
    *("a", "b", "b_scales", "bias", "a_format", "scale_rounding", "out_dtype", "weight_layout", "scale_layout"),
    *("b_format", "route", "derived_kind", "derived_data", "derived_base", "a_scales", "a_scale_layout"),
)
_LINEAR: Final = (
    *("x", "weight", "weight_scale", "bias", "a_format", "scale_rounding", "weight_layout", "scale_layout"),
    *("derived_kind", "derived_data", "derived_base"),
)


def register() -> None:
    """Register the rules; said once where this torch has other names."""
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
        from torch.distributed.tensor.experimental import register_sharding

        known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    except (ImportError, AttributeError) as error:
        say_once(f"DTensors cannot be split for mxgemm's operators: torch {torch.__version__}: {error}")
        return
    rules: dict[str, tuple[Callable[..., Sequence[Rule]], int]] = {
        "gemm": (_gemm, 4),
        "mx_linear": (_mx_linear, 4),
        "quantize": (_quantize, 1),
        "dequantize": (_dequantize, 2),
    }
    for name, (rule, first_static) in rules.items():
        operator = getattr(torch.ops.mxgemm, name).default
        register_sharding(operator)(rule)
        known[operator] = RuntimeSchemaInfo(first_static, needs_pytree=True)


def _placements() -> tuple[Any, Any, Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Partial, Replicate, Shard


def _gemm(*given: Any, **named: Any) -> list[Rule]:
    arguments = dict(zip(_GEMM, given, strict=False)) | named
    result = arguments.get("out_dtype") or torch.bfloat16
    quantised = ("a", "a_scales") if arguments.get("a_scales") is not None else ("a",)
    return _product(arguments, quantised, ("b", "b_scales"), result)


def _mx_linear(*given: Any, **named: Any) -> list[Rule]:
    arguments = dict(zip(_LINEAR, given, strict=False)) | named
    result = arguments["x"].tensor_meta.dtype
    return _product(arguments, ("x",), ("weight", "weight_scale"), result)


def _product(arguments: dict[str, Any], a: tuple[str, ...], b: tuple[str, str], result: torch.dtype) -> list[Rule]:
    partial, replicate, shard = _placements()
    spec = arguments[a[0]]
    dims, mesh = len(spec.shape), spec.mesh.size()
    blocks = arguments[b[1]].shape[-1]

    def inputs(**split: Any) -> Placements:
        """A placement for each tensor, None for every other argument."""
        return [
            split.get(name, replicate()) if hasattr(value, "placements") else None for name, value in arguments.items()
        ]

    rules: list[Rule] = [([replicate()], inputs())]
    plain = all(arguments.get(name, "row_major") == "row_major" for name in ("weight_layout", "scale_layout"))
    plain_a = arguments.get("a_scale_layout", "row_major") == "row_major"
    derived = bool(arguments.get("derived_kind"))
    if plain_a:
        rules += [([shard(dim)], inputs(**dict.fromkeys(a, shard(dim)))) for dim in range(dims - 1)]
    if plain and not derived:
        columns = dict.fromkeys((*b, "bias"), shard(0))
        rules.append(([shard(dims - 1)], inputs(**columns)))
    no_bias = arguments.get("bias") is None
    if plain and plain_a and not derived and no_bias and result == torch.float32 and blocks % mesh == 0:
        rules.append(([partial()], inputs(**dict.fromkeys(a, shard(dims - 1)), **dict.fromkeys(b, shard(1)))))
    return rules


def _quantize(x: Any, *static: Any, **named: Any) -> list[Rule]:
    _, replicate, shard = _placements()
    dims = len(x.shape)
    rest: Placements = [None] * len(static)
    whole_blocks = x.shape[-1] % (BLOCK * x.mesh.size()) == 0
    rules = [([replicate(), replicate()], [replicate(), *rest])]
    for dim in range(dims if whole_blocks else dims - 1):
        rules.append(([shard(dim), shard(dim)], [shard(dim), *rest]))
    return rules


def _dequantize(data: Any, scales: Any, *static: Any, **named: Any) -> list[Rule]:
    _, replicate, shard = _placements()
    arguments = dict(zip(("format", "weight_layout", "scale_layout", "dtype"), static, strict=False)) | named
    dims = len(data.shape)
    rest: Placements = [None] * len(static)
    rules = [([replicate()], [replicate(), replicate(), *rest])]
    if any(arguments.get(name, "row_major") != "row_major" for name in ("weight_layout", "scale_layout")):
        return rules
    whole_blocks = scales.shape[-1] % data.mesh.size() == 0
    for dim in range(dims if whole_blocks else dims - 1):
        rules.append(([shard(dim)], [shard(dim), shard(dim), *rest]))
    return rules
