"""Pictures are written, are pictures, and show what the document holds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.text import Text

from mxgemm import measure
from mxgemm.measure import plots
from mxgemm.measure.identity import Identity, identity
from mxgemm.measure.peers import PEERS
from mxgemm.measure.plots import style
from mxgemm.measure.spread import Effort


@pytest.fixture(scope="module")
def document() -> dict:
    request = measure.Request(
        [(1, 32, 64), (2, 64, 64)],
        torch.device("cpu"),
        route="reference",
        peers=["torch_mm"],
        effort=Effort(seconds=0.0, least=2, most=2),
    )
    return measure.run(request)


def text_of(figure: Any) -> str:
    """Everything that is written in a figure."""
    figure.canvas.draw()
    return " ".join(text.get_text() for text in figure.findobj(Text) if text.get_visible())


def copy_of(document: dict) -> dict:
    copied: dict = json.loads(json.dumps(document))
    return copied


def many_sizes(document: dict) -> dict:
    """The run at eight M of two weights."""
    many = copy_of(document)
    first = {identity(record): record for record in many["results"]}
    many["results"] = [
        {**record, "m": 2**i, "n": n, "traffic_bytes": record["traffic_bytes"] * 2**i}
        for n in (96, 128)
        for i in range(8)
        for record in first.values()
    ]
    return copy_of(many)


@pytest.fixture(autouse=True)
def _no_figure_is_left() -> Iterator[None]:
    yield
    style.pyplot().close("all")


@pytest.mark.slow
def test_every_picture_of_a_run(document: dict, tmp_path: Path) -> None:
    paths = plots.draw(document, tmp_path, "run")
    assert [path.name for path in paths] == ["run_time.png", "run_roofline.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert path.stat().st_size > 5000
    assert not style.pyplot().get_fignums(), "figures that are written are closed"
    many = plots.draw(many_sizes(document), tmp_path, "many")
    assert [path.name for path in many] == ["many_time.png", "many_roofline.png", "many_ratio.png"]
    maps = plots.draw_maps("sm_90", tmp_path)
    assert [path.name for path in maps] == ["routes_sm_90_mk.png", "routes_sm_90_mn.png"]
    plots.check_writable(tmp_path, "sm_90", "many")


def test_what_the_times_say(document: dict) -> None:
    time = text_of(plots.times_figure(document))
    for part in ("mxgemm reference", "torch_mm", "floor", "M 2", "N 64", document["environment"]["device"]):
        assert part in time
    assert document["date"][:10] in time


def test_the_roofline_tells_sizes_apart(document: dict) -> None:
    figure = plots.roofline_figure(document)
    words = text_of(figure)
    for part in ("fp32 GEMM", "GB/s", "M 1, N 32, K 64", "M 2, N 64, K 64", "mxgemm reference", "torch_mm"):
        assert part in words
    points = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert len(points) == len(document["results"])
    assert len({line.get_marker() for line in points}) == 2, "one for each size"
    drawn = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in points}
    for record in document["results"]:
        assert (record["flops"] / record["traffic_bytes"], record["tflop_per_s"]) in drawn
    peer = next(record for record in document["results"] if record["kind"] == "peer")
    assert peer["traffic_bytes"] > peer["bytes"], "its weight is bf16"


def test_many_sizes_share_a_line_of_the_roofline_by_weight(document: dict) -> None:
    many = many_sizes(document)
    figure = plots.roofline_figure(many)
    assert "N 96, K 64, M 1 to 128" in text_of(figure)
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert [len(line.get_xdata()) for line in lines] == [8] * 4


def test_whose_activations_come_quantised_is_said(document: dict) -> None:
    other = copy_of(document)
    for record in other["results"]:
        if record["kind"] == "peer":
            record["statement"] = PEERS["scaled_mm_fp8"].statement
    for figure in (plots.times_figure(other), plots.roofline_figure(other)):
        assert text_of(figure).count("(A comes quantised)") == 1


def test_many_sizes_get_a_panel_for_each_weight(document: dict) -> None:
    words = text_of(plots.times_figure(many_sizes(document)))
    assert "N 96, K 64" in words
    assert "N 128, K 64" in words


def test_gpu_documents_show_eager_time_too(document: dict) -> None:
    gpu = copy_of(document)
    for record in gpu["results"]:
        record["eager"] = {**record["device"], **{name: 3 * record["device"][name] for name in ("low", "us", "high")}}
    assert "eager time" in text_of(plots.times_figure(gpu))
    assert "eager time" not in text_of(plots.times_figure(document))


def test_nothing_timed_draws_nothing(document: dict) -> None:
    empty = {**document, "results": [{**record, "device": None} for record in document["results"]]}
    assert plots.times_figure(empty) is plots.roofline_figure(empty) is plots.ratio_figure(empty) is None


def test_ratios_are_those_of_the_document(document: dict) -> None:
    many = many_sizes(document)
    for record in many["results"]:
        if record["kind"] == "peer":
            record["device"]["us"] = 10.0
        else:
            record["device"]["us"] = 5.0 * record["m"] * (2 if record["n"] == 128 else 1)
    compact = [{**record, "form": "compact"} for record in many["results"] if record["kind"] == "route"]
    many["results"] += compact[:2]  # two points make no line
    figure = plots.ratio_figure(many)
    (axis,) = (axis for axis in figure.axes if axis.get_visible())
    ms = [2**i for i in range(8)]
    small, large = axis.lines[1:]  # the first is the peer's own
    assert list(small.get_xdata()) == list(large.get_xdata()) == ms
    assert list(small.get_ydata()) == [0.5 * m for m in ms]
    assert list(large.get_ydata()) == [1.0 * m for m in ms]
    words = text_of(figure)
    for part in ("time / torch_mm", "mxgemm reference fast", "N 96, K 64", "N 128, K 64"):
        assert part in words
    many["results"] += compact
    assert "mxgemm reference compact" in text_of(plots.ratio_figure(many))
    assert plots.ratio_figure(many, "humming") is None


def test_the_route_map_is_the_routers() -> None:
    words = text_of(plots.route_map_figure("sm_90", plane="mn", fixed=512))
    for part in ("w4_mma", "fp8_fold", "K = 512", "NVIDIA H100/H200", "no mark"):
        assert part in words
    assert plots.route_map_figure("cpu") is None, "it would have one colour"
    with pytest.raises(ValueError, match="arch: got 'moon', want one of cpu"):
        plots.route_map_figure("moon")


def test_colours_and_markers_tell_contenders_apart() -> None:
    kinds = [Identity("route", f"r{i}", "e2m1", "raw") for i in range(12)]
    kinds += [Identity("peer", f"p{i}", "", "") for i in range(6)]
    looks = style.look(kinds)
    seen = {(look["marker"], look["color"], look["markerfacecolor"]) for look in looks.values()}
    assert len(seen) == len(kinds)
    assert len({style.marker(i) for i in range(40)}) == 40


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mxgemm\[bench\]'"):
        plots.require_matplotlib()
