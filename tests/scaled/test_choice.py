"""Which route and which tile a problem gets, on machines that are not here."""

from __future__ import annotations

import pytest
import torch

import mxgemm
from evidence.scaled_compile import problem_of
from mxgemm import RowCol, TensorWise
from mxgemm.device import KNOWN_MACHINES
from mxgemm.scaled.choice import ROUTES, choose
from mxgemm.scaled.problem import QuantProblem
from mxgemm.scaled.rules import RULES
from mxgemm.scaled.tile import tile_for, tile_refusal
from tests.scaled.cases import PAIRS, ids


def problem(scheme: str, sizes: list[int], m: int, n: int = 7168, k: int = 2048, **given: str) -> QuantProblem:
    job = {"scheme": scheme, "sizes": sizes, "m": m, "n": n, "k": k, "a": "e4m3", "b": "e4m3", "arch": "sm_90"} | given
    return problem_of(job)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the routes ask of the installation, as a machine with an H200 answers."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    return None


@pytest.mark.parametrize(
    "wanted, scheme, sizes, m, given",
    [
        ("scaled_mm", "tensor_quant", [], 1, {}),
        ("triton", "rowcolquant", [], 64, {}),
        ("scaled_mm", "rowcolquant", [], 1024, {}),
        ("triton", "rowcolquant", [], 1024, {"a": "e5m2", "b": "e5m2"}),
        ("triton", "abquant", [128, 128, 128], 1, {}),
        ("scaled_mm", "abquant", [128, 128, 128], 16, {}),
        ("triton", "abquant", [128, 64, 128], 1024, {}),
        ("scaled_mm", "abquant", [128, 1, 128], 16, {}),
        ("triton", "abquant", [128, 1, 128], 33, {}),
        ("triton", "aquant", [128], 64, {}),
        ("scaled_mm", "aquant", [128], 1024, {}),
        ("triton", "aquant", [128], 16, {"a": "int4"}),
        ("unpack_mm", "aquant", [128], 1024, {"a": "int4"}),
        ("unpack_mm", "abquant", [128, 128, 128], 1, {"a": "e2m1", "b": "e2m1"}),
        ("triton", "bquant", [1, 128], 16, {"b": "int4"}),
        ("unpack_mm", "bquant", [1, 128], 256, {"b": "int4"}),
        ("scaled_mm", "bquant", [1, 128], 1023, {}),
        ("triton", "bquant", [1, 96], 1024, {}),
        ("mx", "bquant_e8m0", [1, 32], 16, {"a": "bf16", "b": "e2m1"}),
        ("triton", "bquant_e8m0", [1, 128], 16, {"a": "bf16", "b": "e5m2"}),
        ("dequant_mm", "bquant_e8m0", [1, 32], 1024, {"a": "bf16", "b": "bf16"}),
        ("triton", "bquant_e8m0", [1, 32], 128, {"a": "bf16", "b": "bf16"}),
        ("dequant_mm", "bquant_e8m0", [1, 128], 64, {"a": "bf16", "b": "e5m2"}),
    ],
)
def test_routes_of_an_h200(wanted: str, scheme: str, sizes: list[int], m: int, given: dict, hopper: None) -> None:
    found = problem(scheme, sizes, m, **given)
    if wanted in ("triton", "unpack_mm") and ROUTES["triton"].missing(found.machine):
        pytest.skip("triton is not installed")
    assert choose(found, None).name == wanted


def test_rules_name_routes_and_machines() -> None:
    for rule in RULES:
        assert rule.route in ROUTES
        assert rule.arch in KNOWN_MACHINES


def test_the_vendors_route_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, hopper: None) -> None:
    route = ROUTES["scaled_mm"]
    for field, given in (
        ("n", problem("rowcolquant", [], 64, n=40)),
        ("k", problem("rowcolquant", [], 64, k=72)),
        ("m", problem("abquant", [128, 128, 128], 33)),
        ("k", problem("abquant", [128, 128, 128], 64, k=2944)),
        ("scheme", problem("aquant", [64], 64)),
        ("b.format", problem("rowcolquant", [], 64, a="e5m2", b="e5m2")),
        ("a.format", problem("aquant", [128], 64, a="int4")),
    ):
        refusal = route.refusal(given)
        assert refusal is not None
        assert refusal.field == field
    assert route.refusal(problem("abquant", [128, 1, 128], 64, k=2944)) is None
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    refusal = route.refusal(problem("abquant", [128, 128, 128], 64))
    assert refusal is not None
    assert refusal.missing
    assert route.refusal(problem("rowcolquant", [], 64)) is None


@pytest.mark.parametrize("arch", ["sm_90", "gfx950", "gfx942"])
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_tiles_are_legal(pair: tuple, arch: str) -> None:
    from mxgemm.scaled.schemes import described

    name, sizes = described(pair[0])
    for m in (1, 16, 33, 64, 65, 512, 513, 4096):
        for n, k in ((1, 32), (2880, 2880), (7168, 16384)):
            for groups in (0, 8):
                job = {"scheme": name, "sizes": sizes, "a": pair[1], "b": pair[2], "arch": arch, "m": m, "n": n, "k": k}
                found = problem_of(job, groups)
                assert tile_refusal(found, tile_for(found)) is None


def test_a_slow_reference_on_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    found = problem("rowcolquant", [], 4, n=40)
    monkeypatch.setattr(
        "mxgemm.scaled.triton_gemm.triton_missing", lambda machine: mxgemm.Refusal("triton", "none", "triton")
    )
    monkeypatch.setattr("mxgemm.notices._said", {})
    with caplog.at_level("WARNING", logger="mxgemm"):
        assert choose(found, None).name == "reference"
        assert choose(found, None).name == "reference"
    assert len(caplog.records) == 1
    assert "quant_gemm on sm_90 runs by the slow reference: mx: scheme is RowCol()" in caplog.text
    assert TensorWise() == TensorWise()
    assert RowCol() != TensorWise()
