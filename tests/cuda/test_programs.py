"""Launches of CUDA C++ routes as C makes them are the launches that Python makes, down to the bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mxgemm import workspace
from mxgemm.cuda import launch
from mxgemm.cuda.w4_fp8 import Fp8Config
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.runtime import CUDA
from mxgemm.native.program import BIAS, FIXED, OUT, SCRATCH, A, KernelStep
from mxgemm.problem import Problem
from mxgemm.routes import Operands, w4_fp8, w4_mma, w4_wgmma
from tests.hip.conftest import Double, double

__all__ = ["double"]


def folded(p: Problem) -> Problem:
    """Return the problem with a weight whose rows' bases prepare() made."""
    return replace(p, options=p.options._replace(derived="fp8_fold_compact"))


CASES: dict[str, Callable[[Problem], Any]] = {
    "w4_mma": lambda p: w4_mma._Launch(p, MmaConfig()),
    "w4_mma in clusters": lambda p: w4_mma._Launch(p, MmaConfig(splits=2, overlap=True)),
    "w4_mma, A rounded before": lambda p: w4_mma._RoundingLaunch(p, MmaConfig(a_before=True)),
    "w4_wgmma": lambda p: w4_wgmma.launches(p, WgmmaConfig()),
    "w4_wgmma in clusters": lambda p: w4_wgmma.launches(p, WgmmaConfig(splits=4)),
    "w4_fp8": lambda p: w4_fp8.launches(folded(p), Fp8Config()),
    "w4_fp8 in clusters": lambda p: w4_fp8.launches(folded(p), Fp8Config(splits=2)),
}


@pytest.mark.parametrize("double", [CUDA], indirect=True, ids=["CUDA"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_c_launches_is_what_python_launches(
    double: Double, case: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = 8, 64, 512
    p = Problem.of(m, n, k, KNOWN_MACHINES["sm_90"], has_bias=bias)
    operands = Operands(
        torch.zeros(m, k, dtype=torch.bfloat16), None, *(torch.zeros(n, k // 2, dtype=torch.uint8) for _ in range(2)),
        torch.zeros(n) if bias else None, torch.zeros(m, n, dtype=torch.bfloat16), (torch.zeros(n, dtype=torch.uint8),),
    )  # fmt: skip

    def function(source: str, name: str, device: torch.device, defines: object) -> Any:
        module = SimpleNamespace(driver=double.driver, device=torch.device("cuda", 0), context=0xC0)
        info = SimpleNamespace(name=name, kernarg_bytes=16)
        return SimpleNamespace(handle=0xF0, module=module, info=info, shared_limit=0)

    monkeypatch.setattr(launch, "function", function)
    run = CASES[case](p)
    assert run.program(operands) is None  # nothing is loaded before the first launch
    run(operands)
    program = run.program(operands)
    assert program is not None
    assert program.fits()
    kept = double.launches
    assert [step.function for step in program.steps] == [one.function for one in kept]
    with workspace.take(program.scratch_bytes, torch.device("cpu")) as arena:  # the one that the launches had
        where = {
            **{A.slot: operands.a.data_ptr(), OUT.slot: operands.out.data_ptr(), FIXED: 0},
            **{SCRATCH.slot: arena.address, BIAS.slot: 0 if operands.bias is None else operands.bias.data_ptr()},
        }
    for step, one in zip(program.steps, kept, strict=True):
        assert isinstance(step, KernelStep)
        _, grid, block, shared, attributes, arguments, changing = step.packed()
        patched = bytearray(arguments)
        for offset, place in changing:
            patched[offset : offset + 8] = (where[place.slot] + place.add).to_bytes(8, "little")
        assert bytes(patched) == bytes(one.bytes[: one.size])
        assert (grid, block, shared) == (tuple(one.grid), tuple(one.block), one.shared)
        assert attributes == bytes(one.attributes)[: 72 * one.count]
    if re.search("before|wgmma|fp8", case):
        assert len(kept) == 2
        assert program.scratch_bytes >= 2 * m * k
