"""Humming (humming-kernels on PyPI): MXFP4 weights for NVIDIA GPUs, compiled while running."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import torch
from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.measure.peers.base import Peer
from mxgemm.mx.tensor import MXTensor


class Humming(Peer):
    """``HummingLayer`` with bf16 activations and its own heuristics."""

    name = "humming"
    distribution = "humming-kernels"
    module = "humming"
    install = "pip install humming-kernels"
    statement = "bf16 activations, not quantised; MXFP4 weight repacked beforehand, decoded inside"

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """It compiles for NVIDIA GPUs only."""
        nvidia = device.type == "cuda" and torch.version.hip is None
        return None if nvidia else Refusal("device", device, "an NVIDIA GPU", "machine")

    def load(self, weight: MXTensor) -> Any:
        """Fill a layer and let it repack."""
        n, k = weight.shape
        layer = importlib.import_module("humming.layer").HummingLayer(
            shape_n=n, shape_k=k, weight_config={"quant_method": "mxfp4"}, torch_dtype=torch.bfloat16
        )
        layer = layer.to(weight.device)
        layer.load_from_tensors({"weight": weight.data, "weight_scale": weight.scales})
        layer.transform()
        return layer

    def clone(self, loaded: Any) -> Any:
        """Copy the layer."""
        return copy.deepcopy(loaded)

    def nbytes(self, loaded: Any) -> int:
        """Return the bytes of its parameters."""
        return sum(int(parameter.nbytes) for parameter in loaded.parameters())

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply."""
        out: Tensor = loaded(a)
        return out
