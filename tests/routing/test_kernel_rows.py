"""Rows whose microseconds are those of the GEMM kernel alone: they give configurations, and choose no route."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.mx.formats import E2M1
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routing import router, tables
from mxgemm.routing.explain import Explanation
from tests import aiter_double

GFX950 = KNOWN_MACHINES["gfx950"]
SIZE = (16, 2048, 1024)

Write = Callable[..., list[Path]]
Row = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the only table there is: rows of ``call`` time whole calls, rows of ``kernel`` the kernel alone."""
    monkeypatch.setattr(router, "shipped", lambda arch: ())
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 6))

    def write(rows: list[Row], rules: list[Row] | None = None, name: str = "t.json") -> list[Path]:
        document = {
            "kind": tables.KIND,
            "version": 1,
            "arch": "gfx950",
            "sources": {
                "call": {"title": "calls", "scope": "call", "covers": "all"},
                "old": {"title": "before there were scopes"},
                "kernel": {"title": "kernels", "scope": "kernel", "covers": "operands that were quantised before"},
            },
            "rows": rows,
            "rules": [{"source": "call", **rule} for rule in rules or []],
        }
        (tmp_path / name).write_text(json.dumps(document))
        return [tmp_path / name]

    return write


def row(source: str, route: str, size: tuple[int, int, int] = SIZE, *, grade: str = "measured", **rest: Any) -> Row:
    m, n, k = size
    return {"m": m, "n": n, "k": k, "route": route, "source": source, "grade": grade, "us": 1.0, **rest}


def choose(paths: list[Path], size: tuple[int, int, int] = SIZE, **options: Any) -> router.Choice:
    m, n, k = size
    problem = Problem(m, n, k, GFX950, strides=contiguous_strides(n, k, E2M1, k // 32))
    return router.choose(problem, tables=paths, **options)


RULE = [{"route": "dequant_mm"}]
TILE = {"config": {"block_n": 16}}
OTHER = {"config": {"block_n": 32}}


def block_n(choice: router.Choice) -> int:
    return choice.config.block_n  # type: ignore[attr-defined]


def test_a_rule_decides_against_a_kernel_row_of_another_route(table: Write) -> None:
    choice = choose(table([row("kernel", "a16wfp4", **TILE)], RULE))
    assert (choice.route.name, choice.reason, choice.row) == ("dequant_mm", "rule: any shape", None)
    before = choose(table([row("old", "a16wfp4", **TILE)], RULE))
    assert before.route.name == "a16wfp4", "a source that says nothing times whole calls"


@pytest.mark.parametrize("grade", ["measured", "predicted"])
def test_a_whole_call_decides_against_a_faster_kernel_row_of_the_same_size(table: Write, grade: str) -> None:
    kernel, call = row("kernel", "a16wfp4", **TILE), row("call", "dequant_mm", grade=grade, us=99.0)
    for rules in ([], [{"route": "a16wfp4"}]):
        choice = choose(table([kernel, call], rules))
        assert choice.route.name == "dequant_mm"
        assert (choice.scope, choice.row and choice.row.us) == ("call", 99.0)


def test_a_kernel_row_gives_its_configuration_to_the_route_of_a_rule(table: Write) -> None:
    rows = [row("kernel", "a16wfp4", (32, 2048, 1024), **OTHER), row("kernel", "a16wfp4", **TILE)]
    choice = choose(table(rows, [{"route": "a16wfp4"}]))
    assert (choice.route.name, block_n(choice), choice.scope) == ("a16wfp4", 16, "kernel")
    assert choice.reason == "rule: any shape; config from the kernel-only measured row for exactly this size"
    assert choice.source == "calls; config: kernels"
    illegal = choose(table([row("kernel", "a16wfp4", config={"block_n": 17}), rows[0]], [{"route": "a16wfp4"}]))
    assert block_n(illegal) == 32
    assert "block_n is 17" in str(illegal.refusals[0])


def test_a_rule_with_a_kernel_row_stands_where_the_row_does(table: Write) -> None:
    """Before whole calls that are farther away, behind those that are as near or nearer."""
    far, near = (16, 2048, 2048), (32, 2048, 1024)
    rules, call = [{"route": "a16wfp4"}], row("call", "dequant_mm", near)
    assert choose(table([row("kernel", "a16wfp4", **TILE), call], rules)).route.name == "a16wfp4"
    assert choose(table([row("kernel", "a16wfp4", near, **TILE), call], rules)).route.name == "dequant_mm"
    assert choose(table([row("kernel", "a16wfp4", far, **TILE), call], rules)).route.name == "dequant_mm"
    other = choose(table([row("kernel", "w4a16", **TILE), call], rules))
    assert other.route.name == "dequant_mm", "a kernel row of no rule's route takes no part"


def test_a_whole_call_without_a_configuration_takes_that_of_a_kernel_row(table: Write) -> None:
    rows = [row("kernel", "a16wfp4", **TILE), row("call", "a16wfp4", us=50.0)]
    choice = choose(table(rows))
    assert (block_n(choice), choice.row and choice.row.us, choice.scope) == (16, 50.0, "call")
    own = choose(table([rows[0], row("call", "a16wfp4", **OTHER)]))
    assert block_n(own) == 32


def test_kernel_rows_are_the_last_evidence(table: Write) -> None:
    """Where neither a rule nor a whole call speaks, they are better than the registry's order."""
    choice = choose(table([row("kernel", "dequant_mm")]))
    assert (choice.route.name, choice.scope) == ("dequant_mm", "kernel")
    assert choose(table([])).route.name == "a16wfp4"


def test_a_forced_route_takes_the_nearest_configuration(table: Write) -> None:
    rows = [row("kernel", "a16wfp4", **TILE), row("call", "a16wfp4", (32, 2048, 1024), **OTHER)]
    choice = choose(table(rows, RULE), route="a16wfp4")
    assert (block_n(choice), choice.scope) == (16, "kernel")
    assert choice.reason == "asked for; config from the measured row for exactly this size"
    both = choose(table([*rows, row("call", "a16wfp4", config={"block_n": 64})], RULE), route="a16wfp4")
    assert (block_n(both), both.scope) == (64, "call")


def test_own_and_other_tables_are_ranked_together(table: Write) -> None:
    """A whole call of a later table goes before a kernel row of an earlier one."""
    kernel = table([row("kernel", "a16wfp4", **TILE)], name="first.json")
    call = table([row("call", "dequant_mm")], name="second.json")
    assert choose([*kernel, *call]).route.name == "dequant_mm"


@pytest.mark.parametrize("scope", ["kernels", "", None, 3, ["call"], {"a": 1}])
def test_an_unknown_scope_is_an_error(table: Write, scope: object) -> None:
    (path,) = table([])
    document = json.loads(path.read_text())
    document["sources"]["kernel"]["scope"] = scope
    path.write_text(json.dumps(document))
    with pytest.raises(tables.TableError, match=r"t.json: sources\['kernel'\].scope: got .*, want one of call, kernel"):
        tables.load(path)


def test_every_shipped_source_says_its_scope() -> None:
    for path in sorted(tables.shipped_folder().glob("*.json")):
        for name, source in tables.load(path).sources.items():
            assert source["scope"] == ("kernel" if name == "aiter" else "call"), (path, name)


@pytest.fixture
def aiter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 6))
    aiter_double.install(monkeypatch, tmp_path / "aiter")
    yield
    aiter_double.forget()


def small_sizes() -> list[tuple[int, int, int]]:
    (table,) = tables.shipped("gfx950")
    tuned = {(r.m, r.n, r.k) for r in table.rows if r.m <= 32 and r.k <= 1024}
    assert len(tuned) > 20
    grid = {(m, n, k) for m in (1, 4, 16, 31, 32) for n in (512, 2880, 4096, 16384, 106496) for k in (256, 512, 1024)}
    return sorted(tuned | grid)


def test_small_sizes_are_the_rules_and_not_the_kernels(aiter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds' rule M <= 32 and K <= 1024, or a whole call nearby: no size goes to AITER by its kernels' times."""

    def choices() -> dict[tuple[int, int, int], Explanation]:
        return {size: mxgemm.explain(*size, device="gfx950", prepared=True) for size in small_sizes()}

    for size, answer in choices().items():
        assert answer.route == "a16wfp4", (size, answer)
        assert answer.scope == "call"
        assert answer.reason.startswith(("rule: M <= 32 and K <= 1024", "predicted row for")), answer
    assert sum(answer.reason.startswith("rule") for answer in choices().values()) > 30
    # Were those times taken for whole calls that had been compared with the rule's route, most would go to AITER.
    monkeypatch.setattr(tables.Table, "scope_of", lambda self, row: "call")
    monkeypatch.setattr(router._Search, "is_partial", lambda self, found: False)
    assert sum(answer.route == "fused_asm" for answer in choices().values()) > 20


@pytest.mark.parametrize(
    "size, route, reason",
    [
        ((4, 2880, 512), "a16wfp4", "predicted row for exactly this size"),
        ((16, 2112, 7168), "fused_asm", "measured row for exactly this size; config from the kernel-only measured row"),
        ((32, 4096, 512), "a16wfp4", "predicted row for exactly this size"),
        ((32, 2880, 512), "a16wfp4", "predicted row for exactly this size"),
        ((64, 7168, 2048), "ck_gemm", "measured row for exactly this size; config from the kernel-only measured row"),
        ((256, 3072, 1536), "ck_gemm", "measured row for exactly this size; config from the kernel-only measured row"),
        ((16, 7168, 16384), "fused_asm", "rule: M <= 32 and a_format e2m1; config from the kernel-only measured row"),
        ((256, 8192, 8192), "ck_gemm", "rule: a_format e2m1; config from the kernel-only measured row"),
    ],
)
def test_choices_on_gfx950_with_aiter(aiter: None, size: tuple[int, int, int], route: str, reason: str) -> None:
    answer = mxgemm.explain(*size, device="gfx950", prepared=True)
    assert (answer.route, answer.scope) == (route, "call" if "row for exactly this size" in reason else "kernel")
    assert answer.reason.startswith(reason)
    if answer.scope == "kernel":
        assert " us (the GEMM kernel alone), measured: both operands quantised" in str(answer)
    else:
        assert "the GEMM kernel alone" not in str(answer)
