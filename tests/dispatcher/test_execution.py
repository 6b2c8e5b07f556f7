"""The kernels of the native libraries through Triton: in its interpreter here, on the GPU where there is one."""

import dataclasses
from pathlib import Path

import pytest
import torch

from mxgemm.dispatcher import OPERATIONS, AQuantKernelConfig, KernelConfig, Problem, verify
from mxgemm.dispatcher.execution import TritonExecution
from mxgemm.dispatcher.jit import run_config
from mxgemm.dispatcher.selftest import problems
from tests.dispatcher.scheme_cases import SCHEMES, drawn

DEFAULTS = [
    config
    for arch in ("gfx950", "gfx942")
    for operation in OPERATIONS.values()
    for config in operation.default_configs(arch)
    if config.is_valid()
]
FIRST = [config for config in DEFAULTS if config.operation in ("mx_gemm", "rowcolquant", "tensor_quant")]
AQUANT = [
    AQuantKernelConfig(variant_key=key, layout=layout)
    for key in AQuantKernelConfig.variants
    for layout in AQuantKernelConfig.layouts
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


@pytest.mark.parametrize("config", FIRST, ids=lambda config: f"{config.operation}-{config.dtype}-{config.arch}")
def test_default_kernels_pass_in_the_interpreter(config: KernelConfig) -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU runs them, in the test below")
    check(config, (Problem(3, config.tile_n + 32, config.tile_k + 32),))


def need_interpreter() -> None:
    missing = TritonExecution().missing(FIRST[0], "native")
    if missing or torch.cuda.is_available():
        pytest.skip(str(missing or "the GPU runs them, in the test below"))


def passes(config: KernelConfig, arch: str, m: int, n: int, k: int) -> None:
    case = drawn(config, arch, m, n, k, seed=m + n + k)
    accuracy = case.judge(run_config(case.config, case.inputs, torch.device("cpu")))
    assert accuracy.passed, accuracy


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_in_the_interpreter(name: str, arch: str) -> None:
    """Of gfx942 there is no emulator: its FNUZ bytes are seen here alone."""
    need_interpreter()
    config = SCHEMES[name]
    if arch == "gfx942":
        config = dataclasses.replace(config, warp_tile_k=32 if config.warp_tile_m == 16 else 16)
    if config.refusals(arch):
        pytest.skip("not of this architecture")
    passes(config, arch, 18, config.tile_n + 10, 160)


@pytest.mark.parametrize("config", AQUANT, ids=lambda config: f"{config.dtype}-{config.layout}")
def test_every_type_and_layout_of_aquant_in_the_interpreter(config: KernelConfig) -> None:
    need_interpreter()
    passes(config, "gfx950", 2, 65, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("config", DEFAULTS, ids=lambda config: f"{config.operation}-{config.dtype}-{config.arch}")
def test_default_kernels_pass_on_the_gpu(config: KernelConfig) -> None:
    check(config, (*problems(config, "native"), Problem(300, 2 * config.tile_n, 4 * config.tile_k)))
