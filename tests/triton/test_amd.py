"""Triton's launches on AMD, read from what Triton compiled: C launches them, and the emulator executes them."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from evidence.cross_compile import problem_of
from evidence.tritons import ROOT, compiler_environment, other_triton
from gfx950emu import run_code_object
from gfx950emu.hip_runtime import EmulatedHip
from gfx950emu.hip_runtime import Launch as Emulated
from mxgemm import steady, workspace
from mxgemm.hip.runtime import HIP, Driver
from mxgemm.mx.accuracy import judge
from mxgemm.native import build, module
from mxgemm.native.program import OUT, A, fixed
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.triton.amd import amd_launch, on_amd
from mxgemm.triton.tile_config import TileConfig
from tests.cross import TRITONS, available
from tests.emulator import require_objdump
from tests.native import stub

pytest.importorskip("triton")

M, N, K = 3, 48, 256
TILE = TileConfig(block_m=16, block_n=32, block_k=128)
BY_DEFAULT = ("e2m1", "even", torch.bfloat16, None)
NAMES = ("a", "b", "b_scales", "bias", "out", "partials", "counters")
COMPILE = """
import json, sys
from pathlib import Path
from evidence.cross_compile import problem_of
from evidence.gfx950_compile import write_launches
from mxgemm.routes import ROUTES
from mxgemm.triton.tile_config import TileConfig
job = json.load(sys.stdin)
route = ROUTES["a16wfp4"]
config = TileConfig.from_mapping(job["config"])
calls = route.calls(problem_of(*job["size"], "gfx950"), config)
for kernel in write_launches("kernel", calls, {}, Path(job["folder"])):
    kept = "name", "num_warps", "num_ctas", "shared", "launch_cooperative_grid", "profile_scratch_size"
    described = {name: getattr(kernel.metadata, name) for name in kept}
    print(json.dumps({"signature": kernel.src.signature, "metadata": described}))
"""


def compiled(triton: str, folder: Path, config: TileConfig) -> Any:
    """What that triton's ``kernel[grid]`` returns on a gfx950, as far as a launch reads it; no ``function``."""
    job = {"size": (M, N, K), "folder": str(folder), "config": config.to_mapping()}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], input=json.dumps(job), capture_output=True, text=True, cwd=ROOT,
        env=compiler_environment(None if triton == "own" else other_triton()), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    metadata = SimpleNamespace(**found["metadata"], target=SimpleNamespace(backend="hip", arch="gfx950", warp_size=64))
    code = (folder / "kernel.0.hsaco").read_bytes()
    return SimpleNamespace(
        metadata=metadata, src=SimpleNamespace(signature=found["signature"]), asm={"hsaco": code}, function=0
    )


class Device:
    """The emulated runtime's launches, on the memory that their first arguments name."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.launches: list[Emulated] = []

    def __call__(self, launch: Emulated) -> None:
        self.launches.append(launch)
        memory = {
            name: np.ctypeslib.as_array(
                (ctypes.c_uint8 * size).from_address(
                    int.from_bytes(launch.kernarg[8 * NAMES.index(name) :][:8], "little")
                )
            )
            for name, size in self.sizes.items()
        }

        def moved(addresses: Any) -> bytes:
            segment = bytearray(launch.kernarg)
            for name in memory:
                at = 8 * NAMES.index(name)
                segment[at : at + 8] = int(addresses[name]).to_bytes(8, "little")
            return bytes(segment) + bytes(-len(segment) % 16)

        after, _ = run_code_object(
            launch.code, launch.kernel, launch.grid, launch.block, moved, memory, dynamic_lds=launch.lds,
            read_only=memory.keys() - {"out"},
        )  # fmt: skip
        memory["out"][:] = after["out"]


@pytest.mark.slow
@pytest.mark.parametrize("triton", TRITONS)
def test_a_steady_call(triton: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_objdump()
    reason = available(triton)
    if reason:
        pytest.skip(reason)
    try:
        build.built()
    except build.BuildError as error:
        pytest.skip(str(error))
    kernel = compiled(triton, tmp_path, TILE)
    assert on_amd(kernel)
    a, w = torch.randn(M, K, dtype=torch.bfloat16), mxgemm.quantize(torch.randn(N, K))
    device = Device({"a": 2 * M * K, "b": N * K // 2, "b_scales": N * K // 32, "out": 2 * M * N})
    hip = EmulatedHip.build(tmp_path)
    hip.on_launch(device)
    driver = Driver.open(HIP, str(hip.path))
    kernel.function = driver.function(driver.load(kernel.asm["hsaco"]), kernel.metadata.name)

    route = ROUTES["a16wfp4"]
    assert isinstance(route, TritonGemm)
    launch: Any = route.bind(problem_of(M, N, K, "gfx950"), TILE)
    launcher = launch._main

    def as_triton_does(tensors: Sequence[Tensor]) -> None:
        """Triton's launcher passes pointers to each argument: here the segment that HIP makes of them."""
        names = list(kernel.src.signature)[len(NAMES) :]
        values = [value for name, value in zip(names, launcher._call.scalars, strict=False)
                  if kernel.src.signature[name] != "constexpr"]  # fmt: skip
        segment = b"".join(t.data_ptr().to_bytes(8, "little") for t in tensors)
        segment += b"".join(value.to_bytes(4, "little") for value in values)
        segment += bytes(-len(segment) % 8) + bytes(16)
        threads = 64 * kernel.metadata.num_warps
        hip_launch(driver, kernel, launcher._call.grid, threads, segment)

    launcher._compiled, launcher._run = kernel, as_triton_does
    by_hip = stub.address(driver.launch)
    monkeypatch.setattr(module, "_driver_functions", lambda: (0, by_hip, 0))
    monkeypatch.setattr(steady, "quick", None)
    monkeypatch.setattr(steady, "SETTLE_AT", 1)
    module._load.cache_clear()
    workspace.clear()
    try:
        stub.settled(w, a, launch)
        assert steady.quick is not None
        y = steady.quick(w, a, None, None, *BY_DEFAULT)
        assert y is not None
        assert hip.error is None
        by_triton, by_c = device.launches
        assert (by_triton.grid, by_triton.block, by_triton.lds) == (by_c.grid, by_c.block, by_c.lds)
        changed = {
            at for at, (one, other) in enumerate(zip(by_triton.kernarg, by_c.kernarg, strict=True)) if one != other
        }
        assert changed <= set(range(24, 56))  # bias, the result and what is not used, all at the result's address
        assert judge(y, a, w).passed
        a.copy_(torch.randn_like(a))
        z = steady.quick(w, a, None, None, *BY_DEFAULT)
        assert z is not None
        assert judge(z, a, w).passed
    finally:
        module._load.cache_clear()
        workspace.clear()


def hip_launch(driver: Driver, kernel: Any, grid: tuple[int, int, int], threads: int, segment: bytes) -> None:
    buffer, size = ctypes.create_string_buffer(segment, len(segment)), ctypes.c_size_t(len(segment))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    status = driver.launch(kernel.function, *grid, threads, 1, 1, kernel.metadata.shared, None, None, extra)
    assert status == 0


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled("own", tmp_path_factory.mktemp("amd"), TILE)


def described(kernel: Any, scalars: tuple[int, ...] | None = None) -> Any:
    call = ROUTES["a16wfp4"].calls(problem_of(M, N, K, "gfx950"), TILE)[0]  # type: ignore[attr-defined]
    places = A, fixed(1), fixed(2), OUT, OUT, OUT, OUT
    return amd_launch(kernel, call.scalars if scalars is None else scalars, call.grid, places)


def changed(kernel: Any, part: str, **values: Any) -> Any:
    holder = SimpleNamespace(**{**vars(getattr(kernel, part)), **values})
    return SimpleNamespace(**{**vars(kernel), part: holder})


@pytest.mark.slow
def test_launches_that_are_not_plain_go_by_triton(kernel: Any) -> None:
    assert described(kernel) is not None
    for values in ({"num_ctas": 2}, {"launch_cooperative_grid": True}, {"profile_scratch_size": 8},
                   {"global_scratch_size": 8}, {"num_warps": 0}, {"num_warps": 64}, {"name": "another"}):  # fmt: skip
        assert described(changed(kernel, "metadata", **values)) is None, values
    signature = kernel.src.signature
    for name, kind in (("M", "fp32"), ("M", "i64"), ("M", "constexpr"), ("a", "i32"), ("stride_ak", "i32")):
        assert described(changed(kernel, "src", signature={**signature, name: kind})) is None, (name, kind)
    assert described(SimpleNamespace(**{**vars(kernel), "asm": {"hsaco": b"no code"}})) is None
    assert described(kernel, (3, N)) is None


def test_other_backends() -> None:
    cuda = SimpleNamespace(metadata=SimpleNamespace(target=SimpleNamespace(backend="cuda")))
    assert not on_amd(cuda)
    assert not on_amd(None)
    assert not on_amd(object())
