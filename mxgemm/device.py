"""Which machine a tensor lives on: architecture, compute units, name, and what hardware of its kind has.

Read from torch's device properties on first use; nothing here starts a process or touches a device at import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from mxgemm import files
from mxgemm.arguments import shown


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as the router sees it.

    Attributes:
        arch: "cpu", "gfx950", "gfx942", "sm_90", ...
        cu_count: compute units (AMD) or streaming multiprocessors (NVIDIA); 0 on a CPU.
        name: what the vendor calls it.
        xcds: dies with an L2 of their own, among which workgroups are dealt in turn.
        simds: SIMDs of a compute unit.
        wave_size: lanes of a wave (a warp); 0 where it is not known, as the following.
        registers: 32-bit vector registers of a SIMD lane, for all its waves.
        lds_bytes: LDS (shared memory) of a compute unit, for all its workgroups.
        infinity_cache_bytes: of the cache between L2 and memory, which torch does not report; 0 without one.
    """

    arch: str
    cu_count: int
    name: str
    xcds: int = 1
    simds: int = 4
    wave_size: int = 0
    registers: int = 0
    lds_bytes: int = 0
    infinity_cache_bytes: int = 0


CPU: Final = Machine("cpu", 0, "CPU")

KNOWN_MACHINES: Final[dict[str, Machine]] = {
    "cpu": CPU,
    "gfx950": Machine(
        "gfx950",
        cu_count=256,  # 32 on each XCD [1]
        name="AMD Instinct MI350X/MI355X",
        xcds=8,  # [1]
        simds=4,  # [2]
        wave_size=64,  # [1]
        registers=512,  # 512 KiB a compute unit [1]; [2] 3.6
        lds_bytes=160 * 1024,  # [1]; [2] 11
        infinity_cache_bytes=256 << 20,  # "L3" in [1]
    ),
    "gfx942": Machine(
        "gfx942",
        cu_count=304,  # 38 on each XCD [1]
        name="AMD Instinct MI300X",
        xcds=8,  # [1]
        simds=4,  # [3]
        wave_size=64,  # [1]
        registers=512,  # 512 KiB a compute unit [1]
        lds_bytes=64 * 1024,  # [1]
        infinity_cache_bytes=256 << 20,  # "L3" in [1]
    ),
    "sm_90": Machine(
        "sm_90",
        cu_count=132,  # [5], the SXM boards
        name="NVIDIA H100/H200",
        wave_size=32,  # [4]
        registers=512,  # 64 K a multiprocessor [4], a quarter for each of its four parts of 32 lanes [5]
        lds_bytes=228 * 1024,  # [4], of which a block has at most 227 KB
    ),
    "sm_100": Machine(
        "sm_100",
        cu_count=148,  # cudaDeviceProp of a B200
        name="NVIDIA B200",
        wave_size=32,  # [4]
        registers=512,  # as sm_90
        lds_bytes=228 * 1024,  # [4], of which a block has at most 227 KB
    ),
    "gfx1250": Machine(
        "gfx1250",
        cu_count=256,  # [6]; how many XCDs share them is in no document that was found
        name="AMD Instinct MI455X",
        wave_size=32,  # [7]: it has no other
        registers=1024,  # [7]
        lds_bytes=320 * 1024,  # [7]
    ),
    "sm_120": Machine(
        "sm_120",
        cu_count=188,  # [8]
        name="NVIDIA RTX PRO 6000 Blackwell",
        wave_size=32,  # [4]
        registers=512,  # 64 K a multiprocessor [4], as sm_90
        lds_bytes=100 * 1024,  # [4], of which a block has at most 99 KB
    ),
}
"""Machines that :func:`mxgemm.explain` can be asked about without having one: the one table of what hardware has.

[1] ROCm documentation, "AMD GPU specifications". [2] "AMD Instinct CDNA4 Instruction Set Architecture", by section.
[3] "AMD Instinct MI300 Instruction Set Architecture" (CDNA3). [4] CUDA C++ Programming Guide, "Technical Specifications
per Compute Capability". [5] "NVIDIA H100 Tensor Core GPU Architecture". [6] AITER e4048607, jit/utils/chip_info.py,
of what the device reports. [7] LLVM, "User Guide for AMDGPU Backend" and its features of gfx1250. [8] "NVIDIA RTX
Blackwell GPU Architecture".
"""

_CPUINFO: Final = "/proc/cpuinfo"
_CPUINFO_LIMIT: Final = 1 << 24
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
    known = KNOWN_MACHINES.get(arch) or Machine(arch, 0, "")
    return replace(known, cu_count=properties.multi_processor_count, name=properties.name)


@cache
def cpu_features() -> frozenset[str]:
    """Return the features of this CPU by Linux's names; nothing on other systems.

    A feature that one processor lacks, as where a machine has two kinds of cores, is not there.
    """
    try:
        text = files.read_bytes(_CPUINFO, _CPUINFO_LIMIT).decode(errors="replace")
    except files.FileError:
        return frozenset()
    lines = [line.partition(":") for line in text.splitlines()]
    sets = [frozenset(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*sets) if sets else frozenset()


def default_device() -> torch.device:
    """Return the current GPU if torch sees one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def machine_asked(device: Any) -> Machine:
    """Return the machine that somebody asks about: of a device, of an architecture's name, or the one here.

    Raises:
        TypeError, ValueError: it is none of them.
    """
    if device is None:
        return machine_of(default_device())
    named = machine_named(device) if isinstance(device, str) else None
    if named:
        return named
    try:
        return machine_of(device_of(device))
    except ValueError as error:
        known = ", ".join(KNOWN_MACHINES)
        raise ValueError(f"{error}; or the name of an architecture: {known}, or another gfx* or sm_*") from error
