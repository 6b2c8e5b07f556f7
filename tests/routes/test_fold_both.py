"""A compact weight in e4m3: what one launch makes of both operands, byte for byte, and its arithmetic."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import machine_of
from mxgemm.mx import fold, layouts
from mxgemm.problem import Options, Problem, Strides
from mxgemm.routes import decode, fold_calls
from mxgemm.triton.launch import KernelCall, Launcher
from tests.cases import DEVICES, skip_without_kernels, spread, stored_scales

pytest.importorskip("triton")

NAN = 0x7F
SHAPES = [(1, 16, 32), (5, 50, 96), (3, 72, 544), (9, 33, 1536), (2, 130, 64)]


def compact(n: int, k: int, device: str) -> tuple[mxgemm.MXTensor, Tensor]:
    """A weight of every span up to 14, NaN blocks and negative zeros among them, and its bases."""
    weight = mxgemm.quantize(spread(n, k, octaves=3))
    generator = torch.Generator().manual_seed(n * k)
    top = torch.randint(14, 240, (n, 1), generator=generator)
    scales = top - torch.randint(0, 15, weight.scales.shape, generator=generator)
    scales[torch.rand(scales.shape, generator=generator) < 0.1] = 255
    weight.scales.copy_(scales.to(torch.uint8))
    weight.data[n // 2, :16] = 0x08  # zeros of both signs, in a block that could not fold
    weight.scales[n // 2, 0] = 0
    base, folds = fold.row_bases(weight)
    assert folds.all()
    return weight.to(device), base.to(device)


def problem_of(a: Tensor, weight: mxgemm.MXTensor, layout: tuple[str, str], *, aligned: bool = True) -> Problem:
    data, scales = stored(weight, layout)
    strides = Strides(a=a.stride(), b=data.stride(), b_scales=scales.stride(), out=(len(data), 1))  # type: ignore[arg-type]
    options = Options(derived="fp8_fold_compact", weight_layout=layout[0], scale_layout=layout[1])
    m, k = a.shape
    return Problem(m, len(data), k, machine_of(a.device), options, a_dtype=a.dtype, strides=strides, aligned=aligned)


def stored(weight: mxgemm.MXTensor, layout: tuple[str, str]) -> tuple[Tensor, Tensor]:
    data = layouts.preshuffle_weight(weight.data) if layout[0] == "preshuffled" else weight.data
    return data, stored_scales(weight, layout[1])


def poisoned(m: int, n: int, k: int, device: str) -> tuple[Tensor, ...]:
    """A in e4m3, its bases, its flags, the weight in e4m3, its bases: with room that nobody is to write behind them."""
    rows = -(-n // 16) * 16
    sizes = (m * k, torch.uint8), (m, torch.float32), (m, torch.int32), (n * k, torch.uint8), (rows, torch.float32)
    return tuple(torch.full((size + 64,), 77, dtype=dtype, device=device) for size, dtype in sizes)


def launch(call: KernelCall, *tensors: Tensor) -> None:
    Launcher(call)(*tensors)


def e4m3(data: Tensor) -> Tensor:
    """Bytes, those of NaN as one of them."""
    return torch.where(data & NAN == NAN, NAN, data)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("words", [True, False], ids=["words", "bytes"])
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_a_decoded_weight_is_what_prepare_makes(m: int, n: int, k: int, words: bool, device: str) -> None:
    skip_without_kernels(device)
    weight, base = compact(n, k, device)
    want, factors = fold.fold(weight, base)
    problem = problem_of(torch.zeros(m, k, device=device), weight, ("row_major", "row_major"), aligned=words)
    call = decode.decode_call(problem, n, to_fp8=True)
    assert call.constants["WORDS"] == words
    *_, got, got_factors = poisoned(m, n, k, device)
    launch(call, weight.data, weight.scales, base, got, got_factors)
    assert torch.equal(e4m3(got[: n * k].view(n, k)), e4m3(want[:n]))
    assert torch.equal(got_factors[: len(factors)], factors)
    assert got[n * k :].eq(77).all()
    assert got_factors[len(factors) :].eq(77).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("words", [True, False], ids=["words", "bytes"])
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_a_weight_decoded_to_bf16(m: int, n: int, k: int, words: bool, device: str) -> None:
    """Of every scale: what is subnormal, what is infinite and what is NaN in bf16 among them."""
    skip_without_kernels(device)
    weight, _ = compact(n, k, "cpu")
    extremes = torch.tensor([0, 1, 2, 252, 253, 254, 255, 127])
    weight.scales.view(-1)[: len(extremes)] = extremes[: weight.scales.numel()].to(torch.uint8)
    weight.data.view(-1, 16)[: len(extremes)] = torch.arange(16, dtype=torch.uint8) * 16 + torch.arange(15, -1, -1)
    want = weight.dequantize(dtype=torch.bfloat16).to(device)
    weight = weight.to(device)
    problem = problem_of(torch.zeros(m, k, device=device), weight, ("row_major", "row_major"), aligned=words)
    call = decode.decode_call(problem, n, to_fp8=False)
    assert call.constants["WORDS"] == words
    got = torch.full((n * k + 64,), 77, dtype=torch.bfloat16, device=device)
    launch(call, weight.data, weight.scales, weight.scales, got, weight.scales)
    made = got[: n * k].view(n, k)
    assert torch.equal(made.isnan(), want.isnan())
    assert torch.equal(made.nan_to_num(7).view(torch.int16), want.nan_to_num(7).view(torch.int16))
    assert got[n * k :].eq(77).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "layout", [("row_major", "row_major"), ("row_major", "shuffled"), ("preshuffled", "row_major")]
)
@pytest.mark.parametrize("a_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m, n, k", [(2, 16, 64), (37, 80, 576)])
def test_one_launch_makes_what_two_make(
    m: int, n: int, k: int, a_dtype: torch.dtype, layout: tuple[str, str], device: str
) -> None:
    skip_without_kernels(device)
    weight, base = compact(n, k, device)
    a = spread(m, k, a_dtype, octaves=2).to(device)
    a[0, :32] *= 2.0**20  # does not fold
    a[-1, 1] = torch.nan
    problem, (data, scales) = problem_of(a, weight, layout), stored(weight, layout)
    apart, together = poisoned(m, n, k, device), poisoned(m, n, k, device)
    launch(fold_calls.quantize_fold_call(problem), a, *apart[:3])
    launch(decode.decode_call(problem, n, to_fp8=True), data, scales, base, *apart[3:])
    launch(fold_calls.fold_both_call(problem, n), a, *together[:3], data, scales, base, *together[3:])
    for one, other in zip(apart, together, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    assert apart[2][0] == 1
    assert apart[1][m - 1].isnan()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [[], [0, 3, 69], list(range(70))])
def test_one_launch_finishes_what_two_finish(wide: list[int], bias: torch.dtype | None, device: str) -> None:
    skip_without_kernels(device)
    m, n, k = 70, 100, 96
    weight, base = compact(n, k, device)
    folded, factors = fold.fold(weight, base)
    a = spread(m, k, torch.bfloat16).to(device)
    problem = problem_of(a, weight, ("row_major", "row_major"))
    strides = dataclasses.replace(problem.strides, bias=1) if bias else problem.strides
    problem = dataclasses.replace(problem, has_bias=bias is not None, bias_dtype=bias or torch.float32, strides=strides)
    flags = torch.zeros(m, dtype=torch.int32, device=device)
    flags[wide] = 1
    dtype = torch.bfloat16 if bias is None else torch.float32
    product = torch.randn(m, 112, device=device).to(dtype)
    apart, together = (torch.full((m, n), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    added = None if bias is None else torch.randn(n, device=device).to(bias)
    has_bias, some = bias is not None, apart if added is None else added
    launch(fold_calls.finish_call(problem, n, dtype, has_bias=has_bias), product, some, apart)
    launch(fold_calls.wide_rows_call(problem), flags, a, folded, factors, some, apart)
    finished = fold_calls.finish_folded_call(problem, dtype, has_bias=has_bias)
    launch(finished, flags, product, a, folded, factors, together if added is None else added, together)
    assert torch.equal(apart.view(torch.int16), together.view(torch.int16))


def executed(text: str, inputs: dict[str, int], outputs: tuple[str, ...]) -> list[int]:
    """Run the few instructions of PTX that unpacking is made of."""
    registers = dict(inputs)

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for line in re.findall(r"^\s*([a-z].*?);", text, re.MULTILINE):
        what, _, rest = line.partition(" ")
        names = [name.strip() for name in re.sub(r"[{}]", "", rest).split(",")]
        if what == "mov.b64" and rest.startswith("{"):
            registers[names[0]], registers[names[1]] = value(names[2]) & 0xFFFFFFFF, value(names[2]) >> 32
        elif what == "mov.b64":
            registers[names[0]] = value(names[1]) | value(names[2]) << 32
        else:
            registers[names[0]] = _OPERATIONS[what](*map(value, names[1:])) & 0xFFFFFFFF
    return [registers[name] for name in outputs]


def _permuted(low: int, high: int, selector: int) -> int:
    """PRMT in its default mode, by the ISA's text: a selector's top bit spreads the sign of the byte."""
    found, source = 0, low | high << 32
    for i in range(4):
        choice = selector >> 4 * i & 15
        byte = source >> 8 * (choice & 7) & 0xFF
        found |= ((0xFF if byte & 0x80 else 0) if choice & 8 else byte) << 8 * i
    return found


def _looked_up(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for bit in range(32):
        found |= (table >> ((a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1) & 1) << bit
    return found


_OPERATIONS: dict[str, Any] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "prmt.b32": _permuted,
    "lop3.b32": _looked_up,
}


def test_the_instructions_choose_the_bytes() -> None:
    """Every code at each of the sixteen places, beside codes of the other sign."""
    from mxgemm.triton.kernels.expand import EXPAND_E2M1

    table = bytes((0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x7C))
    low, high = (int.from_bytes(table[i : i + 4], "little") for i in (0, 4))
    for shift in range(16):
        codes = [(place * 5 + shift) % 16 for place in range(16)]
        word = sum(code << 4 * place for place, code in enumerate(codes))
        made = executed(EXPAND_E2M1.value, {"$2": word, "$3": low, "$4": high}, ("$0", "$1"))
        want = [table[code & 7] | (code & 8) << 4 for code in codes]
        assert b"".join(value.to_bytes(8, "little") for value in made) == bytes(want)


def test_the_instructions_choose_pairs_of_bytes() -> None:
    from mxgemm.triton.kernels.expand import EXPAND_TO_BF16

    table = [0x0000, 0x1122, 0x2233, 0x3344, 0x4455, 0x5566, 0x6677, 0x7F80]
    words = {f"${3 + i}": table[2 * i] | table[2 * i + 1] << 16 for i in range(4)}
    for shift in range(16):
        codes = [(place * 3 + shift) % 16 for place in range(8)]
        word = sum(code << 4 * place for place, code in enumerate(codes))
        made = executed(EXPAND_TO_BF16.value, {"$2": word, **words}, ("$0", "$1"))
        want = [table[code & 7] | (code & 8) << 12 for code in codes]
        assert [value >> 16 * i & 0xFFFF for value in made for i in range(4)] == want
