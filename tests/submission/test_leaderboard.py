"""The leaderboard harness: its data, its tolerance, and the submissions that it must not let pass."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mxgemm
from bench import leaderboard, leaderboard_run
from bench.leaderboard_run import Outcome, Rules, mxgemm_hidden, run_case, stats
from bench.leaderboard_task import BENCHMARKS, TESTS, Case, combine_seeds, disagreement, make_inputs
from mxgemm.measure import LEADERBOARD
from mxgemm.mx import layouts

CPU = torch.device("cpu")
SMALL = Case(5, 48, 192, seed=3)
LEADERBOARD_RULES = Rules(repeats=3, fresh=True, kernel_seconds=30.0)
BENCHMARK_RULES = replace(LEADERBOARD_RULES, fresh=False)

HONEST = """
import torch


def e2m1(codes):
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return values[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)


def rounded(x):
    blocks = x.float().reshape(x.shape[0], -1, 32)
    bits = blocks.abs().amax(2, True).view(torch.int32)
    scale = (((bits + 0x200000) >> 23) - 2).clamp(1) << 23
    scale = scale.view(torch.float32)
    y = blocks / scale
    step = torch.where(y.abs() < 2, 0.5, torch.where(y.abs() < 4, 1.0, 2.0))
    return ((y / step).round() * step).clamp(-6, 6).mul(scale).reshape(x.shape)


def custom_kernel(data):
    a, b, *_ = data
    return (rounded(a) @ rounded(b).t()).to(torch.bfloat16)
"""

KEPT = """
kept = {{}}


def custom_kernel(data):
    if {key} not in kept:
        kept[{key}] = honest(data)
    return kept[{key}]
"""


def written(tmp_path: Path, body: str) -> str:
    """Write a submission whose ``honest`` is a right kernel and whose ``custom_kernel`` is ``body``."""
    path = tmp_path / "submission.py"
    path.write_text(HONEST.replace("custom_kernel", "honest") + body, encoding="utf-8")
    return str(path)


def run(path: str, rules: Rules = LEADERBOARD_RULES, case: Case = SMALL) -> Outcome:
    leaderboard_run._loaded.clear()
    return run_case(path, case, rules, "cpu", 0)


def test_the_shapes_are_the_published_ones() -> None:
    assert tuple((case.m, case.n, case.k) for case in BENCHMARKS) == LEADERBOARD
    assert [(case.m, case.n, case.k) for case in TESTS] == [
        (8, 2112, 7168), (16, 3072, 1536), (64, 3072, 1536), (256, 2880, 512)
    ]  # fmt: skip


def test_inputs_are_the_tasks() -> None:
    inputs, again, other = (make_inputs(case, CPU) for case in (SMALL, SMALL, replace(SMALL, seed=4)))
    assert all(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(inputs.data, again.data, strict=True)
    )
    assert all(
        not torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(inputs.data, other.data, strict=True)
    )
    a, b, b_q, b_shuffle, b_scale_sh = inputs.data
    assert a.shape == (5, 192)
    assert b.shape == (48, 192)
    assert a.dtype == b.dtype == torch.bfloat16
    assert b_q.dtype == b_shuffle.dtype == getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    assert b_scale_sh.dtype == getattr(torch, "float8_e8m0fnu", torch.uint8)
    assert b_q.shape == b_shuffle.shape == (48, 96)
    assert b_scale_sh.shape == (256, 8)
    weight = mxgemm.quantize(b, scale_rounding="even")
    assert torch.equal(layouts.unpreshuffle_weight(b_shuffle.view(torch.uint8)), weight.data)
    assert torch.equal(layouts.unshuffle_scales(b_scale_sh.view(torch.uint8), 48, 6), weight.scales)
    assert torch.equal(b_q.view(torch.uint8), weight.data)
    exact = mxgemm.quantize(a).dequantize(torch.float32).double() @ weight.dequantize(torch.float32).double().t()
    assert disagreement(exact.to(torch.bfloat16), inputs.expected) is None
    assert disagreement((a.double() @ b.double().t()).to(torch.bfloat16), inputs.expected)  # A must be quantised


def test_seeds_pair_without_collisions() -> None:
    pairs = {combine_seeds(a, b) for a in range(60) for b in range(60)}
    assert len(pairs) == 3600
    assert combine_seeds(4565, 10**6) > 10**11


@pytest.mark.parametrize("sizes", [(0, 48, 192), (4, 40, 192), (4, 48, 96)])
def test_sizes_outside_the_contract(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="want a positive multiple of"):
        Case(*sizes, seed=0)


def test_tolerance_holds_for_every_element() -> None:
    want = torch.tensor([[100.0, 0.0, -3.0, 8.0]], dtype=torch.bfloat16)
    assert disagreement(want.clone(), want) is None
    near = torch.tensor([[101.0, 0.0099, -3.03, 8.0]], dtype=torch.bfloat16)
    assert disagreement(near, want) is None
    assert disagreement(torch.tensor([[102.0, 0.0, -3.0, 8.0]], dtype=torch.bfloat16), want)
    assert disagreement(torch.tensor([[100.0, 0.012, -3.0, 8.0]], dtype=torch.bfloat16), want)
    for special in (torch.nan, torch.inf, -torch.inf):
        spoilt = want.clone()
        spoilt[0, 1] = special
        assert disagreement(spoilt, want)
        assert disagreement(want, spoilt)
        assert disagreement(spoilt, spoilt) is None
    assert "float32" in str(disagreement(want.float(), want))
    assert "shape" in str(disagreement(want[:, :3], want))
    assert "NoneType" in str(disagreement(None, want))


def test_an_honest_submission_passes(tmp_path: Path) -> None:
    outcome = run(written(tmp_path, "\ncustom_kernel = honest\n"))
    assert outcome.error is None
    assert len(outcome.times_us) == 3


@pytest.mark.parametrize(
    "body, message",
    [
        ("def custom_kernel(data):\n    return honest(data) * 1.02", "differ by more than"),
        (
            "def custom_kernel(data):\n    out = honest(data)\n    out[-1, -1] += 0.5\n    return out",
            r"1 of 240 elements",
        ),
        ("def custom_kernel(data):\n    return torch.zeros_like(honest(data))", "differ"),
        ("def custom_kernel(data):\n    return honest(data) * torch.nan", "got nan"),
        ("def custom_kernel(data):\n    return (data[0].float() @ data[1].float().t()).bfloat16()", "differ"),
        ("def custom_kernel(data):\n    return honest(data).float()", "want torch.bfloat16"),
        ("def custom_kernel(data):\n    pass", "NoneType"),
        ("def custom_kernel(data):\n    raise KeyError('lost')", "KeyError: 'lost'"),
        (
            "def custom_kernel(data):\n    return data[1].view(-1)[:240].view(5, 48).copy_(honest(data))",
            "shares memory",
        ),
        ("def custom_kernel(data):\n    import mxgemm\n    return honest(data)", "a submission must stand alone"),
        ("import bench.leaderboard\ncustom_kernel = honest", "a submission must stand alone"),
        ("kernel = honest", "no function custom_kernel"),
    ],
)
def test_wrong_submissions_are_named(body: str, message: str, tmp_path: Path) -> None:
    outcome = run(written(tmp_path, f"\n{body}\n"))
    assert outcome.error is not None
    assert message in outcome.error


@pytest.mark.parametrize(
    "key", ["data[0].shape", "data[0].data_ptr()", "id(data)"], ids=["shape", "address", "identity"]
)
def test_a_kept_result_fails_in_leaderboard_mode(key: str, tmp_path: Path) -> None:
    path = written(tmp_path, KEPT.format(key=key))
    rules = replace(LEADERBOARD_RULES, repeats=12)
    outcome = run(path, rules)
    assert outcome.error is not None
    assert "repetition" in outcome.error
    assert run(path, BENCHMARK_RULES).error is None  # the same data every time: there it cannot show


def test_mxgemm_is_back_after_it_was_hidden() -> None:
    with mxgemm_hidden(), pytest.raises(ModuleNotFoundError):
        import mxgemm.mx.layouts
    import mxgemm.mx.formats

    assert mxgemm.mx.formats.BLOCK == 32
    assert leaderboard_run.make_inputs is make_inputs


def test_stopping_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path, "\ncustom_kernel = honest\n")

    def timed_as(times: list[float], rules: Rules) -> int:
        queue = iter(times)
        monkeypatch.setattr(leaderboard_run.Clock, "__call__", lambda self, call: (call(), next(queue)))
        return len(run(path, rules).times_us)

    benchmark = leaderboard_run.MODES["benchmark"]
    assert (benchmark.repeats, benchmark.fresh, benchmark.kernel_seconds) == (1000, False, 50.0)
    ranked = leaderboard_run.MODES["leaderboard"]
    assert (ranked.repeats, ranked.fresh, ranked.kernel_seconds) == (100, True, 30.0)
    assert timed_as([10.0] * 20, benchmark) == 3  # no spread: as soon as it may
    noisy = [10.0, 20.0] * 50
    assert timed_as(noisy, replace(benchmark, repeats=40)) == 40
    assert timed_as(noisy, replace(benchmark, kernel_seconds=95e-6)) == 7  # the seventh makes it 100 us


def test_statistics() -> None:
    found = stats([1.0, 2.0, 3.0, 6.0])
    assert (found.runs, found.mean_us, found.best_us, found.worst_us) == (4, 3.0, 1.0, 6.0)
    assert found.std_us == pytest.approx(math.sqrt(14 / 3))
    assert found.err_us == pytest.approx(math.sqrt(14 / 3) / 2)
    assert leaderboard._geometric_mean([2.0, 8.0]) == 4.0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, report = written(tmp_path, "\ncustom_kernel = honest\n"), tmp_path / "report.json"
    shapes = ["--shape", "5,48,192", "--shape", "3,16,64,9"]
    assert leaderboard.main([path, "--device", "cpu", *shapes, "--secret", "77", "-o", str(report)]) == 0
    document = json.loads(report.read_text(encoding="utf-8"))
    assert document["passed"]
    assert document["mode"] == "leaderboard"
    assert document["geometric_mean_us"] is None  # nothing is timed on a CPU
    assert [case["repetitions"] for case in document["cases"]] == [3, 3]
    assert document["cases"][1]["seed"] == combine_seeds(9, 77)
    assert "passed in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "form", "times"),
    [
        ('choices = {(5, 48, 192): {"form": "hip 16x64", "us": {"hip 16x64": 4.25, "aiter": 9}}}', "hip 16x64",
         {"hip 16x64": 4.25, "aiter": 9.0}),
        ('choices = {(5, 48, 192): {"form": "triton"}}', "triton", {}),
        ('choices = {(6, 48, 192): {"form": "triton"}}', None, {}),
        ('choices = {(5, 48, 192): "triton"}', None, {}),
        ('choices = {(5, 48, 192): {"form": "a", "us": {"a": "soon"}}}', "a", {}),
        ("choices = 7", None, {}),
        ("", None, {}),
    ],
    ids=["told", "no-times", "another-size", "text", "words", "number", "nothing"],
)  # fmt: skip
def test_which_form_ran_is_in_the_report(
    said: str, form: str | None, times: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(written(tmp_path, f"\ncustom_kernel = honest\n{said}\n"))
    assert (outcome.form, outcome.form_us) == (form, times)
    case = leaderboard._result(SMALL, outcome, timed=True)
    assert case.get("form") == form
    assert case.get("form_us", {}) == times
    document = dict.fromkeys(("submission", "device", "arch", "torch", "triton", "mode"), "-")
    text = leaderboard.summary(
        {**document, "geometric_mean_us": None, "passed": True, "seconds": 1, "cases": [json.loads(json.dumps(case))]}
    )
    assert (f"of 3  {form}\n" in text) == (form is not None)
    assert form or text.splitlines()[1].endswith("of 3")


def test_test_mode_goes_on_after_a_wrong_result(tmp_path: Path) -> None:
    body = "\ndef custom_kernel(data):\n    return honest(data) * (2 if data[0].shape[0] == 5 else 1)\n"
    path = Path(written(tmp_path, body))
    cases = [SMALL, replace(SMALL, m=6)]
    document = leaderboard.evaluate(path, "test", cases, CPU)
    assert [case["passed"] for case in document["cases"]] == [False, True]
    assert not document["passed"]
    assert len(leaderboard.evaluate(path, "leaderboard", cases, CPU)["cases"]) == 1  # as the evaluator


def test_a_dying_process_is_a_failure(tmp_path: Path) -> None:
    path = written(tmp_path, "\nimport os\ndef custom_kernel(data):\n    os._exit(3)\n")
    document = leaderboard.evaluate(Path(path), "test", [SMALL, SMALL], CPU)
    assert not document["passed"]
    assert len(document["cases"]) == 1
    assert "terminated abruptly" in document["cases"][0]["error"]


def test_a_submission_that_hangs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(leaderboard.LIMIT_SECONDS, "test", 1)
    path = written(tmp_path, "\nimport time\ndef custom_kernel(data):\n    time.sleep(600)\n")
    document = leaderboard.evaluate(Path(path), "test", [SMALL, SMALL], CPU)
    assert "took longer than the 1 s" in document["cases"][0]["error"]
    assert document["seconds"] < 60


def test_benchmark_mode_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on a CPU, which only checks"):
        leaderboard.evaluate(Path(written(tmp_path, "\ncustom_kernel = honest\n")), "benchmark", [SMALL], CPU)
