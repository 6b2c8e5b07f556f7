"""The vendor's GEMM on a weight that was dequantised beforehand: what a user has without any 4-bit kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mxgemm.errors import Refusal
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


class TorchMMFloat32(TorchMM):
    """``torch.mm`` in fp32, which on a CPU without bf16 products is the faster one."""

    name = "torch_mm_fp32"
    statement = (
        "fp32 activations, converted inside, times the weight dequantised to fp32 beforehand: 7.5 times its bytes"
    )

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """On a GPU it is none that anyone would take."""
        return None if device.type == "cpu" else Refusal("device", device, "a CPU", "machine")

    def traffic_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes of bf16 activations and of two fp32 matrices."""
        return 2 * m * k + 4 * (n * k + m * n)

    def load(self, weight: MXTensor) -> Any:
        """Dequantise."""
        return (weight.dequantize(torch.float32),)

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Convert and multiply."""
        return torch.mm(a.to(torch.float32), loaded[0].t())
