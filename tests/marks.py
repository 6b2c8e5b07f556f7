"""What `make check` and `make test` leave to others: see tests/conftest.py and the Makefile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

EXHAUSTIVE = pytest.mark.exhaustive
"""Run by `make test-all` alone: more of what other tests show."""


def first_of(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Return parameters of which only the first few are run by `make test`."""
    return [value if i < kept else pytest.param(value, marks=EXHAUSTIVE) for i, value in enumerate(values)]
