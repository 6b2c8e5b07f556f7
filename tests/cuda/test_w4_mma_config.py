"""Which problems and configurations w4_mma takes, and which configuration it puts first."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import pytest
import torch

from bench.w4_mma import timed_problem
from mxgemm.cuda import w4_mma, w4_mma_choice
from mxgemm.cuda.w4_mma import MmaConfig, mma_refusal
from mxgemm.cuda.w4_mma_choice import candidates, estimate_us, ranked
from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES

HOPPER = KNOWN_MACHINES["sm_90"]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def problem(m: int = 16, n: int = 2112, k: int = 7168, **options: Any) -> Problem:
    return Problem.of(m, n, k, HOPPER, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"a_dtype": FP16},
        {"strides": Strides(a=(1, 16), b=(3584, 1), b_scales=(224, 1), out=(2112, 1))},
        {"strides": Strides(a=(7170, 1), b=(3584, 1), b_scales=(224, 1), out=(2112, 1))},
        {"aligned": False},
    ],
    ids=str,
)
def test_only_whole_rows_of_bf16_go_through_shared_memory(options: dict[str, Any]) -> None:
    refusal = mma_refusal(problem(**options), MmaConfig(a_slots=1))
    assert refusal is not None
    assert refusal.field == "a_slots"
    assert all(not config.a_slots for config in candidates(problem(**options)))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("m", {"m": 33}),
        ("a", {"a_quantized": True}),
        ("a.dtype", {"a_dtype": torch.float64}),
        ("b_format", {"b_format": "e4m3"}),
        ("k", {"k": 1 << 20}),
        ("n", {"n": 1 << 31}),
        ("bias.dtype", {"has_bias": True, "bias_dtype": torch.float64}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, Any]) -> None:
    refusal = ROUTES["w4_mma"].can_implement(problem(**options))
    assert refusal is not None
    assert refusal.field == field


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("tiles", MmaConfig(tiles=7)),
        ("a_slots", MmaConfig(a_slots=9)),
        ("a_slots", MmaConfig(a_slots=1, a_ahead=False)),
        ("a_slots", MmaConfig(a_slots=1, a_before=True)),
        ("prefetch", MmaConfig(prefetch=True)),
        ("shared memory", MmaConfig(warps_k=16, a_slots=8)),
        ("warps_n", MmaConfig(warps_n=0)),
        ("warps_k", MmaConfig(warps_k=25)),
        ("warps", MmaConfig(warps_n=4, warps_k=8)),
        ("warps_m", MmaConfig(warps_m=4)),
        ("depth", MmaConfig(depth=5)),
        ("registers", MmaConfig(tiles=4, depth=4, warps_k=16)),
        ("warps_k", MmaConfig(warps_k=1)),
        ("registers", MmaConfig(tiles=4, warps_k=24, a_slots=1)),
        ("splits", MmaConfig(splits=9)),
        ("in_turn", MmaConfig(in_turn=True, warps_n=2)),
    ],
)
def test_illegal_configurations(field: str, config: MmaConfig) -> None:
    made = problem(k=16384) if config == MmaConfig(warps_k=1) else problem()
    refusal = mma_refusal(made, config)
    assert refusal is not None
    assert refusal.field == field, refusal


@pytest.mark.parametrize("m", [1, 8, 9, 16, 17, 32])
def test_every_problem_has_a_configuration(m: int) -> None:
    for n, k in ((1, 32), (16, 96), (2112, 7168), (57344, 8192), (128, w4_mma.MAX_K)):
        for a_dtype in (BF16, FP32):
            found = candidates(problem(m, n, k, a_dtype=a_dtype))
            assert found, (m, n, k)
            assert all(mma_refusal(problem(m, n, k, a_dtype=a_dtype), config) is None for config in found)


SIZES = tuple(product((1, 16, 32), ((2880, 512), (2112, 7168), (5760, 2880), (57344, 8192), (33, 96))))


@pytest.mark.parametrize("form", ["prepared", "raw"])
@pytest.mark.parametrize("a_format", ["e2m1", "bf16"])
def test_the_first_ones_are_found_without_a_look_at_all(
    a_format: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of a size without a row waits for the first one, of a thousand or two that are legal."""
    looked: list[MmaConfig] = []

    def counted(p: Problem, c: MmaConfig, work: w4_mma_choice.Work) -> float:
        looked.append(c)
        return us(p, c, work)

    us = w4_mma_choice._us
    for m, (n, k) in SIZES:
        made = timed_problem((m, n, k), a_format, form)
        every = candidates(made)
        monkeypatch.setattr(w4_mma_choice, "_us", counted)
        looked.clear()
        assert list(islice(ranked(made), 1)) == every[:1]
        assert len(looked) <= max(len(every) // 5, 20), (m, n, k, len(looked))
        monkeypatch.setattr(w4_mma_choice, "_us", us)
        times = [estimate_us(made, c) for c in every]
        assert times == sorted(times)
        assert len(set(every)) == len(every)


def test_no_group_is_faster_than_it_promises() -> None:
    """Or one that is opened late would have had the fastest configuration."""
    for m, (n, k) in SIZES:
        for a_format in ("e2m1", "bf16"):
            made = timed_problem((m, n, k), a_format, "prepared")
            for group in (*w4_mma_choice._considered(made), *w4_mma_choice._in_clusters(made)):
                least = w4_mma_choice._least_us(made, group.like)
                legal = [c for c in group.members() if mma_refusal(made, c) is None]
                assert all(estimate_us(made, c) >= least for c in legal)
