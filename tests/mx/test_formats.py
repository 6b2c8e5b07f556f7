import numpy as np
import pytest

from mxgemm.mx import formats, oracle


@pytest.mark.parametrize(
    "fmt, rounding, addend",
    [
        ("e2m1", "floor", 0),
        ("e2m1", "even", 0x200000),
        ("e2m1", "rceil", 0x3FFFFF),
        ("e2m1", "ceil", 0x7FFFFF),
        ("e4m3", "even", 0x80000),
        ("e4m3", "rceil", 0x1FFFFF),
        ("e5m2", "even", 0x100000),
        ("e5m2", "rceil", 0x1FFFFF),
    ],
)
def test_scale_addend(fmt: str, rounding: str, addend: int) -> None:
    assert formats.scale_addend(formats.FORMATS[fmt], rounding) == addend


@pytest.mark.parametrize("fmt", formats.FORMATS.values(), ids=str)
def test_format_agrees_with_its_codes(fmt: formats.ElementFormat) -> None:
    values = oracle.code_values(fmt.name)
    finite = values[np.isfinite(values)]
    assert len(values) == 2**fmt.bits
    assert finite.max() == fmt.max
    assert 2.0**fmt.emax <= fmt.max < 2.0 ** (fmt.emax + 1)
    assert fmt.bits * fmt.pack == 8


def test_e2m1_values_in_code_order() -> None:
    assert np.array_equal(oracle.code_values("e2m1"), formats.E2M1_VALUES)
    assert np.array_equal(np.signbit(oracle.code_values("e2m1")), np.signbit(formats.E2M1_VALUES))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="format: got 'fp4', want one of e2m1, e4m3, e5m2"):
        formats.element_format("fp4")
    with pytest.raises(ValueError, match="scale_rounding: got 'up', want one of even, floor, ceil, rceil"):
        formats.scale_addend(formats.E2M1, "up")
