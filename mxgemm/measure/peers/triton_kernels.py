"""triton_kernels' matmul (the gpt-oss kernels): bf16 activations, MXFP4 weight in the layout that it picks itself."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mxgemm.errors import Refusal
from mxgemm.measure.peers.base import Peer
from mxgemm.mx.tensor import MXTensor

_MX_AXIS = -2


class _Loaded(NamedTuple):
    data: Any
    precision: Any
    weight: MXTensor


class TritonKernels(Peer):
    """``triton_kernels.matmul`` with its default layouts."""

    name = "triton_kernels"
    distribution = "triton_kernels"
    module = "triton_kernels"
    install = "it lies in python/triton_kernels of github.com/triton-lang/triton"
    statement = "bf16 activations, not quantised; MXFP4 weight in triton_kernels' default layouts, decoded inside"

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """It launches Triton kernels."""
        return None if device.type == "cuda" else Refusal("device", device, "a GPU", "machine")

    def load(self, weight: MXTensor) -> Any:
        """Wrap and lay out one "expert": bytes ``[1, K/2, N]`` and scales ``[1, K/32, N]``, K running fastest."""
        tensors = importlib.import_module("triton_kernels.tensor")
        layouts = importlib.import_module("triton_kernels.tensor_details.layout")
        data = _laid_out(
            tensors, tensors.wrap_torch_tensor(weight.data.t()[None], dtype=tensors.FP4),
            layouts.make_default_matmul_mxfp4_w_layout(mx_axis=_MX_AXIS),
        )  # fmt: skip
        scales = _laid_out(
            tensors, tensors.wrap_torch_tensor(weight.scales.t()[None]),
            layouts.make_default_matmul_mxfp4_w_scale_layout(mx_axis=_MX_AXIS, num_warps=8),
        )  # fmt: skip
        precision = importlib.import_module("triton_kernels.matmul").PrecisionConfig(b_mx_scale=scales)
        return _Loaded(data, precision, weight)

    def clone(self, loaded: Any) -> Any:
        """Lay the weight out again."""
        weight = loaded.weight
        return self.load(MXTensor(weight.data.clone(), weight.scales.clone(), weight.format, weight.shape))

    def nbytes(self, loaded: Any) -> int:
        """Return the MXFP4 bytes."""
        return int(loaded.weight.nbytes)

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply."""
        out: Tensor = _matmul()(a[None], loaded.data, None, precision_config=loaded.precision)
        return out.view(a.shape[0], -1)


@cache
def _matmul() -> Any:
    return importlib.import_module("triton_kernels.matmul").matmul


def _laid_out(tensors: Any, tensor: Any, layout: Any) -> Any:
    # Older releases return the layout's class and its arguments, newer ones an instance.
    if isinstance(layout, tuple):
        return tensors.convert_layout(tensor, layout[0], **layout[1])
    return tensors.convert_layout(tensor, layout)
