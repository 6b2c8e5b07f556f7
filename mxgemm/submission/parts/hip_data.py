"""The HIP kernel's text, its configurations and an MI355X's dies; a submission carries what this reads as literals."""

from typing import Any

from mxgemm.device import KNOWN_MACHINES
from mxgemm.submission.hip_text import configurations, inlined_source

XCDS: int = KNOWN_MACHINES["gfx950"].xcds
HIP_SOURCE: str = inlined_source()
HIP_TABLE: dict[tuple[int, int, int], list[tuple[Any, ...]]] = configurations()
