"""What the tests of builds and launches share: built kernels, and drivers that only keep what they are told."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mxgemm.cuda import launch
from mxgemm.device import Machine
from mxgemm.hip import build, runtime
from mxgemm.hip.runtime import CUDA, HIP, Api, Driver

STREAM = 0x5A5A


class Launch(ctypes.Structure):
    """``struct launch`` of driver_double.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("function", "stream", "parameters")),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("size", ctypes.c_size_t),
        ("bytes", ctypes.c_ubyte * 4096),
        ("count", ctypes.c_uint),
        ("attributes", (ctypes.c_uint * 18) * 2),
    ]


@dataclass
class Double:
    """A driver double, and the device that torch is made to believe in."""

    driver: Driver
    library: ctypes.CDLL
    entered: list[int]

    @property
    def launches(self) -> list[Launch]:
        count = ctypes.c_int.in_dll(self.library, "launch_count").value
        return list((Launch * 4096).in_dll(self.library, "launches"))[:count]

    def fail_next_with(self, status: int) -> None:
        ctypes.c_int.in_dll(self.library, "fail_next_with").value = status

    def delay(self, loops: int) -> None:
        ctypes.c_int.in_dll(self.library, "delay_loops").value = loops


@pytest.fixture(params=[HIP, CUDA], ids=lambda api: api.name)
def double(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    """A driver double for a machine with two GPUs of which the first is current.

    Both are gfx950: a driver's names have nothing to do with what is in a file, so no CUDA compiler is needed.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: on Debian and Ubuntu: apt install gcc")
    api: Api = request.param
    path = tmp_path / "driver.so"
    source = Path(__file__).parent / "driver_double.c"
    flags = ["-DCUDA"] if api is CUDA else []
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags, source, "-o", path], check=True)
    made = Double(Driver.open(api, str(path)), ctypes.CDLL(str(path)), [])

    @contextmanager
    def device(index: torch.device | int) -> Iterator[None]:
        made.entered.append(index.index if isinstance(index, torch.device) else index)
        yield

    monkeypatch.setattr(runtime, "machine_of", lambda device: Machine("gfx950", 1, "double"))
    monkeypatch.setattr(runtime, "raw_stream", lambda device: STREAM + device.index)
    monkeypatch.setattr(launch, "raw_stream", lambda device: STREAM + device.index)
    monkeypatch.setattr(launch, "_current_device", lambda: 0)
    monkeypatch.setattr(runtime, "_start", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    return made


def built(source: str, arch: str, **defines: int | str) -> bytes:
    """Build, or skip where nothing can."""
    reason = build.compiler_refusal(arch)
    if reason:
        pytest.skip(str(reason))
    return build.build(source, arch=arch, defines=defines)
