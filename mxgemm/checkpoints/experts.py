"""Experts in checkpoints: stacks as gpt-oss names them, or three weights for each expert as DeepSeek does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from mxgemm.arguments import one_of
from mxgemm.checkpoints.reader import Checkpoint
from mxgemm.experts import SwiGLU
from mxgemm.mx.formats import ActivationFormat, ScaleRounding
from mxgemm.mx.tensor import MXTensor
from mxgemm.nn import MXExperts

ExpertsLayout = Literal["gpt-oss", "deepseek", "deepseek-v4"]

_NAMES: Final = {"deepseek": ("gate_proj", "up_proj", "down_proj"), "deepseek-v4": ("w1", "w3", "w2")}
"""Gate, up and down of an expert: transformers' names, which R1's and Kimi's files have, and V4's own."""


def load_experts(
    tensors: Mapping[str, Any],
    prefix: str,
    *,
    activation: SwiGLU | None = None,
    a_format: ActivationFormat | None = None,
    scale_rounding: ScaleRounding | None = None,
    experts: range | None = None,
) -> MXExperts:
    """Make the layer of a checkpoint's experts.

    Args:
        tensors: a :class:`Checkpoint`, or any mapping of names to MX tensors and plain ones.
        prefix: of their names, such as "model.layers.0.mlp.experts". Either ``prefix.gate_up_proj`` and
            ``prefix.down_proj`` are stacks of all (with ``_bias`` beside them, gate and up in turn), or
            ``prefix.0.gate_proj.weight`` (or ``w1``, ``w3``, ``w2``) and so on are those of each.
        activation: by default gpt-oss's for stacks, :meth:`mxgemm.SwiGLU.plain` for single ones.
        a_format: by default what the checkpoint says, "bf16" where it says nothing.
        scale_rounding: likewise, "even".
        experts: only these, consecutive ones: a rank's.

    Returns:
        a layer whose stacks share the checkpoint's memory where it holds stacks; single weights are copied.

    Raises:
        KeyError: no such experts.
        TypeError: a weight that is not MX.
        ValueError: weights that do not belong together, or experts that are not consecutive.
    """
    stacked = f"{prefix}.gate_up_proj" in tensors
    first, count = _wanted(tensors, prefix, stacked, experts)
    b13 = b2 = None
    if stacked:
        part = slice(first, first + count)
        w13, w2 = (_mx(tensors, f"{prefix}.{name}")[part] for name in ("gate_up_proj", "down_proj"))
        if f"{prefix}.gate_up_proj_bias" in tensors:
            b13, b2 = (tensors[f"{prefix}.{name}_bias"][part] for name in ("gate_up_proj", "down_proj"))
        sample = f"{prefix}.gate_up_proj"
    else:
        layout = _layout_of(tensors, prefix, first)
        gate, up, down = _NAMES[layout]
        each = range(first, first + count)

        def weights(name: str) -> list[MXTensor]:
            return [_mx(tensors, f"{prefix}.{i}.{name}.weight") for i in each]

        w13, w2 = _stack([_join(*pair) for pair in zip(weights(gate), weights(up), strict=True)]), _stack(weights(down))
        sample = f"{prefix}.{first}.{gate}.weight"
    says = tensors.entries[sample].scheme if isinstance(tensors, Checkpoint) else None
    return MXExperts(
        w13,
        w2,
        activation=activation or (SwiGLU() if stacked else SwiGLU.plain()),
        b13=b13,
        b2=b2,
        a_format=a_format or (says and says.a_format) or "bf16",
        scale_rounding=scale_rounding or (says and says.scale_rounding) or "even",
        first_expert=first,
    )


def experts_state(layer: MXExperts, prefix: str, layout: ExpertsLayout) -> dict[str, MXTensor | Tensor]:
    """Return a layer's weights by the names of a checkpoint, the inverse of :func:`load_experts`, to the byte.

    Args:
        layer: of experts.
        prefix: of the names.
        layout: "gpt-oss": stacks; "deepseek": ``gate_proj``, ``up_proj``, ``down_proj`` of each; "deepseek-v4":
            ``w1``, ``w3``, ``w2``.

    Raises:
        ValueError: an unknown layout, or one that has no place for gate and up as they lie, or for biases.
    """
    one_of("layout", layout, get_args(ExpertsLayout))
    w13, w2 = layer.gate_up_proj.mx_tensor(), layer.down_proj.mx_tensor()
    b13, b2 = layer.gate_up_proj_bias, layer.down_proj_bias
    interleaved = layer.activation.interleaved
    if (layout == "gpt-oss") != interleaved:
        raise ValueError(f"layout: got {layout} for gate and up {'in turn' if interleaved else 'one after the other'}")
    if layout == "gpt-oss":
        state: dict[str, MXTensor | Tensor] = {f"{prefix}.gate_up_proj": w13, f"{prefix}.down_proj": w2}
        for name, bias in (("gate_up_proj_bias", b13), ("down_proj_bias", b2)):
            if bias is not None:
                state[f"{prefix}.{name}"] = bias.detach()
        return state
    if b13 is not None or b2 is not None:
        raise ValueError(f"layout: got {layout} for experts with biases, want gpt-oss")
    gate, up, down = _NAMES[layout]
    inner = w13.shape[1] // 2
    state = {}
    for e in range(layer.count):
        name = f"{prefix}.{e + layer.first_expert}"
        state[f"{name}.{gate}.weight"] = w13[e, :inner]
        state[f"{name}.{up}.weight"] = w13[e, inner:]
        state[f"{name}.{down}.weight"] = w2[e]
    return state


def _wanted(tensors: Mapping[str, Any], prefix: str, stacked: bool, experts: range | None) -> tuple[int, int]:
    """Return the first expert that is wanted, and how many are."""
    if stacked:
        total = _mx(tensors, f"{prefix}.gate_up_proj").shape[0]
    else:
        total = 0
        while any(f"{prefix}.{total}.{gate}.weight" in tensors for gate, _, _ in _NAMES.values()):
            total += 1
    if not total:
        raise KeyError(f"{prefix}.gate_up_proj, or {prefix}.0 with gate_proj.weight or w1.weight")
    if experts is None:
        return 0, total
    if not isinstance(experts, range) or experts.step != 1 or not 0 <= experts.start < experts.stop <= total:
        raise ValueError(f"experts: got {experts}, want a range of consecutive ones within the checkpoint's {total}")
    return experts.start, len(experts)


def _layout_of(tensors: Mapping[str, Any], prefix: str, first: int) -> str:
    return next(layout for layout, (gate, _, _) in _NAMES.items() if f"{prefix}.{first}.{gate}.weight" in tensors)


def _mx(tensors: Mapping[str, Any], name: str) -> MXTensor:
    found = tensors[name]
    if not isinstance(found, MXTensor):
        raise TypeError(f"{name}: got {type(found).__name__}, want an MXTensor (mxgemm.checkpoints.convert quantises)")
    return found.row_major() if len(found.shape) == 2 else found


def _join(gate: MXTensor, up: MXTensor) -> MXTensor:
    if gate.shape != up.shape or gate.format is not up.format:
        raise ValueError(f"up: got {up.format} of shape {up.shape}, want {gate.format} of shape {gate.shape} as gate")
    data, scales = torch.cat((gate.data, up.data)), torch.cat((gate.scales, up.scales))
    return MXTensor.wrap(data, scales, format=gate.format.name)


def _stack(weights: list[MXTensor]) -> MXTensor:
    first = weights[0]
    for i, weight in enumerate(weights):
        if weight.shape != first.shape or weight.format is not first.format:
            raise ValueError(
                f"expert {i}: got {weight.format} of shape {weight.shape}, want {first.shape} as the first"
            )
    data, scales = torch.stack([w.data for w in weights]), torch.stack([w.scales for w in weights])
    return MXTensor.wrap(data, scales, format=first.format.name)
