"""A problem with some of its strides, options or own fields replaced, by flat names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from mxgemm.problem import Options, Problem, Strides


def changed(problem: Problem, **options: Any) -> Problem:
    """Replace ``<operand>_stride``, fields of the options, and fields of the problem."""
    strides = problem.strides
    assert strides is not None
    moved = {f.name: options.pop(f"{f.name}_stride") for f in fields(Strides) if f"{f.name}_stride" in options}
    named = {name: options.pop(name) for name in list(options) if name in Options._fields}
    return replace(problem, strides=replace(strides, **moved), options=problem.options._replace(**named), **options)
