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
        ("w4_fp8", "e2m1", "compact"): [64, 256],
        ("w4_wgmma", "e4m3", "fast"): [64, 256],
        ("w4_wgmma", "bf16", "fast"): [64, 256],
        ("w4_wgmma", "bf16", "raw"): [64, 256],
    }
    assert [list(r.peers) for r in requests] == [["torch_mm"]] + [[]] * 16
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
    call = native.contenders({}, torch.randn(2, 96), native.mxgemm.quantize(torch.randn(33, 96)), "e2m1", False)["gemm"]
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
