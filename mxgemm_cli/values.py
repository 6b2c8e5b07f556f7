"""From the text of an option to its value; a refusal says what it got and what it wants, argparse the option's name."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from typing import Any, Final

from mxgemm_cli.light import load

Shape = tuple[int, int, int]

_WHOLE_SIZE: Final = re.compile(r"\d+[,x]\d+[,x]\d+")
_LONGEST: Final = 200


def one_of(choices: Iterable[str]) -> Callable[[str], str]:
    """Return a reader of an option that takes one of some names."""
    names = tuple(choices)

    def read(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"got {_shown(text)}, want one of {', '.join(names)}")
        return text

    return read


def seconds(text: str) -> float:
    """Read a time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"got {_shown(text)}, want a finite number of seconds, at least 0")
    return value


def count(text: str) -> int:
    """Read how many of something, at least one."""
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise ArgumentTypeError(f"got {_shown(text)}, want a number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Read a number of bytes: ``500MB``, ``2GB``, or bytes."""
    found = re.fullmatch(r"([0-9]{1,12})(MB|GB|)", text)
    if not found or not int(found[1]):
        raise ArgumentTypeError(f"got {_shown(text)}, want a size such as 500MB or 2GB")
    return int(found[1]) * {"MB": 10**6, "GB": 10**9, "": 1}[found[2]]


def shape(text: str) -> Shape:
    """Read ``M,N,K`` or ``MxNxK``, as everything here that takes sizes does."""
    return _parsed(text)


def sizes(texts: list[str]) -> list[Shape]:
    """Read sizes without an option: M, N and K apart, or each size whole."""
    if any(_WHOLE_SIZE.fullmatch(text) for text in texts):
        return [_parsed(text) for text in texts]
    return [_parsed(",".join(texts))] if texts else []


def moe_sets() -> Any:
    """Return the sets of experts by name."""
    return load("measure/moe_sets.py").MOE_SETS


def shape_sets() -> Any:
    """Return the named sets of sizes."""
    return load("measure/shapes.py").SETS


def _parsed(text: str) -> Shape:
    try:
        parsed: Shape = load("measure/shapes.py").parse_shape(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error).partition(": ")[2]) from error
    return parsed


def _shown(text: str) -> str:
    whole = repr(text)
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}..."
