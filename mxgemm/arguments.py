"""Checks of arguments that are no tensors; each message has the argument's name, what it got and what it wants."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

T = TypeVar("T")

_LONGEST: Final = 200
_LONGEST_INT: Final = 256


def as_int(name: str, value: Any) -> int:
    """Return an integer of any kind (numpy's, a tensor's) as an int.

    Raises:
        TypeError: it is none; a bool is none either.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except (TypeError, ValueError, RuntimeError):  # the last two: arrays and tensors that are no single integer
            raise TypeError(f"{name}: got {shown(value)}, want an int") from None
    raise TypeError(f"{name}: got {value}, want an int")


def check_bool(name: str, value: Any) -> None:
    """Raise TypeError unless a value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {shown(value)}, want True or False")


def check_type(name: str, value: Any, kind: type[T], want: str) -> T:
    """Return a value that is of a type; ``want`` names the type in the message.

    Raises:
        TypeError: it is of another.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name}: got {shown(value)}, want {want}")
    return value


def as_path(name: str, value: Any, want: str = "a path") -> Path:
    """Return a path given as text or as any kind of path.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: got {shown(value)}, want {want}")
    return Path(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return a name that is one of some.

    Raises:
        ValueError: it is not, or no text at all.
    """
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name}: got {shown(value)}, want one of {', '.join(names)}")
    return value


def shown(value: Any) -> str:
    """Return a value as a message shows it: numbers and texts as they are, cut where long; all else by its type."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_INT:
        return f"an int of {value.bit_length()} bits"  # Python refuses to print one of more than 4300 digits
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return type(value).__name__
