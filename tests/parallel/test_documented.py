"""docs/api.md has every public name of mxgemm.parallel, with its signature."""

import inspect

import pytest

from mxgemm import parallel
from tests.test_docs import blocks, public, signature


@pytest.mark.parametrize("name", parallel.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    written, value = blocks(), getattr(parallel, name)
    if inspect.isfunction(value):
        assert signature(f"parallel.{name}", value) in written
        return
    if value is not parallel.ParallelMXLinear:
        assert signature(name, value) in written
    for own, function in public(value).items():
        if own not in ("forward", "extra_repr") and (inspect.isfunction(function) or isinstance(function, classmethod)):
            assert signature(f"{name}.{own}", getattr(value, own)) in written
