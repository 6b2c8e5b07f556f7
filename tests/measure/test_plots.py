"""Pictures are written, are pictures, and show what the document holds."""

import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from mxgemm import measure
from mxgemm.measure import plots
from mxgemm.measure.peers import PEERS
from mxgemm.measure.plots import style
from mxgemm.measure.spread import Effort


@pytest.fixture(scope="module")
def document() -> dict:
    request = measure.Request(
        [(1, 32, 64), (2, 64, 64)],
        torch.device("cpu"),
        route="reference",
        peers=True,
        effort=Effort(seconds=0.0, least=2, most=2),
    )
    return measure.run(request)


def text_of(path: Path) -> str:
    return " ".join(re.findall(r">([^<>]+)<", path.read_text()))


def is_picture(path: Path) -> bool:
    start = path.read_bytes()[:8]
    return path.stat().st_size > 5000 and (start == b"\x89PNG\r\n\x1a\n" or start.startswith(b"<?xml"))


def test_every_picture_of_a_run(document: dict, tmp_path: Path) -> None:
    paths = plots.draw(document, tmp_path, "run")
    names = {f"run_{what}" for what in ("time", "roofline")} | {"routes_cpu_mk", "routes_cpu_mn"}
    assert {path.name for path in paths} == {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")}
    assert all(is_picture(path) for path in paths)
    time = text_of(tmp_path / "run_time.svg")
    for part in ("mxgemm reference", "torch_mm", "floor", "M 2", "N 64", document["environment"]["device"]):
        assert part in time
    assert document["date"][:10] in time
    roofline = text_of(tmp_path / "run_roofline.svg")
    assert "fp32 GEMM" in roofline
    assert "GB/s" in roofline


def test_whose_activations_come_quantised_is_said(document: dict, tmp_path: Path) -> None:
    other = json.loads(json.dumps(document))
    for record in other["results"]:
        if record["kind"] == "peer":
            record["statement"] = PEERS["scaled_mm_fp8"].statement
    plots.draw(other, tmp_path, "q")
    for name in ("q_time.svg", "q_roofline.svg"):
        assert text_of(tmp_path / name).count("(A comes quantised)") == 1


def test_many_sizes_get_a_panel_for_each_weight(document: dict, tmp_path: Path) -> None:
    many = json.loads(json.dumps(document))
    many["results"] = [
        {**record, "m": record["m"] * 2**i, "n": n} for i in range(8) for n in (96, 128) for record in many["results"]
    ]
    plots.draw_times(many, tmp_path, "many")
    text = text_of(tmp_path / "many.svg")
    assert "N 96, K 64" in text
    assert "N 128, K 64" in text


def test_gpu_documents_show_eager_time_too(document: dict, tmp_path: Path) -> None:
    gpu = json.loads(json.dumps(document))
    for record in gpu["results"]:
        record["eager"] = {**record["device"], **{name: 3 * record["device"][name] for name in ("low", "us", "high")}}
    plots.draw_times(gpu, tmp_path, "gpu")
    assert "eager time" in text_of(tmp_path / "gpu.svg")


def test_nothing_timed_draws_nothing(document: dict, tmp_path: Path) -> None:
    empty = {**document, "results": [{**record, "device": None} for record in document["results"]]}
    assert plots.draw_times(empty, tmp_path, "x") == plots.draw_roofline(empty, tmp_path, "x") == []


def test_the_route_map_is_the_routers(tmp_path: Path) -> None:
    plots.draw_route_map("sm_90", tmp_path, "map", plane="mn", fixed=512)
    text = text_of(tmp_path / "map.svg")
    for part in ("a16wfp4", "fp8_fold", "K = 512", "NVIDIA H100/H200", "no mark"):
        assert part in text
    with pytest.raises(ValueError, match="arch: got 'moon', want one of cpu"):
        plots.draw_route_map("moon", tmp_path, "map")


def test_colours_and_markers_tell_contenders_apart() -> None:
    kinds = [("route", f"r{i}") for i in range(12)] + [("peer", f"p{i}") for i in range(6)]
    looks = style.look(kinds)
    seen = {(look["marker"], look["color"], look["markerfacecolor"]) for look in looks.values()}
    assert len(seen) == len(kinds)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mxgemm\[bench\]'"):
        plots.require_matplotlib()
