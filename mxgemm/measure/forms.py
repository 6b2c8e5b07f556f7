"""The forms of a weight that tuning measures: made as callers make them, and in a problem on any machine."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from mxgemm.device import Machine
from mxgemm.mx.formats import E2M1, ActivationFormat
from mxgemm.mx.layouts import ROW_MAJOR
from mxgemm.mx.prepared import wanted
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Problem
from mxgemm.routing.explain import problem_of

Form = Literal["fast", "bf16", "compact", "raw"]
"""A weight as ``prepare()`` makes it, for e2m1 or for bf16 activations, or with ``memory="compact"``; or as its bytes
lie."""
FORMS: Final[tuple[Form, ...]] = get_args(Form)
SAID: Final[dict[Form, str]] = {
    "fast": "prepared",
    "bf16": 'prepared with a_format="bf16"',
    "compact": 'prepared with memory="compact"',
    "raw": "row-major, not prepared",
}
_ARGUMENTS: Final[dict[Form, dict[str, Any]]] = {
    "fast": {"memory": "fast"},
    "bf16": {"memory": "fast", "a_format": "bf16"},
    "compact": {"memory": "compact"},
}


def in_form(weight: MXTensor, form: Form) -> MXTensor:
    """Bring a row-major weight into a form."""
    return weight if form == "raw" else weight.prepare(**_ARGUMENTS[form])


def problem_in_form(m: int, n: int, k: int, machine: Machine, a_format: ActivationFormat, form: Form) -> Problem:
    """Describe the call with a weight in a form on a machine that need not be here; a weight that folds, where it may.

    Args:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        machine: where it would run.
        a_format: as in ``gemm``.
        form: of the weight.
    """
    made = None
    if form != "raw":
        made = next(wanted(machine.arch, **{"fmt": E2M1, "n": n, "k": k, **_ARGUMENTS[form]}), None)
    layout = ROW_MAJOR if made is None or made.layout is None else made.layout
    kind = "" if made is None or made.layout is not None else made.kind
    return problem_of(m, n, k, machine, a_format=a_format, given=layout, derived=kind)


def form_of_kind(kind: str | None) -> Form:
    """Return the form of a weight whose rows name such a kind."""
    if not kind:
        return "raw"
    if kind.endswith("_compact"):
        return "compact"
    return "bf16" if kind == "bf16" else "fast"
