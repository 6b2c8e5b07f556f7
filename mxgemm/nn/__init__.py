"""Layers and whole models: :class:`MXLinear` in place of ``torch.nn.Linear``, and what makes a model of them."""

from mxgemm.nn.config import LayerReport, ModelReport, MXConfig
from mxgemm.nn.convert import check_state, quantize_
from mxgemm.nn.experts import MXExperts
from mxgemm.nn.linear import MXLinear
from mxgemm.nn.weight import MXWeight

__all__ = ["LayerReport", "MXConfig", "MXExperts", "MXLinear", "MXWeight", "ModelReport", "check_state", "quantize_"]
