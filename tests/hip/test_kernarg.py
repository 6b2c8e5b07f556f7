"""The packed argument segment has the offsets that C gives a struct of the same members."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxgemm.hip.kernarg import Layout

TYPES = {
    "P": (ctypes.c_uint64, st.integers(0, 2**64 - 1)),
    "Q": (ctypes.c_uint64, st.integers(0, 2**64 - 1)),
    "q": (ctypes.c_int64, st.integers(-(2**63), 2**63 - 1)),
    "i": (ctypes.c_int32, st.integers(-(2**31), 2**31 - 1)),
    "I": (ctypes.c_uint32, st.integers(0, 2**32 - 1)),
    "f": (ctypes.c_float, st.floats(width=32, allow_nan=False)),
}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_segments_are_c_structs(data: st.DataObject) -> None:
    codes = data.draw(st.text("".join(TYPES), min_size=1, max_size=9))
    values = [data.draw(TYPES[code][1]) for code in codes]
    members = [(f"m{i}", TYPES[code][0]) for i, code in enumerate(codes)]
    expected = bytes(type("Arguments", (ctypes.Structure,), {"_fields_": members})(*values))
    packed = Layout(codes).pack(*values)
    assert len(packed) == Layout(codes).size <= len(expected)
    assert packed == expected[: len(packed)]
    assert not any(expected[len(packed) :])


def test_wrong_values_and_codes() -> None:
    with pytest.raises(struct.error):
        Layout("PI").pack(1)
    with pytest.raises(struct.error):
        Layout("I").pack(-1)
    with pytest.raises(ValueError, match="codes: got 'x' in 'Px'"):
        Layout("Px")


def test_offsets_are_where_values_lie() -> None:
    layout = Layout("PIqfP")
    assert layout.offsets == (0, 8, 16, 24, 32)
    packed = layout.pack(1, 2, 3, 0.0, 5)
    assert [packed[at] for at in layout.offsets] == [1, 2, 3, 0, 5]
    assert layout.size == len(packed)
