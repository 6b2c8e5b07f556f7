"""How a model is quantised, as data, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from mxgemm.arguments import one_of
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS, ActivationFormat, ScaleRounding
from mxgemm.mx.prepared import Memory
from mxgemm.nn.linear import DEFAULT_FORMAT


@dataclass(frozen=True, slots=True)
class MXConfig:
    """What :func:`mxgemm.quantize_` makes of each linear layer.

    Attributes:
        a_format: what activations are rounded to: "bf16" (weights alone are MXFP4), "e4m3" or "e2m1".
        scale_rounding: rule for the block scales of weights and activations: "even", "floor", "ceil" or "rceil".
        prepare: the ``memory`` of :meth:`mxgemm.nn.MXLinear.prepare`, "fast" or "compact"; None: it is not called.

    Raises:
        ValueError: another name.
    """

    a_format: ActivationFormat = DEFAULT_FORMAT
    scale_rounding: ScaleRounding = "even"
    prepare: Memory | None = None

    def __post_init__(self) -> None:
        one_of("a_format", self.a_format, ACTIVATION_FORMATS)
        one_of("scale_rounding", self.scale_rounding, SCALE_ROUNDINGS)
        if self.prepare is not None:
            one_of("prepare", self.prepare, get_args(Memory))


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One linear layer of a model.

    Attributes:
        name: of the layer, the first that ``named_modules`` gives it.
        shape: (N, K) of its weight.
        error: ``norm(W - dequantize(quantize(W))) / norm(W)``; 0 for a layer that was kept, NaN on the meta device.
        bytes_before: of the weight; 0 where a layer named before has the same one.
        bytes_after: of the weight and its scales, without what ``prepare`` adds; 0 likewise.
        kept: why the layer is as it was; "" for one that was quantised.
    """

    name: str
    shape: tuple[int, int]
    error: float
    bytes_before: int
    bytes_after: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What :func:`mxgemm.quantize_` did; ``str()`` gives a table.

    Attributes:
        layers: every linear layer, in the order of the model.
        other_bytes: of all other parameters, biases included, which stay as they are: embeddings, norms, and experts
            that are no linear layers.
    """

    layers: tuple[LayerReport, ...]
    other_bytes: int = 0

    @property
    def quantized(self) -> tuple[LayerReport, ...]:
        """The layers that are MXFP4 now."""
        return tuple(layer for layer in self.layers if not layer.kept)

    @property
    def bytes_before(self) -> int:
        """Of the weights of all linear layers."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Of the same now, scales included."""
        return sum(layer.bytes_after for layer in self.layers)

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [f"{'layer':{width}}  {'N, K':>14}  {'error':>7}  {'before':>12}  {'after':>12}"]
        for layer in self.layers:
            n, k = layer.shape
            error = "kept" if layer.kept else f"{layer.error:.4f}"
            sizes = f"{layer.bytes_before:>12,}  {layer.bytes_after:>12,}"
            lines.append(f"{layer.name:{width}}  {f'{n}, {k}':>14}  {error:>7}  {sizes}{_why(layer)}")
        errors = [layer.error for layer in self.quantized]
        worst = math.nan if not errors or any(map(math.isnan, errors)) else max(errors)
        total = f"{len(self.quantized)} of {len(self.layers)} linear layers in MXFP4, largest error {worst:.4f}"
        sizes = (
            f"{self.bytes_before:,} bytes before, {self.bytes_after:,} after, {self.other_bytes:,} in other parameters"
        )
        return "\n".join([*lines, f"{total}; {sizes}"])


def _why(layer: LayerReport) -> str:
    return f"  {layer.kept}" if layer.kept else ""
