"""Published ``quantization_config`` dictionaries read as what mxgemm needs to know: formats, and what is left out.

transformers gives the names "quark" and "compressed-tensors" to classes of its own, so a checkpoint of theirs is loaded
under the name of ours. Nothing is guessed: what a configuration leaves open has to be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final

from mxgemm.arguments import one_of, shown
from mxgemm.mx.formats import ACTIVATION_FORMATS, BLOCK, SCALE_ROUNDINGS

_E8M0_SINCE: Final = (0, 14)
"""The release of compressed-tensors whose scale bytes have the standard's bias; earlier ones are off by two."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a published checkpoint says of its linear layers.

    Attributes:
        a_format: what activations are rounded to.
        scale_rounding: rule for their block scales.
        not_converted: regular expressions of modules that are not quantised, matched from the beginning of a name.
        experts: the experts of gpt-oss are quantised, and no linear layer is.
    """

    a_format: str
    scale_rounding: str
    not_converted: tuple[str, ...]
    experts: bool = False


def read(config: Mapping[str, Any], a_format: str | None = None, scale_rounding: str | None = None) -> Published:
    """Read a ``quantization_config``.

    Args:
        config: of a ``config.json``: "quark" (OCP MX), "compressed-tensors" (mxfp4-pack-quantized), gpt-oss's "mxfp4".
        a_format: said by the caller; must agree with the file where that says it.
        scale_rounding: likewise, of activations.

    Raises:
        ValueError: another method, weights that are no MXFP4, several schemes in one checkpoint, activations in a
            format that mxgemm has not, or something that the file leaves open and nobody gives.
    """
    if a_format is not None:
        one_of("a_format", a_format, ACTIVATION_FORMATS)
    if scale_rounding is not None:
        one_of("scale_rounding", scale_rounding, SCALE_ROUNDINGS)
    method = config.get("quant_method")
    if method == "quark":
        return _quark(config, a_format, scale_rounding)
    if method == "compressed-tensors":
        return _compressed_tensors(config, a_format, scale_rounding)
    if method == "mxfp4":  # of gpt-oss: transformers' class quantises the weights of experts alone
        rule = scale_rounding or "even"  # of bf16 activations there are no scales
        return Published(_agreed("a_format", "bf16", a_format), rule, (".*",), experts=True)
    raise ValueError(f"quant_method: got {shown(method)}, want quark, compressed-tensors or mxfp4")


def _quark(config: Mapping[str, Any], a_format: str | None, scale_rounding: str | None) -> Published:
    whole = config.get("global_quant_config")
    whole = whole if isinstance(whole, Mapping) else {}
    for several in ("layer_quant_config", "layer_type_quant_config"):
        if config.get(several):
            raise ValueError(f"{several}: got {_names(config[several])}, want one scheme for all layers")
    weight, given = whole.get("weight"), whole.get("input_tensors")
    if not _is_ocp(weight, "fp4"):
        raise ValueError(f"global_quant_config.weight: got {_short(weight)}, want fp4, per_group, 32, e8m0")
    formats = {"fp4": "e2m1", "fp8_e4m3": "e4m3"}
    known = next((ours for theirs, ours in formats.items() if _is_ocp(given, theirs)), None)
    if given is not None and known is None:
        raise ValueError(f"global_quant_config.input_tensors: got {_short(given)}, want null, fp4 or fp8_e4m3 by 32")
    rule = given.get("scale_calculation_mode") if isinstance(given, Mapping) else None
    excluded = config.get("exclude")
    return Published(
        _agreed("a_format", known or "bf16", a_format),
        "even" if given is None else _agreed("scale_rounding", rule, scale_rounding),
        tuple(_quark_pattern(name) for name in _texts("exclude", excluded)),
    )


def _compressed_tensors(config: Mapping[str, Any], a_format: str | None, scale_rounding: str | None) -> Published:
    groups = config.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    if len(groups) != 1 or not isinstance(groups[0], Mapping):
        raise ValueError(f"config_groups: got {len(groups)}, want one scheme for all layers")
    targets = groups[0].get("targets")
    if targets != ["Linear"]:
        raise ValueError(f"config_groups.targets: got {targets!r}, want ['Linear']")
    weight, given = groups[0].get("weights"), groups[0].get("input_activations")
    if not _is_group(weight, 4):
        raise ValueError(f"config_groups.weights: got {_short(weight)}, want float, 4 bits, groups of {BLOCK}")
    bits = next((bits for bits in (4, 8) if _is_group(given, bits)), None)
    if given is not None and bits is None:
        raise ValueError(f"config_groups.input_activations: got {_short(given)}, want null, or float by {BLOCK}")
    version = config.get("version")
    found = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if found and (int(found[1]), int(found[2])) < _E8M0_SINCE:
        raise ValueError(
            f"version: got {version}, whose scale bytes are off by two; want a checkpoint that compressed-tensors "
            f"{'.'.join(map(str, _E8M0_SINCE))} or later wrote"
        )
    return Published(
        _agreed("a_format", {None: "bf16", 4: "e2m1", 8: "e4m3"}[bits], a_format),
        _agreed("scale_rounding", "even", scale_rounding),  # the one rule of compressed-tensors
        tuple(_compressed_pattern(name) for name in _texts("ignore", config.get("ignore"))),
    )


def _is_ocp(spec: Any, dtype: str) -> bool:
    want = {"dtype": dtype, "qscheme": "per_group", "group_size": BLOCK, "scale_format": "e8m0"}
    return isinstance(spec, Mapping) and all(spec.get(name) == value for name, value in want.items())


def _is_group(spec: Any, bits: int) -> bool:
    want = {"type": "float", "num_bits": bits, "strategy": "group", "group_size": BLOCK}
    return isinstance(spec, Mapping) and all(spec.get(name) == value for name, value in want.items())


def _agreed(name: str, known: Any, given: str | None) -> str:
    """Return what the file or the caller says."""
    if known is None:
        if given is None:
            raise ValueError(f"{name}: the checkpoint does not say; want {name}=")
        return given
    allowed = ACTIVATION_FORMATS if name == "a_format" else SCALE_ROUNDINGS
    if given not in (None, known):
        raise ValueError(f"{name}: got {given!r}, but the checkpoint says {known!r}; leave it out")
    return one_of(name, known, allowed)


def _quark_pattern(name: str) -> str:
    if name.startswith("re:"):
        return f"(?:{_compiled(name[3:])}).*"
    return translate(name) if "*" in name else f"{re.escape(name)}$"


def _compressed_pattern(name: str) -> str:
    return f"(?:{_compiled(name[3:])}).*" if name.startswith("re:") else f"{re.escape(name)}$"


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern: got {pattern!r}, want a regular expression ({error})") from None
    return pattern


def _texts(name: str, value: Any) -> Iterable[str]:
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name}: got {shown(value)}, want a list of names")
    return value


def _names(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Mapping) else shown(value)


def _short(spec: Any) -> str:
    """Name the fields of a scheme that decide."""
    if not isinstance(spec, Mapping):
        return shown(spec)
    fields = ("dtype", "type", "num_bits", "qscheme", "strategy", "group_size", "scale_format")
    return ", ".join(f"{name} {spec[name]}" for name in fields if name in spec) or "nothing that is known"
