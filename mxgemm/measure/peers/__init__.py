"""Peers, a small file each. One that is not here is listed as absent, with the reason, and gets no verdict."""

from __future__ import annotations

from typing import Final

from mxgemm.measure.peers.aiter import AiterA4W4, AiterA16WFP4
from mxgemm.measure.peers.base import Peer
from mxgemm.measure.peers.humming import Humming
from mxgemm.measure.peers.scaled_mm import ScaledMM
from mxgemm.measure.peers.torch_mm import TorchMM, TorchMMFloat32
from mxgemm.measure.peers.triton_kernels import TritonKernels

PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (TorchMM(), TorchMMFloat32(), ScaledMM(), AiterA4W4(), AiterA16WFP4(), TritonKernels(), Humming())
}
"""Every peer by name."""

__all__ = ["PEERS", "Peer"]
