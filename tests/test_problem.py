"""Problem: a call's options within the description of its GEMM."""

from dataclasses import replace

import pytest
import torch

from mxgemm.device import KNOWN_MACHINES
from mxgemm.problem import Options, Problem

GFX950 = KNOWN_MACHINES["gfx950"]


def test_a_problem_reads_as_its_options() -> None:
    options = Options("e4m3", "e5m2", "floor", "preshuffled", "shuffled", "shuffled", torch.float32, derived="bf16")
    problem = Problem(16, 32, 64, GFX950, options)
    for name in set(Options._fields) & set(dir(Problem)):
        assert getattr(problem, name) == getattr(options, name) != Options._field_defaults[name], name
    assert set(Options._fields) - set(dir(Problem)) == {"route", "a_shape", "b_shape"}, "which no route reads"


def test_problems_of_mixed_fields() -> None:
    problem = Problem.of(16, 32, 64, GFX950, a_quantized=True, a_format="e4m3", has_bias=True)
    assert problem == Problem(16, 32, 64, GFX950, Options("e4m3"), a_quantized=True, has_bias=True)
    assert Problem.of(16, 32, 64, GFX950) == Problem(16, 32, 64, GFX950)
    assert {problem: 1}[replace(problem, m=16)] == 1
    assert replace(problem, options=problem.options._replace(a_format="bf16")).a_format == "bf16"
    with pytest.raises(TypeError, match="a_fromat"):
        Problem.of(16, 32, 64, GFX950, a_fromat="e4m3")
