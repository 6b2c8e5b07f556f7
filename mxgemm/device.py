"""Which machine a tensor lives on: architecture, compute units, name.

Read from torch's device properties on first use; nothing here starts a process or touches a device at import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from mxgemm.arguments import shown


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

_ARCH: Final = re.compile(r"(?:(gfx[0-9a-f]{3,5})(?::[a-z]+[+-])*|(sm_[0-9]{2,3})[af]?)")


def arch_named(text: str) -> str | None:
    """Return a GPU architecture without suffixes for its features, None if it is none.

    ``gfx950:sramecc+:xnack-`` is ``gfx950``, ``sm_90a`` is ``sm_90``.
    """
    found = _ARCH.fullmatch(text)
    return found[1] or found[2] if found else None


def machine_named(name: str) -> Machine | None:
    """Return the machine of an architecture's name; one that is in no table has no compute units, and says so."""
    arch = arch_named(name) or name
    if arch in KNOWN_MACHINES:
        return KNOWN_MACHINES[arch]
    return Machine(arch, 0, "in no table here: by what each route refuses") if arch_named(name) else None


def arch_of(name: Any, argument: str = "arch") -> str:
    """Return the architecture that a name means: "cpu", or a GPU's with or without suffixes for its features.

    Raises:
        TypeError: it is no text.
        ValueError: there is no such architecture.
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument}: got {shown(name)}, want the name of an architecture")
    found = machine_named(name)
    if found is None:
        known = ", ".join(KNOWN_MACHINES)
        raise ValueError(f"{argument}: got {shown(name)}, want one of {known}, or another gfx* or sm_*")
    return found.arch


def device_of(device: Any, argument: str = "device") -> torch.device:
    """Return the torch device of a torch.device, a name ("cpu", "cuda:1") or a GPU's index; it is there.

    Raises:
        TypeError: none of these.
        ValueError: no such device, or torch sees none.
    """
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise TypeError(f"{argument}: got {shown(device)}, want a torch device, its name, or a GPU's index")
    want = 'want "cpu", "cuda" or "cuda:<index>"'
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(f"{argument}: got {shown(device)}, {want} ({str(error).splitlines()[0]})") from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{argument}: got {found}, {want}")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not 0 <= (found.index or 0) < count:
            seen = f"{count} of them" if count else "none"
            raise ValueError(f"{argument}: got {found}, want a GPU that is here: torch sees {seen}")
    return found


def machine_of(device: torch.device) -> Machine:
    """Return the machine behind a torch device.

    Raises:
        ValueError: the device is neither a CPU nor a CUDA/ROCm GPU that is here.
    """
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":  # torch calls ROCm devices "cuda" as well
        if device.index is None:
            device_of(device)
        return _gpu(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError(f"device: got {device}, want a CPU or a CUDA/ROCm device")


@cache
def _gpu(index: int) -> Machine:
    device_of(torch.device("cuda", index))
    properties = torch.cuda.get_device_properties(index)
    gcn = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    arch = gcn.split(":")[0] if gcn else f"sm_{properties.major}{properties.minor}"
    return Machine(arch, properties.multi_processor_count, properties.name)


def default_device() -> torch.device:
    """Return the current GPU if torch sees one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
