"""Operands for bench/w4_fp8.py: cases drawn over what the kernel tells apart, and data of weights that fold."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mxgemm
from bench import mma_cases
from bench.mma_cases import DTYPES, Case, Made, described
from mxgemm.cuda.w4_fp8 import Fp8Config, fp8_refusal
from mxgemm.cuda.warpgroups import COLUMNS
from mxgemm.mx import layouts
from mxgemm.mx.fold import row_bases
from mxgemm.mx.tensor import MXTensor
from mxgemm.routes.fold_forms import FP8_FOLD

DATA = ("even", "one sign", "rows anywhere", "outliers", "wide", "tiny", "huge", "nan", "zero")
"""Kinds of data: the next to last three are of A where fp32 might not hold sums without the weight's base."""
BITS = 13
"""Of fraction, of the units' sums."""


def drawn(count: int, seed: int, most: float = 1e7) -> list[Case]:
    """Draw cases that the kernel takes, plain ones first."""
    draw = random.Random(seed)
    plain = (33, Fp8Config(64, 2, 1, 4)), (64, Fp8Config(64, 4, 1, 4, ahead=False)), (200, Fp8Config(128))
    cases = [
        Case(m, 528, 1152, config, derived=derived)  # type: ignore[arg-type]
        for (m, config), derived in itertools.product(plain, ("fp8_fold", "fp8_fold_compact"))
    ]
    while len(cases) < count:
        derived = draw.choice(("fp8_fold", "fp8_fold_compact"))
        layout = (draw.choice(layouts.WEIGHT_LAYOUTS), draw.choice(layouts.SCALE_LAYOUTS))
        shuffled = layout[0] == "preshuffled"
        config = Fp8Config(
            columns=draw.choice(COLUMNS),
            groups_n=draw.choice((1, 2, 2, 3, 4)),
            groups_k=draw.choice((1, 1, 2, 3, 4)),
            stages=draw.choice((2, 3, 4, 5, 8)),
            depth=draw.choice((1, 2, 3, 4)),
            splits=draw.choice((1, 1, 1, 2, 3, 5, 8)),
            resident=draw.choice((1, 1, 2)),
            ahead=draw.choice((False, True)),
        )
        case = Case(
            draw.choice((1, 8, 33, 48, 64, 65, 100, 128, 129, 200, 256, 257, 300, 513)),
            n=draw.choice((16, 32, 80, 272, 2112, 2880) if shuffled else (1, 7, 16, 33, 80, 257, 2112, 2880)),
            k=draw.choice((64, 128, 512, 2880, 7168) if shuffled else (32, 64, 96, 128, 160, 512, 2880, 7168)),
            config=config,  # type: ignore[arg-type]
            scale_rounding=draw.choice(("even", "even", "floor", "ceil", "rceil")),
            a_dtype=draw.choice((torch.bfloat16, *DTYPES)),
            a_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            layout=layout,
            w_layout="contiguous" if shuffled else draw.choice(("contiguous", "contiguous", "padded")),
            out_dtype=draw.choice(DTYPES),
            out_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            bias=draw.choice((None, None, *DTYPES)),
            derived=derived,
        )
        if case.n * case.k < most and fp8_refusal(described(case), config) is None:
            cases.append(case)
    return cases


def make(case: Case, seed: int, device: torch.device) -> Made:
    """Draw operands of a case and compute the exact result on the device."""
    return mma_cases.make(case, seed, device, drawn_operands, made_of)


judged = partial(mma_cases.judged, bits=BITS)


def made_of(weight: MXTensor, derived: str, device: torch.device) -> tuple[Tensor, ...]:
    """Return the parts of a prepared form of which the kernel reads the bases; the others are left out."""
    base, folds = row_bases(weight)
    assert bool(folds.all())
    if derived != FP8_FOLD.kind:
        return (base.to(device),)
    return torch.empty(0, dtype=torch.uint8, device=device), (base.int() << 23).view(torch.float32).to(device)


def drawn_operands(case: Case, random_: torch.Generator) -> tuple[Tensor, MXTensor]:
    """Draw A and a row-major weight that folds, of the kind ``case.data``."""
    m, n, k = case.m, case.n, case.k
    blocks = k // 32

    def spread(rows: int, octaves: int) -> Tensor:
        powers = torch.randint(-octaves, octaves + 1, (rows, blocks), generator=random_).float()
        return torch.randn(rows, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)

    half = case.a_dtype == torch.float16
    a, weight = spread(m, 4), mxgemm.quantize(spread(n, 4))
    scales = weight.scales
    if case.data == "one sign":
        a, weight = torch.rand(m, k, generator=random_), mxgemm.quantize(torch.rand(n, k, generator=random_))
        return a.to(case.a_dtype), weight
    if case.data == "rows anywhere":  # and every span that folds
        rows = torch.randint(0, 240, (n, 1), generator=random_)
        scales = (rows + torch.randint(0, 15, (n, blocks), generator=random_)).clamp(max=230 if half else 254)
        a *= 2.0 ** (-8 if half else -20)
    elif case.data == "outliers":
        a[:, 5 :: max(64, k // 7)] *= 2.0 ** (8 if half else 17)
        a[m // 2] *= 2.0 ** (-8 if half else -14)
    elif case.data == "wide":
        powers = torch.randint(*((-6, 7) if half else (-50, 51)), (m, blocks), generator=random_).float()
        a[: (m + 1) // 2] *= torch.exp2(powers).repeat_interleave(32, dim=1)[: (m + 1) // 2]
    elif case.data == "tiny":
        scales = scales.int() + 100
        a[::2] *= 2.0 ** (-8 if half else -100)
    elif case.data == "huge":
        scales = (scales.int() - 100).clamp(min=0)
        a[:, 32:] *= 2.0 ** (6 if half else 90)
    elif case.data == "nan":
        scales.view(-1)[torch.randint(scales.numel(), (2,), generator=random_)] = 255
        bad = torch.randint(m * k, (2,), generator=random_)
        a.view(-1)[bad] = torch.tensor([float("nan"), float("inf")])
    elif case.data == "zero":
        a[: (m + 1) // 2] = 0
        a[:, : k // 2 // 32 * 32] = 0
        weight.data[: (n + 1) // 2] = 0
        weight.data[:, : k // 4 // 16 * 16] = 0
        scales = torch.where((weight.data.view(n, blocks, 16) & 0x77).amax(-1) == 0, _anything(scales, random_), scales)
    return a.to(case.a_dtype), replace(weight, scales=scales.to(torch.uint8))


def _anything(like: Tensor, random_: torch.Generator) -> Any:
    return torch.randint(0, 255, like.shape, generator=random_).to(torch.uint8)
