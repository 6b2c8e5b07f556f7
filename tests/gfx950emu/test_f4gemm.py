"""AITER's own f4gemm kernels, where their code objects are to be had, called with the library's argument block.

A comes from the library's quantiser, the scales from its fused kernel; every operand lies in memory of exactly its
size, so that a read or a store past it raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from evidence import f4gemm_cases as f4gemm
from evidence.f4gemm_rows import outcome
from gfx950emu import run_code_object
from gfx950emu.errors import MemoryFault
from mxgemm import workspace
from mxgemm.aiter import arguments as f4gemm_arguments
from mxgemm.aiter import direct
from mxgemm.aiter.f4gemm import KERNELS, PREFIX, F4GemmKernel
from mxgemm.device import KNOWN_MACHINES
from mxgemm.routes.fused_asm import FusedAsmConfig
from tests.cases import make, run_route, skip_without_kernels
from tests.emulator import require_objdump

AVAILABLE = f4gemm.available()
REASON = "no f4gemm code objects: MXGEMM_AITER_CO names no folder that has them, and no amd-aiter is installed"
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 256]

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_objdump()
    skip_without_kernels("cpu")


def kernel_of(tile: str) -> F4GemmKernel:
    return KERNELS[f"{PREFIX}{tile}"]


@pytest.mark.parametrize("kernel", AVAILABLE or [None], ids=lambda kernel: kernel.name if kernel else "none")
@pytest.mark.parametrize("strict", [False, True], ids=["normal", "strict"])
def test_product(kernel: F4GemmKernel, strict: bool) -> None:
    """More than a tile each way, neither a whole one unless the kernel insists."""
    m = kernel.tile_m if kernel.whole_rows else kernel.tile_m + 5
    n = 2 * kernel.tile_n if kernel.whole_columns else kernel.tile_n + 32
    assert kernel.broken(m, n, 768) is None
    accuracy, _ = f4gemm.run(kernel, m, n, 768, strict=strict)
    assert accuracy.passed, accuracy


@pytest.mark.parametrize("m", EDGES)
@pytest.mark.parametrize(
    "tile,n", [("BpreShuffle_32x128", 160), ("BpreShuffle_64x128", 96), ("BpreShuffle_192x128", 160),
               ("BpreShuffle_32x1024", 96), ("BpreShuffle_256x256", 256), ("BpreShuffle_128x512", 512)],
)  # fmt: skip
def test_edge_rows(tile: str, n: int, m: int) -> None:
    kernel = kernel_of(tile)
    assert kernel.broken(m, n, 512) is None
    accuracy, _ = f4gemm.run(kernel, m, n, 512, strict=True)
    assert accuracy.passed, accuracy


@pytest.mark.parametrize(
    "tile,m,n,k",
    [
        *(
            (f"BpreShuffle_{tile}", 32, n, 512)
            for tile, n in (("192x256", 288), ("224x256", 288), ("256x256", 288), ("128x512", 544))
        ),
        ("noBpreShuffle_256x256", 255, 256, 512),
        ("noBpreShuffle_256x256", 256, 288, 512),
        ("noBpreShuffle_256x256", 256, 256, 256),
        ("BpreShuffle_256x256", 32, 256, 256),
        ("BpreShuffle_32x128", 32, 144, 512),
    ],
)
def test_what_the_predicate_refuses_is_wrong(tile: str, m: int, n: int, k: int) -> None:
    kernel = kernel_of(tile)
    assert kernel.broken(m, n, k) is not None
    try:
        accuracy, _ = f4gemm.run(kernel, m, n, k, strict=False)
    except MemoryFault:  # it reads or stores past an operand
        return
    assert not accuracy.passed


@pytest.mark.parametrize("tile, m", [("256x256", 2), ("256x256", 32), ("192x256", 33), ("192x256", 64)])
def test_what_aiter_picks_for_few_columns_spoils_every_row_behind_another(tile: str, m: int) -> None:
    """By its heuristic at e4048607, for N <= 128: zeros at the start of the next row (docs/aiter.md)."""
    kernel = kernel_of(f"BpreShuffle_{tile}")
    what, rows = outcome(kernel, m, 96, 512)
    assert (what, 0 in rows) == ("wrong", False)
    assert len(rows) >= m // 2
    assert outcome(kernel, 1, 96, 512) == ("right", [])


class EmulatedModule:
    """What ``mxgemm.hip.runtime.load`` returns, for a kernel that runs in the emulator on the process's own memory."""

    launches = 0

    def __init__(self, path: str, device: torch.device) -> None:
        self.path = path
        assert device.type == "cpu"

    def function(self, name: str) -> Any:
        self.name = name
        return self

    def launch(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], kernarg: bytes, *, shared_bytes: int = 0
    ) -> None:
        assert shared_bytes == 0
        EmulatedModule.launches += 1
        found = f4gemm_arguments.unpack(kernarg)
        m, n, k = found["m"], found["n"], found["k"]
        scale_rows = {"a_scales": -(-m // 32) * 32, "b_scales": -(-n // 32) * 32}
        sizes = {
            "a": m * found["a_stride"] // 2, "b": n * found["b_stride"] // 2,
            "d": 2 * ((m - 1) * found["d_stride"] + n),
        } | {name: rows * found[f"{name}_stride"] for name, rows in scale_rows.items()}  # fmt: skip
        assert found["a_stride"] == k
        memory = {name: (ctypes.c_uint8 * size).from_address(found[name]) for name, size in sizes.items()}
        arrays = {name: np.frombuffer(part, np.uint8).copy() for name, part in memory.items()}

        def arguments(address: dict[str, int]) -> bytes:
            moved = bytearray(kernarg)
            for name, offset in (("d", 0), ("a", 0x20), ("b", 0x30), ("a_scales", 0x110), ("b_scales", 0x120)):
                moved[offset : offset + 8] = address[name].to_bytes(8, "little")
            return bytes(moved)

        after, _ = run_code_object(
            self.path, self.name, grid, block, arguments, arrays, strict=True, read_only=arrays.keys() - {"d"}
        )
        ctypes.memmove(found["d"], after["d"].ctypes.data, sizes["d"])


@pytest.mark.parametrize("m", [1, 17, 33, 65])
@pytest.mark.parametrize("tile", ["32x128", "64x256"])
def test_the_route_launches_them_directly(m: int, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Callable[..., Any] = EmulatedModule
    monkeypatch.setattr(direct, "_load", loaded)
    EmulatedModule.launches = 0
    with workspace.take(1 << 20, torch.device("cpu")) as arena:
        arena.memory.fill_(255)
    case = make(m, 96, 512)
    config = FusedAsmConfig(kernel_of(f"BpreShuffle_{tile}").name, "direct")
    machine = KNOWN_MACHINES["gfx950"]
    out = run_route("fused_asm", case, layout=("preshuffled", "shuffled"), config=config, machine=machine)
    case.check(out)
    assert EmulatedModule.launches == 1


def test_a_nan_in_a_reaches_its_row_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_load", EmulatedModule)
    case = make(33, 96, 512)
    case.a[5, 70] = torch.nan
    config = FusedAsmConfig(kernel_of("BpreShuffle_32x128").name, "direct")
    machine = KNOWN_MACHINES["gfx950"]
    out = run_route("fused_asm", case, layout=("preshuffled", "shuffled"), config=config, machine=machine)
    assert out[5].isnan().all()
    assert out.isnan().sum() == 96
