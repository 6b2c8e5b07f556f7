"""Compile the gfx950 kernels with releases of Triton before 3.6, count, execute in the emulator, and predict.

    python evidence/older_tritons.py FOLDER [FOLDER ...] [-o bench/results/older_tritons_gfx950.json]

A folder is one of `pip install --target FOLDER --no-deps triton==3.5.1`. Triton 3.4.0 from PyPI links with a linker
that it does not bring: TRITON_HIP_LLD_PATH names one (ld.lld-22). No GPU, and no speed is measured.
What the file has of other releases stays in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any, Final

from evidence.gfx950_cases import CASES, Case, compile_cases, execute
from evidence.predict import table as table_of_assumptions
from evidence.predicted import executed, for_size
from evidence.tritons import ROOT, compiler_environment
from gfx950emu import EmulatorError
from mxgemm import files
from mxgemm.measure import LEADERBOARD, output
from mxgemm.triton.releases import GFX950

KIND: Final = "mxgemm-older-tritons"
RESULTS: Final = ROOT / "bench" / "results" / "older_tritons_gfx950.json"
COUNTED: Final = ("vgprs", "spills", "scratch", "waves_per_simd", "scaled_mfma", "other_mfma", "valu", "lds_reads")

_PREPARED: Final = {"weight_layout": "preshuffled", "scale_layout": "shuffled"}
_QUANTIZED: Final = {"a_quantized": True, "a_format": "e2m1"}
KERNELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "a16wfp4, prepared": ("a16wfp4", _PREPARED),
    "a16wfp4, row-major": ("a16wfp4", {}),
    "a16wfp4, fp32 A": ("a16wfp4", {**_PREPARED, "a_dtype": "float32"}),
    "a16wfp4, fp16 A": ("a16wfp4", {**_PREPARED, "a_dtype": "float16"}),
    "a16wfp4, e4m3": ("a16wfp4", {**_PREPARED, "a_format": "e4m3"}),
    "w4a16, prepared": ("w4a16", {**_PREPARED, "a_format": "bf16"}),
    "w4a16, row-major": ("w4a16", {"a_format": "bf16"}),
    "gemm_mx, prepared": ("gemm_mx", {**_PREPARED, **_QUANTIZED}),
    "gemm_mx, row-major": ("gemm_mx", _QUANTIZED),
    "quant_gemm_mx, prepared": ("quant_gemm_mx", _PREPARED),
    "quant_gemm_mx, row-major": ("quant_gemm_mx", {}),
}
"""What is compiled: a name -> route and problem."""
SIZE: Final = {"m": 256, "n": 3072, "k": 1536}


def tile(
    block_m: int, block_n: int, block_k: int, *, warps: int = 4, stages: int = 2, waves: int = 0
) -> dict[str, int]:
    """Return a tile as a job names it."""
    sizes = {"block_m": block_m, "block_n": block_n, "block_k": block_k}
    return {**sizes, "num_warps": warps, "num_stages": stages, "waves_per_eu": waves}


TILES: Final = (
    *(tile(16, 128, 256, stages=stages, waves=waves) for stages, waves in product((1, 2), (0, 3, 4))),
    *(tile(32, 128, 256, stages=stages, waves=waves) for stages, waves in ((1, 0), (2, 0), (2, 3))),
    tile(16, 32, 512),
    tile(16, 64, 256, stages=1),
)
_FREE: Final = {"waves_per_eu": 0}  # what mxgemm/triton/releases.py has these releases take
LARGE: Final = (tile(128, 128, 256), tile(128, 128, 256, warps=8), tile(128, 128, 256, stages=1))
"""Tiles of operands that are quantised already, at large M."""
MANY_ROWS: Final = ("quant_gemm_mx", 1024, 7168, 2048, LARGE)


def main() -> None:
    """Compile, execute, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="+", type=Path)
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    there = arguments.output and arguments.output.exists()
    found = files.read_json(arguments.output)["tritons"] if there else {}
    for folder in arguments.folder:
        version = version_of(folder)
        print(f"triton {version}", file=sys.stderr)
        found[version] = {
            "compiled": list(compiled_with(folder)),
            "executed": executed_with(folder, version),
            "predicted": list(predicted_with(folder, version)),
        }
    document = {
        "kind": KIND,
        "arch": "gfx950",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "method": "compiled and counted, the main loop of one wave; executed: strictly in gfx950emu, judged against "
        "float64; predicted: a few tiles executed, evidence/predict.py. Nothing ran on a GPU",
        "size": SIZE,
        "assumptions": table_of_assumptions(),
        "tritons": dict(sorted(found.items())),
    }
    if arguments.output:
        keep(document)


def version_of(folder: Path) -> str:
    """Return the version of the triton that is installed in a folder."""
    command = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    environment = compiler_environment(folder)
    return subprocess.run(command, env=environment, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every kernel with every tile, and the kernel's name."""
    for name, (route, problem) in KERNELS.items():
        job = {"route": route, "arch": "gfx950", **SIZE, "problem": problem, "unchecked": True}
        for config in LARGE if route == "quant_gemm_mx" else (*TILES, *LARGE) if route == "gemm_mx" else TILES:
            yield name, {**job, "config": config}


def compiled_with(folder: Path) -> Iterator[dict[str, Any]]:
    """Compile every job and yield its counts, or why it does not compile."""
    names, wanted = zip(*jobs(), strict=True)
    command = [sys.executable, "-m", "evidence.cross_compile"]
    environment = compiler_environment(folder)
    done = subprocess.run(
        command, input=json.dumps(wanted), text=True, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE
    )
    for name, job, line in zip(names, wanted, done.stdout.splitlines(), strict=True):
        head, launches = {"kernel": name, "tile": job["config"]}, json.loads(line)
        if isinstance(launches, dict):
            yield {**head, "error": launches["error"]}
            continue
        main_launch = next(launch for launch in launches if launch["kernel"].startswith("gemm"))
        yield {**head, **{count: main_launch[count] for count in COUNTED}}


def executed_with(folder: Path, version: str) -> dict[str, Any]:
    """Execute the evidence's cases within the limits, strictly; a wrong result is written in its place."""
    found = {}
    with tempfile.TemporaryDirectory() as made:
        cases = [case if case.config is None else replace(case, config={**case.config, **_FREE}) for case in CASES]
        cases = [case for case in cases if case.config is None or within_limits(case.config, version)]
        compile_cases(cases, Path(made), folder)
        for case in cases:
            try:
                outcome = execute(case, Path(made), strict=True)
                found[case.name] = {"passed": outcome.passed, "detail": outcome.detail, "config": outcome.config}
            except (RuntimeError, EmulatorError) as error:  # it does not compile, or the emulator refuses it
                found[case.name] = {"passed": False, "detail": str(error).partition("\n")[0]}
    return found


def within_limits(config: Mapping[str, Any], version: str) -> bool:
    """Say whether the library would give a release this tile."""
    major, minor = version.split(".")[:2]
    return all(config.get(limit.field, 0) <= limit.most for limit in GFX950[int(major), int(minor)].limits)


def predicted_with(folder: Path, version: str) -> Iterator[dict[str, Any]]:
    """Predict sizes by each tile that is within the limits, executed on two tiles of columns."""
    sizes = [*(("a16wfp4", *shape, small_tiles(shape[0], shape[2])) for shape in LEADERBOARD), MANY_ROWS]
    for route, m, n, k, configs in sizes:
        cases = [
            Case(f"p{index}", route, m, n, k, config={**config, "split_k": 14 if k == 7168 else 1})
            for index, config in enumerate(configs)
            if within_limits(config, version)
        ]
        few = [replace(case, m=min(m, _block(case, "m")), n=2 * _block(case, "n")) for case in cases]
        with tempfile.TemporaryDirectory() as made:
            compile_cases(few, Path(made), folder)
            for case, small in zip(cases, few, strict=True):
                figures, config = executed(small, Path(made))
                head = {"route": route, "m": m, "n": n, "k": k, "config": config.to_mapping()}
                yield {**head, "us": for_size(case, figures, config).us}


def small_tiles(m: int, k: int) -> Sequence[dict[str, int]]:
    """Return the tiles that may serve few rows: one step of K at a time, or the next one's loads before it."""
    blocks = [(16, 128, 256), *([(16, 32, 512)] if k == 512 else []), *([(32, 128, 256)] if m >= 64 else [])]
    return [tile(*block, stages=stages) for block in blocks for stages in (1, 2)]


def section(document: dict[str, Any]) -> list[str]:
    """Return what the results say, as lines of docs/gfx950-evidence.md."""
    lines = [
        "## Triton 3.4 and 3.5",
        "",
        "What torch 2.8 and 2.9 for ROCm bring, as PyPI has them; ROCm's own builds, of forks, compiled nothing here.",
        f"`python evidence/older_tritons.py` wrote `bench/results/{RESULTS.name}` ({document['date'][:10]}).",
        "Limits: those of `mxgemm/triton/releases.py`. *Spills*: launches that spill, and registers at most.",
        "",
        "| triton | launches compiled | within limits: spills | beyond: spills | cases right, strictly |",
        "|---|---|---|---|---|",
    ]
    for version, found in document["tritons"].items():
        compiled = [row for row in found["compiled"] if "error" not in row]
        beyond = [row for row in compiled if not within_limits(row["tile"], version)]
        spilt = [
            f"{sum(row['spills'] > 0 for row in rows)} of {len(rows)}, {max(row['spills'] for row in rows)}"
            for rows in ([row for row in compiled if row not in beyond], beyond)
        ]
        right = sum(case["passed"] for case in found["executed"].values())
        cells = [
            version,
            f"{len(compiled)} of {len(found['compiled'])}",
            *spilt,
            f"{right} of {len(found['executed'])}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    versions = list(document["tritons"])
    lines += [
        "",
        "Predicted microseconds, prepared weight, by tile and `num_stages`, for each of them:",
        "",
        f"| route, M, N, K | tile / splits | {' | '.join(f'{version}: 1 | 2' for version in versions)} |",
        f"|---|---|{'---|' * 2 * len(versions)}",
    ]
    times: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for version in versions:
        for row in document["tritons"][version]["predicted"]:
            c = row["config"]
            block = f"{c['block_m']}x{c['block_n']}x{c['block_k']} / {c['split_k']}, {c['num_warps']} waves"
            of = times.setdefault((f"`{row['route']}` {row['m']}, {row['n']}, {row['k']}", block), {})
            of[version, c["num_stages"]] = row["us"]
    for (size, block), of in times.items():
        cells = [f"{of[key]:.1f}" if key in of else "" for key in product(versions, (1, 2))]
        lines.append(f"| {size} | {block} | {' | '.join(cells)} |")
    return lines


def _block(case: Case, of: str) -> int:
    assert case.config is not None
    return int(case.config[f"block_{of}"])


if __name__ == "__main__":
    main()
