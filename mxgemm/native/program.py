"""The launches of a plan, described: what ``source/program.h`` runs.

An argument that changes from call to call is a :class:`Place`: where something that the call brings begins, and bytes
behind that. Addresses of the weight and sizes are bytes of the argument block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mxgemm.hip.kernarg import Layout

FIXED: Final = 0
"""The slot of a place that is an address by itself; the next five are those of what a call brings."""


class Place(NamedTuple):
    """An address of a call.

    Attributes:
        slot: what it lies in, as ``enum slot`` of ``source/program.h`` numbers it.
        add: bytes behind its beginning; of :data:`FIXED` the address.
    """

    slot: int
    add: int = 0

    def __add__(self, more: object) -> Place:
        assert isinstance(more, int)
        return Place(self.slot, self.add + more)


SLOTS: Final = 16
A: Final = Place(1)
BIAS: Final = Place(2)
OUT: Final = Place(3)
SCRATCH: Final = Place(4)
COUNTERS: Final = Place(5)


def brought(number: int) -> Place:
    """Return where the ``number``-th of further things begins, for who runs a program by the addresses of its slots."""
    assert 0 <= number < SLOTS - COUNTERS.slot - 1
    return Place(COUNTERS.slot + 1 + number)


def fixed(address: int) -> Place:
    """Return the place of something that stays where it is."""
    return Place(FIXED, address)


MAX_ARGUMENT_BYTES: Final = 4096
MAX_PATCHES: Final = 48
MAX_STEPS: Final = 8
"""Of ``source/program.h``."""


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One launch of a kernel.

    Attributes:
        function: the driver's handle.
        grid: workgroups along x, y, z.
        block: threads of a workgroup along x, y, z.
        shared_bytes: dynamic shared memory.
        arguments: the block of arguments; places are written over it.
        places: offset in the block and what is written there.
        attributes: of the launch, as the driver reads them.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: bytes
    places: tuple[tuple[int, Place], ...]
    attributes: bytes = b""

    def packed(self) -> tuple[Any, ...]:
        """Return what ``source/program.h`` reads."""
        changing = tuple((offset, place) for offset, place in self.places if place.slot != FIXED)
        arguments = bytearray(self.arguments)
        for offset, place in self.places:
            arguments[offset : offset + 8] = (place.add if place.slot == FIXED else 0).to_bytes(8, "little")
        block = bytes(arguments)
        return self.function, self.grid, self.block, self.shared_bytes, self.attributes, block, changing


def kernel_step(
    function: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Layout,
    values: Sequence[int | Place],
    *,
    shared_bytes: int = 0,
    constants: bytes = b"",
    attributes: bytes = b"",
) -> KernelStep:
    """Return a launch whose arguments are numbers and places.

    Args:
        function: the driver's handle.
        grid: workgroups along x, y, z.
        block: threads of a workgroup along x, y, z.
        arguments: how they lie in the block.
        values: of each argument.
        shared_bytes: dynamic shared memory.
        constants: bytes of the block after them.
        attributes: of the launch, as the driver reads them.
    """
    places = tuple((at, value) for at, value in zip(arguments.offsets, values, strict=True) if isinstance(value, Place))
    packed = arguments.pack(*(0 if isinstance(value, Place) else value for value in values))
    return KernelStep(function, grid, block, shared_bytes, packed + constants, places, attributes)


@dataclass(frozen=True, slots=True)
class ProductStep:
    """One product by cublasLt, of which ``mxgemm.native.vendor`` makes the rest.

    Attributes:
        handle: of the library.
        layouts: of its a, its b and the result.
        descriptions: of the product; as many as threads may run it at once.
        a: its left operand, here the weight, whose scales the descriptions hold.
        b: its right operand, here the activations.
        b_scale: scales of that, None for none.
        bias: added to rows of its result, None for none.
        out: the result.
        memory: workspace.
        memory_bytes: of it, 0 for none.
        algorithm: the library's, as it gave it.
        owner: who keeps layouts and descriptions alive.
        a_scale: address of the scales of a, which the descriptions hold; 0 for none.
    """

    handle: int
    layouts: tuple[int, int, int]
    descriptions: tuple[int, ...]
    a: Place
    b: Place
    b_scale: Place | None
    bias: Place | None
    out: Place
    memory: Place
    memory_bytes: int
    algorithm: bytes
    owner: object
    a_scale: int = 0

    def packed(self) -> tuple[Any, ...]:
        """Return what ``source/program.h`` reads."""
        places = self.a, self.b, self.b_scale, self.bias, self.out, self.memory
        return self.handle, *self.layouts, self.descriptions, *places, self.memory_bytes, self.algorithm


Step = KernelStep | ProductStep


@dataclass(frozen=True, slots=True)
class Program:
    """All launches of a plan, in order.

    Attributes:
        steps: the launches.
        scratch_bytes: memory that they share.
        counters: int32 zeros that they need and leave zero.
        hooks: who may want to hear of launches: holder, name and value now, which has to stay, with no ``calls``.
        owned: what has to live for as long as the program may run, beside the steps' owners.
    """

    steps: tuple[Step, ...]
    scratch_bytes: int = 0
    counters: int = 0
    hooks: tuple[tuple[object, ...], ...] = ()
    owned: tuple[object, ...] = ()

    def owners(self) -> tuple[object, ...]:
        """Return who has to live for as long as the program may run."""
        return *(step.owner for step in self.steps if isinstance(step, ProductStep)), *self.owned

    def fits(self) -> bool:
        """Say whether ``source/program.h`` has room for it."""
        kernels = [step for step in self.steps if isinstance(step, KernelStep)]
        return 0 < len(self.steps) <= MAX_STEPS and all(
            len(step.arguments) <= MAX_ARGUMENT_BYTES and len(step.places) <= MAX_PATCHES for step in kernels
        )


def joined(steps: Sequence[Step | None], **scratch: Any) -> Program | None:
    """Return the program of these launches, None where one of them is none."""
    known = [step for step in steps if step is not None]
    return Program(tuple(known), **scratch) if len(known) == len(steps) else None
