"""The HIP kernel's text and its configurations; a submission carries what this reads as literals."""

from typing import Any

from mxgemm.submission.hip_text import configurations, inlined_source

HIP_SOURCE: str = inlined_source()
HIP_TABLE: dict[tuple[int, int, int], tuple[Any, ...]] = configurations()
