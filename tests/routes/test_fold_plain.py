"""Route fp8_fold's configurations: which are legal, what tables mean; on a GPU, all that it promises with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import plan
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal
from mxgemm.hip import build
from mxgemm.mx.formats import E2M1
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routes.fold_chain import FoldChain
from mxgemm.routes.fold_plain import PlainFoldChain
from mxgemm.routes.fp8_fold import BASES_LAST_RESULTS, PLACES, FoldConfig
from mxgemm.routing import router
from tests.routes import test_fold

ROUTE = ROUTES["fp8_fold"]
LAST = FoldConfig(bases_last=True)
CONFIGS = (FoldConfig(), LAST, replace(LAST, place=1), replace(LAST, place=PLACES - 1))


def problem(m: int = 64, n: int = 4096, k: int = 512, arch: str = "sm_90", **more: Any) -> Problem:
    return Problem.of(m, n, k, KNOWN_MACHINES[arch], **{"derived": "fp8_fold", **more})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler_missing", lambda arch: None)


@pytest.mark.usefixtures("compiler")
def test_what_is_tried_and_what_is_guessed() -> None:
    """All ways are tried; bases come last, by the library's favourite, where results are few."""
    assert ROUTE.configs(problem()) == [LAST]
    assert ROUTE.configs(problem(BASES_LAST_RESULTS // 4096 + 1)) == [FoldConfig()]
    for m in (64, BASES_LAST_RESULTS // 4096 + 1):
        tried = ROUTE.candidates(problem(m))
        assert tried[0] == ROUTE.configs(problem(m))[0]
        assert set(tried) == {FoldConfig(), *(replace(LAST, place=place) for place in range(PLACES))}
        assert len(tried) == len(set(tried))
        assert all(ROUTE.check_config(problem(m), config) is None for config in tried)


def test_nothing_comes_last_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler_missing", lambda arch: Refusal("compiler", "missing", "one", "installation"))
    assert ROUTE.configs(problem()) == ROUTE.candidates(problem()) == [FoldConfig()]
    refusal = ROUTE.check_config(problem(), LAST)
    assert refusal is not None
    assert (refusal.field, refusal.missing) == ("compiler", True)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("field", "config", "more"),
    [
        ("fast_accumulation", FoldConfig(fast_accumulation=True), {}),
        ("place", FoldConfig(place=1), {}),
        ("place", replace(LAST, place=PLACES), {}),
        ("place", replace(LAST, place=-1), {}),
        ("arch", LAST, {"arch": "gfx942", "derived": "fp8_fold_fnuz"}),
        ("n * k", LAST, {"n": 57344, "k": 8192, "derived": "fp8_fold_compact"}),
        ("bias.dtype", LAST, {"has_bias": True, "bias_dtype": torch.float64}),
    ],
)
def test_refusals_name_the_field(field: str, config: FoldConfig, more: dict[str, Any]) -> None:
    refusal = ROUTE.check_config(problem(**more), config)
    assert refusal is not None
    assert refusal.field == field
    if config.bases_last and field != "place":
        assert ROUTE.configs(problem(**more)) == ROUTE.candidates(problem(**more)) == [FoldConfig()]


@pytest.mark.usefixtures("compiler")
def test_a_table_row_without_a_configuration_means_what_it_meant() -> None:
    """Bases in the product: that is how it was measured."""
    assert FoldConfig.from_mapping({}) == FoldConfig()
    chosen = FoldConfig.from_mapping({"bases_last": True, "place": 2})
    assert chosen == replace(LAST, place=2)
    assert FoldConfig.from_mapping(chosen.to_mapping()) == chosen


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("config", "chain"), [(FoldConfig(), FoldChain), (LAST, PlainFoldChain), (replace(LAST, place=3), PlainFoldChain)]
)
def test_each_is_its_own_chain(config: FoldConfig, chain: type, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("mxgemm.cuda.lazy.Lazy.build", lambda self, machine: self)
    bound = ROUTE.bind(problem(strides=contiguous_strides(4096, 512, E2M1, 16)), config)
    assert type(bound) is chain
    if chain is PlainFoldChain:
        assert bound.vendor.place == config.place  # type: ignore[attr-defined]


@pytest.fixture(params=CONFIGS, ids=str)
def configured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FoldConfig]:
    """Whatever the route chooses, it is this configuration."""
    config: FoldConfig = request.param

    def choose(*arguments: Any, **options: Any) -> router.Choice:
        found = router.choose(*arguments, **options)
        return replace(found, config=config) if found.route is ROUTE else found

    monkeypatch.setattr(plan, "choose", choose)
    plan.clear_plans()
    yield config
    plan.clear_plans()


@pytest.fixture
def hopper() -> None:
    missing = ROUTE.missing(mxgemm.device.machine_of(torch.device("cuda", 0)))
    if missing or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(str(missing) if missing else "bases come last on Hopper alone")


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper", "configured")
class TestOnAGPU:
    """What tests/routes/test_fold.py asks of the route."""

    @pytest.mark.parametrize("memory", ["fast", "compact"])
    def test_numbers(self, memory: str) -> None:
        for m, n, k in ((1, 16, 32), (33, 50, 96), (5, 48, 2880), (70, 272, 288)):
            test_fold.test_numbers(m, n, k, memory, "even", "cuda")

    @pytest.mark.parametrize("n", [64, 50])
    def test_biases_dtypes_and_strides(self, n: int) -> None:
        for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
            for bias_dtype in (None, torch.bfloat16, torch.float32):
                test_fold.test_bias_output_dtype_and_odd_n(n, bias_dtype, out_dtype, "cuda")

    def test_rows_that_do_not_fold(self) -> None:
        for a_dtype in (torch.bfloat16, torch.float16, torch.float32):
            test_fold.test_rows_that_do_not_fold_are_exact(a_dtype, "cuda")
        for memory in ("fast", "compact"):
            test_fold.test_rows_that_do_not_fold_in_some_tiles(300, 300, [0, 1, 63, 130, 299], memory, "cuda")
            test_fold.test_rows_that_do_not_fold_in_some_tiles(2100, 144, [64, 2047, 2048, 2099], memory, "cuda")

    @pytest.mark.parametrize("form", ["fast", "compact"])
    def test_any_address(self, form: str) -> None:
        for n in (128, 72):
            test_fold.test_outputs_and_biases_at_any_address(n, form, "fp8_fold", "cuda")

    def test_long_sums_and_terms_of_one_sign(self) -> None:
        test_fold.test_a_long_sum("cuda")
        test_fold.test_terms_of_one_sign(3, "cuda")
        test_fold.test_huge_outlier_where_the_other_operand_is_zero("cuda")

    @pytest.mark.parametrize("memory", ["fast", "compact"])
    def test_captured(self, memory: str, configured: FoldConfig) -> None:
        """The first call too, where none of the launches is Triton's."""
        a = torch.randn(65, 288, device="cuda", dtype=torch.bfloat16)
        weight = mxgemm.quantize(torch.randn(272, 288, device="cuda")).prepare(memory=memory)  # type: ignore[arg-type]
        if memory == "compact" or not configured.bases_last:
            with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                mxgemm.gemm(a, weight, route="fp8_fold")
            mxgemm.gemm(a, weight, route="fp8_fold")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = mxgemm.gemm(a, weight, route="fp8_fold")
        graph.replay()
        first = captured.clone()
        graph.replay()
        assert torch.equal(first, captured)
        assert torch.equal(mxgemm.gemm(a, weight, route="fp8_fold"), captured)
