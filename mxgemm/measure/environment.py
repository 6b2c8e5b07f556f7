"""What a result depends on besides the code: device, versions, driver and clocks."""

from __future__ import annotations

import platform
import shutil
from typing import Any

import torch

from mxgemm._version import __version__
from mxgemm.device import machine_of
from mxgemm.measure.rotation import cache_bytes
from mxgemm.triton.support import triton_version


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions and the device, as JSON holds them."""
    machine = machine_of(device)
    gpu = device.type == "cuda"
    return {
        "mxgemm": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": _triton(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": machine.name if gpu else _cpu_name(),
        "arch": machine.arch,
        "compute_units": machine.cu_count or None,
        "threads": None if gpu else torch.get_num_threads(),
        "last_cache_bytes": cache_bytes(device) or None,
    }


def _triton() -> str | None:
    if triton_version() is None:
        return None
    import triton

    return str(triton.__version__)


def clocks(device: torch.device) -> dict[str, str]:
    """Return the driver's version and the current clocks as the vendor's tool prints them.

    Returns:
        name to value; a single "unknown" with the reason where there is no tool or it fails.
    """
    if device.type != "cuda":
        return {"unknown": "not a GPU"}
    if torch.version.hip:
        return _ask(["amd-smi", "metric", "--clock", "--csv"], None)
    fields = ["driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "temperature.gpu"]
    uuid = torch.cuda.get_device_properties(device).uuid  # indices of torch and of the tool may differ
    query = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    return _ask(query, fields)


def _ask(command: list[str], fields: list[str] | None) -> dict[str, str]:
    import subprocess

    if shutil.which(command[0]) is None:
        return {"unknown": f"{command[0]} is not on the PATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        return {"unknown": f"{command[0]}: {error}"}
    text = done.stdout.strip()
    if fields is None:
        return {command[0]: text}
    return dict(zip(fields, (part.strip() for part in text.splitlines()[0].split(",")), strict=False))


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
