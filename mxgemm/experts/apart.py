"""The ends of a layer apart, for processes that share experts: results of rows that were sent here, and their sums."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.experts.choice import adder
from mxgemm.experts.forms import is_prepared
from mxgemm.experts.plan import on
from mxgemm.experts.problem import Routing
from mxgemm.experts.route import Combine
from mxgemm.experts.steps import LayerOptions, Steps, bind_steps, describe, pair_results
from mxgemm.mx.tensor import MXTensor
from mxgemm.plan import find, keep

_results: dict[Hashable, Steps] = {}
_sums: dict[Hashable, Combine] = {}


def results(
    x: MXTensor | Tensor,
    w13: MXTensor,
    w2: MXTensor,
    experts: Tensor,
    b13: Tensor | None,
    b2: Tensor | None,
    options: LayerOptions,
) -> Tensor:
    """Return what one expert makes of each row, fp32 ``[R, H]``, for who has sent the rows: at least one.

    Args:
        x: rows, quantised to ``options.a_format``, or bf16 floats, contiguous.
        w13: as in ``moe``, and so are the rest.
        w2: see there.
        experts: int32 ``[R]``, each row's, from 0.
        b13: see there.
        b2: see there.
        options: of the layer.
    """
    data, scales = (x.data, x.scales) if isinstance(x, MXTensor) else (x, None)
    prepared = is_prepared("w13", w13), is_prepared("w2", w2)
    key_options = (*options, w13.shape, w2.shape, prepared)
    tensors = (data, scales, w13.data, w13.scales, w2.data, w2.scales, experts, b13, b2)
    steps, key = find(_results, tensors, key_options)
    if steps is None:
        problems = describe(x, w13, w2, b13, b2, 1, options)
        routing = Routing(
            len(experts), 1, w13.shape[0], 0, 0, experts.dtype, w2.shape[1], torch.float32, torch.float32,
            problems[0].machine, (w2.shape[1], 1),
        )  # fmt: skip
        steps = keep(_results, key, bind_steps(problems, routing, options.route, prepared))
    with on(data.device):
        return pair_results(steps, (data, scales), w13, w2, experts.view(-1, 1), b13, b2, None)


def combine(y: Tensor, ids: Tensor, weights: Tensor, experts: int, out_dtype: torch.dtype) -> Tensor:
    """Return each token's sum in order, ``[T, H]``, of pairs' results ``[T * top_k, H]`` fp32; see ``Combine``."""
    tokens, top_k = ids.shape
    out = torch.empty((tokens, y.shape[1]), dtype=out_dtype, device=y.device)
    if tokens:
        bound, key = find(_sums, (y, ids, weights), (experts, out_dtype))
        if bound is None:
            routing = Routing(
                tokens, top_k, experts, 0, 0, ids.dtype, y.shape[1], weights.dtype, out_dtype, machine_of(y.device),
                (y.shape[1], 1),
            )  # fmt: skip
            bound = keep(_sums, key, adder(routing.machine).bind_combine(routing))
        with on(y.device):
            bound(y, ids.contiguous(), weights.contiguous(), None, out)
    return out
