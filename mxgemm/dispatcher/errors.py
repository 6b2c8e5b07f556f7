"""What the bridge raises besides TypeError and ValueError."""

from __future__ import annotations

from mxgemm.errors import BuildError


class ToolchainMissing(BuildError):
    """Nothing was compiled: a compiler or a header tree is not on this machine; the text says how to get it."""


class DispatcherError(RuntimeError):
    """A library answered -1: no device, the wrong device, a failed HIP call; the message is the library's own."""


class DispatcherUnsupported(DispatcherError):
    """A library answered -2: the call is legal, but not for this kernel."""
