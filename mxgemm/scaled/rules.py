"""Which route of ``quant_gemm`` for which problem, as data: the first rule that fits and whose route can is taken.

The rules of sm_90 are what was measured on an H200 (bench/results/quant_gemm_h200.json).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mxgemm.scaled.problem import QuantProblem


@dataclass(frozen=True, slots=True)
class Rule:
    """A route for some problems.

    Attributes:
        route: its name.
        arch: of the machine.
        schemes: names of schemes.
        least_m: rows of A from which on it holds.
        least_n: rows of B from which on it holds.
        least_weight: elements of B from which on it holds.
        group_n: rows of B that share a scale, 0 for any.
        powers: for E8M0 scales or for others.
        a_formats: of A, none for any.
        b_formats: of B, none for any.
    """

    route: str
    arch: str
    schemes: tuple[str, ...]
    least_m: int = 1
    least_n: int = 1
    least_weight: int = 0
    group_n: int = 0
    powers: bool = False
    a_formats: tuple[str, ...] = ()
    b_formats: tuple[str, ...] = ()

    def fits(self, problem: QuantProblem) -> bool:
        """Say whether the rule is for a problem."""
        p = problem
        return (
            p.arch == self.arch
            and p.scheme.name in self.schemes
            and p.scheme.b_powers == self.powers
            and p.m >= self.least_m
            and p.n >= self.least_n
            and p.n * p.k >= self.least_weight
            and self.group_n in (0, p.scheme.b_group[0])
            and (not self.a_formats or p.a_format in self.a_formats)
            and (not self.b_formats or p.b_format in self.b_formats)
        )


_BLOCKS: Final = ("aquant", "abquant", "bquant")
_WIDE: Final = ("bf16", "e4m3", "e5m2")

RULES: Final = (
    Rule("scaled_mm", "sm_90", ("tensor_quant",)),
    Rule("scaled_mm", "sm_90", ("rowcolquant", *_BLOCKS), least_m=129),
    Rule("scaled_mm", "sm_90", ("abquant", "bquant"), group_n=1),
    Rule("scaled_mm", "sm_90", ("abquant",), least_n=4096),
    Rule("scaled_mm", "sm_90", ("aquant", "bquant"), least_weight=1 << 25),
    Rule("unpack_mm", "sm_90", ("abquant",), b_formats=("e2m1",)),
    Rule("unpack_mm", "sm_90", ("aquant",), least_m=33, a_formats=("int4",)),
    Rule("unpack_mm", "sm_90", ("aquant",), least_weight=1 << 25, a_formats=("int4",)),
    Rule("unpack_mm", "sm_90", ("bquant",), least_m=65, b_formats=("int4",)),
    Rule("unpack_mm", "sm_90", ("bquant",), least_weight=1 << 25, b_formats=("int4",)),
    Rule("dequant_mm", "sm_90", ("bquant",), least_m=129, powers=True, b_formats=_WIDE),
    Rule("mx", "sm_90", ("bquant",), least_weight=1 << 25, powers=True, b_formats=("e4m3", "e5m2")),
    Rule("dequant_mm", "sm_90", ("bquant",), least_m=33, powers=True, b_formats=("e4m3", "e5m2")),
    Rule("triton", "sm_90", ("bquant",), powers=True, b_formats=_WIDE),
)


def named(problem: QuantProblem) -> Iterator[str]:
    """Yield the routes that rules name for a problem, the first first."""
    return (rule.route for rule in RULES if rule.fits(problem))
