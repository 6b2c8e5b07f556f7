"""The kernel class that ``mxgemm.integrations.vllm`` offers to vLLM; importing this needs vLLM.

Written for vLLM 0.32.0: ``register_linear_kernel`` and ``MxFp4LinearKernel`` are its interface for kernels from
outside, and the linear layers of Quark's and compressed-tensors' checkpoints call it with ``layer.weight`` uint8
``[N, K/2]`` and ``layer.weight_scale`` uint8 ``[N, K/32]``, a rank's own slice under tensor parallelism.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple, get_args

import torch
from torch import Tensor
from vllm.model_executor.kernels.linear import (
    MxFp4LinearKernel,
    MxFp4LinearLayerConfig,
    register_linear_kernel,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Dynamic, kMxfp8Dynamic
from vllm.platforms import PlatformEnum

from mxgemm.arguments import one_of
from mxgemm.checkpoints.quark import Quark
from mxgemm.gemm import gemm
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.prepared import Memory
from mxgemm.mx.tensor import MXTensor
from mxgemm.routing.explain import explain

A_FORMATS: Final[dict[Any, ActivationFormat]] = {None: "bf16", kMxfp4Dynamic: "e2m1", kMxfp8Dynamic: "e4m3"}
"""What vLLM's keys of activations mean."""
PLATFORMS: Final = (PlatformEnum.CPU, PlatformEnum.CUDA, PlatformEnum.ROCM)
_offered: Final[set[PlatformEnum]] = set()


class Prepared(NamedTuple):
    """What a layer is multiplied by, and how; its attribute ``mxgemm``."""

    weight: MXTensor
    a_format: ActivationFormat
    scale_rounding: ScaleRounding


def offer() -> None:
    """Register the kernel for every platform, once a process."""
    for platform in PLATFORMS:
        if platform not in _offered:
            _offered.add(platform)
            register_linear_kernel(MXGemmMxFp4LinearKernel, platform, "mxfp4")


class MXGemmMxFp4LinearKernel(MxFp4LinearKernel):
    """MXFP4 linear layers by :func:`mxgemm.gemm`: one class for all platforms, for the router knows them."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Say whether this machine has a route that is meant for it."""
        if torch.cuda.is_available() and explain(1, 4096, 4096, a_format="bf16").route == "reference":
            return False, "has no route for this GPU but `reference`; `mxgemm doctor` says what is missing"
        return True, None

    @classmethod
    def can_implement(cls, config: MxFp4LinearLayerConfig) -> tuple[bool, str | None]:
        """Say whether activations are bf16, MXFP4 or MXFP8."""
        if config.activation_quant_key not in A_FORMATS:
            return False, f"takes activations as they are, in MXFP4 or in MXFP8, not {config.activation_quant_key}"
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Prepare a layer's weight; its parameters stay, for vLLM writes to them again when it reloads.

        Raises:
            ValueError: the checkpoint wants activations that mxgemm has not, or ``MXGEMM_VLLM_MEMORY`` is no name.
        """
        named = os.environ.get("MXGEMM_VLLM_MEMORY", "compact")
        memory: Memory = one_of("MXGEMM_VLLM_MEMORY", named, get_args(Memory))  # type: ignore[assignment]
        said = A_FORMATS[self.config.activation_quant_key]
        a_format, scale_rounding = activations(layer, said)
        weight = MXTensor.wrap(layer.weight.data, layer.weight_scale.data)
        vars(layer)["mxgemm"] = Prepared(weight.prepare(memory=memory, a_format=a_format), a_format, scale_rounding)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply; the result has the dtype of ``x``."""
        weight, a_format, scale_rounding = layer.mxgemm
        return gemm(x, weight, bias=bias, a_format=a_format, scale_rounding=scale_rounding, out_dtype=x.dtype)


def activations(layer: Any, said: ActivationFormat) -> tuple[ActivationFormat, ScaleRounding]:
    """Return what a layer's activations are rounded to, by the checkpoint's configuration where vLLM does not ask it.

    vLLM 0.32.0 hands ``kMxfp4Dynamic`` to the kernel of every compressed-tensors layer with MXFP4 weights, MXFP4A16
    included (compressed_tensors.py: ``if self._is_mxfp4(weight_quant): return CompressedTensorsW4A4Mxfp4()``). Its keys
    for Quark's are right, but leave out how the scales of activations are chosen.
    """
    config: Any = getattr(getattr(layer, "quant_method", None), "quantization_config", None)
    find = getattr(config, "get_scheme_dict", None)
    if find is not None:
        scheme = find(layer, layer.prefix)
        return (_compressed_tensors(scheme.get("input_activations")) if scheme else said), "even"
    stored = getattr(config, "quant_config", None)
    if isinstance(stored, dict) and said != "bf16":
        return said, _quark_rounding(stored)
    return said, "even"


def _compressed_tensors(given: Any) -> ActivationFormat:
    if given is None:
        return "bf16"
    kind, size = str(getattr(given.type, "value", given.type)), given.group_size
    formats: dict[int, ActivationFormat] = {4: "e2m1", 8: "e4m3"}
    if kind != "float" or size != 32 or given.num_bits not in formats:
        raise ValueError(
            f"input_activations: got {kind} of {given.num_bits} bits in groups of {size}, want MXFP4, MXFP8 or none"
        )
    return formats[given.num_bits]


def _quark_rounding(config: dict[str, Any]) -> ScaleRounding:
    schemes = [rule.scheme for rule in Quark().rules(config)]
    found = {scheme.scale_rounding or "even" for scheme in schemes if scheme.a_format not in (None, "bf16")}
    if len(found) > 1:
        raise ValueError(f"scale_calculation_mode: got {', '.join(sorted(found))} in one checkpoint, want one for all")
    return found.pop() if found else "even"
