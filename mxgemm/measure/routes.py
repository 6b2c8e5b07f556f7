"""Routes of this library as contenders."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, get_args

import torch
from torch import Tensor

from mxgemm.device import machine_of
from mxgemm.errors import Refusal, Refused, RouteUnavailable
from mxgemm.gemm import gemm, gemm_mx
from mxgemm.measure.contender import BEFOREHAND, Contender
from mxgemm.measure.forms import in_form
from mxgemm.measure.oracle import Exact, Oracle
from mxgemm.mx.formats import BLOCK, FORMATS, ActivationFormat
from mxgemm.mx.tensor import MXTensor
from mxgemm.problem import Options, Problem
from mxgemm.quantize import quantize
from mxgemm.routes import ROUTES
from mxgemm.routing.explain import explain

Form = Literal["fast", "compact", "raw"]
"""A weight as ``prepare()`` makes it, by its ``memory``, or as its bytes lie."""
FORMS: Final[tuple[Form, ...]] = get_args(Form)
_STATED: Final[dict[Form, str]] = {
    "fast": ", prepared beforehand",
    "compact": ", prepared beforehand in little memory",
    "raw": " as its bytes lie",
}


class RouteContender(Contender):
    """A call of :func:`mxgemm.gemm` that takes one route, with A in bf16 and quantised inside.

    Attributes:
        a_format: as in ``gemm``.
        form: of the weight.
        chosen: this is the route that the router takes by itself, and the call does not name it: a named route may
            get another configuration.
    """

    kind: ClassVar[str] = "route"

    def __init__(self, name: str, *, a_format: ActivationFormat, form: Form, chosen: bool) -> None:
        self.name, self.a_format, self.form, self.chosen = name, a_format, form, chosen
        self.accumulate_bits = ROUTES[name].accumulate_bits
        what = "bf16 activations" if a_format == "bf16" else f"activations rounded to MX {a_format} inside the call"
        self.statement = f"{what}, MXFP4 weight{_STATED[form]}"

    def load(self, weight: MXTensor) -> Any:
        """Bring the weight into its form."""
        return in_form(weight, self.form)

    def clone(self, loaded: Any) -> Any:
        """Copy a weight with everything that was prepared."""
        return loaded.clone()

    def nbytes(self, loaded: Any) -> int:
        """Return the MXFP4 bytes: no prepared form that a route reads is smaller."""
        return int(loaded.data.nbytes + loaded.scales.nbytes)

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply, into fresh memory."""
        return gemm(a, loaded, a_format=self.a_format, route=None if self.chosen else self.name)

    def checked_call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply into NaN."""
        out = torch.full((a.shape[0], loaded.shape[0]), float("nan"), dtype=torch.bfloat16, device=a.device)
        return gemm(a, loaded, a_format=self.a_format, route=None if self.chosen else self.name, out=out)

    def exact(self, oracle: Oracle, a: Any, loaded: Any) -> Exact:
        """See the contract of ``gemm``: docs/numbers.md."""
        del a, loaded
        return oracle.exact(self.a_format)


class QuantizedContender(RouteContender):
    """A call of :func:`mxgemm.gemm_mx`: A is quantised before, and that is not timed."""

    def __init__(self, name: str, *, a_format: ActivationFormat, form: Form) -> None:
        super().__init__(name, a_format=a_format, form=form, chosen=False)
        self.statement = f"activations quantised to MX {a_format} {BEFOREHAND}; MXFP4 weight"

    def refuses(self, m: int, n: int, k: int) -> Refusal | None:
        """Only MX activations are multiplied."""
        del m, n, k
        return Refusal("a_format", "bf16", "an MX format: e2m1 or e4m3") if self.a_format == "bf16" else None

    def traffic_bytes(self, m: int, n: int, k: int) -> int:
        """Return the bytes with A in an MX format."""
        return super().traffic_bytes(m, n, k) - 2 * m * k + m * (k // FORMATS[self.a_format].pack + k // BLOCK)

    def activations(self, a: Tensor) -> Any:
        """Quantise A."""
        return quantize(a, format=self.a_format)  # type: ignore[arg-type]  # bf16 was refused

    def call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply, into fresh memory."""
        return gemm_mx(a, loaded, route=self.name)

    def checked_call(self, a: Any, loaded: Any) -> Tensor:
        """Multiply into NaN."""
        out = torch.full((a.shape[0], loaded.shape[0]), float("nan"), dtype=torch.bfloat16, device=a.device)
        return gemm_mx(a, loaded, route=self.name, out=out)


def route_contenders(
    m: int,
    n: int,
    k: int,
    weight: MXTensor,
    *,
    a_format: ActivationFormat,
    form: Form,
    only: str | None,
    every: bool,
) -> tuple[list[RouteContender], list[Refused], str]:
    """Return the routes to measure for one size.

    Args:
        m: rows of A.
        n: rows of B.
        k: elements along K.
        weight: as ``load`` leaves it.
        a_format: as in ``gemm``.
        form: of the weight.
        only: a route's name: this one alone.
        every: every route that can, and the reasons of the others.

    Returns:
        the contenders; those that cannot; why the router would choose what it chooses.
    """
    _, _, layout, kind, _ = weight.operand()
    ask: dict[str, Any] = {
        **{"device": weight.device, "a_format": a_format, "derived": kind},
        **{"weight_layout": layout.data, "scale_layout": layout.scales},
    }
    choice = explain(m, n, k, **ask)
    if only is not None:
        wanted = [only]
    else:
        wanted = list(ROUTES) if every else [choice.route]
    found: list[RouteContender] = []
    refused: list[Refused] = []
    for name in wanted:
        if name == "gemm_mx" and name != choice.route:
            quantized = QuantizedContender(name, a_format=a_format, form=form)
            refusal = quantized.refuses(m, n, k) or _gemm_mx_refusal(m, n, k, weight)
            if refusal:
                refused.append(Refused(name, refusal))
            else:
                found.append(quantized)
            continue
        try:
            explain(m, n, k, route=name, **ask)
        except RouteUnavailable as error:
            refused.append(Refused(name, error.refusal))
            continue
        found.append(RouteContender(name, a_format=a_format, form=form, chosen=name == choice.route))
    return found, refused, choice.reason


def _gemm_mx_refusal(m: int, n: int, k: int, weight: MXTensor) -> Refusal | None:
    _, _, layout, _, _ = weight.operand()
    problem = Problem(
        m, n, k, machine_of(weight.device), Options(weight_layout=layout.data, scale_layout=layout.scales),
        a_quantized=True, a_dtype=torch.uint8,
    )  # fmt: skip
    return ROUTES["gemm_mx"].refusal(problem)
