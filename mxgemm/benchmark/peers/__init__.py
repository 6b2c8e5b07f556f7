"""Peers, a small file each. One that is not here is listed as absent, with the reason, and gets no verdict."""

from __future__ import annotations

from typing import Final

from mxgemm.benchmark.peers.aiter import AiterA4W4, AiterA16WFP4
from mxgemm.benchmark.peers.base import Peer
from mxgemm.benchmark.peers.humming import Humming
from mxgemm.benchmark.peers.scaled_mm import ScaledMM
from mxgemm.benchmark.peers.torch_mm import TorchMM
from mxgemm.benchmark.peers.triton_kernels import TritonKernels

PEERS: Final[dict[str, Peer]] = {
    peer.name: peer for peer in (TorchMM(), ScaledMM(), AiterA4W4(), AiterA16WFP4(), TritonKernels(), Humming())
}
"""Every peer by name."""

__all__ = ["PEERS", "Peer"]
