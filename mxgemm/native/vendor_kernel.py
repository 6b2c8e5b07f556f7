"""The vendor's product as the one kernel that it is: launched without the library, which takes longer than the launch.

The library is captured at two sets of addresses that nobody has. Words of the kernel's arguments that move as an
operand does are where this operand's address goes; at a third set, which lies otherwise, what was understood must give
the launch that the library makes, to the byte. Whatever is not understood is asked of the library at every call.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import torch

from mxgemm.hip.runtime import DriverError, driver
from mxgemm.native.captured import kernel_launch
from mxgemm.native.program import (
    BIAS,
    MAX_ARGUMENT_BYTES,
    MAX_PATCHES,
    OUT,
    SCRATCH,
    A,
    KernelStep,
    Place,
    ProductStep,
    fixed,
)
from mxgemm.native.vendor import VendorError, VendorProduct, run
from mxgemm.workspace import raw_stream

_WORD: Final = 8
_MEMORY_TYPE: Final = 2
"""``CU_POINTER_ATTRIBUTE_MEMORY_TYPE``."""
_FAR: Final = 1 << 41
"""Bytes between operands."""
_WHOLE: Final = 256
"""Bytes that scratch is aligned to."""
_SPREAD: Final = 1 << 34 | 1 << 26 | 1 << 18 | 1 << 10
"""Of which what an operand moves by is a multiple, less than 64 times."""
_NO_ADDRESSES: Final = range(1 << 32)
"""Numbers of arguments that are sizes, steps and the like."""


class _Addresses(NamedTuple):
    """Where the operands of a product lie."""

    weight: int
    weight_base: int
    a: int
    base: int
    bias: int
    out: int
    memory: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A launch of a product, and which words of its arguments are addresses.

    Attributes:
        step: as it was captured.
        moving: offset, operand's number in ``_Addresses`` and bytes behind its beginning, of each such word.
    """

    step: KernelStep
    moving: tuple[tuple[int, int, int], ...]

    def at(self, places: tuple[Place, ...]) -> KernelStep:
        """Return the launch on operands at other places."""
        return replace(self.step, places=tuple((at, places[number] + add) for at, number, add in self.moving))


def product_kernel(product: VendorProduct, step: ProductStep, device: torch.device) -> KernelStep | None:
    """Return a product's step as a launch of the library's kernel, on the current device.

    Returns:
        None where it is more than one kernel, or one whose arguments are not understood.
    """
    pattern: Pattern | Literal[False] | None = product.pattern
    if pattern is None:
        try:
            pattern = _understood(product, device) or False
        except (DriverError, VendorError, AttributeError):  # of the last, a driver that lacks a function
            pattern = False
        product.pattern = pattern
    if not pattern:
        return None
    nowhere = fixed(0)
    base, bias = step.b_scale or nowhere, step.bias or nowhere
    return pattern.at((step.a, fixed(step.a_scale), step.b, base, bias, step.out, step.memory))


def _understood(product: VendorProduct, device: torch.device) -> Pattern | None:
    sets = [_addresses(product, number) for number in range(3)]
    found = [_captured(product, device, addresses) for addresses in sets]
    first, second, third = found
    if first is None or second is None or third is None or len(first.arguments) > MAX_ARGUMENT_BYTES:
        return None
    moving = followed(first.arguments, second.arguments, sets[0], sets[1])
    if moving is None or len(moving) > MAX_PATCHES:
        return None
    pattern = Pattern(first, moving)
    alike = all(described(pattern, addresses) == made for addresses, made in zip(sets, found, strict=True))
    return pattern if alike and not _points_elsewhere(first, moving) else None


def followed(
    first: bytes, second: bytes, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[tuple[int, int, int], ...] | None:
    """Return the words that differ between two blocks of arguments, each with the operand that it moves with.

    Args:
        first: arguments at some addresses.
        second: at others.
        before: the addresses.
        after: the others, no two of which are as far from where they were.

    Returns:
        Offset, operand's number, bytes behind the operand's beginning; None where a word moves with no operand.
    """
    if len(first) != len(second) or first[len(first) // _WORD * _WORD :] != second[len(first) // _WORD * _WORD :]:
        return None
    steps = {(new - old) % 2**64: number for number, (old, new) in enumerate(zip(before, after, strict=True))}
    moving = []
    for at in range(0, len(first) // _WORD * _WORD, _WORD):
        old, new = (int.from_bytes(block[at : at + _WORD], "little") for block in (first, second))
        if old != new:
            number = steps.get((new - old) % 2**64)
            if number is None:
                return None
            moving.append((at, number, old - before[number]))
    return tuple(moving)


def described(pattern: Pattern, addresses: tuple[int, ...]) -> KernelStep:
    """Return the launch on operands at addresses, with its arguments whole."""
    arguments = bytearray(pattern.step.arguments)
    for at, number, add in pattern.moving:
        arguments[at : at + _WORD] = ((addresses[number] + add) % 2**64).to_bytes(_WORD, "little")
    return replace(pattern.step, arguments=bytes(arguments))


def _addresses(product: VendorProduct, number: int) -> _Addresses:
    """Return addresses that are aligned as the product's operands are at worst; those of number 2 to 256 bytes.

    Workspace always is to these. From set to set each moves another distance, and all bits change that an address has.
    """
    begin = (0, 1 << 45, 1 << 46)[number]
    operands = _Addresses._fields[:-1]
    units = *((_WHOLE if number == 2 else product.alignment) for _ in operands), _WHOLE
    distances = (begin + unit + (1 + number) * (5 + 2 * index) * _SPREAD for index, unit in enumerate(units))
    return _Addresses(*(index * _FAR + distance for index, distance in enumerate(distances, 1)))


def _captured(product: VendorProduct, device: torch.device, addresses: _Addresses) -> KernelStep | None:
    at = addresses
    base = A if product.scaled else None
    bias = None if product.bias_dtype is None else BIAS
    step = product.step(device, fixed(at.weight), at.weight_base if product.scaled else 0, A, base, bias, OUT, SCRATCH)
    return kernel_launch(
        lambda: run(step, at.weight, at.a, at.base, at.bias, at.out, at.memory, raw_stream(device)), device
    )


def _points_elsewhere(step: KernelStep, moving: tuple[tuple[int, int, int], ...]) -> bool:
    """Say whether an argument is the address of memory of the library's own, which calls may not share."""
    known, using = {at for at, _, _ in moving}, driver()
    ask = using.declare("PointerGetAttribute", ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
    kind = ctypes.c_uint()
    for at in range(0, len(step.arguments) // _WORD * _WORD, _WORD):
        word = int.from_bytes(step.arguments[at : at + _WORD], "little")
        if at not in known and word not in _NO_ADDRESSES and not ask(ctypes.byref(kind), _MEMORY_TYPE, word):
            return True
    return False
