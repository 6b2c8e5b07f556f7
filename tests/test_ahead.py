import json
from pathlib import Path

import pytest

from mxgemm import ahead, build_cache
from mxgemm.errors import RouteUnavailable
from mxgemm.hip import build, code_object
from mxgemm.routing import tables
from mxgemm.routing.router import choose

SHAPES = [(4, 2880, 512), (16, 2112, 7168)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    reason = build.compiler_refusal("gfx950")
    if reason:
        pytest.skip(f"nothing here compiles for gfx950: {reason}")
    monkeypatch.setenv(build_cache.CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_was_built_ahead_is_what_a_call_would_build(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = list(ahead.build_ahead(SHAPES))
    assert [b.source for b in built] == ["shuffle_scales.hip", "preshuffle_weight.hip", *["fused_gemm.hip"] * 2]
    images = sorted(cache.glob("*/fused_gemm.hsaco"))
    assert len(images) == len(SHAPES)
    for image in images:
        assert code_object.inspect(image.read_bytes()).arch == "gfx950"

    def compile_again(*_: object) -> bytes:
        raise AssertionError("built again")

    monkeypatch.setattr(build, "_compiled", compile_again)
    assert [b.nbytes for b in ahead.build_ahead(SHAPES)] == [b.nbytes for b in built]


def test_a_table_row_says_which_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"m": 4, "n": 2880, "k": 512, "route": "hip_fused", "grade": "measured", "us": 3.0, "source": "own"}
    config = {"block_m": 16, "block_n": 32, "block_k": 128, "waves": 2, "unroll": 1}
    own = {"kind": tables.KIND, "version": tables.VERSION, "arch": "gfx950", "sources": {"own": {}}, "rules": []}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(own | {"rows": [row | {"config": config}]}))
    monkeypatch.setattr(ahead, "choose", lambda problem, route: choose(problem, route=route, tables=[path]))
    *_, built = ahead.build_ahead([(4, 2880, 512)])
    assert "block_n=32, block_k=128, waves=2" in built.what


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="arch: got 'gfx942', want 'gfx950'"):
        list(ahead.build_ahead(SHAPES, "gfx942"))
    with pytest.raises(RouteUnavailable, match="k is 96"):
        list(ahead.build_ahead([(4, 2880, 96)]))
