"""The scripts that measure, and make tables of it."""

import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mxgemm import measure
from mxgemm.cuda.w4_mma import MmaConfig
from mxgemm.cuda.w4_wgmma import WgmmaConfig
from mxgemm.routing import tables

BENCH = Path(__file__).resolve().parent.parent / "bench"


def script(name: str):
    path = BENCH.parent / "routing_tables" if name.startswith("make_") else BENCH
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_of_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = script("threads")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    right, wrong = torch.arange(5.0), torch.arange(5.0) + 1e-6
    case = threads.Case("half", [right.clone, wrong.clone])
    assert threads.race(case, [right, right], "one stream", 4, 50) == 100
    assert threads.race(case, [right, wrong], "one stream, plans made anew", 4, 50) == 0

    def fail() -> torch.Tensor:
        raise RuntimeError("launch")

    with pytest.raises(RuntimeError, match="launch"):
        threads.race(threads.Case("fails", [fail]), [right], "one stream", 4, 50)


def record_of(request: measure.Request, shape: measure.Shape, us: float, peer: str = "") -> dict:
    """What of a result the recipe's summary looks at."""
    kind, name = ("peer", peer) if peer else ("route", request.route)
    ours = {"a_format": None, "form": None} if peer else {"a_format": request.a_format, "form": request.form}
    return dict(zip("mnk", shape, strict=True)) | {"kind": kind, "name": name, "device": {"us": us}, **ours}


def test_the_recipe_for_hopper_asks_for_every_variant_where_it_belongs() -> None:
    hopper = script("hopper")
    requests = hopper.requests_for(torch.device("cpu"), [256, 1, 64, 64], 0.0)
    asked = {(r.route, r.a_format, r.form): sorted({m for m, _, _ in r.shapes}) for r in requests}
    assert asked == {
        ("fp8_fold", "e2m1", "fast"): [1, 64, 256],
        ("fp8_fold", "e2m1", "compact"): [64, 256],
        ("dequant_mm", "e2m1", "raw"): [64, 256],
        ("a16wfp4", "e2m1", "raw"): [1, 64],
        ("dequant_mm", "bf16", "raw"): [64, 256],
        ("w4a16", "bf16", "raw"): [1, 64, 256],
        ("w4_mma", "e2m1", "fast"): [1],
        ("w4_mma", "e2m1", "raw"): [1],
        ("w4_mma", "e4m3", "fast"): [1],
        ("w4_mma", "bf16", "fast"): [1],
        ("w4_mma", "bf16", "raw"): [1],
        ("w4_wgmma", "e2m1", "fast"): [64, 256],
        ("w4_wgmma", "e2m1", "compact"): [64, 256],
        ("w4_wgmma", "e4m3", "fast"): [64, 256],
        ("w4_wgmma", "bf16", "fast"): [64, 256],
        ("w4_wgmma", "bf16", "raw"): [64, 256],
    }
    assert [list(r.peers) for r in requests] == [["torch_mm"]] + [[]] * 15
    assert {tuple(r.times) for r in requests} == {("device",)}
    sizes = measure.sizes_of(requests)
    assert len(sizes) == 3 * 7
    weights = [size[1:] for size in sizes]
    assert sum(a != b for a, b in itertools.pairwise(weights)) == 6, "a weight is made once"


def test_the_recipe_for_hopper_sums_up_by_ratios() -> None:
    hopper = script("hopper")
    fast, compact, *_ = hopper.requests_for(torch.device("cpu"), [64, 128], 0.0)
    (small, large), other = fast.shapes[:2], fast.shapes[2]
    results = [record_of(fast, shape, 10.0, "torch_mm") for shape in (small, large, other)]
    results += [record_of(fast, small, 5.0), record_of(fast, other, 20.0), record_of(compact, large, 20.0)]
    columns, rows = hopper.summary(results)
    assert columns == ["variant", "", "M 64", "M 128"]
    assert rows == [
        ("fp8_fold fast", "/ torch_mm", "1.000", ""),  # the geometric mean of 1/2 and 2
        ("fp8_fold compact", "/ torch_mm", "", "2.000"),
    ]


def test_two_trees_are_compared_by_all_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = script("before_after")
    effort = measure.Effort(seconds=0.0, least=2, most=2)
    document = measure.run(measure.Request([(3, 32, 64)], torch.device("cpu"), effort=effort))
    asked: list[tuple[Path, list[str]]] = []
    times = {"before": iter([100.0, 110.0]), "after": iter([105.0, 112.0])}

    def run(tree: Path, options: list[str]) -> None:
        asked.append((tree, options))
        path = Path(options[-1].removeprefix("--json="))
        us = next(times[path.stem.partition("_")[0]])
        for record in document["results"]:
            record["device"] = {"us": us, "low": us - 1, "high": us + 1}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))

    monkeypatch.setattr(recipe, "run", run)
    arguments = ["before_after.py", "--base", str(tmp_path), "--set", "gpt-oss", "-o", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", arguments)
    assert recipe.main() == 0
    assert "0 of 1 slower by more than the spread" in capsys.readouterr().out
    assert [tree for tree, _ in asked] == [tmp_path, BENCH.parent] * 2
    assert all("--set=gpt-oss" in options and "--no-peers" in options for _, options in asked)
    times.update(before=iter([100.0, 101.0]), after=iter([105.0, 112.0]))
    assert recipe.main() == 1
    assert "1 of 1 slower by more than the spread" in capsys.readouterr().out


def test_a_tree_measures_itself(tmp_path: Path) -> None:
    recipe = script("before_after")
    (tmp_path / "mxgemm").mkdir()
    (tmp_path / "mxgemm" / "__init__.py").touch()
    command = tmp_path / "mxgemm" / "__main__.py"
    command.write_text("import os, sys; print(open(sys.argv[2], 'w').write(os.environ['PYTHONPATH'] + os.getcwd()))")
    recipe.run(tmp_path, [str(tmp_path / "said")])
    assert (tmp_path / "said").read_text() == f"{tmp_path}{tmp_path}"
    command.write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match="mxgemm bench ended with 3"):
        recipe.run(tmp_path, [])


def test_rows_of_w4_mma_are_its_fastest_configurations_by_form() -> None:
    make = script("make_sm_90_table")
    size = {"m": 4, "n": 64, "k": 128, "a_format": "e2m1"}
    slow, fast = MmaConfig().to_mapping(), MmaConfig(tiles=2, resident=3).to_mapping()

    def timed(form: str, us: float, config: object, **more: object) -> dict[str, object]:
        return {**size, "form": form, "us": us, "again": True, "config": config, **more}

    document = {
        "kind": make.TUNED_KIND,
        "environment": {"arch": "sm_90", "compute_units": 132},
        "rows": [
            timed("raw", 3.0, slow),
            timed("raw", 2.0, fast, again=False),  # a short measurement
            timed("prepared", 2.126, fast),
            timed("prepared", 2.5, slow),
            {**size, "form": "raw", "wrong": "norm", "config": fast},
        ],
    }
    rows = make.tuned_rows([("here", document)])
    found = [(row.get("derived"), row["us"], row["config"]) for row in rows]
    assert found == [
        (None, 3.0, {"tiles": 1}),  # one that is all defaults is named nevertheless
        ("fp8_fold", 2.13, {"tiles": 2, "resident": 3}),
        ("bf16", 2.13, {"tiles": 2, "resident": 3}),
    ]
    table = tables.parse({**make.HEAD, "rows": rows}, "here")
    assert [row.derived for row in table.rows] == [None, "fp8_fold", "bf16"]
    with pytest.raises(ValueError, match="want what bench/mma_table.py wrote on sm_90"):
        make.tuned_rows([("here", {**document, "kind": "other"})])


def test_rows_of_w4_wgmma_are_where_it_is_faster() -> None:
    make = script("make_sm_90_table")
    config = WgmmaConfig(tiles=2).to_mapping()

    def timed(m: int, us: float, **more: object) -> dict[str, object]:
        of_size = {"m": m, "n": 64, "k": 128, "us": us, "torch_us": 9.0, "again": True, "config": config}
        return {"a_format": "e2m1", "form": "prepared", **of_size, **more}

    def other(m: int, route: str, derived: str) -> dict[str, object]:
        return {"m": m, "n": 64, "k": 128, "a_format": "e2m1", "route": route, "us": 10.0, "derived": derived}

    document = {
        "kind": make.WGMMA_KIND,
        "environment": {"arch": "sm_90", "compute_units": 132},
        "rows": [timed(64, 8.0), timed(64, 7.0, again=False), timed(256, 11.0), timed(512, 1.0, form="raw")],
    }
    others = [other(m, *of) for m in (32, 64, 256) for of in (("fp8_fold", "fp8_fold"), ("dequant_mm", ""))]
    rows = make.with_wgmma(others, "here", document)
    found = {(row["m"], row["a_format"], row["derived"]): row for row in rows if row["route"] == "w4_wgmma"}
    assert set(found) == {(64, "e2m1", "fp8_fold"), (64, "e2m1", ""), (64, "bf16", "")}
    measured, predicted = found[64, "e2m1", "fp8_fold"], found[64, "bf16", ""]
    assert (measured["grade"], measured["us"], measured["config"]) == ("measured", 8.0, {"tiles": 2})
    assert (predicted["grade"], predicted.get("us"), predicted["config"]) == ("predicted", None, {})
    assert [row["m"] for row in rows if row["route"] == "dequant_mm"] == [32, 256]
    assert [row["m"] for row in rows if row["route"] == "fp8_fold"] == [32, 64, 256]
    with pytest.raises(ValueError, match="want what bench/w4_wgmma.py timed on sm_90"):
        make.with_wgmma(others, "here", {**document, "kind": "other"})


def test_the_routing_table_of_hopper_is_made_of_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = script("make_sm_90_table")
    effort = measure.Effort(seconds=0.0, least=2, most=2)
    document = measure.run(measure.Request([(64, 32, 64)], torch.device("cpu"), route="reference", effort=effort))
    (record,) = document["results"]
    document["environment"] |= {"arch": "sm_90", "compute_units": 132}
    document["results"] = []
    for us, request in enumerate(script("hopper").requests_for(torch.device("cpu"), [64], 0.0), 10):
        who = {"name": request.route, "a_format": request.a_format, "form": request.form}
        who["m"] = 32 if request.route == "w4_mma" else 64
        document["results"].append({**record, **who, "device": {**record["device"], "us": us + 0.125}})
    document["results"].append({**document["results"][0], "m": 128, "device": None})  # failed its gates
    document["results"].append({**document["results"][0], "m": 32})  # where there are rows of w4_mma alone
    (source, table) = tmp_path / "hopper.json", tmp_path / "sm_90.json"
    source.write_text(json.dumps(document))
    monkeypatch.setattr(sys, "argv", ["make_sm_90_table.py", str(source), "-o", str(table)])
    make.main()
    rows = tables.load(table).rows
    assert [(row.m, row.n, row.k, row.a_format, row.route, row.us) for row in rows] == [
        (32, 32, 64, "bf16", "w4_mma", 19.12),  # alone there, and as "fast"
        (32, 32, 64, "e2m1", "fp8_fold", 10.12),  # beside it, as weights are prepared for both
        (32, 32, 64, "e2m1", "w4_mma", 16.12),
        (32, 32, 64, "e4m3", "w4_mma", 18.12),
        (64, 32, 64, "bf16", "dequant_mm", 14.12),
        (64, 32, 64, "bf16", "w4a16", 15.12),
        (64, 32, 64, "e2m1", "dequant_mm", 12.12),  # as it lies
        (64, 32, 64, "e2m1", "a16wfp4", 13.12),
        (64, 32, 64, "e2m1", "fp8_fold", 10.12),  # as "fast": there is no row of the compact form
    ]
    assert {(row.cu_count, row.grade, len(row.config)) for row in rows} == {(132, "measured", 0)}
    shipped = tables.load(BENCH.parent / "routing_tables" / "sm_90.json")
    assert tables.load(table).rules == shipped.rules
    with pytest.raises(ValueError, match="results: none of them"):
        make.rows_of({**document, "results": []})
    with pytest.raises(ValueError, match="arch: got cpu, want a run on sm_90"):
        make.rows_of({**document, "environment": {"arch": "cpu"}})


def test_the_cpus_kernels_are_checked_and_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native = script("cpu_native")
    for sizes in ("SIZES", "BF16_SIZES", "E4M3_SIZES", "CHECKED"):
        monkeypatch.setattr(native, sizes, ((3, 33, 96),))
    monkeypatch.setattr(native, "CONVERTED", (3, 64))
    path, threads = tmp_path / "r.json", torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["cpu_native.py", "--threads", "1", "--seconds", "0", "-o", str(path)])
    with pytest.raises(SystemExit) as ended:
        native.main()
    torch.set_num_threads(threads)
    document = json.loads(path.read_text())
    assert (ended.value.code, document["wrong"]) == (0, [])
    assert {record["name"] for record in document["results"]} >= {"gemm", "torch.mm bf16", "reference", "quantize"}
    assert all(record["us"] > 0 for record in document["results"])
    call = native.contenders({}, torch.randn(2, 96), native.mxgemm.quantize(torch.randn(33, 96)), "e2m1")["gemm"]
    monkeypatch.setattr(native, "product", lambda library, a, w, fmt, method, out: out.fill_(1))
    assert call().shape == (2, 33)
    assert list(native.faults("wrong", None))


def test_interrupted_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loses its processor at each call is left out, the other contender is not."""
    native = script("cpu_native")
    switches = [0]
    monkeypatch.setattr(native.resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=switches[0]))
    monkeypatch.setattr(native, "FLUSHED", 64)

    def interrupted() -> None:
        switches[0] += 1

    assert math.isnan(native.undisturbed_us(interrupted))
    found = native.timed({"undisturbed": lambda: None, "interrupted": interrupted}, 1e-4, native.undisturbed_us)
    assert list(found) == ["undisturbed"]
    assert found["undisturbed"].runs >= native.LEAST
