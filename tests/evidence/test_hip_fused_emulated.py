"""The fused HIP kernel, compiled for gfx950, executed in the emulator with the bytes that its route launches with.

Every launch here has buffers that end where the tensors do, NaN in all scale padding and a poisoned output; strict mode
also raises where the code relies on a wait, a barrier or an s_nop that is not there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mxgemm
from evidence.gfx950_cases import Case, activations
from evidence.hip_cases import ROUTE, FusedRun, problem_of_case
from gfx950emu.mutation import mutate
from gfx950emu.pending import FINITE_POISON, POISON
from mxgemm.hip.fused import BLOCKS_M, BLOCKS_N, FusedConfig
from mxgemm.hip.fused_choice import candidates
from mxgemm.measure import LEADERBOARD
from mxgemm.mx.formats import SCALE_ROUNDINGS
from tests.emulator import require_hip_compiler, require_objdump


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_objdump()
    require_hip_compiler()


def case(m: int, n: int, k: int, **options: object) -> Case:
    return Case("fused", ROUTE, m, n, k, **options)  # type: ignore[arg-type]


def check(run: FusedRun, **options: bool) -> Tensor:
    out, _ = run.launch(**options)
    passed, detail = run.judge(out)
    assert passed, (run.config, detail)
    return out


@pytest.mark.parametrize("shape", LEADERBOARD, ids=str)
def test_leaderboard_shapes(shape: tuple[int, int, int]) -> None:
    run = FusedRun(case(*shape))
    plain, (strict, _) = check(run), run.launch(strict=True)
    assert torch.equal(plain.view(torch.int16), strict.view(torch.int16))


@pytest.mark.parametrize("block_m", BLOCKS_M)
def test_any_m(block_m: int) -> None:
    """Rows past the end are neither read nor written; NaN, Inf and zero blocks among those that are."""
    for m in (1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 256):
        check(FusedRun(case(m, 48, 512, awkward=m > 2), FusedConfig(block_m, 16, 128, 4, 1)), strict=True)


@pytest.mark.parametrize("block_n", BLOCKS_N)
def test_any_multiple_of_16_columns(block_n: int) -> None:
    """Also where the last block, the last pair of tiles that share scales, or the last XCDs have less to do."""
    for n in (16, 48, 272):
        check(FusedRun(case(5, n, 384), FusedConfig(16, block_n, 128, 3, 1)), strict=True)


@pytest.mark.parametrize(
    ("k", "config"),
    [
        (128, FusedConfig(16, 16, 128, 1, 1)),  # half a dword of scales, and one wave
        (256, FusedConfig(16, 16, 256, 1, 1)),
        (384, FusedConfig(32, 32, 128, 2, 1)),  # one wave has a step more
        (1024, FusedConfig(16, 16, 256, 1, 1)),  # four rounds of one wave
        (1280, FusedConfig(16, 16, 256, 1, 1)),  # five
        (1536, FusedConfig(16, 32, 256, 2, 1)),
        (2048, FusedConfig(16, 32, 128, 3, 2)),  # rounds, then steps that are left over
        (2176, FusedConfig(16, 16, 128, 16, 1)),
        (7168, FusedConfig(16, 16, 256, 7, 4)),
        (7168, FusedConfig(64, 16, 128, 5, 1)),
        (512, FusedConfig(16, 96, 128, 1, 1, 4)),  # a step of one wave for each part of K
        (1152, FusedConfig(32, 48, 128, 2, 1, 3)),  # parts that start in the middle of a dword of scales
        (2560, FusedConfig(16, 192, 256, 5, 1, 2)),  # fewer tiles than the last round of waves could take
        (7168, FusedConfig(16, 32, 128, 4, 1, 14)),
    ],
    ids=str,
)
def test_any_k_and_division_of_it(k: int, config: FusedConfig) -> None:
    check(FusedRun(case(19, 48, k), config), strict=True)


@pytest.mark.parametrize("n", [2112, 2880])
def test_wide_weights(n: int) -> None:
    check(FusedRun(case(3, n, 256)), strict=True)


@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
def test_scale_roundings(rounding: str) -> None:
    check(FusedRun(case(17, 32, 512, rounding=rounding, awkward=True)), strict=True)


@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
def test_output_and_bias_dtypes(out: str, bias: torch.dtype | None) -> None:
    """With poisoned bytes around every buffer: they stay, and nothing that is read there reaches a result."""
    wanted = case(17, 48, 256, bias=bias is not None, out_dtype=out)
    a = activations(wanted) / 1024  # fp16 holds the result
    run = FusedRun(wanted, FusedConfig(16, 32, 128, 2, 1), a=a, bias_dtype=bias or torch.float32)
    check(run, guarded=True)


def test_rows_further_apart_than_k() -> None:
    check(FusedRun(case(17, 48, 256), row_stride=264), strict=True)
    check(FusedRun(case(1, 48, 256), row_stride=777), strict=True)  # of one row, the stride means nothing


def test_one_hot_activations_give_the_weight() -> None:
    n, k = 80, 512
    a = torch.zeros(64, k, dtype=torch.bfloat16)
    columns = (torch.arange(64) * 37) % k
    a[torch.arange(64), columns] = 1
    run = FusedRun(case(64, n, k, out_dtype="float32"), a=a)
    out, _ = run.launch(strict=True)
    assert torch.equal(out, run.weight.dequantize()[:, columns].T)


@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
def test_quantisation_is_the_library_s_to_the_bit(rounding: str) -> None:
    """Times a one-hot weight: every block scale, every mantissa, both ways of finding the largest magnitude."""
    wanted = case(256, 128, 128, rounding=rounding, out_dtype="float32")
    for least, most, power in ((8, 250, 0), (0, 8, 100)):  # the smallest times 2^100: fp32 would not hold them
        a = _all_magnitudes(wanted.m, wanted.k, least, most)
        weight = mxgemm.quantize(torch.eye(128) * 2.0**power)
        run = FusedRun(wanted, a=a, weight=weight)
        out, _ = run.launch()
        quantized = mxgemm.quantize(a, scale_rounding=rounding)  # type: ignore[arg-type]
        assert torch.equal(out.double(), quantized.dequantize().double() * 2.0**power), (rounding, least)


def _all_magnitudes(rows: int, k: int, least: int, most: int) -> Tensor:
    """bf16 whose blocks have their largest exponent from ``least`` to ``most`` - 1, and the rest up to 7 below it."""
    generator = torch.Generator().manual_seed(3)
    top = (torch.arange(rows * k // 32) % (most - least) + least)[:, None]
    exponent = (top - torch.randint(0, 8, (rows * k // 32, 32), generator=generator)).clamp(min=0)
    mantissa, sign = (torch.randint(0, n, exponent.shape, generator=generator) for n in (128, 2))
    bits = sign << 15 | exponent << 7 | mantissa
    return bits.to(torch.int32).to(torch.uint16).view(torch.bfloat16).view(rows, k)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 2.0**121, -(2.0**127), 1.5 * 2.0**121])
def test_a_value_that_fp16_takes_for_nan_or_infinity(value: float) -> None:
    """Wherever it lies in its block."""
    a = torch.zeros(32, 128, dtype=torch.bfloat16)
    a[torch.arange(32), torch.arange(32)] = value
    a[:, 32:] = 1
    run = FusedRun(case(32, 16, 128, out_dtype="float32"), a=a, weight=mxgemm.quantize(torch.full((16, 128), 2.0**-20)))
    out, _ = run.launch()
    quantized = value if abs(value) < torch.inf else torch.nan
    expected = torch.full((32, 16), (quantized + 96) * 2.0**-20, dtype=torch.float64)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=0, equal_nan=True)


def test_nan_in_a_weight_scale() -> None:
    weight = mxgemm.quantize(torch.ones(48, 256))
    weight.scales[17, 5] = 255
    out, _ = FusedRun(case(4, 48, 256), weight=weight).launch()
    assert out.isnan().any(0).nonzero().flatten().tolist() == [17]
    assert out[:, 17].isnan().all()


def test_runs_agree_to_the_bit() -> None:
    run = FusedRun(case(33, 80, 1792))
    first, second = (run.launch()[0] for _ in range(2))
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


@pytest.mark.parametrize(
    ("m", "n", "config"),
    [(16, 96, FusedConfig(16, 16, 256, 2, 1)), (32, 64, FusedConfig(32, 48, 128, 2, 1, 4))],
    ids=str,
)
def test_a_missing_wait_or_barrier_is_noticed(m: int, n: int, config: FusedConfig) -> None:
    """In the last of two blocks of columns a wave has its first tile of sums past the end, and others before it."""
    run = FusedRun(case(m, n, 1024, out_dtype="float32"), config)
    _, stats = run.launch()

    def is_right(code: bytes) -> bool:
        """NaN where a load is in flight sends a wave to the exact way, past a wait that it needs: so finite, too."""
        run.code = code
        try:
            return all(run.judge(run.launch(strict=True, poison=p)[0])[0] for p in (POISON, FINITE_POISON))
        except AssertionError:  # counters that are not zero in the end
            return False

    found = mutate(run.code, [stats], is_right)
    print(found)
    assert found.share >= 0.8, found
    if config.split_k > 1:
        assert found.caught["OrderError"] == 1, found  # the wait for the sums' stores, ahead of the counter


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", LEADERBOARD, ids=str)
def test_what_tuning_would_try(shape: tuple[int, int, int]) -> None:
    """The guess and every forty-fifth candidate after it, on the leaderboard's weight with fewer columns."""
    wanted = case(shape[0], 256, shape[2])
    problem = replace(problem_of_case(wanted), n=shape[1])
    for config in candidates(problem)[::45]:
        check(FusedRun(wanted, config), strict=True)
