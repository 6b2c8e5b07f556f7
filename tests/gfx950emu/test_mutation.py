"""A kernel from which a wait or a barrier is missing: strict mode notices."""

from collections.abc import Callable

import numpy as np
import pytest

from evidence import f4gemm_cases as f4gemm
from gfx950emu import run_code_object
from gfx950emu.idle import LdsTrace
from gfx950emu.mutation import mutate
from tests.emulator import compile_hip, require_objdump
from tests.gfx950emu.conftest import HIP

WORDS = np.random.default_rng(5).integers(0, 2**32, (256, 4), dtype=np.uint32)
KERNELS = {
    "lds_widths": ("memory", {"x": WORDS, "o": np.zeros(256, np.uint32)}, (), 1),
    "load_lds_16": ("memory", {"x": WORDS, "o": np.zeros_like(WORDS)}, (), 1),
    "buffer_load_lds": ("memory", {"x": WORDS, "o": np.zeros_like(WORDS)}, (4096,), 1),
    "sum_bytes": ("reduce", {"x": WORDS.view(np.uint8), "o": np.zeros(1, np.uint32)}, (4096,), 2),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_hip_kernels(kernel: str) -> None:
    file, arrays, scalars, grid = KERNELS[kernel]

    def run(code: bytes, strict: bool):
        return run_code_object(code, kernel, (grid,), (256,), [*arrays, *scalars], arrays, strict=strict)

    code = compile_hip(HIP / f"{file}.hip")
    after, stats = run(code, strict=True)
    mutants = mutate(code, [stats], lambda mutant: (run(mutant, strict=True)[0]["o"] == after["o"]).all())
    print(f"{kernel}: {mutants}")
    assert mutants.share >= 0.9, mutants


def test_barriers_that_order_nothing() -> None:
    """Those between accesses of each wave to its own bytes; mutants without them, or without the wait before, pass."""
    x, trace = WORDS.reshape(-1)[:256], LdsTrace()
    arrays = {"x": x, "o": np.zeros(256, np.uint32)}

    def run(code: bytes, observer: LdsTrace | None = None):
        return run_code_object(code, "own_parts", (1,), (256,), [*arrays], arrays, strict=True, observer=observer)

    code = compile_hip(HIP / "strict.hip")
    after, stats = run(code, trace)
    assert (after["o"] == 3 * x[np.arange(256) ^ 64 ^ 63]).all()
    assert len(trace.barriers) == 3
    assert trace.idle_barriers() == set(trace.barriers[:2])
    mutants = mutate(code, [stats], lambda mutant: (run(mutant)[0]["o"] == after["o"]).all(), trace.idle_barriers())
    assert len([text for text in mutants.equivalent if "s_barrier" in text]) == 2
    assert mutants.caught["RaceError"], mutants


@pytest.mark.skipif(not f4gemm.available(), reason="no f4gemm code objects: see test_f4gemm.py")
def test_f4gemm() -> None:
    require_objdump()
    kernel = f4gemm.KERNELS["f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128"]
    run: Callable[..., tuple] = lambda code: f4gemm.run(kernel, 32, 256, 2048, strict=True, code=code)  # noqa: E731
    code = f4gemm.image(kernel)
    mutants = mutate(code, [run(code)[1]], lambda mutant: run(mutant)[0].passed)
    print(f"{kernel.name}: {mutants}")
    assert mutants.total == 21
    assert mutants.share >= 19 / 21, mutants
