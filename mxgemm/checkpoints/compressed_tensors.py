"""compressed-tensors' mxfp4-pack-quantized: uint8 ``X.weight_packed`` ``[N, K/2]``, ``X.weight_scale`` ``[N, K/32]``.

``config.json`` has groups of layers (``config_groups``) with the format of weights and of activations; of the targets
that fit a layer its name holds, then the first pattern of the alphabet, then its class, as the library's own
``match_targets`` has it. Scale bytes are E8M0, whose bias is 127; versions before 0.14 wrote them with bias 125
(compressed-tensors pull requests 538 and 541).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, foreign_entry, mx_entry, plain_entry
from mxgemm.checkpoints.quark import require_e2m1
from mxgemm.checkpoints.scheme import (
    EVERY,
    Given,
    Rule,
    Scheme,
    expression,
    has,
    names,
    one_scheme,
    rule_of,
    short,
)
from mxgemm.checkpoints.store import Store
from mxgemm.mx.formats import E8M0_BIAS, E8M0_NAN
from mxgemm.mx.tensor import MXTensor

FORMAT: Final = "mxfp4-pack-quantized"
VERSION: Final = "0.14.0"
"""The first whose scale bytes have the standard's bias; what is written here says it."""
PACKED: Final = "_packed"
SCALE: Final = "_scale"
OLD_BIAS: Final = 125
_MX: Final = {"type": "float", "strategy": "group", "group_size": 32}
_BITS: Final = {"e2m1": 4, "e4m3": 8}
_NAME, _PATTERN, _LINEAR, _CLASS = range(4)
"""Kinds of targets, in the order in which they hold."""
_SHOWN: Final = ("type", "num_bits", "strategy", "group_size")


class CompressedTensors(Format):
    """See the module."""

    name = "compressed-tensors"
    rows_as_stored = True

    def detects(self, store: Store) -> bool:
        """By ``quant_method``, which older files leave out beside the format."""
        config = store.quantization
        return config.get("quant_method") == "compressed-tensors" or config.get("format") == FORMAT

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield packed weights with their scales as one, and the rest."""
        config = store.quantization
        rules = self.stored_rules(store) if config else [Rule(EVERY, "", Scheme(says="nothing without config.json"))]
        bias: int | None = None
        for name, stored in store.tensors.items():
            if name.endswith(SCALE) and name.removesuffix(SCALE) + PACKED in store.tensors:
                continue
            if not name.endswith(PACKED):
                scales = name + SCALE
                if scales in store.tensors:
                    yield foreign_entry(name, (name, scales), store, f"{stored.type} with {scales}")
                elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in store.tensors):
                    yield plain_entry(name, store)
                continue
            logical = name.removesuffix(PACKED)
            rule = rule_of(logical.rpartition(".")[0], rules)
            if rule is None:
                raise store.error(name, "is of no group of quantization_config")
            if rule.foreign:
                parts = [part for part in (name, logical + SCALE) if part in store.tensors]
                yield foreign_entry(logical, parts, store, f"weights: {rule.foreign}")
                continue
            bias = scale_bias(config, given, str(store.path)) if bias is None else bias
            layout = "" if bias == E8M0_BIAS else f"scale bytes with bias {bias}"
            yield mx_entry(logical, name, logical + SCALE, store, rule.scheme, layout=layout, argument=bias)

    def decode(self, entry: Entry, store: Store) -> MXTensor:
        """Take the bytes as they are; scale bytes with bias 125 become E8M0."""
        packed, scales = (store.read(part) for part in entry.parts)
        if entry.argument != E8M0_BIAS:
            scales = standard_scales(scales, entry.argument, lambda reason: store.error(entry.parts[1], reason))
        return MXTensor.wrap(packed, scales)

    def encode(self, name: str, weight: MXTensor) -> dict[str, Tensor]:
        """Give the bytes as they are.

        Raises:
            ValueError: not e2m1.
        """
        require_e2m1(name, weight, self.name)
        return {name + PACKED: weight.data, name + SCALE: weight.scales}

    def rules(self, config: Mapping[str, Any]) -> Iterator[Rule]:
        """Yield what holds by name, by patterns of names and by class.

        Raises:
            ValueError: no group, a pattern that is none, or two groups of one target.
        """
        groups = config.get("config_groups")
        found: dict[tuple[int, str], Rule] = {}
        for name, group in (groups if isinstance(groups, dict) else {}).items():
            for target in _targets(group):
                kind, pattern = _pattern(target)
                rule = _rule(pattern, f"config_groups.{name}.weights", group)
                other = found.setdefault((kind, target if kind == _PATTERN else pattern), rule)
                if (other.scheme, other.foreign) != (rule.scheme, rule.foreign):
                    raise ValueError(f"config_groups: got {target} in several groups, want one")
        if not found:
            raise ValueError("config_groups: got no group with a target, want one at least")
        for key in sorted(found):
            yield found[key]
            if found[key].pattern == EVERY:
                return

    def excluded(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield the patterns of ``ignore``."""
        for name in names("ignore", config.get("ignore")):
            yield expression(name[3:]) if name.startswith("re:") else f"{re.escape(name)}$"

    def quantization_config(self, schemes: Mapping[str, Scheme], plain: Sequence[str]) -> dict[str, Any]:
        """Return a configuration of one group for all layers.

        Raises:
            ValueError: the rule for activations' scales is not "even", the only one of compressed-tensors.
        """
        scheme = one_scheme(schemes, self.name)
        weights = {
            **{"num_bits": 4, **_MX, "symmetric": True, "dynamic": False},
            **{"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"},
        }
        activations = None
        if scheme.a_format != "bf16":
            if scheme.scale_rounding != "even":
                raise ValueError(f"scale_rounding: got {scheme.scale_rounding}, want even, as {self.name} has it")
            activations = {**weights, "num_bits": _BITS[str(scheme.a_format)], "dynamic": True}
        group = {
            **{"targets": ["Linear"], "weights": weights, "input_activations": activations},
            **{"output_activations": None, "format": FORMAT},
        }
        return {
            **{"quant_method": "compressed-tensors", "quantization_status": "compressed", "format": FORMAT},
            **{"version": VERSION, "config_groups": {"group_0": group}, "ignore": list(plain)},
            "kv_cache_scheme": None,
        }


def scale_bias(config: Mapping[str, Any], given: Given, source: str) -> int:
    """Return the bias of a checkpoint's scale bytes: as given, or by the version that wrote it.

    Args:
        config: its ``quantization_config``, {} for none.
        given: what the caller says.
        source: names the checkpoint in errors.

    Raises:
        ValueError: the version is missing, or one between two releases, and nothing is given; or both disagree.
    """
    version = config.get("version")
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*", version) if isinstance(version, str) else None
    known = None
    if found:
        known = OLD_BIAS if (int(found[1]), int(found[2])) < (0, 14) else E8M0_BIAS
    if given.scale_bias is not None:
        if given.scale_bias not in (OLD_BIAS, E8M0_BIAS):
            raise ValueError(f"scale_bias: got {given.scale_bias}, want {E8M0_BIAS} or {OLD_BIAS}")
        if known not in (None, given.scale_bias):
            raise ValueError(f"scale_bias: got {given.scale_bias}, but version {version} wrote {known}; leave it out")
        return given.scale_bias
    if known is None:
        raise ValueError(
            f"scale_bias: {source} says version {version!r}; want scale_bias={OLD_BIAS} for files that "
            f"compressed-tensors of before 0.14 wrote, {E8M0_BIAS} for all others"
        )
    return known


def standard_scales(scales: Tensor, bias: int, error: Any) -> Tensor:
    """Return E8M0 bytes of bytes with another bias.

    Raises:
        FileError: a byte that none stands for; ``error`` makes it of the reason.
    """
    moved = scales.view(torch.uint8).to(torch.int16) + (E8M0_BIAS - bias)
    if moved.numel() and int(moved.max()) >= E8M0_NAN:
        raise error(f"has scale bytes above {E8M0_NAN - 1 - E8M0_BIAS + bias}, which mean nothing with bias {bias}")
    return moved.to(torch.uint8)


def _targets(group: Any) -> list[str]:
    targets = group.get("targets") if isinstance(group, dict) else None
    return [target for target in targets if isinstance(target, str)] if isinstance(targets, list) else []


def _pattern(target: str) -> tuple[int, str]:
    """Return the kind of a target, and what matches the layers that it names."""
    if target.startswith("re:"):
        return _PATTERN, expression(target[3:])
    if target.isidentifier() and target[:1].isupper():  # a class's name: every packed weight is of a Linear
        return _LINEAR if target == "Linear" else _CLASS, EVERY
    return _NAME, re.escape(target)


def _rule(pattern: str, where: str, group: Mapping[str, Any]) -> Rule:
    weights = group.get("weights")
    foreign = "" if has(weights, {**_MX, "num_bits": 4}) else short(weights, _SHOWN)
    return Rule(pattern, where, _scheme_of(group.get("input_activations")), foreign)


def _scheme_of(spec: Any) -> Scheme:
    if spec is None:
        return Scheme("bf16", None, "input_activations: null")
    says = f"input_activations: {short(spec, _SHOWN)}"
    for a_format, bits in _BITS.items():
        if has(spec, {**_MX, "num_bits": bits}):
            return Scheme(a_format, "even", says)  # type: ignore[arg-type]
    return Scheme(says=says)
