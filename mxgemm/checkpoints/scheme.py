"""What files and callers say of activations: schemes, and the rules by which metadata gives them to layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mxgemm.arguments import one_of, shown
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS, ActivationFormat, ScaleRounding

EVERY: Final = ".*"
"""The pattern of all modules."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a checkpoint says about the activations of a layer.

    Attributes:
        a_format: what they are rounded to; None where the file does not say, or says something that mxgemm has not.
        scale_rounding: how their block scales are chosen; None where nothing says, or there are none.
        says: the file's own words, or what it lacks.
    """

    a_format: ActivationFormat | None = None
    scale_rounding: ScaleRounding | None = None
    says: str = "nothing"

    @property
    def lacks(self) -> str:
        """Name what is not known yet, the argument that says it; "" where nothing is lacking."""
        if self.a_format is None:
            return "a_format"
        return "" if self.a_format == "bf16" or self.scale_rounding else "scale_rounding"


NOTHING: Final = Scheme()
"""Of a parameter of whose activations there is nothing to say."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says because the files do not.

    Attributes:
        a_format: of activations.
        scale_rounding: of their scales.
        scale_bias: of compressed-tensors' scale bytes: 127, or 125 in files of before version 0.14.
    """

    a_format: ActivationFormat | None = None
    scale_rounding: ScaleRounding | None = None
    scale_bias: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a ``quantization_config`` says of the modules whose whole names a pattern matches.

    Attributes:
        pattern: a regular expression.
        where: the part of the configuration that describes their weights.
        scheme: of their activations.
        foreign: what their weights are; "" where they are MXFP4.
    """

    pattern: str
    where: str
    scheme: Scheme = NOTHING
    foreign: str = ""


def rule_of(module: str, rules: Iterable[Rule]) -> Rule | None:
    """Return the rule for a module: the first that fits."""
    return next((rule for rule in rules if re.fullmatch(rule.pattern, module)), None)


def check_given(a_format: object, scale_rounding: object, scale_bias: object) -> Given:
    """Check what a caller says of a checkpoint.

    Raises:
        ValueError: a wrong name.
        TypeError: a bias that is no int.
    """
    if a_format is not None:
        one_of("a_format", a_format, ACTIVATION_FORMATS)
    if scale_rounding is not None:
        one_of("scale_rounding", scale_rounding, SCALE_ROUNDINGS)
    if scale_bias is not None and (not isinstance(scale_bias, int) or isinstance(scale_bias, bool)):
        raise TypeError(f"scale_bias: got {type(scale_bias).__name__}, want an int")
    return Given(a_format, scale_rounding, scale_bias)  # type: ignore[arg-type]


def completed(scheme: Scheme, given: Given) -> Scheme:
    """Return a scheme with what the caller says where the files say nothing."""
    for field in ("a_format", "scale_rounding"):
        said = getattr(given, field)
        if said is not None and getattr(scheme, field) is None and (field == "a_format" or scheme.a_format != "bf16"):
            scheme = replace(scheme, **{field: said}, says=f"{scheme.says}, the caller {field} {said}")
    return scheme


def agreed(scheme: Scheme, given: Given, source: str, what: str) -> Scheme:
    """Return a scheme with what the caller says where the files say nothing.

    Raises:
        ValueError: they say something else of ``what``; the message names them by ``source``.
    """
    for field in ("a_format", "scale_rounding"):
        own, said = getattr(scheme, field), getattr(given, field)
        if own is not None and said is not None and own != said:
            raise ValueError(f"{field}: got {said}, but {source} says {own} of {what} ({scheme.says}); leave it out")
    return completed(scheme, given)


def one_scheme(schemes: Mapping[str, Scheme], format: str) -> Scheme:
    """Return the one scheme of all layers.

    Raises:
        ValueError: there are several, or it does not say what activations are rounded to.
    """
    found: dict[tuple[str | None, str | None], Scheme] = {}
    for scheme in schemes.values():
        if scheme.lacks:
            raise ValueError(
                f"{scheme.lacks}: the source says {scheme.says}, and {format} has to; want {scheme.lacks}="
            )
        found.setdefault((scheme.a_format, scheme.scale_rounding), scheme)
    if len(found) > 1:
        listed = ", ".join(f"{a_format} ({rounding})" if rounding else f"{a_format}" for a_format, rounding in found)
        raise ValueError(f"a_format: got {listed} in one checkpoint, want one for {format}")
    return next(iter(found.values()), Scheme("bf16"))


# ---- reading a quantization_config


def has(spec: Any, fields: Mapping[str, Any]) -> bool:
    """Say whether a specification has these fields with these values."""
    return isinstance(spec, dict) and all(spec.get(key) == value for key, value in fields.items())


def short(spec: Any, fields: Sequence[str]) -> str:
    """Name the fields of a specification that decide."""
    if not isinstance(spec, dict):
        return repr(spec)
    return ", ".join(f"{key} {spec[key]}" for key in fields if key in spec) or "nothing that is known"


def names(field: str, value: Any) -> list[str]:
    """Return a list of names, [] for null.

    Raises:
        ValueError: it is none.
    """
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{field}: got {shown(value)}, want a list of names")
    return value


def expression(pattern: str) -> str:
    """Return what matches whole names that begin as ``re:`` patterns of these projects want it.

    Raises:
        ValueError: it is no regular expression.
    """
    try:
        re.compile(made := f"(?:{pattern}){EVERY}")
    except re.error as error:
        raise ValueError(f"pattern: got {pattern!r}, want a regular expression ({error})") from None
    return made
