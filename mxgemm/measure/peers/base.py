"""What a peer is: somebody else's GEMM for the same weight, with an honest statement of what it computes."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Any, ClassVar

import torch

from mxgemm.errors import Refusal
from mxgemm.measure.contender import Contender
from mxgemm.measure.oracle import Exact, Oracle


class Peer(Contender):
    """A contender from outside.

    Attributes:
        distribution: the package whose version is reported.
        module: what must be importable, "" for nothing.
        install: how to get it.
        a_format: what A is rounded to in the product that it is judged by.
    """

    kind: ClassVar[str] = "peer"
    distribution: str = "torch"
    module: str = ""
    install: str = ""
    a_format: str = "bf16"

    def absent(self, device: torch.device) -> Refusal | None:
        """Say which package or device is missing, or None."""
        wrong = self.wrong_device(device)
        if wrong is None and self.module and importlib.util.find_spec(self.module) is None:
            words = f"{self.module} is not installed: {self.install}"
            return Refusal(self.module, "not installed", self.install, "installation", words)
        return wrong

    def wrong_device(self, device: torch.device) -> Refusal | None:
        """Say which device this wants instead, or None if this one will do."""
        del device
        return None

    def version(self) -> str | None:
        """Return the version of the installed package."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None

    def exact(self, oracle: Oracle, a: Any, loaded: Any) -> Exact:
        """By default the weight's exact values, and A rounded to ``a_format``."""
        del a, loaded
        return oracle.exact(self.a_format)
