"""Is the router's choice near the best route measured? Over committed results, on any machine; nothing is measured.

    PYTHONPATH=. python bench/router_check.py [--most 1.05] [FILE ...]

Of every size, format of A and form of the weight of which a file, or several files together, have the times of two
routes and more: what the router takes now against the best of them. Times of different runs on a GPU are compared by
their ratios to torch.mm of the same run; a route's best configuration counts. Choices whose route was not measured are
said and not judged. Left out are files that a later one of the same machine replaces, sizes on a CPU where quartiles of
a time lie a factor of 1.5 apart, and fp8_fold in files of before its sums were in fp32 and its bases last. Exit status
1 where a choice takes more than --most of the best.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from mxgemm.cpu import abi, variants
from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.errors import Refusal
from mxgemm.files import read_json
from mxgemm.measure.document import KIND as BENCH
from mxgemm.routes import ROUTES
from mxgemm.routing import tables
from mxgemm.routing.explain import problem_of
from mxgemm.routing.router import choose

RESULTS: Final = Path(__file__).resolve().parent / "results"
MOST: Final = 1.05
FAST_SUMS_UNTIL: Final = "2026-12-01T05:42"
"""fp8_fold kept its sums in the tensor core before, up to this K."""
FAST_SUMS_K: Final = 4096
BASES_UNTIL: Final = "2026-12-01T18:00"
"""fp8_fold took the vendor's one product with a base a row before, of so few results slower than what it takes now."""
BASES_RESULTS: Final = 1 << 24
SUPERSEDED: Final = ("cpu_native_xeon",)
"""Of kernels that AMX and other methods have replaced on that CPU since; it does not say which features torch used."""
DISTURBED: Final = 1.5
_KINDS: Final = {
    **{"fast": "fp8_fold", "prepared": "fp8_fold", "fast for bf16": "bf16", "compact": "fp8_fold_compact", "raw": ""}
}
"""Forms of the weight by the words of the files."""
_BESIDE_TORCH: Final = {"mxgemm-w4-mma-table": "w4_mma", "mxgemm-w4-wgmma": "w4_wgmma", "mxgemm-forms": ""}
"""Files of one route, or that name it, with torch.mm's time in every row."""
_CPU: Final = ("mxgemm-cpu-native", "mxgemm-cpu-native-medians", "mxgemm-cpu-native-processor-time")


class Case(NamedTuple):
    """One problem on one machine; times are compared within one, and within ``run`` where that is not "".

    Attributes:
        arch: of the machine.
        m: rows of A.
        n: rows of B.
        k: elements along K.
        a_format: of A.
        form: of the weight, as rows of tables name it.
        features: of the CPU.
        variant: of the C kernels, "" for the best.
        run: which files, or which part of one.
    """

    arch: str
    m: int
    n: int
    k: int
    a_format: str
    form: str = ""
    features: frozenset[str] = frozenset()
    variant: str = ""
    run: str = ""


class Verdict(NamedTuple):
    """What the router takes for a case.

    Attributes:
        case: which.
        choice: route, on a CPU with its method.
        share: of its time to the best one's, None where it was not measured.
        best: of the routes.
    """

    case: Case
    choice: str
    share: float | None
    best: str

    def __str__(self) -> str:
        case, share = self.case, "not measured" if self.share is None else f"{self.share:.3f} of {self.best}"
        where = f"{case.arch} {case.run}" if case.run else case.arch
        return f"{case.m},{case.n},{case.k} {case.a_format} {case.form or 'raw'} ({where}): {self.choice}: {share}"


Times = dict[Case, dict[str, float]]


def main() -> None:
    """Print choices that are far from the best, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json")))
    parser.add_argument("--most", type=float, default=MOST, help="what a choice may take of the best")
    arguments = parser.parse_args()
    found = list(verdicts(measured(arguments.files)))
    judged = [one for one in found if one.share is not None]
    far = [one for one in judged if one.share is not None and one.share > arguments.most]
    print(*far, sep="\n")
    print(f"{len(far)} of {len(judged)} choices take more than {arguments.most:g} of the best; "
          f"of {len(found) - len(judged)} the route was not measured")  # fmt: skip
    sys.exit(bool(far))


def measured(paths: Iterable[Path]) -> Times:
    """Collect the times of routes from files: those on a GPU over torch.mm's."""
    found: Times = {}
    for path in paths:
        document = read_json(path)
        kind = document.get("kind")
        rows: Iterable[tuple[Case, str, float]] = ()
        if kind == BENCH and document["environment"]["arch"] in KNOWN_MACHINES:
            rows = _of_bench(document)
        elif kind in _BESIDE_TORCH:
            rows = _beside_torch(document, _BESIDE_TORCH[kind])
        elif kind == "mxgemm-between-rows":
            rows = _between(document, path.stem)
        elif kind in _CPU and path.stem not in SUPERSEDED:
            rows = _of_cpu(document, path.stem)
        for case, name, us in rows:
            if name == "fp8_fold" and _is_old(case, date_of(document)):
                continue
            times = found.setdefault(case, {})
            times[name] = min(us, times.get(name, us))
    return found


def _is_old(case: Case, date: str) -> bool:
    """Say whether fp8_fold is another one now than when it was measured."""
    fast = case.k <= FAST_SUMS_K and date < FAST_SUMS_UNTIL
    return fast or (case.m * case.n <= BASES_RESULTS and date < BASES_UNTIL)


def date_of(document: dict[str, Any]) -> str:
    """Return when a file was measured, that of its first run where it has several."""
    return str(document["date"] if "date" in document else min(run["date"] for run in document["runs"]))


def verdicts(times: Times) -> Iterator[Verdict]:
    """Judge what the router takes by the shipped tables, where two routes and more were measured."""
    for case, of_routes in times.items():
        if len({name.split()[0] for name in of_routes}) > 1:
            choice = chosen(case)
            best = min(of_routes, key=lambda name: of_routes[name])
            us = of_routes.get(choice)
            yield Verdict(case, choice, None if us is None else us / of_routes[best], best)


def chosen(case: Case) -> str:
    """Return what the router takes on such a machine with everything installed."""
    machine = KNOWN_MACHINES[case.arch]
    problem = problem_of(case.m, case.n, case.k, machine, a_format=case.a_format, derived=case.form)
    with ExitStack() as stack:
        for route in ROUTES.values():
            stack.enter_context(patch.object(route, "missing", _of_machine(route.missing)))
        if case.arch == "cpu":
            for module in (variants, tables):
                stack.enter_context(patch.object(module, "cpu_features", lambda: case.features))
            stack.enter_context(patch.object(variants, "named", lambda: case.variant))
            stack.enter_context(patch.object(abi, "permit_matrix_unit", lambda: True))
            amx, *others = variants.VARIANTS
            stack.enter_context(patch.object(variants, "VARIANTS", (_permitted(amx), *others)))
        choice = choose(problem, tables=[])
    return choice.route.name


def _of_machine(missing: Any) -> Any:
    def of(machine: Machine) -> Refusal | None:
        found: Refusal | None = missing(machine)
        of_cpu = machine.arch == "cpu" and found is not None and found.field in ("cc", "cpu", variants.VARIANT_VARIABLE)
        return None if found is None or of_cpu or found.about == "installation" else found

    return of


def _permitted(variant: variants.Variant) -> variants.Variant:
    return variants.Variant(variant.name, variant.needs, variant.flags, variant.extras)


def _of_bench(document: dict[str, Any]) -> Iterator[tuple[Case, str, float]]:
    arch = document["environment"]["arch"]
    torch_us = {
        (one["m"], one["n"], one["k"]): one["device"]["us"]
        for one in document["results"]
        if one["name"] == "torch_mm" and one["device"]
    }
    for one in document["results"]:
        size = one["m"], one["n"], one["k"]
        if one["kind"] == "route" and one["device"] and one["accuracy"]["passed"] and size in torch_us:
            yield _on_hopper(arch, one), one["name"], one["device"]["us"] / torch_us[size]


def _beside_torch(document: dict[str, Any], route: str) -> Iterator[tuple[Case, str, float]]:
    for one in document["rows"]:
        if one.get("passed", True) and one.get("again", True):
            yield _on_hopper("sm_90", one), route or one["route"], one["us"] / one["torch_us"]


def _on_hopper(arch: str, one: dict[str, Any]) -> Case:
    return Case(arch, one["m"], one["n"], one["k"], one["a_format"], _KINDS[one["form"]])


def _between(document: dict[str, Any], run: str) -> Iterator[tuple[Case, str, float]]:
    for one in document["rows"]:
        case = Case("sm_90", one["m"], one["n"], one["k"], one["a_format"], "fp8_fold", run=run)
        for screened in one["screened"]:
            yield case, screened["route"], screened["us"]


def _of_cpu(document: dict[str, Any], run: str) -> list[tuple[Case, str, float]]:
    found, disturbed = list[tuple[Case, str, float]](), set[Case]()
    features = frozenset(document["features"])
    named = {one["name"].split()[0] for one in document["results"]}
    known = [one for one in variants.VARIANTS if one.needs <= features or one.name in named]
    features |= known[0].needs
    for one in document["results"]:
        name, method = [*one["name"].split(), ""][:2]
        variant = one.get("run") or known[0].name
        if "n" not in one or name not in (variant, "cpu_dequant_mm", "reference", "rows", "panels", "tiles"):
            continue
        where = f"{run}, {one['threads']} thread{'s' if one['threads'] > 1 else ''}"
        forced = variant if variant != known[0].name else ""
        case = Case("cpu", one["m"], one["n"], one["k"], one.get("a_format", "e2m1"), "", features, forced, where)
        if one.get("high", 0.0) > DISTURBED * one.get("low", 1.0):
            disturbed.add(case)
        ours = name == variant or (not method and name in ("rows", "panels", "tiles"))
        found.append((case, "cpu_native" if ours else name, one["us"]))
    return [one for one in found if one[0] not in disturbed]


if __name__ == "__main__":
    main()
