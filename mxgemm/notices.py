"""What the library says once a process: that it takes another way than its best one, and what would change that."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

logger = logging.getLogger("mxgemm")
_said: Final[dict[Hashable, object]] = {}


def say_once(text: str, key: Hashable = None) -> None:
    """Log a warning, unless one of the same ``key`` (by default the text itself) was logged in this process."""
    mine = object()
    # One step, so that of two threads one speaks: no lock, which a fork could leave held.
    if _said.setdefault(text if key is None else key, mine) is mine:
        logger.warning("%s", text)
