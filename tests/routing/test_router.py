"""Which row or rule decides, and what a refusal says. Tables are written here, so nothing shipped matters."""

import json
import logging
from pathlib import Path

import pytest

import mxgemm
from mxgemm import notices
from mxgemm.device import CPU, KNOWN_MACHINES, Machine
from mxgemm.errors import Refusal
from mxgemm.mx.formats import E2M1
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import ROUTES
from mxgemm.routing import router, tables
from tests.cases import cpu_route

GFX950 = Machine("gfx950", 256, "MI355X")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a table and make it the only one; returns a function of rows and rules."""

    def write(rows: list[dict] | None = None, rules: list[dict] | None = None, arch: str = "gfx950") -> list[Path]:
        path = tmp_path / "t.json"
        filled = [{"source": "t", "grade": "measured", "route": "a16wfp4", **row} for row in rows or []]
        path.write_text(
            json.dumps(
                {
                    "kind": tables.KIND,
                    "version": 1,
                    "arch": arch,
                    "sources": {"t": {"title": "test table", "covers": "all"}},
                    "rows": filled,
                    "rules": [{"source": "t", **rule} for rule in rules or []],
                }
            )
        )
        monkeypatch.setattr(router, "shipped", lambda arch: ())
        return [path]

    return write


def problem(m: int, n: int, k: int, machine: Machine = GFX950, **options: object) -> Problem:
    return Problem.of(m, n, k, machine, strides=contiguous_strides(n, k, E2M1, k // 32), **options)


def rows_at(*sizes: tuple[int, int, int]) -> list[dict]:
    """One row a size, recognised by a block_n of its own."""
    return [{"m": m, "n": n, "k": k, "config": {"block_n": 16 << i}, "us": 1.0} for i, (m, n, k) in enumerate(sizes)]


def block_n(choice: router.Choice) -> int:
    return choice.config.block_n  # type: ignore[attr-defined]


def test_exact_then_nearest_m_then_nearest_weight_then_rule(table) -> None:
    paths = table(
        rows_at((16, 2048, 1024), (64, 2048, 1024), (16, 2080, 1024)), rules=[{"route": "reference", "m_max": 100000}]
    )

    def ask(*size: int) -> router.Choice:
        return router.choose(problem(*size), tables=paths)

    assert (block_n(ask(16, 2048, 1024)), ask(16, 2048, 1024).reason) == (16, "measured row for exactly this size")
    assert "nearest M = 64" in ask(100, 2048, 1024).reason
    assert block_n(ask(20, 2048, 1024)) == 16
    assert block_n(ask(16, 2112, 1024)) == 64
    assert "nearest size (M, N, K) = (16, 2080, 1024)" in ask(16, 2112, 1024).reason
    far = ask(16, 65536, 1024)
    assert far.route.name == "reference"
    assert far.reason == "rule: M <= 100000"
    assert ask(4096, 2048, 1024).route.name == "reference"  # six octaves from the nearest M


def test_rows_of_the_form_go_before_those_of_any_and_others_do_not_speak(table) -> None:
    first, second, third = rows_at((16, 2048, 1024), (16, 2048, 1024), (16, 2048, 1024))
    paths = table([first, {**second, "derived": "fp8_fold"}, {**third, "derived": "other"}])
    assert block_n(router.choose(problem(16, 2048, 1024), tables=paths)) == 16
    assert block_n(router.choose(problem(16, 2048, 1024, derived="fp8_fold"), tables=paths)) == 32
    assert block_n(router.choose(problem(16, 2048, 1024, derived="bf16"), tables=paths)) == 16


def test_a_preshuffled_weight_has_rows_of_its_own_before_those_of_row_major_ones(table) -> None:
    row_major, own = rows_at((16, 2048, 1024), (16, 2048, 1024))
    row_major, own = {**row_major, "derived": ""}, {**own, "derived": "preshuffled", "us": 9.0}
    order = {"weight_layout": "preshuffled"}
    assert block_n(router.choose(problem(16, 2048, 1024, **order), tables=table([row_major, own]))) == 32
    assert block_n(router.choose(problem(16, 2048, 1024, **order), tables=table([row_major]))) == 16
    assert router.choose(problem(16, 2048, 1024), tables=table([own])).row is None


def test_non_power_of_two_m_is_found(table) -> None:
    paths = table(rows_at((96, 2048, 1024)))
    assert router.choose(problem(96, 2048, 1024), tables=paths).row is not None
    assert "nearest M = 96" in router.choose(problem(100, 2048, 1024), tables=paths).reason


def test_cu_count_breaks_ties_and_never_misses(table) -> None:
    rows = rows_at((16, 2048, 1024), (16, 2048, 1024))
    rows[0]["cu_count"], rows[1]["cu_count"] = 304, 256
    assert block_n(router.choose(problem(16, 2048, 1024), tables=table(rows))) == 32
    assert router.choose(problem(16, 2048, 1024), tables=table(rows[:1])).row is not None


def test_measured_goes_before_predicted_and_fast_before_slow(table) -> None:
    rows = rows_at(*[(16, 2048, 1024)] * 3)
    rows[0]["grade"], rows[0]["us"], rows[1]["us"] = "predicted", 0.1, 9.0
    assert block_n(router.choose(problem(16, 2048, 1024), tables=table(rows))) == 64


def test_illegal_rows_are_refused_with_the_reason(table) -> None:
    rows = rows_at((16, 2048, 1024), (32, 2048, 1024))
    rows[0]["config"] = {"block_n": 17}
    choice = router.choose(problem(16, 2048, 1024), tables=table(rows))
    assert block_n(choice) == 32
    assert "a16wfp4: block_n is 17; needs a power of two" in str(choice.refusals[0])
    rows[0]["config"] = {"tile": 3}
    assert "got field 'tile'" in str(router.choose(problem(16, 2048, 1024), tables=table(rows)).refusals[0])
    rows[0]["config"] = {"block_n": "16"}
    assert "config.block_n: got '16', want int" in str(
        router.choose(problem(16, 2048, 1024), tables=table(rows)).refusals[0]
    )


def test_unknown_route_in_a_table_is_passed_over(table) -> None:
    paths = table([{"m": 16, "n": 2048, "k": 1024, "route": "quantum"}], rules=[{"route": "reference"}])
    choice = router.choose(problem(16, 2048, 1024), tables=paths)
    assert choice.route.name == "reference"
    assert "quantum: route is not in this release" in str(choice.refusals[0])


def test_rows_of_other_formats_do_not_speak(table) -> None:
    paths = table(rows_at((16, 2048, 1024)), rules=[{"route": "reference"}])
    assert router.choose(problem(16, 2048, 1024, a_format="bf16"), tables=paths).row is None


def test_rules_bounds_and_formats(table) -> None:
    paths = table(rules=[{"route": "a16wfp4", "m_max": 32, "k_max": 1024, "a_format": "e2m1"}, {"route": "reference"}])
    assert router.choose(problem(32, 64, 1024), tables=paths).route.name == "a16wfp4"
    for other in (problem(33, 64, 1024), problem(32, 64, 1056), problem(32, 64, 1024, a_format="bf16")):
        assert router.choose(other, tables=paths).route.name == "reference"


def test_forced_route_takes_its_config_from_its_rows(table) -> None:
    choice = router.choose(problem(16, 2048, 1024), route="a16wfp4", tables=table(rows_at((16, 2048, 1024))))
    assert block_n(choice) == 16
    assert "asked for" in choice.reason


def test_forced_route_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(mxgemm.RouteUnavailable, match="route 'a16wfp4' cannot run: arch is cpu; needs a GPU") as error:
        router.choose(problem(1, 32, 32, CPU), route="a16wfp4")
    assert (error.value.route, error.value.refusal.field) == ("a16wfp4", "arch")


def test_every_size_gets_an_answer() -> None:
    for machine in (CPU, GFX950, Machine("sm_90", 132, "H200"), Machine("sm_75", 40, "T4")):
        for size in [(1, 1, 32), (32800, 2112, 7168), (3, 2880, 2880), (1, 10**6, 32)]:
            assert router.choose(problem(*size, machine)).route.name in ROUTES


def test_environment_tables_go_first(table, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = table(rows_at((16, 2048, 1024)))
    monkeypatch.setenv(tables.TABLES_VARIABLE, str(path))
    tables.from_environment.cache_clear()
    try:
        assert router.choose(problem(16, 2048, 1024)).source == "test table"
    finally:
        tables.from_environment.cache_clear()


def test_fallback_is_logged_once(table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = table(rules=[{"route": "quantum"}, {"route": "reference"}])
    monkeypatch.setattr(notices, "_said", {})
    with caplog.at_level(logging.WARNING, "mxgemm"):
        for _ in range(3):
            choice = router.choose(problem(16, 2048, 1024), tables=paths)
            router.tell(choice, problem(16, 2048, 1024))
    assert caplog.text.count("using reference on gfx950; quantum: route is not in this release") == 1


def test_explain() -> None:
    text = str(mxgemm.explain(16, 2112, 7168, device="gfx950", prepared=True))
    for part in ("(16, 2112, 7168) e2m1 x e2m1 on gfx950", "route", "because", "source", "missing here\n    fused_asm"):
        assert part in text
    here = mxgemm.explain(4, 2880, 512, device="cpu")
    assert here.route == cpu_route()
    assert repr(here) == str(here)


@pytest.mark.parametrize(
    "sizes, options, message",
    [
        ((0, 1, 32), {}, "m: got 0, want at least 1"),
        ((1, 0, 32), {}, "n: got 0"),
        ((1, 1, 48), {}, "k: got 48, want a positive multiple of 32"),
        ((1, 1, 32), {"device": "gfx9"}, "device: got 'gfx9'"),
        ((1, 1, 32), {"a_format": "fp4"}, "a_format: got 'fp4'"),
        ((1, 1, 32), {"route": "none"}, "route: got 'none'"),
    ],
)
def test_bad_input_of_explain(sizes: tuple[int, int, int], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mxgemm.explain(*sizes, **options)


def test_what_prepare_made_decides_on_hopper() -> None:
    def route(m: int, **options: object) -> str:
        return mxgemm.explain(m, 7168, 2048, device="sm_90", **options).route  # type: ignore[arg-type]

    assert route(1024, prepared=True) == "fp8_fold"
    assert route(1024, derived="fp8_fold_compact") == "fp8_fold"
    assert route(1024) == "dequant_mm"
    assert route(1024, derived="bf16") == "dequant_mm"
    assert route(1024, a_format="e4m3", prepared=True) == "dequant_mm"
    assert route(1024, a_format="bf16") == "dequant_mm"
    refusals = mxgemm.explain(1024, 7168, 2048, device="sm_90").refusals
    assert any(one.route == "fp8_fold" and "after prepare()" in one.refusal.needed for one in refusals)


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("derived", ["", "fp8_fold", "fp8_fold_compact", "bf16"])
def test_few_rows_on_hopper_are_for_one_route(a_format: str, derived: str) -> None:
    if ROUTES["w4_mma"].missing(KNOWN_MACHINES["sm_90"]):
        pytest.skip("no compiler for sm_90")
    for m, n, k in ((1, 57344, 1024), (4, 2880, 512), (32, 4096, 512)):
        answer = mxgemm.explain(m, n, k, device="sm_90", a_format=a_format, derived=derived)  # type: ignore[arg-type]
        assert answer.route == "w4_mma"
    assert mxgemm.explain(33, 4096, 512, device="sm_90", a_format=a_format, derived=derived).route != "w4_mma"  # type: ignore[arg-type]


def test_some_rows_on_hopper_are_for_the_products_of_warpgroups(table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they were measured faster, or where all else decodes the weight at each call; not without a compiler."""

    def route(m: int, n: int = 7168, k: int = 2048, **options: object) -> str:
        return mxgemm.explain(m, n, k, device="sm_90", **options).route  # type: ignore[arg-type]

    if ROUTES["w4_wgmma"].missing(KNOWN_MACHINES["sm_90"]):
        pytest.skip("no compiler for sm_90")
    kept = {"weight_layout": "fragments", "scale_layout": "fragments"}
    for a_format in ("e2m1", "e4m3", "bf16"):
        for derived in ("", "fp8_fold", "fp8_fold_compact", "bf16"):
            fp8 = derived == "fp8_fold_compact" and a_format == "e2m1"
            for n, k in ((7168, 2048), (256, 100000)):
                chosen = route(64, n, k, a_format=a_format, derived=derived)
                assert chosen == ("w4_fp8" if fp8 else "w4_wgmma"), (a_format, derived, n)
        assert route(128, a_format=a_format) == "w4_wgmma"
        assert route(128, a_format=a_format, derived="bf16") == "dequant_mm"
        assert route(1024, a_format=a_format, derived="bf16") == "dequant_mm"
        assert route(256, a_format=a_format, **kept) == "w4_wgmma"
        assert route(1024, a_format=a_format, **kept) == "dequant_mm"
    assert route(128, 57344, 8192, derived="fp8_fold") == "fp8_fold"
    assert route(128, 10240, 8192, derived="fp8_fold_compact") == "w4_fp8"
    assert route(128, 999, 4096, derived="fp8_fold_compact") == "w4_fp8"
    assert route(256, 57344, 8192, derived="fp8_fold_compact") == "w4_fp8"  # measured to be ahead of fp8_fold there
    assert route(128, derived="fp8_fold_compact") == "w4_fp8"  # and here
    assert route(128, derived="fp8_fold") == "fp8_fold"
    assert route(256, derived="fp8_fold_compact") == route(1024, derived="fp8_fold_compact") == "fp8_fold"
    assert route(256, derived="fp8_fold") == "fp8_fold"
    assert route(256, derived="fp8_fold", a_format="bf16") == route(256, a_format="bf16") == "w4_wgmma"
    assert route(1024, a_format="bf16") == "dequant_mm"
    nothing = Refusal("compiler", "missing", "a compiler", "installation")
    for name in ("w4_wgmma", "w4_fp8"):
        monkeypatch.setattr(type(ROUTES[name]), "missing", lambda self, machine: nothing)
    assert route(64, 16384, 16384, a_format="bf16") == "w4a16"
    assert route(64, derived="fp8_fold") == "fp8_fold"


def test_rules_of_a_prepared_weight(table) -> None:
    paths = table(rules=[{"route": "a16wfp4", "derived": "bf16"}, {"route": "reference"}])
    chosen = router.choose(problem(16, 64, 1024, derived="bf16"), tables=paths)
    assert (chosen.route.name, chosen.reason) == ("a16wfp4", "rule: weight prepared as bf16")
    assert router.choose(problem(16, 64, 1024), tables=paths).route.name == "reference"
