"""A steady call of route hip_fused in C: HIP's launch function, looked up by its name, executes gfx950 machine code."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mxgemm
from evidence import hip_compile
from gfx950emu import run_code_object
from gfx950emu.hip_runtime import EmulatedHip
from gfx950emu.hip_runtime import Launch as Emulated
from mxgemm import steady, workspace
from mxgemm.hip import fused, runtime
from mxgemm.hip.fused import FusedConfig
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.runtime import HIP, Driver, Function
from mxgemm.mx.accuracy import judge
from mxgemm.native import build, module
from mxgemm.problem import Problem
from mxgemm.routes import hip_fused
from tests.emulator import require_hip_compiler, require_objdump
from tests.native import stub

M, N, K = 3, 32, 256
BY_DEFAULT = ("e2m1", "even", torch.bfloat16, None)


class Device:
    """The emulated runtime's launches, on the memory that their arguments name."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes, self.kernargs = sizes, []  # type: ignore[var-annotated]
        self._layout = Layout(fused.ARGUMENTS)

    def __call__(self, launch: Emulated) -> None:
        self.kernargs.append(launch.kernarg)
        names = ("a", "weight", "scales", "bias", "c", "m", "a_row", "c_row", "partials", "counters")
        offsets = dict(zip(names, self._layout.offsets, strict=True))

        def address(name: str) -> int:
            return int.from_bytes(launch.kernarg[offsets[name] : offsets[name] + 8], "little")

        memory = {
            name: np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address(name)))
            for name, size in self.sizes.items()
        }

        def moved(addresses: Any) -> bytes:
            segment = bytearray(launch.kernarg)
            for name in memory:
                segment[offsets[name] : offsets[name] + 8] = int(addresses[name]).to_bytes(8, "little")
            return bytes(segment) + bytes(-len(segment) % 16)

        after, _ = run_code_object(
            launch.code, launch.kernel, launch.grid, launch.block, moved, memory,
            read_only=memory.keys() - {"c", "partials", "counters"},
        )  # fmt: skip
        for name in memory.keys() & {"c", "partials", "counters"}:
            memory[name][:] = after[name]


@pytest.mark.slow
@pytest.mark.parametrize("split_k", [1, 2])
def test_a_steady_call(split_k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_objdump()
    require_hip_compiler()
    try:
        build.built()
    except build.BuildError as error:
        pytest.skip(str(error))
    a, w = torch.randn(M, K, dtype=torch.bfloat16), mxgemm.quantize(torch.randn(N, K)).prepare("gfx950")
    data, scales, layout, _, _ = w.operand()
    p = Problem.of(
        M, N, K, mxgemm.device.KNOWN_MACHINES["gfx950"], weight_layout=layout.data, scale_layout=layout.scales
    )
    config = FusedConfig(16, 16, 128, 1, 1, split_k)
    assert fused.fused_refusal(p, config) is None
    nbytes, counters = fused.workspace(p, config)
    sizes = {"a": 2 * M * K, "weight": data.nbytes, "scales": scales.nbytes, "c": 2 * M * N}
    device = Device(sizes | ({"partials": nbytes, "counters": 4 * counters} if nbytes else {}))

    hip = EmulatedHip.build(tmp_path)
    hip.on_launch(device)
    driver = Driver.open(HIP, str(hip.path))
    code = hip_compile.code_object(fused.SOURCE, fused.defines(p, config))
    handle = driver.function(driver.load(code), fused.KERNEL)
    loaded: Any = SimpleNamespace(driver=driver, device=torch.device("cuda", 0), context=0)
    info: Any = SimpleNamespace(name=fused.KERNEL, kernarg_bytes=0)
    launch = hip_fused._Launch(p, config)
    launch._function = Function(loaded, info, handle)
    monkeypatch.setattr(runtime, "raw_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    by_hip = stub.address(driver.launch)
    monkeypatch.setattr(module, "_driver_functions", lambda: (0, by_hip, 0))
    monkeypatch.setattr(steady, "quick", None)
    monkeypatch.setattr(steady, "SETTLE_AT", 1)
    module._load.cache_clear()
    workspace.clear()
    try:
        stub.settled(w, a, launch)  # type: ignore[arg-type]
        assert steady.quick is not None
        (by_python,) = device.kernargs
        calls: list[str] = []
        sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if event == "call" else None)
        try:
            y = steady.quick(w, a, None, None, *BY_DEFAULT)
        finally:
            sys.setprofile(None)
        assert y is not None
        assert hip.error is None
        _, by_c = device.kernargs
        at = Layout(fused.ARGUMENTS).offsets[4]  # the result's address, which is another one
        assert by_python[:at] + by_python[at + 8 :] == by_c[:at] + by_c[at + 8 :]
        assert int.from_bytes(by_c[at : at + 8], "little") == y.data_ptr()
        assert calls[0] == "callback"  # the emulator's: C asked nothing of Python between the call and the launch
        assert judge(y, a, w).passed
        a.copy_(torch.randn_like(a))
        z = steady.quick(w, a, None, None, *BY_DEFAULT)
        assert z is not None
        assert judge(z, a, w).passed
        assert not torch.equal(y, z)
    finally:
        module._load.cache_clear()
        workspace.clear()
