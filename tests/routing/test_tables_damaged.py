"""Damaged and hostile tables: named in a warning, and the call is right by the tables that come with mxgemm.

Mutants are drawn from a seed: bytes flipped, cut out, doubled and inserted, and every field of a table of each kind
replaced by values of every other type and size.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from mxgemm import measure, plan
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import RouteUnavailable
from mxgemm.files import FileError
from mxgemm.measure import tuned
from mxgemm.problem import Problem
from mxgemm.routing import tables
from mxgemm.routing.explain import explain
from mxgemm.routing.router import choose
from tests.cases import cpu_route

M, N, K = 4, 32, 64
GOOD: dict[str, Any] = {
    "kind": tables.KIND,
    "version": 1,
    "arch": "cpu",
    "sources": {"me": {"title": "my own run", "covers": "all of it"}},
    "rules": [{"route": "reference", "source": "me", "m_max": 8, "k_max": 64, "a_format": "e2m1", "nk_min": 1}],
    "rows": [
        {
            **{"m": M, "n": N, "k": K, "route": "reference", "source": "me", "grade": "measured", "us": 1.5},
            **{"a_format": "e2m1", "b_format": "e2m1", "cu_count": 0, "config": {}},
        },
        {
            **{"m": 16, "n": 2112, "k": 7168, "route": "a16wfp4", "source": "me", "grade": "predicted"},
            "config": {"block_m": 16, "block_n": 64, "block_k": 256, "num_warps": 4, "split_k": 2},
        },
    ],
}
NUMBERS = ("1e400", "NaN", "-Infinity", "1" + "0" * 400, "9" * 5000)
RAW = {*NUMBERS, "[" * 5000 + "]" * 5000, '{"a":' * 500 + "1" + "}" * 500}
INSERTED = (b"[", b"{", b'"', b"\0", b"\xff", b"-", b"9" * 30, b"e99", b"\\u0000", b",")
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 0.5, 1e300, -0.0, "", "e2m1", "reference", "hip_fused", "me"),
    *("a\0b", "\x1b[2J", "x" * 100_000, "../../etc", [], ["s"], [[]], {}, {"s": []}, {"m": 1}, *sorted(RAW)),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def replaced(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> str:
    """Return the document as text with one value replaced, by text that is no value where Python has none."""
    made = copy.deepcopy(document)
    inner: Any = made
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = "@@" if isinstance(value, str) and value in RAW else value
    text = json.dumps(made)
    return text.replace('"@@"', value) if '"@@"' in text else text


def swaps(document: dict[str, Any]) -> list[bytes]:
    """Every value of the document replaced by every other, removed, and named another way."""
    found = []
    for path in places(document):
        found += [replaced(document, path, value).encode() for value in VALUES]
        gone = copy.deepcopy(document)
        inner: Any = gone
        for name in path[:-1]:
            inner = inner[name]
        value = inner.pop(path[-1])
        found.append(json.dumps(gone).encode())
        if isinstance(inner, dict):
            inner["surprise"] = value
            found.append(json.dumps(gone).encode())
    return found


def flips(document: dict[str, Any], count: int, seed: int = 0) -> list[bytes]:
    """Return the document's bytes flipped, cut, doubled and inserted at random."""
    rng, text = random.Random(seed), json.dumps(document, indent=1).encode()
    found = []
    for _ in range(count):
        data = bytearray(text)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    del data[at : at + rng.randrange(1, 30)]
                case 2:
                    data[at:at] = data[at : at + rng.randrange(1, 30)]
                case 3:
                    data[at:at] = rng.choice(INSERTED)
            if not data:
                break
        found.append(bytes(data[: rng.randrange(len(data))] if rng.random() < 0.15 else data))
    return found


def complaint(use: Callable[[], object]) -> str:
    """Return what a use of a file says against it; whatever it raises but that fails the test."""
    try:
        use()
    except FileError as error:
        return str(error)
    return ""


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of tiny calls, for each of which threads would wait for each other
    yield
    torch.set_num_threads(threads)
    monkeypatch.undo()
    tables.from_environment.cache_clear()
    plan.clear_plans()


FLIPPED = 1500


@pytest.mark.slow
def test_gemm_is_right_whatever_a_users_table_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forget: None
) -> None:
    a, w = torch.randn(M, K), mxgemm.quantize(torch.randn(N, K))
    plain = mxgemm.gemm(a, w)
    path = tmp_path / "mine.json"
    monkeypatch.setenv(tables.TABLES_VARIABLE, str(path))
    mutants = [*swaps(GOOD), *flips(GOOD, FLIPPED)]
    assert len(mutants) > 2500
    refused = 0
    for mutant in mutants:
        path.write_bytes(mutant)
        tables.from_environment.cache_clear()
        plan.clear_plans()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mxgemm"):
            assert torch.equal(mxgemm.gemm(a, w), plain)
        warnings = [record.message for record in caplog.records if "routing table ignored" in record.message]
        assert all(str(path) in warning and len(warning) < 700 for warning in warnings)
        refused += len(warnings)
    assert refused > len(mutants) // 2


@pytest.mark.slow
def test_the_router_takes_no_damaged_row(tmp_path: Path) -> None:
    """The same mutants for a GPU's problem, whose rows have configurations, through explain and choose."""
    document = {**copy.deepcopy(GOOD), "arch": "gfx950"}
    document["rows"] = document["rows"][1:]
    path = tmp_path / "mine.json"
    problem = Problem(16, 2112, 7168, KNOWN_MACHINES["gfx950"])
    for mutant in [*swaps(document), *flips(document, 600, seed=1)]:
        path.write_bytes(mutant)
        choice = choose(problem, tables=[path])
        assert choice.route.can_implement(problem) is None
        assert choice.route.check_config(problem, choice.config) is None
        assert str(explain(16, 2112, 7168, device="gfx950", tables=[path]))
        try:
            named = choose(problem, route="a16wfp4", tables=[path])
        except RouteUnavailable:
            continue
        assert named.route.check_config(problem, named.config) is None


def test_tune_adds_to_no_damaged_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    taken = 0
    for mutant in [*swaps(GOOD), *flips(GOOD, 600, seed=2)]:
        path.write_bytes(mutant)
        said = complaint(lambda: tuned.check_writable(path, "cpu"))
        assert not said or str(path) in said
        taken += not said
        assert path.read_bytes() == mutant
    assert taken > 100


@pytest.mark.slow
def test_a_comparison_reads_no_damaged_document(tmp_path: Path) -> None:
    document = measure.run(
        measure.Request(
            [(3, 32, 64)],
            torch.device("cpu"),
            peers=["torch_mm", "humming"],
            effort=measure.Effort(seconds=0.0, least=2, most=2),
        )
    )
    from mxgemm.measure import compare, text

    path = tmp_path / "r.json"
    taken = 0
    mutants = [*random.Random(3).sample(swaps(document), 1500), *flips(document, 600, seed=3)]
    for mutant in mutants:
        path.write_bytes(mutant)
        said = complaint(lambda: measure.load(path))
        if said:
            assert str(path) in said
            continue
        taken += 1
        found = measure.load(path)
        for old, new in ((document, found), (found, document)):
            text.change_rows(compare.compare(old, new))
            compare.remarks(old, new)
        text.filled(text.COLUMNS, text.rows(found))
        text.notes(found)
        text.title(found)
    assert 50 < taken < len(mutants)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "none", "closed name"])
def test_what_is_no_file_stops_no_call(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forget: None
) -> None:
    path = tmp_path / "mine.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "closed name":
        path = tmp_path / ("x" * 300)
    monkeypatch.setenv(tables.TABLES_VARIABLE, str(path))
    tables.from_environment.cache_clear()
    plan.clear_plans()
    with caplog.at_level(logging.WARNING, "mxgemm"):
        mxgemm.gemm(torch.randn(M, K), mxgemm.quantize(torch.randn(N, K)))
    assert caplog.text.count("routing table ignored, the shipped ones are used") == 1
    assert str(path) in caplog.text
    assert explain(M, N, K, device="cpu", tables=["a\0b", path]).route == cpu_route()


def test_a_row_at_the_ends_of_its_range_is_used(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    document["rows"] = [{**document["rows"][0], "m": size, "n": size, "k": size} for size in (1, tables.LARGEST)]
    document["rules"] = [{"route": "reference", "source": "me", "m_max": 0, "nk_min": 1 << 59}]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    assert len(tables.load(path).rows) == 2
    assert explain(M, N, K, device="cpu", tables=[path]).route == cpu_route()
