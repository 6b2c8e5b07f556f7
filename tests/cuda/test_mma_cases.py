"""The judge of bench/mma_cases.py: what it sees, and what it may not judge."""

from __future__ import annotations

import torch

from bench.mma_cases import Case, judged, make
from mxgemm.cuda.w4_mma import MmaConfig

CPU = torch.device("cpu")
ONE = MmaConfig(1, 1, 2, 1, True)
FP16, FP32 = torch.float16, torch.float32


def test_the_judge_sees_small_errors_of_many_and_those_of_few() -> None:
    made = make(Case(4, 64, 1152, ONE, out_dtype=FP32), 0, CPU)
    made.operands.out.copy_(made.ref)
    assert judged(Case(4, 64, 1152, ONE, out_dtype=FP32), made) == []
    made.operands.out.mul_(1.003)
    assert any(text.startswith("norm") for text in judged(Case(4, 64, 1152, ONE, out_dtype=FP32), made))
    made.operands.out.copy_(made.ref)
    made.operands.out[1, 2] += 2.0**-24 * 1e3 * float((made.a64.abs() @ made.b64.abs().T)[1, 2])
    assert any(text.startswith("element") for text in judged(Case(4, 64, 1152, ONE, out_dtype=FP32), made))


def test_the_norm_is_not_judged_where_terms_cancel() -> None:
    """Left of fp16's range are sums of terms of 2^80 whose roundoffs are larger than they are."""
    case = Case(2, 8, 32, ONE, out_dtype=FP16)
    made = make(case, 0, CPU)
    a64, b64 = torch.zeros(2, 32, dtype=torch.float64), torch.zeros(8, 32, dtype=torch.float64)
    a64[:, :3] = torch.tensor([2.0**80, -(2.0**80), 1.0])
    b64[:, :3] = 1.0
    made = made._replace(a64=a64, b64=b64, ref=a64 @ b64.T)
    made.operands.out.fill_(0.0)
    assert judged(case, made) == []
