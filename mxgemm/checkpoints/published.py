"""What a ``quantization_config`` alone says of a model's layers, for whoever loads their weights by other code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mxgemm.arguments import shown
from mxgemm.checkpoints.base import Format
from mxgemm.checkpoints.compressed_tensors import VERSION, CompressedTensors, scale_bias
from mxgemm.checkpoints.gpt_oss import GptOss
from mxgemm.checkpoints.quark import Quark
from mxgemm.checkpoints.scheme import EVERY, Given, Rule, agreed
from mxgemm.mx.formats import ACTIVATION_FORMATS, E8M0_BIAS, SCALE_ROUNDINGS

_FORMATS: Final[Mapping[Any, Format]] = {
    "quark": Quark(),
    "compressed-tensors": CompressedTensors(),
    "mxfp4": GptOss(),
}
"""By ``quant_method``."""
_NAMES: Final = {"a_format": ACTIVATION_FORMATS, "scale_rounding": SCALE_ROUNDINGS}


@dataclass(frozen=True, slots=True)
class Published:
    """What is known of the layers of a checkpoint.

    Attributes:
        rules: for modules by their whole names; the first that fits holds, the last for all others. All are MXFP4, and
            none lacks anything.
        excluded: regular expressions of the modules that are not quantised, matched from the beginning of a name.
        experts: the experts of gpt-oss are quantised, and no linear layer is.
    """

    rules: tuple[Rule, ...]
    excluded: tuple[str, ...]
    experts: bool = False


def read(config: Mapping[str, Any], given: Given) -> Published:
    """Read a ``quantization_config``.

    Args:
        config: of a ``config.json``: "quark" (OCP MX), "compressed-tensors" (mxfp4-pack-quantized), gpt-oss's "mxfp4".
        given: what the caller says; it must agree with the file where that says it.

    Raises:
        ValueError: another method, weights that are no MXFP4 or have scale bytes of another bias, or something that the
            file leaves open and nobody gives.
    """
    method = config.get("quant_method")
    if not isinstance(method, str) or method not in _FORMATS:
        raise ValueError(f"quant_method: got {shown(method)}, want quark, compressed-tensors or mxfp4")
    chosen = _FORMATS[method]
    rules = [_settled(rule, given) for rule in chosen.rules(config)]
    if isinstance(chosen, CompressedTensors) and scale_bias(config, given, "the checkpoint") != E8M0_BIAS:
        raise ValueError(
            f"version: got {config.get('version')}, whose scale bytes are off by two; want a checkpoint that "
            f"compressed-tensors {VERSION} or later wrote, or what mxgemm convert makes of this one"
        )
    excluded = list(chosen.excluded(config))
    if rules[-1].pattern != EVERY:  # what no rule names is not quantised
        excluded.append(f"(?!(?:{'|'.join(rule.pattern for rule in rules)})$){EVERY}")
    if len({(rule.scheme.a_format, rule.scheme.scale_rounding) for rule in rules}) == 1:
        rules = rules[-1:]
    return Published(tuple(rules), tuple(excluded), isinstance(chosen, GptOss))


def _settled(rule: Rule, given: Given) -> Rule:
    if rule.foreign:
        raise ValueError(f"{rule.where}: got {rule.foreign}, want MXFP4: blocks of 32 with E8M0 scales")
    scheme = agreed(rule.scheme, given, "the checkpoint", rule.where.rpartition(".")[0] or rule.where)
    if scheme.lacks:
        raise ValueError(
            f"{scheme.lacks}: the checkpoint says {scheme.says}; want {scheme.lacks}=, one of "
            f"{', '.join(_NAMES[scheme.lacks])}"
        )
    return replace(rule, scheme=scheme)
