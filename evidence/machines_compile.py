"""Compile the Triton routes for machines that nobody here has, and say which of their matrix instructions came out.

    python evidence/machines_compile.py -o bench/results/machines_compile.json

Each route's own choice of a tile in each mix of formats, and, where the machine has a scaled matrix instruction, every
tile that tuning would try. A quarter of an hour of one core; both tritons, each in processes of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from evidence.cross_compile import problem_of  # noqa: E402
from evidence.tritons import MISSING, compiler_environment, other_triton  # noqa: E402
from mxgemm import files  # noqa: E402
from mxgemm.routes import ROUTES  # noqa: E402
from mxgemm.triton import support  # noqa: E402
from mxgemm.triton.scaled_dot import SCALED_DOTS  # noqa: E402

KIND: Final = "mxgemm-machines-compiled"
MACHINES: Final = ("gfx1250", "sm_100", "sm_120", "gfx942")
MX: Final = {"a_quantized": True}
FORMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "a16wfp4 e2m1": ("a16wfp4", {}),
    "a16wfp4 e4m3": ("a16wfp4", {"a_format": "e4m3"}),
    "w4a16 bf16": ("w4a16", {"a_format": "bf16"}),
    "gemm_mx e2m1 by e2m1": ("gemm_mx", {**MX, "a_format": "e2m1"}),
    "gemm_mx e4m3 by e2m1": ("gemm_mx", {**MX, "a_format": "e4m3"}),
    "gemm_mx e4m3 by e4m3": ("gemm_mx", {**MX, "a_format": "e4m3", "b_format": "e4m3"}),
    "quant_gemm_mx e2m1": ("quant_gemm_mx", {}),
}
FOLD: Final = ("fp8_fold", {"derived": "fp8_fold_fnuz"})
SIZES: Final = (
    *((m, 2112, 7168, "row_major") for m in (16, 64, 1024)),
    (16, 2880, 512, "preshuffled"),
)
TILED: Final = ("a16wfp4 e2m1", "gemm_mx e2m1 by e2m1")
"""Forms of which every tile is compiled, for 64 rows and with one triton."""
TRITONS: Final[dict[str, tuple[int, int]]] = {"3.6": (3, 6), "own": (3, 9)}


def jobs_of(arch: str, triton: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (form, job) of one machine; jobs are those of evidence/cross_compile.py."""
    for form, (route, options) in FORMS.items():
        for m, n, k, layout in SIZES:
            if layout == "preshuffled" and options.get("b_format"):
                continue  # the order is e2m1's
            layouts = {"weight_layout": layout, "scale_layout": "shuffled" if layout == "preshuffled" else layout}
            yield form, {"route": route, "arch": arch, "m": m, "n": n, "k": k, "problem": options | layouts}
    if arch == "gfx942":
        for m, n, k, _ in SIZES[1:]:
            yield "fp8_fold", {"route": FOLD[0], "arch": arch, "m": m, "n": n, "k": k, "problem": FOLD[1]}
    for form in TILED if arch in SCALED_DOTS and triton == "own" else ():
        route, options = FORMS[form]
        m, n, k, _ = SIZES[1]
        problem = problem_of(m, n, k, arch, **options)
        for config in dict.fromkeys(ROUTES[route].candidates(problem)):
            plain = config.split_k == 1 and config.num_stages == 2  # type: ignore[attr-defined]
            if plain and ROUTES[route].check_config(problem, config) is None:
                job = {"route": route, "arch": arch, "m": m, "n": n, "k": k, "problem": options}
                yield f"{form}, any tile", job | {"config": config.to_mapping()}


def refused(job: dict[str, Any], triton: tuple[int, int]) -> str:
    """Say why the router would not take this route with a triton, "" if it would."""
    problem = problem_of(job["m"], job["n"], job["k"], job["arch"], **dict(job["problem"]))
    route = ROUTES[job["route"]]
    support.triton_version = lambda: triton
    # what a ROCm torch brings is another question: of fp8_fold the call alone is asked
    refusal = route.can_implement(problem) if job["route"] == FOLD[0] else route.refusal(problem)
    return "" if refusal is None else refusal.reason


def grade(result: Any, arch: str) -> str:
    """Say which matrix instruction the last launch of a job has: "scaled", "plain", or what went wrong."""
    if isinstance(result, dict):
        return "error"
    main = result[-1]
    if arch.startswith("gfx9"):
        return "scaled" if main["scaled_mfma"] else "plain" if main["other_mfma"] else "none"
    names = main["matrix"]
    scaled = [name for name in names if SCALED_DOTS[arch].instruction in name]
    return "none" if not names else "scaled" if len(scaled) == len(names) else "mixed" if scaled else "plain"


def compiled(arch: str, triton: str) -> list[dict[str, Any]]:
    """Compile one machine's jobs with one triton, and return a row for each."""
    rows = []
    wanted = []
    for form, job in jobs_of(arch, triton):
        reason = refused(job, TRITONS[triton])
        row = {"form": form, **{name: job[name] for name in ("m", "n", "k")}}
        row["layout"] = job["problem"].get("weight_layout", "row_major")
        rows.append(row | ({"grade": "refused", "reason": reason} if reason else {"grade": ""}))
        if not reason:
            wanted.append((rows[-1], job))
    environment = compiler_environment(None if triton == "own" else other_triton())
    done = subprocess.run(
        [sys.executable, "-m", "evidence.cross_compile"], input=json.dumps([job for _, job in wanted]), text=True,
        capture_output=True, cwd=ROOT, env=environment, check=True,
    )  # fmt: skip
    for (row, _), line in zip(wanted, done.stdout.splitlines(), strict=True):
        result = json.loads(line)
        row["grade"] = grade(result, arch)
        if row["grade"] == "error":
            row["reason"] = result["error"][:200]
            continue
        main = result[-1]
        row["config"] = {name: main["config"][name] for name in _SHOWN if name in main["config"]}
        row["matrix"] = main.get("matrix") or {"scaled": main["scaled_mfma"], "plain": main["other_mfma"]}
        row["spills"] = max(each["spills"] for each in result)
        row["lds"] = main["lds"]
    return rows


def table_of(counts: dict[str, dict[str, dict[str, dict[str, int]]]]) -> str:
    """Return the counts as docs/machines.md has them: a row a form, a column a machine, both tritons if they differ."""
    every = [form for of_tritons in counts.values() for found in of_tritons.values() for form in found]
    forms = dict.fromkeys(every)
    lines = [f"| form | {' | '.join(counts)} |", "|---" * (1 + len(counts)) + "|"]
    for form in forms:
        cells = []
        for of_tritons in counts.values():
            said = {name: _cell(found.get(form, {})) for name, found in of_tritons.items()}
            same = len(set(said.values())) == 1
            cells.append(next(iter(said.values())) if same else "; ".join(said.values()))
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(counted: dict[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counted.items())) or "-"


_SHOWN: Final = ("block_m", "block_n", "block_k", "num_warps", "transposed", "fast_accumulation")


def main() -> None:
    """Compile all of it and write the document."""
    parser = argparse.ArgumentParser(description="Compile for machines that are not here.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    files.check_writable(output, files.json_mark(KIND))
    if other_triton() is None:
        raise SystemExit(MISSING)
    document: dict[str, Any] = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tritons": {name: ".".join(map(str, version)) for name, version in TRITONS.items()},
        "counts": {},
        "results": {},
    }
    for arch in MACHINES:
        for triton in TRITONS:
            rows = compiled(arch, triton)
            of_forms: dict[str, Counter[str]] = {}
            for row in rows:
                of_forms.setdefault(row["form"], Counter())[row["grade"]] += 1
            document["results"].setdefault(arch, {})[triton] = rows
            document["counts"].setdefault(arch, {})[triton] = {form: dict(found) for form, found in of_forms.items()}
            print(arch, triton, document["counts"][arch][triton], flush=True)
            files.save_json(output, document, KIND)
    print(table_of(document["counts"]))


if __name__ == "__main__":
    main()
