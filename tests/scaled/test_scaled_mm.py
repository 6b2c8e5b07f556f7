"""What the vendor's route hands to ``torch._scaled_mm``, by a double that checks it as torch does and multiplies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from evidence.scaled_compile import problem_of
from mxgemm import ABBlock, ABlock, BBlock, RowCol, TensorWise
from mxgemm.scaled.gemm import parts
from mxgemm.scaled.plan import stored
from mxgemm.scaled.problem import Operands
from mxgemm.scaled.scaled_mm import ScaledMM
from mxgemm.scaled.schemes import Scheme, described
from tests.scaled.cases import column_major, make


def spread(scales: Tensor, rows: int, k: int) -> Tensor:
    """One scale for each element, of scales as one side of the call has them: 1x128 column-major, 128x128 row-major."""
    groups = -(-k // 128)
    if scales.numel() == 1 or scales.shape == (rows, 1):
        return scales.expand(rows, k) if scales.dim() == 2 else scales
    assert scales.dtype == torch.float32
    if scales.shape == (rows, groups) and scales.stride() == (1, rows):
        return scales.repeat_interleave(128, 1)[:, :k]
    assert scales.shape == (-(-rows // 128), groups)
    assert scales.stride() == (groups, 1)
    assert groups % 4 == 0
    return scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :k]


def double(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:  # fmt: skip
    m, k = a.shape
    n = b.shape[1]
    assert a.stride() == (k, 1)
    assert b.stride() == (1, k)
    assert not (use_fast_accum and scale_a.dim() == 2 and scale_a.shape[1] > 1)
    left = a.float() * spread(scale_a, m, k)
    right = b.t().float() * spread(scale_b.t() if scale_b.dim() == 2 else scale_b, n, k)
    out = left @ right.t()
    return (out if bias is None else out + bias.float()).to(out_dtype)


@pytest.mark.parametrize(
    "scheme, m, k",
    [
        (TensorWise(), 5, 96),
        (RowCol(), 5, 96),
        (ABlock(128), 8, 512),
        (ABBlock(), 8, 1024),
        (ABBlock(128, 1, 128), 8, 640),
        (BBlock(1, 128), 8, 512),
        (BBlock(1, 128), 131, 512),
        (BBlock(1, 128), 132, 640),
        (BBlock(128, 128), 8, 512),
    ],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True], ids=["as given", "scales the other way"])
def test_scales_as_the_library_reads_them(
    scheme: Scheme, m: int, k: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr(torch, "_scaled_mm", double)
    case = make((scheme, "e4m3", "e4m3"), m, 144, k)
    name, sizes = described(scheme)
    formats = {"a": "e4m3", "b": "e4m3", "arch": "sm_90"}
    problem = problem_of({"scheme": name, "sizes": sizes, "m": m, "n": 144, "k": k, **formats})
    route = ScaledMM()
    assert route.refusal(problem) is None
    tensors: list[Any] = []
    for side, operand in (("a", case.a), ("b", case.b)):
        data, scales, _ = parts(side, operand)
        if turned and scales is not None and scales.dim() == 2:
            _, scales, _ = parts(side, column_major(operand))
        tensors += [stored(data), scales]
    made = route.bind(problem)(Operands(*tensors, None, torch.empty(0)))
    assert made is not None
    case.check(made)
