"""Launches as data: places, what is read back of a captured one, and what is told when that cannot be."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from mxgemm.hip.kernarg import Layout
from mxgemm.native import captured, vendor
from mxgemm.native.program import OUT, SCRATCH, A, KernelStep, Place, Program, fixed, joined, kernel_step

STEP = KernelStep(7, (1, 2, 3), (32, 1, 1), 0, bytes(range(40)), ())


def test_places_are_written_over_the_arguments() -> None:
    step = captured.with_places(STEP, (), (A, fixed(0x1122334455), SCRATCH + 24))
    assert step is not None
    function, grid, block, shared, attributes, arguments, changing = step.packed()
    assert (function, grid, block, shared, attributes) == (7, (1, 2, 3), (32, 1, 1), 0, b"")
    assert arguments == bytes(8) + (0x1122334455).to_bytes(8, "little") + bytes(8) + bytes(range(24, 40))
    assert changing == ((0, A), (16, Place(4, 24)))


def test_arguments_that_do_not_begin_with_the_addresses() -> None:
    addresses = tuple(int.from_bytes(STEP.arguments[at : at + 8], "little") for at in (0, 8))
    assert captured.with_places(STEP, addresses, (A, OUT)) is not None
    assert captured.with_places(STEP, addresses[::-1], (A, OUT)) is None


def test_a_launch_of_numbers_and_places() -> None:
    step = kernel_step(7, (1, 2, 3), (32, 1, 1), Layout("PIPq"), (A, 9, OUT, -1), shared_bytes=5, constants=b"rest")
    function, grid, block, shared, attributes, arguments, changing = step.packed()
    assert (function, grid, block, shared, attributes) == (7, (1, 2, 3), (32, 1, 1), 5, b"")
    assert arguments == bytes(8) + b"\x09" + bytes(7) + bytes(8) + b"\xff" * 8 + b"rest"
    assert changing == ((0, A), (16, OUT))


def test_what_there_is_room_for() -> None:
    assert Program((STEP,)).fits()
    assert not Program(()).fits()
    assert not Program((STEP,) * 9).fits()
    long = KernelStep(7, (1, 1, 1), (1, 1, 1), 0, bytes(4097), ())
    assert not Program((STEP, long)).fits()
    assert joined((STEP, None)) is None
    whole = joined((STEP, STEP), scratch_bytes=9)
    assert whole == Program((STEP, STEP), 9)


class Driver:
    """Answers of CUDA's driver about a graph of given nodes, each a kernel's arguments or None for another node."""

    def __init__(
        self, nodes: list[list[bytes] | None], attributes: dict[int, tuple[int, ...]] | None = None,
        of_library: bool = False, packed: bool = False,
    ) -> None:  # fmt: skip
        self.nodes, self.of_library, self.packed = nodes, of_library, packed
        self.attributes = {2: (0,), 4: (0, 0, 0), 5: (0,)} | (attributes or {})
        self.kept: list[Any] = []

    def check(self, status: int, what: str) -> None:
        assert not status, what

    def declare(self, name: str, *types: Any) -> Any:
        if name == "FuncGetParamInfo" and self.nodes[0] == []:
            raise AttributeError(name)
        return getattr(self, name)

    def GraphGetNodes(self, graph: Any, node: Any, count: Any) -> int:
        count._obj.value = len(self.nodes)
        return 0

    def GraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = 0 if self.nodes[0] is not None else 2
        return 0

    def GraphKernelNodeGetParams_v2(self, node: Any, found: Any) -> int:
        assert self.nodes[0] is not None
        values = [ctypes.create_string_buffer(value, len(value)) for value in self.nodes[0]]
        pointers = (ctypes.c_void_p * 8)(*map(ctypes.addressof, values))
        self.kept += [values, pointers]
        params = found._obj
        params.grid[:], params.block[:], params.shared_bytes = (4, 5, 6), (128, 1, 1), 77
        params.function, params.kernel = (None, 8) if self.of_library else (9, None)
        if not self.packed:
            params.arguments = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
            return 0
        block = ctypes.create_string_buffer(b"".join(self.nodes[0]))
        size = ctypes.c_size_t(len(block) - 1)
        words = (ctypes.c_void_p * 5)(1, ctypes.addressof(block), 2, ctypes.addressof(size), 0)
        self.kept += [block, size, words]
        params.extra = ctypes.addressof(words) if self.nodes[0] else None
        return 0

    def GraphKernelNodeGetAttribute(self, node: Any, attribute: int, value: Any) -> int:
        if attribute not in self.attributes:
            return 1
        words = self.attributes[attribute]
        value._obj.words[: len(words)] = words
        return 0

    def KernelGetFunction(self, function: Any, kernel: Any) -> int:
        assert kernel == 8
        function._obj.value = 9
        return 0

    def FuncGetParamInfo(self, function: int, index: int, offset: Any, size: Any) -> int:
        assert function == 9
        values = self.nodes[0] or []
        if index >= len(values):
            return 1
        at = 0
        for value in values[: index + 1]:
            at = -(-at // len(value)) * len(value)
            offset._obj.value, size._obj.value = at, len(value)
            at += len(value)
        return 0


def test_a_captured_kernel_is_read_to_the_bit() -> None:
    found = captured._read(Driver([[b"ADDRESS1", b"four", b"ADDRESS2"]]), None)  # type: ignore[arg-type]
    assert found == KernelStep(9, (4, 5, 6), (128, 1, 1), 77, b"ADDRESS1four\0\0\0\0ADDRESS2", ())


def test_a_captured_kernel_of_clusters() -> None:
    """Their size, how they are spread and which size is preferred, where these are said."""

    def attribute(number: int, *words: int) -> bytes:
        return struct.pack("<ii16I", number, 0, *words, *(0,) * (16 - len(words)))

    plain = Driver([[b"ADDRESS1"]], {4: (2, 1, 1)})
    whole = Driver([[b"ADDRESS1"]], {4: (2, 1, 1), 5: (2,), 11: (4, 2, 1)})
    for driver, *attributes in (
        (plain, attribute(4, 2, 1, 1)),
        (whole, attribute(4, 2, 1, 1), attribute(5, 2), attribute(11, 4, 2, 1)),
    ):
        found = captured._read(driver, None)  # type: ignore[arg-type]
        assert found is not None
        assert found.attributes == b"".join(attributes)
        moved = captured.with_places(found, (int.from_bytes(b"ADDRESS1", "little"),), (A,))
        assert moved is not None
        assert moved.attributes == found.attributes


def test_a_captured_kernel_whose_arguments_were_packed() -> None:
    found = captured._read(Driver([[b"ADDRESS1", b"four"]], packed=True), None)  # type: ignore[arg-type]
    assert found is not None
    assert found.arguments == b"ADDRESS1four"
    assert captured._read(Driver([[]], packed=True), None) is None  # type: ignore[arg-type]


def test_a_captured_kernel_that_only_its_library_knows() -> None:
    found = captured._read(Driver([[b"ADDRESS1"]], of_library=True), None)  # type: ignore[arg-type]
    assert found is not None
    assert found.function == 9


@pytest.mark.parametrize(
    "driver",
    [
        Driver([[b"ADDRESS1"], [b"ADDRESS1"]]),
        Driver([None]),
        Driver([[b"ADDRESS1"]], {2: (1,)}),
        Driver([[]]),
    ],
    ids=["two kernels", "no kernel", "a cooperative grid", "an old driver"],
)
def test_anything_else_is_left_to_python(driver: Driver) -> None:
    assert captured._read(driver, None) is None  # type: ignore[arg-type]


def test_a_process_without_the_vendors_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor.Path, "read_text", lambda *a, **k: "7f-80 r-xp 0 0:0 1 /lib/libc.so.6\n")
    with pytest.raises(vendor.VendorError, match="got 0 in this process"):
        vendor._Library()
