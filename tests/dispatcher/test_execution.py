"""The kernels of the native libraries through Triton: in its interpreter here, on the GPU where there is one."""

from pathlib import Path

import pytest
import torch

from mxgemm.dispatcher import OPERATIONS, KernelConfig, Problem, verify
from mxgemm.dispatcher.execution import TritonExecution
from mxgemm.dispatcher.selftest import problems

DEFAULTS = [
    config
    for arch in ("gfx950", "gfx942")
    for operation in OPERATIONS.values()
    for config in operation.default_configs(arch)
    if config.is_valid()
]
NO_LIBRARY = Path("not needed")


def check(config: KernelConfig, sizes: tuple[Problem, ...]) -> None:
    place = TritonExecution()
    missing = place.missing(config, "native")
    if missing:
        pytest.skip(str(missing))
    for problem in sizes:
        verdict = verify(config, NO_LIBRARY, place, problem, seed=7)
        assert verdict.passed, verdict


@pytest.mark.parametrize("config", DEFAULTS, ids=lambda config: f"{config.operation}-{config.dtype}-{config.arch}")
def test_default_kernels_pass_in_the_interpreter(config: KernelConfig) -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU runs them, in the test below")
    check(config, (Problem(3, config.tile_n + 32, config.tile_k + 32),))


@pytest.mark.gpu
@pytest.mark.parametrize("config", DEFAULTS, ids=lambda config: f"{config.operation}-{config.dtype}-{config.arch}")
def test_default_kernels_pass_on_the_gpu(config: KernelConfig) -> None:
    check(config, (*problems(config, "native"), Problem(300, 2 * config.tile_n, 4 * config.tile_k)))
