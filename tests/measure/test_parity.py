"""A/B logic with callables whose time is known, and outputs that a comparison must not let through."""

import csv
import sys
import types
from pathlib import Path

import pytest
import torch

from mxgemm import gemm, gemm_mx
from mxgemm.dispatcher.codecs import storage_name
from mxgemm.measure import parity, subjects
from mxgemm.measure.parity import Settings, Subject
from mxgemm.measure.subjects import subject_of
from mxgemm.mx.tensor import MXTensor

CPU = torch.device("cpu")
SHAPE = (3, 32, 64)


class Bench:
    """Subjects that take the times they are told to, and the timer that sees them."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, []
        self.settings = Settings(self.timer, warm_up=2, repeats=4)

    def timer(self, call) -> float:
        start = self.now
        call()
        return self.now - start

    def subject(self, name: str, times, **options) -> Subject:
        """``times`` are microseconds of the calls after the one that is looked at, the last for ever."""
        times = list(times)

        def bind(a, weight):
            exact = gemm(a, weight)
            calls = iter([0.0, *times])

            def run(out):
                self.log.append(name)
                self.now += next(calls, times[-1])
                return exact if out is None else out.copy_(exact)

            return run

        return Subject(name, bind, **options)

    def rows(self, a: Subject, b: Subject, shapes=(SHAPE,)) -> list[parity.Row]:
        return list(parity.parity(a, b, shapes, CPU, self.settings))


def test_sides_take_turns_with_the_same_warm_up_and_repeats() -> None:
    bench = Bench()
    (row,) = bench.rows(bench.subject("a", [10.0]), bench.subject("b", [11.0]))
    assert bench.log == ["a", "b", *["a", "b"] * (2 + 4)]
    assert (row.us_a, row.us_b) == pytest.approx((10.0, 11.0))
    assert row.gap == pytest.approx(0.1)
    assert row.difference == 0.0
    assert not row.again
    assert not row.failure


def test_the_median_ignores_a_few_slow_calls() -> None:
    bench = Bench()
    a = bench.subject("a", [10.0, 10.0, 900.0, 10.0, 10.0, 10.0])  # two unmeasured ones first
    (row,) = bench.rows(a, bench.subject("b", [10.0]))
    assert row.us_a == pytest.approx(10.0)


def test_an_outlier_is_measured_again_alone_and_the_median_of_three_counts() -> None:
    bench = Bench()
    first = [50.0] * 6  # beside A it looks slow
    again = [12.0] * 6 + [70.0] * 6 + [11.0] * 6
    (row,) = bench.rows(bench.subject("a", [10.0]), bench.subject("b", first + again))
    alone = bench.log[2 + 2 * 6 :]
    assert alone == ["a"] * 18 + ["b"] * 18
    assert row.again
    assert row.us_b == pytest.approx(12.0)
    assert row.gap == pytest.approx(0.2)


def _with_output(change) -> Subject:
    """A subject whose result ``change`` spoils."""
    return Subject("spoiled", lambda a, weight: lambda out: change(gemm(a, weight), out), takes_out=True)


def test_outputs_are_looked_at_before_anything_is_timed() -> None:
    def half(exact, out):
        out[:2] = exact[:2]
        return out

    def infinite(exact, out):
        exact[0, 0] = float("inf")
        return exact

    def breaks(exact, out):
        raise RuntimeError("no such kernel")

    cases = {
        "32 of 96 elements never written": half,
        "96 of 96 elements never written": lambda exact, out: out,
        "all zero": lambda exact, out: out.zero_(),
        "not finite": infinite,
        "not finite ": lambda exact, out: out.fill_(float("nan")),  # written, if with NaN
        "torch.bfloat16 of shape (32, 3), want (3, 32) in bf16, fp16 or fp32": lambda exact, out: exact.t(),
        "raised RuntimeError: no such kernel": breaks,
    }
    for complaint, change in cases.items():
        bench = Bench()
        (row,) = bench.rows(_with_output(change), bench.subject("b", [1.0]))
        assert row.failure == f"A spoiled: {complaint.strip()}"
        assert row.us_a is row.us_b is row.gap is None
        assert bench.log == ["b"], "only looked at"


def test_summary_and_csv(tmp_path: Path) -> None:
    rows = [
        parity.Row(1, 2, 32, 10.0, 11.0, 0.1, difference=0.0),
        parity.Row(1, 2, 64, 10.0, 14.0, 0.4, again=True, difference=0.0),
        parity.Row(1, 2, 96, 10.0, 8.0, -0.2, again=True, difference=0.0),
        parity.Row(1, 2, 128, failure="A x: all zero"),
    ]
    found = parity.summarise(rows)
    assert found == parity.Summary(4, 0.1, pytest.approx(1 / 3), 2, 1)
    assert parity.summarise(rows[3:]) == parity.Summary(1, None, None, 0, 1)
    (tmp_path / "p.csv").write_bytes(parity.csv_text(rows).encode())
    with (tmp_path / "p.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["k"] for row in read] == ["32", "64", "96", "128"]
    assert read[1]["again"] == "True"
    assert (read[3]["us_a"], read[3]["failure"]) == ("", "A x: all zero")


def test_routes_peers_and_functions_as_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = types.ModuleType("mine")
    mine.plain = lambda a, weight: gemm(a, weight)
    mine.into = lambda a, weight, out: gemm(a, weight, out=out)
    monkeypatch.setitem(sys.modules, "mine", mine)
    settings = Settings(lambda call: (call(), 1.0)[1], warm_up=1, repeats=1)
    for spec in ("route:reference", "route:auto", "python:mine:plain", "python:mine:into"):
        a, b = subject_of(spec, CPU), subject_of("peer:torch_mm", CPU)
        (row,) = parity.parity(a, b, [SHAPE], CPU, settings)
        assert not row.failure
        assert 0 < row.difference < 0.5, "bf16 activations against MXFP4 ones"
    assert not subject_of("python:mine:plain", CPU).takes_out
    assert subject_of("python:mine:into", CPU).takes_out


class Library:
    """A stand-in for the dispatcher's: the reference route behind the bridge's calls."""

    def __init__(self, path: str, config) -> None:
        self.config, self.name = config, config.name

    def bind(self, a, b, c, a_scales, b_scales):
        assert c.dtype == torch.float16
        left, right = (MXTensor.wrap(x, s, format=self.config.form) for x, s in ((a, a_scales), (b, b_scales)))
        return lambda: gemm_mx(left, right, out=c, out_dtype=torch.float16)


@pytest.mark.parametrize("dtype, form", [("fp4", "e2m1"), ("fp8", "e4m3")])
def test_built_kernels_get_operands_as_they_take_them(
    dtype: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = types.SimpleNamespace(operation="mx_gemm", dtype=dtype, form=form, name=f"mx_gemm_{dtype}")
    monkeypatch.setattr(subjects, "Library", Library)
    monkeypatch.setattr(subjects, "_config_of", lambda path: config)
    monkeypatch.setattr(subjects, "_missing_for_libraries", lambda device: "")
    built = subject_of(f"so:{tmp_path / 'kernel.so'}", CPU)
    assert (built.name, built.out_dtype) == (f"mx_gemm_{dtype}", torch.float16)
    settings = Settings(lambda call: (call(), 1.0)[1], warm_up=1, repeats=1)
    (row,) = parity.parity(built, subject_of("route:reference", CPU), [SHAPE], CPU, settings)
    assert not row.failure
    assert row.difference < (4e-3 if dtype == "fp4" else 0.3), "fp8 keeps more of the activations"


class ScaledLibrary(Library):
    """A stand-in for kernels whose fp32 scales multiply the sums."""

    def bind(self, a, b, c, a_scales, b_scales):
        scales = a_scales.view(-1, 1) * b_scales.view(1, -1)
        return lambda: c.copy_(a.float() @ b.float().T * scales)


@pytest.mark.parametrize("operation, rows", [("rowcolquant", True), ("tensor_quant", False)])
@pytest.mark.parametrize(
    "dtype, arch, most", [("fp8", "gfx950", 0.06), ("fp8", "gfx942", 0.06), ("bf8", "gfx950", 0.12)]
)
def test_built_kernels_with_scales_outside_the_sum(
    operation: str, rows: bool, dtype: str, arch: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = types.SimpleNamespace(operation=operation, dtype=dtype, arch=arch, name=operation)
    seen = []

    class Recorded(ScaledLibrary):
        def bind(self, a, b, c, a_scales, b_scales):
            seen.append((a.dtype, tuple(a_scales.shape), tuple(b_scales.shape)))
            return super().bind(a, b, c, a_scales, b_scales)

    monkeypatch.setattr(subjects, "Library", Recorded)
    monkeypatch.setattr(subjects, "_config_of", lambda path: config)
    monkeypatch.setattr(subjects, "_missing_for_libraries", lambda device: "")
    built = subject_of(f"so:{tmp_path / 'kernel.so'}", CPU)
    settings = Settings(lambda call: (call(), 1.0)[1], warm_up=1, repeats=1)
    (row,) = parity.parity(built, subject_of("peer:torch_mm", CPU), [SHAPE], CPU, settings)
    assert not row.failure
    assert row.difference < most, "both sides were rounded to fp8, and to nothing less"
    m, n, _ = SHAPE
    stored = getattr(torch, storage_name(dtype, arch))
    assert set(seen) == {(stored, (m,), (n,)) if rows else (stored, (1,), (1,))}


@pytest.mark.parametrize(
    "spec, message",
    [
        ("reference", "want route:NAME"),
        ("route:", "want route:NAME"),
        ("route:quantum", "route: got 'quantum', want auto or one of"),
        ("peer:humming", "peer: humming is absent: "),
        ("peer:moon", "peer: got 'moon', want one of torch_mm"),
        ("python:no_such_module:f", "want MODULE:FUNCTION that can be imported"),
        ("python:json:no_such_function", "want MODULE:FUNCTION that can be imported"),
        ("so:/no/such/file.so", "so: "),
    ],
)
def test_what_is_no_subject_says_what_is_wanted(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subject_of(spec, CPU)
