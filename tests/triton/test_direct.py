"""Launching past Triton's Python: what C is called with, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mxgemm.triton.direct import RELEASES, direct

triton = pytest.importorskip("triton")

GRID, TAIL = (3, 2, 1), (7, 64, True)


class CudaLauncher:
    def __init__(self, scratch: int = 0) -> None:
        self.global_scratch_size, self.profile_scratch_size = scratch, 0
        self.launch_cooperative_grid, self.launch_pdl = False, True
        self.launched: list[tuple[Any, ...]] = []

    def launch(self, *arguments: Any) -> None:
        self.launched.append(arguments)


class HIPLauncher:
    def __init__(self, scratch: int = 0) -> None:
        self.profile_scratch_size, self.launch_cooperative_grid = scratch, False
        self.launched: list[tuple[Any, ...]] = []

    def launch(self, *arguments: Any) -> None:
        self.launched.append(arguments)


class Compiled:
    """A compiled kernel of Triton 3.6."""

    function, packed_metadata = 0x1234, b"packed"

    def __init__(self, launcher: object) -> None:
        self.run = launcher
        self.ran: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        assert grid == GRID
        return lambda *arguments, stream: self.ran.append((stream, *arguments))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=SimpleNamespace(calls=[]))
    monkeypatch.setattr(triton, "__version__", f"{RELEASES[0]}0")
    monkeypatch.setattr(triton.knobs, "runtime", found)
    return found


CUDA_HEAD = (*GRID, 0, 0x1234, False, True, None, None, b"packed", None, None, None)
HIP_HEAD = (False, *GRID, 0, 0x1234, None, b"packed", None, None, None)


@pytest.mark.parametrize("launcher, head", [(CudaLauncher, CUDA_HEAD), (HIPLauncher, HIP_HEAD)])
def test_the_c_function_gets_addresses(launcher: Any, head: tuple[Any, ...], hooks: SimpleNamespace) -> None:
    compiled = Compiled(launcher())
    launch = direct(compiled, GRID, TAIL)
    assert launch is not None
    tensors = torch.zeros(4), torch.zeros(8, dtype=torch.uint8)
    launch(tensors)
    assert compiled.run.launched == [(*head, *(tensor.data_ptr() for tensor in tensors), *TAIL)]  # type: ignore[attr-defined]
    assert not compiled.ran


@pytest.mark.parametrize("kind", [CudaLauncher, HIPLauncher])
@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("added", [True, False], ids=["added", "replaced"])
def test_a_profiler_hears_of_the_launch(kind: Any, hook: str, added: bool, hooks: SimpleNamespace) -> None:
    compiled = Compiled(kind())
    launch = direct(compiled, GRID, TAIL)
    assert launch is not None
    if added:
        getattr(hooks, hook).calls.append(print)
    else:
        setattr(hooks, hook, print)
    tensor = torch.zeros(4)
    launch((tensor,))
    assert compiled.ran == [(0, tensor, *TAIL)]
    assert not compiled.run.launched  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["3.5.1", "3.7.0", "3.9.0", "13.6.0"])
def test_other_releases_launch_as_ever(version: str, hooks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert direct(Compiled(CudaLauncher()), GRID, TAIL) is None


@pytest.mark.parametrize("launcher", [CudaLauncher(scratch=16), HIPLauncher(scratch=16), object()])
def test_other_kernels_launch_as_ever(launcher: object, hooks: SimpleNamespace) -> None:
    assert direct(Compiled(launcher), GRID, TAIL) is None
