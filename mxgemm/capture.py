"""What a first call does and a captured CUDA graph cannot hold: compiling, and setting a library up."""

from __future__ import annotations

import torch


class NotWarm(RuntimeError):
    """A call that must not come first while a graph is captured."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}, which a CUDA graph cannot capture; call mxgemm.warmup(weight, m=[...]), or make the same call "
            "once, on this thread before the capture"
        )


def under_way() -> bool:
    """Say whether the current stream is captured into a graph, or was until an error ended that."""
    try:
        return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # of a capture that an error has ended
        return True
