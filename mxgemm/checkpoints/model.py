"""``mxgemm.checkpoints.load_into``: a checkpoint in a torch model of the same names, linear layers in MXFP4."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from mxgemm.arguments import check_type
from mxgemm.checkpoints.base import Entry
from mxgemm.checkpoints.reader import Checkpoint
from mxgemm.mx.tensor import MXTensor
from mxgemm.nn import LayerReport, MXConfig, MXLinear, MXWeight
from mxgemm.nn.convert import refusal
from mxgemm.nn.pretrained import saved_configs, tell

_NAMED: Final = 4
"""Names in a message."""


def load_into(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into a model, in place; what it holds in MXFP4 stays the bytes that it is.

    Where the checkpoint has an MX weight ``X.weight``, the linear layer ``X`` becomes an :class:`mxgemm.nn.MXLinear`
    with the activations that the checkpoint says of it; an :class:`mxgemm.nn.MXWeight` takes one of any shape. All
    other tensors replace parameters and buffers of their names, in the dtypes of the file. Parameters are then mapped
    from the files, on the CPU: ``model.to(device)`` moves them, :meth:`mxgemm.nn.MXLinear.prepare` comes after that.
    What shared a parameter before shares it afterwards.

    Args:
        model: with the names and shapes of the checkpoint; made on the meta device it takes no memory before.
        checkpoint: from :func:`open`, whose arguments say what the files do not.

    Raises:
        TypeError: no module, or no checkpoint.
        ValueError: names or shapes of the two differ, a layer cannot be replaced, something is quantised in a way that
            is not MX, or nothing says what activations are rounded to. Nothing is changed then.
        FileError: the files changed since they were opened, or hold bytes that mean nothing.
    """
    load(model, checkpoint, _whole)


Maker = Callable[[str, nn.Linear, Entry, Checkpoint], MXLinear]
"""Makes the layer that takes the place of a linear one, of its name and of what the checkpoint has in MXFP4."""


def load(model: nn.Module, checkpoint: Checkpoint, make: Maker) -> None:
    """Do what :func:`load_into` does, with other layers.

    Raises:
        TypeError, ValueError, FileError: as :func:`load_into`, and what ``make`` raises.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    check_type("checkpoint", checkpoint, Checkpoint, "what mxgemm.checkpoints.open returns")
    saved = saved_configs(model)
    mx = {_module_of(name): entry for name, entry in checkpoint.entries.items() if entry.kind == "mx"}
    ties = _ties(model, [entry.name for entry in mx.values()])
    _check_names(model, checkpoint, mx, ties)
    for module, entry in mx.items():
        _check_layer(model, module, entry)
    kept = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name not in mx]

    plain = {name: checkpoint.stored(name) for name, entry in checkpoint.entries.items() if entry.kind == "tensor"}
    model.load_state_dict(plain, strict=False, assign=True)
    for module, entry in mx.items():
        _put(model, module, entry, checkpoint, make)
    for first, *others in ties:
        loaded = next(name for name in (first, *others) if name in plain)
        for name in (first, *others):
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, model.get_parameter(loaded))
    _tell(saved, model, mx, kept)


def _module_of(name: str) -> str:
    return "" if name == "weight" else name.removesuffix(".weight")


def _ties(model: nn.Module, apart: Sequence[str]) -> list[list[str]]:
    """Return the names of each parameter that has several, those that the checkpoint quantises left out."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in apart:
            found[id(parameter)].append(name)
    return [names for names in found.values() if len(names) > 1]


def _check_names(
    model: nn.Module, checkpoint: Checkpoint, mx: Mapping[str, Entry], ties: Iterable[Sequence[str]]
) -> None:
    wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name in mx:
        for part in ("weight", "weight_scale"):
            wanted.pop(f"{name}.{part}".removeprefix("."), None)
    plain = {name: entry for name, entry in checkpoint.entries.items() if entry.kind != "mx"}
    for name, entry in plain.items():
        if entry.kind == "foreign":
            raise ValueError(f"{name}: is {entry.note}, which is not MX; see Checkpoint.dequantize")
        if name not in wanted:
            continue
        shape, is_float = tuple(wanted[name].shape), wanted[name].is_floating_point()
        if entry.shape != shape or checkpoint.description(name).dtype.is_floating_point != is_float:
            got, want = f"{entry.type} {list(entry.shape)}", f"{wanted[name].dtype} {list(shape)}"
            raise ValueError(f"{name}: got {got}, want {want} as the model has it")
    held: set[str] = set()
    for names in ties:
        stored = [name for name in names if name in plain]
        held |= set(names if stored else ())
        if any(not _same(checkpoint.stored(stored[0]), checkpoint.stored(other)) for other in stored[1:]):
            raise ValueError(f"model: has one parameter {_listed(names)}, of which the checkpoint holds several")
    missing = [name for name in wanted if name not in plain and name not in held]
    missing += [name for name, value in model.named_buffers() if value.is_meta and name not in wanted]
    unknown = [name for name in plain if name not in wanted]
    if missing:
        raise ValueError(f"model: has {_listed(missing)}, which {checkpoint.path} does not hold")
    if unknown:
        raise ValueError(f"model: has no {_listed(unknown)}, which {checkpoint.path} holds")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def _check_layer(model: nn.Module, module: str, entry: Entry) -> None:
    try:
        layer: Any = model.get_submodule(module)
    except AttributeError:
        raise ValueError(f"model: has no {module}, of which the checkpoint holds an MX weight") from None
    scheme = entry.scheme
    if isinstance(layer, MXWeight):
        shape = tuple(layer.shape)
        if layer.format.name != entry.type:
            raise ValueError(f"{entry.name}: got {entry.type}, want {layer.format} as the model has it")
    elif isinstance(layer, nn.Linear):
        shape = (layer.out_features, layer.in_features)
        reason = refusal(layer, model.get_submodule(module.rpartition(".")[0])) if module else "it is the model itself"
        if reason or entry.type != "e2m1":
            raise ValueError(f"{entry.name}: cannot be MXFP4: {reason or f'the checkpoint has {entry.type}'}")
    else:
        raise ValueError(f"{entry.name}: got a {type(layer).__name__}, want a torch.nn.Linear or an mxgemm.nn.MXWeight")
    if entry.shape != shape:
        raise ValueError(f"{entry.name}: got shape {list(entry.shape)}, want {list(shape)} as the model has it")
    if isinstance(layer, nn.Linear | MXLinear) and scheme.lacks:
        raise ValueError(
            f"{scheme.lacks}: of {entry.name} the files say {scheme.says}; want open(path, {scheme.lacks}=)"
        )
    if isinstance(layer, MXLinear):
        own, said = (layer.a_format, layer.scale_rounding), (scheme.a_format, scheme.scale_rounding)
        if own[0] != said[0] or said[1] not in (None, own[1]):
            raise ValueError(f"{entry.name}: got a layer of {own}, but the checkpoint says {said} ({scheme.says})")


def _put(model: nn.Module, module: str, entry: Entry, checkpoint: Checkpoint, make: Maker) -> None:
    layer = model.get_submodule(module)
    if isinstance(layer, MXWeight):
        rows = _read(entry, checkpoint)
        layer.load_state_dict({"weight": rows.data, "weight_scale": rows.scales}, strict=False, assign=True)
        return
    assert isinstance(layer, nn.Linear)
    model.set_submodule(module, make(module, layer, entry, checkpoint).train(layer.training))


def _whole(module: str, layer: nn.Linear, entry: Entry, checkpoint: Checkpoint) -> MXLinear:
    del module
    return MXLinear.from_mx(_read(entry, checkpoint), layer.bias, **activations(entry))


def activations(entry: Entry) -> dict[str, Any]:
    """Return what the checkpoint says of a layer's activations, as the arguments of a layer."""
    return {"a_format": entry.scheme.a_format or "bf16", "scale_rounding": entry.scheme.scale_rounding or "even"}


def _read(entry: Entry, checkpoint: Checkpoint) -> MXTensor:
    weight = checkpoint[entry.name]
    assert isinstance(weight, MXTensor)
    return weight.row_major()


def _tell(saved: Mapping[str, Any], model: nn.Module, mx: Mapping[str, Entry], kept: Sequence[str]) -> None:
    """Tell the configurations of transformers' models what their layers are now."""
    layers = {name: layer for name in mx if isinstance(layer := model.get_submodule(name), MXLinear)}
    if not saved or not layers:
        return
    schemes = {name: MXConfig(layer.a_format, layer.scale_rounding) for name, layer in layers.items()}
    ((most, _),) = Counter(schemes.values()).most_common(1)
    names = [*((name, "") for name in layers), *((name, "the checkpoint has it so") for name in kept)]
    reports = [LayerReport(name, (0, 0), 0.0, 0, 0, reason) for name, reason in names]
    tell(saved, most, reports, {name: scheme for name, scheme in schemes.items() if scheme != most})


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
