"""Whole models in slices: which layer is split how is a plan, in the words of transformers' ``base_model_tp_plan``.

Which experts are shared out is one in those of its ``base_model_ep_plan``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from mxgemm.arguments import check_type, shown
from mxgemm.checkpoints.base import Entry
from mxgemm.checkpoints.model import activations, load
from mxgemm.checkpoints.reader import Checkpoint
from mxgemm.nn import MXExperts, MXLinear
from mxgemm.parallel.experts import ExpertParallelMXExperts
from mxgemm.parallel.linear import ColumnParallelMXLinear, ParallelMXLinear, RowParallelMXLinear
from mxgemm.parallel.ranks import Ranks, ranks_of

Plan = Mapping[str, str]

_WORDS: Final[dict[str, tuple[type[ParallelMXLinear], str | None, str | None]]] = {
    "colwise": (ColumnParallelMXLinear, None, None),
    "colwise_gather_output": (ColumnParallelMXLinear, None, "whole"),
    "colwise_rep": (ColumnParallelMXLinear, None, "whole"),  # what earlier versions call it
    "rowwise": (RowParallelMXLinear, None, None),
    "rowwise_split_input": (RowParallelMXLinear, "whole", None),
}
"""Layer, input and output of each word."""
_ALONE: Final = ("colwise_gather_output", "colwise_rep", "rowwise_split_input")
"""What takes and gives whole tensors, so that a layer may as well be whole in every process."""
_EXPERTS: Final = "ep_dispatch_experts"
"""Experts are divided among processes, each of which has tokens of its own."""
_OF_EXPERTS: Final = "grouped_gemm"
"""What transformers' plans say of such experts' weights, which go where the experts go."""


def parallelize_(model: nn.Module, plan: Plan, group: Any = None) -> None:
    """Replace each :class:`mxgemm.nn.MXLinear` that a plan names by this process's slice of it, in place.

    An :class:`mxgemm.nn.MXExperts` that it names becomes this process's part of the experts
    (:class:`mxgemm.parallel.ExpertParallelMXExperts`), to be called with this process's own tokens.

    Every process holds the whole model first; :func:`load_into` never does.

    Args:
        model: the same in every process.
        plan: how layers are split, by name: "colwise", "colwise_gather_output", "rowwise" or "rowwise_split_input", and
            "ep_dispatch_experts" of experts; a ``*`` stands for one part of a name, and leading parts may be left out.
            The first entry that fits holds. transformers' ``config.base_model_tp_plan`` is one, and so is
            ``base_model_ep_plan``, whose "grouped_gemm" of experts' weights says nothing more.
        group: a ``ProcessGroup``, a ``DeviceMesh`` of one dimension, or None for all processes.

    Raises:
        TypeError: no module, no mapping.
        ValueError: an entry that fits no layer, a word that is none of these for an MX layer, a linear layer that is to
            be split and is not MX, or a size that cannot be divided evenly. Nothing is changed then.
        RuntimeError: torch.distributed is not initialised.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    ranks = ranks_of(group)
    named = {name: module for name, module in model.named_modules() if isinstance(module, MXLinear)}
    modules = model.named_modules(remove_duplicate=False)
    experts = {name: module for name, module in modules if isinstance(module, MXExperts)}
    shared, rest = _experts(plan, experts, ranks)
    chosen = _chosen(model, rest, set(named)) if rest or not shared else {}
    for name, word in chosen.items():
        _WORDS[word][0].slices(named[name].out_features, named[name].in_features, ranks)
    parts: dict[int, ExpertParallelMXExperts] = {}
    for name in shared:
        whole = experts[name]
        if id(whole) not in parts:
            parts[id(whole)] = _part_of(whole, ranks)
        model.set_submodule(name, parts[id(whole)])
    made: dict[int, ParallelMXLinear] = {}
    for name, word in chosen.items():
        layer = named[name]
        if id(layer) not in made:
            kind, given, wanted = _WORDS[word]
            weight = layer.mx_tensor()
            asked = layer._asked
            own = kind.from_mx(
                weight,
                layer.bias,
                a_format=layer.a_format,
                scale_rounding=layer.scale_rounding,
                group=ranks,
                input=given,
                output=wanted,
            )
            if asked is not None:
                own.prepare(asked.arch, memory=asked.memory, keep=asked.keep, a_format=asked.a_format)
            made[id(layer)] = own.train(layer.training)
        model.set_submodule(name, made[id(layer)])


def _part_of(whole: MXExperts, ranks: Ranks) -> ExpertParallelMXExperts:
    part = ExpertParallelMXExperts.from_experts(whole, ranks)
    for own, source in ((part.gate_up_proj, whole.gate_up_proj), (part.down_proj, whole.down_proj)):
        asked = source._asked
        if asked is not None:
            own.prepare(asked.arch, memory=asked.memory, keep=asked.keep, a_format=asked.a_format)
    return part.train(whole.training)


def load_into(model: nn.Module, checkpoint: Checkpoint, plan: Plan, group: Any = None) -> None:
    """Load a checkpoint as :func:`mxgemm.checkpoints.load_into` does, of split layers this process's slice alone.

    Args:
        model: with the names and shapes of the checkpoint, made on the meta device.
        checkpoint: from :func:`mxgemm.checkpoints.open`. Of Quark's and compressed-tensors' files no byte of another
            process's slice is read; other formats are decoded one layer after the other.
        plan: as in :func:`parallelize_`; what it does not name is whole in every process.
        group: as in :func:`parallelize_`.

    Raises:
        TypeError, FileError: as :func:`mxgemm.checkpoints.load_into`.
        ValueError: as that, and as :func:`parallelize_`. Nothing is changed then.
        RuntimeError: torch.distributed is not initialised.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    check_type("checkpoint", checkpoint, Checkpoint, "what mxgemm.checkpoints.open returns")
    ranks = ranks_of(group)
    mx = {name.removesuffix(".weight"): entry for name, entry in checkpoint.entries.items() if entry.kind == "mx"}
    chosen = _chosen(model, plan, set(mx))
    for name, word in chosen.items():
        n, k = mx[name].shape
        _WORDS[word][0].slices(n, k, ranks)

    def make(name: str, layer: nn.Linear, entry: Entry, source: Checkpoint) -> MXLinear:
        if name not in chosen:
            return MXLinear.from_mx(source.part(entry.name), layer.bias, **activations(entry))
        kind, given, wanted = _WORDS[chosen[name]]
        return _slice(kind, ranks, layer, entry, source, input=given, output=wanted)

    load(model, checkpoint, make)


def _slice(
    kind: type[ParallelMXLinear], ranks: Ranks, layer: nn.Linear, entry: Entry, source: Checkpoint, **ends: Any
) -> MXLinear:
    n, k = entry.shape
    rows, columns = kind.slices(n, k, ranks)
    bias = layer.bias
    if bias is not None and rows is not None:
        bias = bias.detach()[rows].clone()  # type: ignore[assignment]
    made: MXLinear = kind.from_slice(
        source.part(entry.name, rows, columns), bias, group=ranks, **activations(entry), **ends
    )
    return made


def _pattern(pattern: Any) -> re.Pattern[str]:
    return re.compile(r"(?:.*\.)?" + "[^.]+".join(map(re.escape, str(pattern).split("*"))))


def _experts(plan: Plan, experts: Mapping[str, MXExperts], ranks: Ranks) -> tuple[list[str], Plan]:
    """Return the experts that a plan shares out, and the rest of it."""
    check_type("plan", plan, Mapping, "a mapping of names and words")  # type: ignore[type-abstract]
    shared: list[str] = []
    rest: dict[str, str] = {}
    owned = [f"{name}.{part}" for name, one in experts.items() for part in (*one._modules, *one._parameters)]
    for pattern, word in plan.items():
        fits = _pattern(pattern)
        found = [name for name in experts if fits.fullmatch(name)]
        if word == _EXPERTS and found:
            for name in found:
                if isinstance(experts[name], ExpertParallelMXExperts):
                    raise ValueError(f"plan: got {shown(word)} for {name}, whose experts are shared out already")
                ranks.part(name, experts[name].count)
            shared += [name for name in found if name not in shared]
        elif word != _OF_EXPERTS or not any(map(fits.fullmatch, owned)):
            rest[pattern] = word
    return shared, rest


def _chosen(model: nn.Module, plan: Plan, mx: set[str]) -> dict[str, str]:
    """Return the word for each MX layer that a plan names."""
    check_type("plan", plan, Mapping, "a mapping of names and words")  # type: ignore[type-abstract]
    modules = dict(model.named_modules(remove_duplicate=False))
    chosen: dict[str, str] = {}
    for pattern, word in plan.items():
        fits = _pattern(pattern)
        found = [name for name in modules if fits.fullmatch(name)]
        if not found:
            raise ValueError(f"plan: got {shown(pattern)}, which fits no module of the model")
        for name in found:
            if name in mx:
                if word not in _WORDS:
                    raise ValueError(f"plan: got {shown(word)} for {name}, want one of {', '.join(_WORDS)}")
                chosen.setdefault(name, word)
            elif isinstance(modules[name], nn.Linear) and word not in _ALONE:
                raise ValueError(f"plan: got {shown(word)} for {name}, which is not MX, so that it stays whole")
    return chosen
