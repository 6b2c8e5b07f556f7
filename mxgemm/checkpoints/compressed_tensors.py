"""compressed-tensors' mxfp4-pack-quantized: uint8 ``X.weight_packed`` ``[N, K/2]``, ``X.weight_scale`` ``[N, K/32]``.

``config.json`` has groups of layers (``config_groups``) with the format of weights and of activations. Scale bytes are
E8M0, whose bias is 127; versions before 0.14 wrote them with bias 125 (compressed-tensors pull requests 538 and 541).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry, Format, Given, Scheme, foreign_entry, mx_entry, one_scheme, plain_entry
from mxgemm.checkpoints.quark import require_e2m1
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
_A_BITS: Final = {4: "e2m1", 8: "e4m3"}
_BITS: Final = {name: bits for bits, name in _A_BITS.items()}


class CompressedTensors(Format):
    """See the module."""

    name = "compressed-tensors"

    def detects(self, store: Store) -> bool:
        """By ``quant_method``, which older files leave out beside the format."""
        config = store.quantization
        return config.get("quant_method") == "compressed-tensors" or config.get("format") == FORMAT

    def entries(self, store: Store, given: Given) -> Iterator[Entry]:
        """Yield packed weights with their scales as one, and the rest."""
        config = store.quantization
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
            group = _group_of(logical, name, config, store) if config else {}
            if config and not _is_mx(group.get("weights"), 4):
                parts = [part for part in (name, logical + SCALE) if part in store.tensors]
                yield foreign_entry(logical, parts, store, f"weights: {_short(group.get('weights'))}")
                continue
            bias = scale_bias(store, given) if bias is None else bias
            scheme = _scheme_of(group) if config else Scheme(says="nothing without config.json")
            layout = "" if bias == E8M0_BIAS else f"scale bytes with bias {bias}"
            yield mx_entry(logical, name, logical + SCALE, store, scheme, layout=layout, argument=bias)

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


def scale_bias(store: Store, given: Given) -> int:
    """Return the bias of a checkpoint's scale bytes: as given, or by the version that wrote it.

    Raises:
        ValueError: the version is missing, or one between two releases, and nothing is given; or both disagree.
    """
    version = store.quantization.get("version")
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
            f"scale_bias: {store.path} says version {version!r}; want scale_bias={OLD_BIAS} for files that "
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


def _group_of(logical: str, stored: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Return the group of a layer: by its name, by a pattern of names, else the one of a class of layers."""
    groups = config.get("config_groups")
    found = [group for group in (groups if isinstance(groups, dict) else {}).values() if isinstance(group, dict)]
    module = logical.rpartition(".")[0]
    for matches in (_by_name, _by_pattern, _by_class):
        matching = [group for group in found if any(matches(module, target) for target in _targets(group))]
        if len(matching) > 1:
            raise store.error(stored, f"is of {len(matching)} groups of quantization_config, want one")
        if matching:
            return matching[0]
    raise store.error(stored, "is of no group of quantization_config")


def _targets(group: Mapping[str, Any]) -> list[str]:
    targets = group.get("targets")
    return [target for target in targets if isinstance(target, str)] if isinstance(targets, list) else []


def _by_name(module: str, target: str) -> bool:
    return module == target


def _by_pattern(module: str, target: str) -> bool:
    try:
        return target.startswith("re:") and re.match(target[3:], module) is not None
    except re.error:
        return False


def _by_class(module: str, target: str) -> bool:
    return target.isidentifier() and target[:1].isupper()  # a class's name: every packed weight is of a Linear


def _is_mx(spec: Any, bits: int) -> bool:
    return isinstance(spec, dict) and all(spec.get(key) == value for key, value in {**_MX, "num_bits": bits}.items())


def _scheme_of(group: Mapping[str, Any]) -> Scheme:
    spec = group.get("input_activations")
    if spec is None:
        return Scheme("bf16", None, "input_activations: null")
    says = f"input_activations: {_short(spec)}"
    for bits, a_format in _A_BITS.items():
        if _is_mx(spec, bits):
            return Scheme(a_format, "even", says)  # type: ignore[arg-type]
    return Scheme(says=says)


def _short(spec: Any) -> str:
    if not isinstance(spec, dict):
        return repr(spec)
    return ", ".join(f"{key} {spec[key]}" for key in ("type", "num_bits", "strategy", "group_size") if key in spec)
