"""Which machine a tensor lives on: architecture, compute units, name.

Read from torch's device properties on first use; nothing here starts a process or touches a device at import.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as the router sees it.

    Attributes:
        arch: "cpu", "gfx950", "gfx942", "sm_90", ...
        cu_count: compute units (AMD) or streaming multiprocessors (NVIDIA); 0 on a CPU.
        name: what the vendor calls it.
    """

    arch: str
    cu_count: int
    name: str


CPU: Final = Machine("cpu", 0, "CPU")

KNOWN_MACHINES: Final[dict[str, Machine]] = {
    "cpu": CPU,
    "gfx950": Machine("gfx950", 256, "AMD Instinct MI350X/MI355X"),
    "gfx942": Machine("gfx942", 304, "AMD Instinct MI300X"),
    "sm_90": Machine("sm_90", 132, "NVIDIA H100/H200"),
    "sm_100": Machine("sm_100", 148, "NVIDIA B200"),
}
"""Machines that :func:`mxgemm.explain` can be asked about without having one."""


def machine_of(device: torch.device) -> Machine:
    """Return the machine behind a torch device.

    Raises:
        ValueError: the device is neither a CPU nor a CUDA/ROCm GPU.
    """
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":  # torch calls ROCm devices "cuda" as well
        return _gpu(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError(f"device: got {device}, want a CPU or a CUDA/ROCm device")


@cache
def _gpu(index: int) -> Machine:
    properties = torch.cuda.get_device_properties(index)
    gcn = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    arch = gcn.split(":")[0] if gcn else f"sm_{properties.major}{properties.minor}"
    return Machine(arch, properties.multi_processor_count, properties.name)


def default_device() -> torch.device:
    """Return the current GPU if torch sees one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
