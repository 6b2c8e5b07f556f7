"""The experts of gpt-oss with MXFP4 weights, as transformers' model calls them.

Their bytes are those of the checkpoint, output features first (see ``mxgemm.checkpoints.gpt_oss``), where transformers'
own parameters are ``[E, K, N]``.
"""

from __future__ import annotations

from typing import Any

from mxgemm.experts import SwiGLU
from mxgemm.mx.formats import BLOCK, ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.nn import MXExperts
from mxgemm.nn.weight import unloaded


class MXGptOssExperts(MXExperts):
    """Takes the place of transformers' ``GptOssExperts``, whose biases it shares; its weights are to be loaded.

    Args:
        experts: the module to replace.
        a_format: what activations are rounded to.
        scale_rounding: rule for their block scales.

    Raises:
        ValueError: a size that is no multiple of 32.
    """

    def __init__(self, experts: Any, a_format: ActivationFormat, scale_rounding: ScaleRounding) -> None:
        super().__init__(
            _unloaded(experts.gate_up_proj),
            _unloaded(experts.down_proj),
            activation=SwiGLU(float(experts.alpha), float(experts.limit)),
            b13=experts.gate_up_proj_bias,
            b2=experts.down_proj_bias,
            a_format=a_format,
            scale_rounding=scale_rounding,
        )


def _unloaded(parameter: Any) -> MXTensor:
    """Make room for the bytes of a parameter ``[E, K, N]``, whose values are NaN until they are loaded."""
    count, k, n = parameter.shape
    if k % BLOCK:
        raise ValueError(f"experts: got weights of K = {k}, want a multiple of {BLOCK}")
    return unloaded(count, n, k, device=parameter.device)
