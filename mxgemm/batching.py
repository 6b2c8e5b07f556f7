"""How torch.vmap maps the operators over a dimension of their tensors.

Tensors whose leading dimensions are rows anyway get one more, and it stays one call: mapping a GEMM over its
activations multiplies a larger M. A mapped weight, bias or shuffled layout is another problem for every element, so the
elements are computed one after the other and stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mxgemm.ambient import check_no_grad

Rule = Callable[..., tuple[Any, Any]]


def rule(name: str, rows: tuple[str, ...], layouts: tuple[str, ...] = (), derivatives: bool = False) -> Rule:
    """Return the vmap rule of an operator.

    Args:
        name: of the operator, ``namespace::name``.
        rows: its tensors that take any number of leading dimensions, as long as all that are given have the same.
        layouts: its arguments that hold those tensors to two dimensions unless they are "row_major".
        derivatives: it has some; otherwise they are refused here too.
    """
    namespace, short = name.split("::")

    def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        operator = getattr(getattr(torch.ops, namespace), short).default
        names = [argument.name for argument in operator._schema.arguments]
        given = dict(zip(names, arguments, strict=False))
        dims = {name: dim for name, dim in zip(names, in_dims, strict=False) if isinstance(dim, int)}
        if not derivatives:
            check_no_grad(**{name: value for name, value in given.items() if isinstance(value, Tensor)})
        if "out" in given and "out" not in dims:
            raise ValueError("out: got a tensor that torch.vmap does not map, want one that it maps like the inputs")
        flat = any(given.get(layout, "row_major") != "row_major" for layout in layouts)
        if dims.keys() == {name for name in rows if given.get(name) is not None} and not flat:
            leading = {name: value.movedim(dims[name], 0) if name in dims else value for name, value in given.items()}
            return _at_front(operator(*leading.values()))
        parts = [
            operator(*(value.select(dims[name], i) if name in dims else value for name, value in given.items()))
            for i in range(info.batch_size)
        ]
        return _at_front(None if parts[0] is None else _stack(parts))

    return batched


def _stack(parts: list[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.stack(parts)
    return tuple(torch.stack(part) for part in zip(*parts, strict=True))


def _at_front(result: Any) -> tuple[Any, Any]:
    """Pair a result with the dimension that is mapped: the first one of each tensor."""
    if result is None:
        return None, None
    return result, 0 if isinstance(result, Tensor) else (0,) * len(result)
