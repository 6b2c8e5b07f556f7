"""The experts of gpt-oss with MXFP4 weights, as transformers' model calls them.

Their bytes are those of the checkpoint, output features first (see ``mxgemm.checkpoints.gpt_oss``), where transformers'
own parameters are ``[E, K, N]``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mxgemm.mx.formats import BLOCK, ActivationFormat, ScaleRounding
from mxgemm.nn import MXWeight
from mxgemm.nn.product import linear
from mxgemm.nn.weight import unloaded
from mxgemm.problem import Options


class MXGptOssExperts(nn.Module):
    """Takes the place of transformers' ``GptOssExperts``: one product after the other for each expert that is hit.

    Which experts these are is read by the host, so neither torch.compile's fullgraph nor a CUDA graph takes it in.

    Args:
        experts: the module to replace; its activation is used as it is.
        a_format: what activations are rounded to.
        scale_rounding: rule for their block scales.

    State: ``gate_up_proj.weight`` uint8 ``[E, 2I, H/2]`` and ``gate_up_proj.weight_scale`` ``[E, 2I, H/32]``,
    ``down_proj.*`` ``[E, H, I/2]`` and ``[E, H, I/32]``, ``gate_up_proj_bias`` ``[E, 2I]``, ``down_proj_bias``
    ``[E, H]``.

    Raises:
        ValueError: a size that is no multiple of 32.
    """

    gate_up_proj_bias: Tensor
    down_proj_bias: Tensor

    def __init__(self, experts: Any, a_format: ActivationFormat, scale_rounding: ScaleRounding) -> None:
        super().__init__()
        self._activate: Any = type(experts)._apply_gate
        self.alpha, self.limit = experts.alpha, experts.limit
        self.a_format, self.scale_rounding = a_format, scale_rounding
        self.gate_up_proj, self.down_proj = _unloaded(experts.gate_up_proj), _unloaded(experts.down_proj)
        self.gate_up_proj_bias, self.down_proj_bias = experts.gate_up_proj_bias, experts.down_proj_bias

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs, ``[tokens, H]``.

        Args:
            hidden_states: ``[tokens, H]``.
            router_indices: ``[tokens, k]``, the experts of each token.
            routing_weights: ``[tokens, k]``.
        """
        result = torch.zeros_like(hidden_states)
        for expert in torch.unique(router_indices).tolist():
            token, place = torch.where(router_indices == expert)
            x = self._product(hidden_states[token], self.gate_up_proj, self.gate_up_proj_bias, expert)
            x = self._product(self._activate(self, x), self.down_proj, self.down_proj_bias, expert)
            weighted = x * routing_weights[token, place, None]
            result = result.index_add(0, token, weighted.to(result.dtype))
        return result

    def _product(self, x: Tensor, weight: MXWeight, bias: Tensor, expert: int) -> Tensor:
        options = Options(self.a_format, "e2m1", self.scale_rounding, out_dtype=x.dtype)
        return linear(x, weight.weight[expert], weight.weight_scale[expert], bias[expert], options)


def _unloaded(parameter: Any) -> MXWeight:
    """Make room for the bytes of a parameter ``[E, K, N]``, whose values are NaN until they are loaded."""
    count, k, n = parameter.shape
    if k % BLOCK:
        raise ValueError(f"experts: got weights of K = {k}, want a multiple of {BLOCK}")
    return MXWeight(unloaded(count, n, k, device=parameter.device))
