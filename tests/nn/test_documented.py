"""docs/api.md has every public name of mxgemm.nn, with its signature."""

import inspect

import mxgemm
from mxgemm.nn import MXLinear, MXWeight
from tests.test_docs import API, blocks, public, read, signature


def test_every_public_name_is_documented() -> None:
    written = blocks()
    for name in mxgemm.nn.__all__:
        value = getattr(mxgemm.nn, name)
        if inspect.isfunction(value) or issubclass(value, MXWeight):
            assert signature(name, value) in written
        else:
            assert any(f"`{prefix}.{name}`" in read(API) for prefix in ("mxgemm", "mxgemm.nn"))
    inherited = ("forward", "reset_parameters", "extra_repr")  # torch's own names
    for owner in (MXWeight, MXLinear):
        for name, value in public(owner).items():
            if name not in inherited and (inspect.isfunction(value) or isinstance(value, classmethod)):
                assert signature(f"{owner.__name__}.{name}", getattr(owner, name)) in written
