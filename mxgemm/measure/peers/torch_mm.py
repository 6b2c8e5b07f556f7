"""The vendor's bf16 GEMM on a weight that was dequantised beforehand: what a user has without any 4-bit kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.measure.peers.base import Peer
from mxgemm.mx.tensor import MXTensor


class TorchMM(Peer):
    """``torch.mm`` in bf16."""

    name = "torch_mm"
    statement = "bf16 activations, not quantised, times the weight dequantised to bf16 beforehand: 3.8 times its bytes"

    def traffic_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes of three bf16 matrices."""
        return 2 * (m * k + n * k + m * n)

    def load(self, weight: MXTensor) -> Any:
        """Dequantise; exact in bf16."""
        return (weight.dequantize(torch.bfloat16),)

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply."""
        return torch.mm(a, loaded[0].t())
