"""A model's linear layers made MXFP4, in place: ``quantize_``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from mxgemm.arguments import check_type, shown
from mxgemm.mx.codec import decode_rows, row_chunks
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.tensor import FLOAT_DTYPES, MXTensor
from mxgemm.nn.config import LayerReport, ModelReport, MXConfig
from mxgemm.nn.linear import MXLinear
from mxgemm.nn.pretrained import saved_configs, tell
from mxgemm.nn.weight import MXWeight

Filter = Callable[[nn.Module, str], bool]
"""``filter_fn(module, name)``, as torchao's: quantise this linear layer?"""

HEADS: Final = ("lm_head", "embed_out", "output_projection")
"""Last parts of the names that output layers of language models have, which are kept by default."""

_HOOKS: Final = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_READ_PAST_THE_LAYER: Final = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules that hand the weights of their linear layers to kernels of their own."""


def quantize_(model: nn.Module, config: MXConfig | None = None, filter_fn: Filter | None = None) -> ModelReport:
    """Replace linear layers of a model by :class:`mxgemm.nn.MXLinear`, in place and one after the other.

    Args:
        model: any module that holds ``nn.Linear`` layers, on any device.
        config: formats and rules; by default ``MXConfig()``.
        filter_fn: ``filter_fn(layer, name)`` says of each ``nn.Linear`` whether to quantise it. By default all are that
            can be, but for the output layer of a language model (``get_output_embeddings()``, or named as in
            :data:`HEADS`) and for layers that share their weight with something else, an embedding for one.

    Returns:
        a report on every linear layer: its error, its bytes before and after, or why it was kept.

    The ``config`` of a model that transformers made says afterwards what it is, so that ``save_pretrained`` writes a
    checkpoint that loads again (see ``mxgemm.integrations.transformers``).

    Layers that share one weight with each other share one MXFP4 weight afterwards. Whatever can be said against a call
    is said before anything is changed; where memory runs out on the way, the layers before are replaced.

    Raises:
        TypeError: no module, no MXConfig, or a filter that is no function.
        ValueError: the model is itself an ``nn.Linear`` (see :meth:`mxgemm.nn.MXLinear.from_linear`); ``filter_fn``
            chooses a layer that cannot be quantised or is tied to something that it does not choose; the model holds an
            :class:`mxgemm.MXTensor` as a plain attribute (see :func:`check_state`); or transformers has quantised it.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    config = check_type("config", MXConfig() if config is None else config, MXConfig, "an mxgemm.MXConfig")
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(f"filter_fn: got {shown(filter_fn)}, want a function of a layer and its name")
    if isinstance(model, nn.Linear):
        raise ValueError("model: got an nn.Linear, which cannot be replaced in place; want MXLinear.from_linear of it")
    check_state(model)
    saved = saved_configs(model)
    places = _places(model)
    _choose(model, places, filter_fn)
    weights = {id(place.linear._parameters["weight"]) for place in places if "weight" in place.linear._parameters}
    others = sum(parameter.nbytes for parameter in model.parameters() if id(parameter) not in weights)
    reports: list[LayerReport] = []
    made: dict[int, tuple[MXLinear, float]] = {}
    try:
        while places:  # each is let go of with the weight that it was
            place = places[0]
            reports.append(_report_kept(place) if place.kept else _convert(model, place, config, made))
            del places[0], place
    finally:  # where memory runs out, layers before are replaced
        for place in places:
            place.kept = place.kept or "not reached"
        tell(saved, config, [*reports, *map(_report_kept, places)])
    return ModelReport(tuple(reports), others)


def check_state(model: nn.Module) -> None:
    """Refuse a model that holds an MXTensor as a plain attribute: torch neither saves nor moves it, without a word.

    Raises:
        ValueError: one does; the message names it.
    """
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not isinstance(module, MXWeight) and any(isinstance(one, MXTensor) for one in _members(value)):
                where = f"{name}.{attribute}" if name else attribute
                raise ValueError(
                    f"model: got an MXTensor as the attribute {where}, which torch neither saves nor moves; want "
                    "mxgemm.nn.MXWeight(tensor) or mxgemm.nn.MXLinear.from_mx(tensor) in its place"
                )


def _members(value: object) -> Iterator[object]:
    yield value
    if isinstance(value, list | tuple | set):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


@dataclass(slots=True)
class _Place:
    """A linear layer and every name that it has."""

    linear: nn.Linear
    names: list[str] = field(default_factory=list)
    refusal: str = ""
    kept: str = ""
    repeated: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


def _places(model: nn.Module) -> list[_Place]:
    found: dict[int, _Place] = {}
    seen: set[int] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            parent = model.get_submodule(name.rpartition(".")[0])
            place = found.setdefault(id(module), _Place(module))
            place.names.append(name)
            place.refusal = place.refusal or refusal(module, parent)
    for place in found.values():
        weight = place.linear._parameters.get("weight")
        place.repeated = weight is not None and id(weight) in seen
        seen.add(id(weight))
    return list(found.values())


def refusal(linear: nn.Linear, parent: nn.Module) -> str:
    """Say why a layer cannot be replaced, or ""."""
    if isinstance(parent, _READ_PAST_THE_LAYER):
        return f"its {type(parent).__name__} reads the weight past the layer"
    if type(linear).forward is not nn.Linear.forward or "forward" in vars(linear):
        return f"{type(linear).__name__} has a forward of its own"
    if set(linear._parameters) != {"weight", "bias"} or linear._buffers or linear._modules:
        return "its weight is made of other tensors"
    weight = linear.weight
    if type(weight) is not nn.Parameter or weight.dtype not in FLOAT_DTYPES:
        return f"its weight is a {type(weight).__name__} of {weight.dtype}"
    if any(getattr(linear, hooks, None) for hooks in _HOOKS):
        return "it has hooks"
    if weight.dim() != 2 or weight.shape[1] % BLOCK or not weight.shape[0]:
        return f"its weight has shape {tuple(weight.shape)}; want N of at least 1, K a multiple of {BLOCK}"
    bias = linear.bias
    return "" if bias is None or bias.dtype in FLOAT_DTYPES else f"its bias is of {bias.dtype}"


def _choose(model: nn.Module, places: list[_Place], filter_fn: Filter | None) -> None:
    """Fill in why places are kept, or raise for what a filter chooses and should not have."""
    head = _head(model)
    for place in places:
        if filter_fn is None:
            is_head = place.linear is head or any(name.rpartition(".")[2] in HEADS for name in place.names)
            place.kept = place.refusal or ("it is the output layer" if is_head else "")
            continue
        chosen = {bool(filter_fn(place.linear, name)) for name in place.names}
        if len(chosen) > 1:
            raise ValueError(f"filter_fn: got both answers for one layer, {', '.join(place.names)}; want one")
        place.kept = "" if chosen.pop() else "filter_fn says so"
        if place.refusal and not place.kept:
            raise ValueError(f"filter_fn: chose {place.name}, but {place.refusal}")
    owners = _owners(model)
    while True:  # what is kept because of a tie may be tied to others in turn
        kept = {id(place.linear) for place in places if place.kept}
        ties = [(place, _tie(place, owners, kept)) for place in places if not place.kept]
        tied = [(place, tie) for place, tie in ties if tie]
        if not tied:
            return
        for place, tie in tied:
            if filter_fn is not None:
                raise ValueError(f"filter_fn: chose {place.name}, but it shares its weight with {tie}, not chosen")
            place.kept = f"it shares its weight with {tie}"


def _head(model: nn.Module) -> nn.Module | None:
    ask = getattr(model, "get_output_embeddings", None)
    try:
        return ask() if callable(ask) else None
    except NotImplementedError:  # transformers' answer for a model that has none
        return None


def _owners(model: nn.Module) -> dict[int, list[tuple[str, nn.Module]]]:
    """Each parameter's modules, and what these call it."""
    owners: dict[int, list[tuple[str, nn.Module]]] = defaultdict(list)
    for name, module in model.named_modules():
        for own, parameter in module._parameters.items():
            if parameter is not None:
                owners[id(parameter)].append((f"{name}.{own}" if name else own, module))
    return owners


def _tie(place: _Place, owners: dict[int, list[tuple[str, nn.Module]]], kept: set[int]) -> str:
    """Name what shares a layer's weight and stays as it is, or ""."""
    for name, module in owners[id(place.linear.weight)]:
        if module is not place.linear and (not isinstance(module, nn.Linear) or id(module) in kept):
            return name
    return ""


def _convert(model: nn.Module, place: _Place, config: MXConfig, made: dict[int, tuple[MXLinear, float]]) -> LayerReport:
    """Replace a layer; ``made`` has what was made of each weight, by its id: all were there before the first went."""
    linear, a_format, rounding = place.linear, config.a_format, config.scale_rounding
    weight = linear.weight
    n, k = weight.shape
    if id(weight) in made:
        first, error = made[id(weight)]
        layer = MXLinear.from_mx(first.mx_tensor(), linear.bias, a_format=a_format, scale_rounding=rounding)
        layer.train(linear.training)
        layer.weight, layer.weight_scale = first.weight, first.weight_scale
        before = after = 0
    else:
        layer = MXLinear.from_linear(linear, a_format=a_format, scale_rounding=rounding)
        error = _error(weight.detach(), layer.mx_tensor())
        before, after = weight.nbytes, layer.weight.nbytes + layer.weight_scale.nbytes
        made[id(weight)] = layer, error
    if config.prepare is not None:
        layer.prepare(memory=config.prepare)
    for name in place.names:
        model.set_submodule(name, layer)
    return LayerReport(place.name, (n, k), error, before, after)


def _report_kept(place: _Place) -> LayerReport:
    weight = place.linear.weight
    size = 0 if place.repeated else weight.nbytes
    shape = (place.linear.out_features, place.linear.in_features)
    return LayerReport(place.name, shape, 0.0, size, size, place.kept)


def _error(weight: Tensor, quantized: MXTensor) -> float:
    if weight.is_meta:
        return float("nan")
    off = torch.zeros((), dtype=torch.float64, device=weight.device)
    whole = torch.zeros((), dtype=torch.float64, device=weight.device)
    for part in row_chunks(*weight.shape):
        exact = weight[part].to(torch.float64)
        decoded = decode_rows(quantized.data[part], quantized.scales[part], quantized.format)
        off += (decoded - exact).square().sum()
        whole += exact.square().sum()
    return float((off / whole).sqrt()) if whole else 0.0
