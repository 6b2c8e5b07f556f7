"""The HIP kernel for many rows, compiled for gfx950, executed strictly in the emulator as its route launches it.

Buffers end where the tensors do, all scale padding holds NaN, the output is poisoned.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mxgemm
from evidence import hip_compile
from evidence.gfx950_cases import Case
from evidence.mx_cases import ROUTE, MXRun
from gfx950emu.mutation import Mutants, mutate
from gfx950emu.profile import Profile
from mxgemm.hip import mx
from mxgemm.hip.mx import BLOCKS, MXConfig
from tests.emulator import require_hip_compiler, require_objdump

ALL_BLOCKS = [MXConfig(block_m, block_n) for block_m in BLOCKS for block_n in BLOCKS]
SMALL = MXConfig(128, 128, 4)


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_objdump()
    require_hip_compiler()


def case(m: int, n: int, k: int, **options: object) -> Case:
    return Case("mx", ROUTE, m, n, k, **options)  # type: ignore[arg-type]


def check(run: MXRun) -> Tensor:
    out, _ = run.launch(strict=True)
    passed, detail = run.judge(out)
    assert passed, (run.case, run.config, detail)
    return out


def mutants(run: MXRun) -> Mutants:
    """Take waits and barriers out, one at a time."""
    _, stats = run.launch()

    def is_right(code: bytes) -> bool:
        run.code = code
        return run.judge(run.launch(strict=True)[0])[0]

    found = mutate(run.code, [stats], is_right)
    print(found)
    return found


@pytest.mark.parametrize("config", ALL_BLOCKS, ids=str)
def test_every_block(config: MXConfig) -> None:
    """Rows and columns past the end in the last blocks, and a tile of K in the last step."""
    check(MXRun(case(config.block_m + 5, config.block_n + 48, 640, awkward=True), config))


@pytest.mark.parametrize("k", [128, 256, 384, 512, 1536], ids=str)
def test_any_k(k: int) -> None:
    check(MXRun(case(19, 48, k), SMALL))


def test_any_m() -> None:
    """Rows past the end are neither read nor written; NaN, Inf and zero blocks among those that are."""
    for m in (1, 2, 16, 63, 64, 65, 128, 129):
        check(MXRun(case(m, 16, 256, awkward=m > 2), SMALL))


def test_blocks_of_several_xcds() -> None:
    """A number of blocks that 8 does not divide, in runs that the last one does not fill."""
    check(MXRun(case(650, 272, 128), SMALL))


def test_rows_further_apart_than_k() -> None:
    check(MXRun(case(130, 48, 384), SMALL, row_stride=208))
    check(MXRun(case(1, 48, 384), SMALL, row_stride=777))  # of one row, the stride means nothing


@pytest.mark.parametrize(
    ("out", "bias"),
    [("bfloat16", torch.float32), ("float16", None), ("float16", torch.bfloat16), ("float32", torch.float16)],
    ids=str,
)
def test_output_and_bias_dtypes(out: str, bias: torch.dtype | None) -> None:
    weight = mxgemm.quantize(torch.randn(48, 128, generator=torch.Generator().manual_seed(5)) / 256)
    wanted = case(17, 48, 128, bias=bias is not None, out_dtype=out)
    check(MXRun(wanted, SMALL, weight=weight, bias_dtype=bias or torch.float32))


def test_every_scale_byte_of_the_weight_finds_its_block() -> None:
    """A column a byte, spread over all blocks of K: a wrong one is off by a power of two, 255 is NaN."""
    n, k = 256, 512
    weight = mxgemm.quantize(torch.ones(n, k))
    weight.scales.copy_((torch.arange(n)[:, None] + 16 * torch.arange(k // 32)[None, :]) % 256)
    wanted = case(128, n, k, out_dtype="float32")
    run = MXRun(wanted, MXConfig(128, 256), weight=weight)
    run.quantized = mxgemm.quantize(torch.eye(k)[torch.arange(128) * 37 % k])
    out, _ = run.launch(strict=True)
    expected = weight.dequantize()[:, torch.arange(128) * 37 % k].T
    nan = (weight.scales == 255).any(1)
    assert out[:, nan].isnan().all()
    inside = (expected.abs() > 2.0**-120) & (expected.abs() < 2.0**120) & ~nan
    assert torch.equal(out[inside], expected[inside])


def test_no_two_lanes_meet_in_a_bank() -> None:
    run, profile = MXRun(case(128, 128, 512), SMALL), Profile()
    run.launch(strict=True, observer=profile)
    assert profile.lds_conflicts == 0
    assert profile.lds_cycles > 0


def test_a_compiler_that_cannot_load_to_lds() -> None:
    run = MXRun(case(130, 144, 640, awkward=True), SMALL)
    through = {**mx.defines(run.problem, SMALL), "COPY_THROUGH_REGISTERS": 1}
    code, run.code = run.code, hip_compile.code_object(mx.SOURCE, through)
    assert run.code != code
    check(run)


def test_a_missing_wait_or_barrier_is_noticed() -> None:
    found = mutants(MXRun(case(70, 96, 1024, out_dtype="float32"), SMALL))
    assert found.share >= 0.8, found
    assert found.caught["RaceError"], found
