"""Operands for bench/w4_mma.py: cases drawn over everything that the kernel tells apart, their data, and the judge."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

import mxgemm
from mxgemm.cuda import w4_mma
from mxgemm.cuda.operands import ARCH
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.device import KNOWN_MACHINES, machine_of
from mxgemm.mx import fragments, layouts, oracle
from mxgemm.mx.accuracy import LEAST_ERROR, NORM_GATE, OUT_BITS, element_gate
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem, Strides
from mxgemm.routes import Operands
from mxgemm.routes.fold_forms import folded_bytes

MACHINE = KNOWN_MACHINES[ARCH]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DATA = ("even", "spread", "tiny", "huge", "nan", "zero")
LEAST_JUDGED = 64
"""Results of one size whose norm is a measure: of fewer, rounding alone may be far from its mean."""
ROOM_OF_FEW = 1.25
"""Times what the norm may be of more."""


@dataclass(frozen=True)
class Case:
    """One instance and layout, without data."""

    m: int
    n: int
    k: int
    config: MmaConfig
    a_format: str = "e2m1"
    scale_rounding: str = "even"
    a_dtype: torch.dtype = torch.bfloat16
    a_layout: str = "contiguous"
    layout: tuple[str, str] = ("row_major", "row_major")
    w_layout: str = "contiguous"
    out_dtype: torch.dtype = torch.bfloat16
    out_layout: str = "contiguous"
    bias: torch.dtype | None = None
    derived: str = ""
    data: str = "even"

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={value}" for name, value in values.items())


class Made(NamedTuple):
    """A case's operands and its exact result."""

    problem: Problem
    operands: Operands
    memory: Tensor
    a64: Tensor
    b64: Tensor
    ref: Tensor


def drawn(count: int, seed: int) -> list[Case]:
    """Draw cases that the kernel takes, the plain ones of every format first."""
    draw = random.Random(seed)
    cases: list[Case] = []
    for a_format, m in itertools.product(("e2m1", "e4m3", "bf16"), (1, 5, 16, 32)):
        cases.append(Case(m, 528, 1152, MmaConfig(1, 1, 4, 1, False), a_format))
        for codes in {False, a_format == "e2m1"}:
            config = MmaConfig(2, 1, 4, 1, True, a_before=True, a_codes=codes)
            cases.append(Case(m, 528, 1152, config, a_format, derived="fp8_fold"))
    for rounding, a_format in itertools.product(("floor", "ceil", "rceil"), ("e2m1", "e4m3")):
        cases.append(Case(8, 80, 512, MmaConfig(1, 1, 4, 1, False), a_format, rounding))
    cases += [
        Case(m, 2112, 7168, MmaConfig(1, 1, 8, 2, False), a_format) for m, a_format in ((16, "e2m1"), (1, "bf16"))
    ]
    while len(cases) < count:
        m = draw.choice((1, 2, 3, 4, 7, 8, 9, 13, 16, 17, 24, 25, 31, 32))
        layout = (draw.choice(layouts.WEIGHT_LAYOUTS), draw.choice(layouts.SCALE_LAYOUTS))
        shuffled = layout[0] == "preshuffled"
        case = Case(
            m,
            n=draw.choice((16, 32, 80, 272, 2112, 2880) if shuffled else (1, 7, 16, 33, 80, 257, 2112, 2880)),
            k=draw.choice((64, 128, 512, 2880, 7168) if shuffled else (32, 64, 96, 128, 160, 512, 2880, 7168)),
            config=MmaConfig(
                draw.choice((1, 1, 2, 3, 4, 5, 6)),
                draw.choice((1, 1, 2, 4)),
                draw.choice((1, 2, 3, 4, 7, 8, 16)),
                draw.choice((1, 2, 2, 3, 4)),
                draw.choice((False, True)),
                draw.choice((False, False, True)),
                draw.choice((1, 1, 2, 4)),
                draw.choice((False, True)),
                resident=draw.choice((0, 0, 1, 2, 3)),
                splits=draw.choice((1, 1, 2, 3, 4)),
            ),
            a_format=draw.choice(("e2m1", "e2m1", "e4m3", "bf16")),
            scale_rounding=draw.choice(("even", "even", "floor", "ceil", "rceil")),
            a_dtype=draw.choice((torch.bfloat16, *DTYPES)),
            a_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed", "unaligned")),
            layout=layout,
            w_layout="contiguous" if shuffled else draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            out_dtype=draw.choice(DTYPES),
            out_layout=draw.choice(("contiguous", "contiguous", "padded", "transposed")),
            bias=draw.choice((None, None, *DTYPES)),
            derived=draw.choice(("", "fp8_fold", "bf16")),
        )
        if draw.random() < 0.3:
            case = replace(case, config=replace(case.config, a_slots=draw.randint(1, 4), a_ahead=True, a_before=False))
            if draw.random() < 0.4:  # many warps, whose chunks may all be in flight at once
                many = draw.choice((5, 9, 20, 23, 24))
                config = replace(case.config, warps_k=many, warps_m=1, warps_n=1, depth=draw.choice((1, 2)))
                case = replace(case, config=replace(config, in_turn=draw.choice((False, True))))
            elif draw.random() < 0.2:
                case = replace(case, config=replace(case.config, warps_n=draw.choice((3, 6))))
        if case.derived:
            case = replace(case, config=replace(case.config, prefetch=draw.choice((False, True))))
        if case.config.a_before and case.a_format == "e2m1" and draw.random() < 0.6:
            case = replace(case, config=replace(case.config, a_codes=True))
        if case.n * case.k < 1e7 and w4_mma.mma_refusal(described(case), case.config) is None:
            cases.append(case)
    return cases


def described(case: Case) -> Problem:
    """Return the problem of a case on a Hopper GPU, strides by its layouts: those of the real operands."""
    shape = {"a": (case.m, case.k), "w": (case.n, case.k // 2), "out": (case.m, case.n)}
    scale_columns = case.k // 32
    if case.layout[1] == "shuffled":
        scale_columns = layouts.padded_scale_shape(case.n, case.k)[1]
    strides = Strides(
        a=strided(shape["a"], case.a_layout),
        b=strided(shape["w"], case.w_layout),
        b_scales=strided((case.n, scale_columns), case.w_layout if case.layout[1] == "row_major" else "contiguous"),
        out=strided(shape["out"], case.out_layout),
        bias=1 if case.bias is None else 2,
    )
    return Problem.of(
        case.m, case.n, case.k, MACHINE, a_format=case.a_format, a_dtype=case.a_dtype, out_dtype=case.out_dtype,
        scale_rounding=case.scale_rounding, weight_layout=case.layout[0], scale_layout=case.layout[1],
        has_bias=case.bias is not None, bias_dtype=case.bias or torch.float32, strides=strides,
        aligned=case.a_layout != "unaligned", derived=case.derived,
    )  # fmt: skip


def strided(shape: tuple[int, int], layout: str) -> tuple[int, int]:
    """Return the strides of a layout's name."""
    rows, columns = shape
    return {"padded": (columns + 16, 1), "transposed": (1, rows)}.get(layout, (columns, 1))


def placed(values: Tensor, layout: str, poison: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copy a matrix between guards with the strides of ``layout``; return the whole memory and the view in it."""
    row, column = strided((values.shape[0], values.shape[1]), layout)
    reach = (values.shape[0] - 1) * row + (values.shape[1] - 1) * column + 1
    start = 513 if layout == "unaligned" else 512
    memory = torch.full((reach + 1024,), poison, dtype=values.dtype, device=device)
    view = memory.as_strided(values.shape, (row, column), start)
    view.copy_(values)
    return memory, view


def make(
    case: Case,
    seed: int,
    device: torch.device,
    draw: Callable[[Case, torch.Generator], tuple[Tensor, MXTensor]] | None = None,
    form: Callable[[MXTensor, str, torch.device], tuple[Tensor, ...]] | None = None,
) -> Made:
    """Draw operands of a case and compute the exact result on the device.

    Args:
        case: what to make.
        seed: of the data.
        device: where the operands are.
        draw: A and a row-major weight; None for :func:`drawn_operands`.
        form: the parts of the prepared form; None for :func:`made_of`.
    """
    random_ = torch.Generator().manual_seed(seed)
    a, weight = (draw or drawn_operands)(case, random_)
    problem = replace(described(case), machine=machine_of(device) if device.type == "cuda" else MACHINE)
    data, scales = weight.data, weight.scales
    if case.layout[0] == "preshuffled":
        data = layouts.preshuffle_weight(data)
    if case.layout[1] == "shuffled":
        real = layouts.shuffle_scales(torch.ones_like(scales)) == 1
        scales = torch.where(real, layouts.shuffle_scales(scales), 255)
    placed_a = placed(a, case.a_layout, float("nan"), device)[1]
    placed_b = placed(data, case.w_layout, 255, device)[1]
    placed_scales = placed(scales, case.w_layout if case.layout[1] == "row_major" else "contiguous", 255, device)[1]
    bias = None
    if case.bias is not None:
        bias = torch.randn(case.n, 2, generator=random_).to(case.bias).to(device)[:, 0]
    blank = torch.full((case.m, case.n), float("nan"), dtype=case.out_dtype)
    memory, out = placed(blank, case.out_layout, float("nan"), device)
    derived = (form or made_of)(weight, case.derived, device)
    if case.a_format == "bf16":
        a64 = a.to(torch.bfloat16).double()
    else:
        coded = oracle.encode(a.float().numpy(), case.a_format, case.scale_rounding)
        a64 = torch.from_numpy(oracle.decode(*coded, case.a_format))
    b64 = decoded(weight, device)
    a64 = a64.to(device)
    ref = a64 @ b64.T if not bool(a64.isinf().any()) else (a64[:, None] * b64[None]).sum(-1)
    if bias is not None:
        ref += bias.double()
    operands = Operands(placed_a, None, placed_b, placed_scales, bias, out, derived)
    return Made(problem, operands, memory, a64, b64, ref)


def made_of(weight: MXTensor, derived: str, device: torch.device) -> tuple[Tensor, ...]:
    """Return the parts of a prepared form of which the kernel reads the fragment order, the others left out."""
    if not derived:
        return ()
    order = fragments.fragment_order(weight.data.to(device), weight.scales.to(device))
    if derived == "bf16":
        return torch.empty(0, dtype=torch.bfloat16, device=device), order
    elements = torch.full((folded_bytes(*weight.shape),), 255, dtype=torch.uint8, device=device)
    return torch.cat((elements, order)), torch.empty(0, device=device)


def drawn_operands(case: Case, random_: torch.Generator) -> tuple[Tensor, MXTensor]:
    """Draw A and a row-major weight whose scales are of the kind ``case.data``."""
    m, n, k = case.m, case.n, case.k

    def spread(rows: int, octaves: int) -> Tensor:
        powers = torch.randint(-octaves, octaves + 1, (rows, k // 32), generator=random_).float()
        return torch.randn(rows, k, generator=random_) * torch.exp2(powers).repeat_interleave(32, dim=1)

    a, weight = spread(m, 4), mxgemm.quantize(spread(n, 4))
    scales = weight.scales
    if case.data == "spread":  # some chunks are for the second loop
        a *= 2.0 ** (-16 if case.a_dtype != torch.float16 else 0)
        some = torch.rand(scales.shape, generator=random_) < 0.02
        scales = torch.where(some, torch.randint(60, 160, scales.shape, generator=random_).to(torch.uint8), scales)
    elif case.data == "tiny":
        scales = torch.randint(0, 100, scales.shape, generator=random_).to(torch.uint8)
        a *= 2.0 ** (40 if case.a_dtype != torch.float16 else 2)
    elif case.data == "huge":
        scales = torch.randint(140, 255, scales.shape, generator=random_).to(torch.uint8)
        a *= 2.0 ** (-40 if case.a_dtype != torch.float16 else -4)
        if case.a_dtype == torch.float16:
            scales.clamp_(max=230)
    elif case.data == "nan":
        scales.view(-1)[torch.randint(scales.numel(), (2,), generator=random_)] = 255
        bad = torch.randint(m * k, (2,), generator=random_)
        a.view(-1)[bad] = torch.tensor([float("nan"), float("inf")])
    elif case.data == "zero":
        a[: (m + 1) // 2] = 0
        a[:, : k // 2 // 32 * 32] = 0
        weight.data[: (n + 1) // 2] = 0
        scales[: (n + 1) // 2] = 0
    return a.to(case.a_dtype), replace(weight, scales=scales)


def decoded(weight: MXTensor, device: torch.device) -> Tensor:
    """Return a weight's exact values in float64."""
    values = torch.from_numpy(oracle.code_values("e2m1")).to(device)
    data = weight.data.to(device)
    codes = torch.stack((data & 15, data >> 4), -1).view(data.shape[0], -1).int()
    powers = torch.from_numpy(oracle.scale_values(weight.scales.numpy())).to(device)
    return values[codes] * powers.repeat_interleave(32, 1)


def judged(case: Case, made: Made, bits: int = 24) -> list[str]:
    """Return what is wrong with a result whose sums have so many bits of fraction."""
    out, ref = made.operands.out.double(), made.ref
    found = []
    outside = made.memory.clone()
    row, column = made.operands.out.stride()
    outside.as_strided(made.operands.out.shape, (row, column), made.operands.out.storage_offset()).fill_(float("nan"))
    if not bool(outside.isnan().all()):
        found.append("memory outside the result was written")
    beyond = _passes_infinity(made)
    wrong = (out.isnan() != ref.isnan()) & ~beyond
    if bool(wrong.any()):
        found.append(
            f"NaN or none at {wrong.nonzero()[:4].tolist()}, {int(wrong.sum())} in all, against the exact result"
        )
    judge = ref.isfinite() & (ref.abs() <= torch.finfo(case.out_dtype).max) & ~out.isnan() & ~beyond
    gate = element_gate(case.k, bits)
    judge &= ~(out.isinf() & _may_overflow(case, made, gate * 2.0**-bits))
    if not bool(judge.any()):
        return found
    error = torch.where(judge, (out - ref).abs(), 0.0)
    size = torch.where(judge, ref, 0.0)
    rounded = torch.where(judge, ref.to(case.out_dtype).double() - ref, 0.0)
    room = 2.0**-bits * _sizes(made)
    # Where terms cancel until roundoffs within the element gate are more than the norm gate, that one cannot judge.
    typical = float(size.norm()) / math.sqrt(int(judge.sum()))
    counted = judge & (element_gate(case.k) * 2.0**-24 * _sizes(made) <= NORM_GATE * typical)
    of_all = float(torch.where(counted, size, 0.0).norm())
    norm = float(torch.where(counted, error, 0.0).norm()) / (of_all or 1.0)
    # Where few results are as large as all others together, the norm is theirs alone, and roundoffs may add up to more.
    fourths = torch.where(counted, size / (of_all or 1.0), 0.0).pow(4).sum()
    room_of_few = 1.0 if float(fourths) * LEAST_JUDGED <= 1.0 else ROOM_OF_FEW
    norm_limit = max(NORM_GATE, 1.01 * float(torch.where(counted, rounded, 0.0).norm()) / (of_all or 1.0))
    least = max(LEAST_ERROR[case.out_dtype], 2.0**-134 if case.out_dtype == torch.bfloat16 else 2.0**-140)
    excess = error - torch.maximum(
        2.0 ** -OUT_BITS[case.out_dtype] * size.abs(), torch.tensor(least, device=out.device)
    )
    needed = torch.where(excess <= 0, 0.0, excess / room)
    worst = float(torch.where(judge, needed, 0.0).max())
    if not norm <= norm_limit * room_of_few:
        found.append(f"norm {norm:.3e}, at most {norm_limit * room_of_few:.3e}")
    if not worst <= gate:
        at = torch.where(judge, needed, 0.0).argmax()
        place = divmod(int(at), case.n)
        found.append(
            f"element {worst:.1f} roundoffs, at most {gate:.1f}: at {place} "
            f"{float(out[place])!r}, exact {float(ref[place])!r}; {int((needed > gate).sum())} such"
        )
    return found


def _sizes(made: Made) -> Tensor:
    return made.a64.nan_to_num(0, 0, 0).abs() @ made.b64.nan_to_num(0, 0, 0).abs().T


def _passes_infinity(made: Made) -> Tensor:
    """Say where sums of fp32 may pass through infinity."""
    return (_sizes(made) > 2.0**120) & ~made.ref.isnan()


def _may_overflow(case: Case, made: Made, share: float) -> Tensor:
    """Say where a result within a share of its terms' sizes may lie beyond the output's largest value."""
    within = share * _sizes(made)
    return made.ref.abs() + within > torch.finfo(case.out_dtype).max
