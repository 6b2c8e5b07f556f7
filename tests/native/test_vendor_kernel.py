"""The vendor's product launched without its library: what is understood of a launch, what is left to the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mxgemm.native import vendor_kernel
from mxgemm.native.program import BIAS, OUT, SCRATCH, A, KernelStep, Place, ProductStep, fixed
from mxgemm.native.vendor import VendorError
from mxgemm.native.vendor_kernel import product_kernel

CPU = torch.device("cpu")
ATTRIBUTES = bytes(range(72))
FOREIGN = 0x7F00_1234_5600
Make = Callable[[list[int]], KernelStep | None]


class Product:
    """A product of a library whose kernel ``make`` says, of the addresses as they are in a launch."""

    def __init__(self, make: Make, scaled: bool = True, bias: bool = True, alignment: int = 16) -> None:
        self.make, self.scaled, self.alignment = make, scaled, alignment
        self.bias_dtype = torch.bfloat16 if bias else None
        self.pattern: Any = None
        self.seen: list[list[int]] = []

    def step(
        self, device: torch.device, weight: Place, weight_base: int, a: Place, base: Place | None, bias: Place | None,
        out: Place, memory: Place,
    ) -> ProductStep:  # fmt: skip
        assert device == CPU
        return ProductStep(1, (2, 3, 4), (5,), weight, a, base, bias, out, memory, 9, b"", self, weight_base)


def block(*words: int) -> bytes:
    return b"".join((word % 2**64).to_bytes(8, "little") for word in words)


def understandable(at: list[int]) -> KernelStep:
    """Tensor maps, whose words beside the address are sizes; sums of an address and a number; one address twice."""
    weight, weight_base, a, base, bias, out, memory = at
    words = block(weight, 7 << 40, a, 3, out, out, weight_base, base + 64, bias - 8, memory + 4096, 0x3F800000 << 32)
    return KernelStep(77, (3, 2, 1), (384, 1, 1), 200_000, words + b"tail", (), ATTRIBUTES)


def moved(step: KernelStep | None, **changes: Any) -> KernelStep:
    assert step is not None
    return replace(step, **changes)


class Driver:
    def declare(self, name: str, *types: Any) -> Any:
        assert name == "PointerGetAttribute"
        return lambda kind, attribute, word: 0 if (attribute, word) == (2, FOREIGN) else 1


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[KernelStep | None] = []

    def run(step: ProductStep, weight: int, a: int, base: int, bias: int, out: int, memory: int, stream: int) -> None:
        product: Any = step.owner
        assert (step.b_scale is not None, step.bias is not None) == (product.scaled, product.bias_dtype is not None)
        product.seen.append([weight, step.a_scale, a, base, bias, out, memory])
        launched.append(product.make(product.seen[-1]))

    def kernel_launch(launch: Callable[[], None], device: torch.device) -> KernelStep | None:
        launch()
        return launched.pop()

    monkeypatch.setattr(vendor_kernel, "run", run)
    monkeypatch.setattr(vendor_kernel, "kernel_launch", kernel_launch)
    monkeypatch.setattr(vendor_kernel, "raw_stream", lambda device: 0)
    monkeypatch.setattr(vendor_kernel, "driver", Driver)


def step_of(product: Product, weight: int = 0x1000, base: int = 0x2000) -> ProductStep:
    scales, bias = A + 512 if product.scaled else None, BIAS if product.bias_dtype else None
    return product.step(CPU, fixed(weight), base, A, scales, bias, OUT, SCRATCH + 256)


def at_addresses(step: KernelStep, brought: dict[Place, int]) -> bytes:
    """Return the arguments that a call launches with, as ``source/program.h`` patches them."""
    *_, arguments, patches = step.packed()
    whole = bytearray(arguments)
    begins = {place.slot: address for place, address in brought.items()}
    for offset, place in patches:
        whole[offset : offset + 8] = block(begins[place.slot] + place.add)
    return bytes(whole)


@pytest.mark.parametrize("alignment", [2, 16])
def test_what_is_launched_is_what_the_library_launches(alignment: int) -> None:
    product: Any = Product(understandable, alignment=alignment)
    for weight, base in ((0x70001000, 0x70002000), (0x60001000, 0x60002000)):  # two weights of one plan
        found = product_kernel(product, step_of(product, weight, base), CPU)
        assert found is not None
        brought = {A: 0x7FFF_0000_1000, BIAS: 0x7FFF_1000_0010, OUT: 0x7FFF_2000_0000, SCRATCH: 0x7FFF_3000_0000}
        a, bias, out, scratch = brought.values()
        want = understandable([weight, base, a, a + 512, bias, out, scratch + 256])
        assert at_addresses(found, brought) == want.arguments
        assert replace(found, arguments=b"", places=()) == replace(want, arguments=b"")
    assert len(product.seen) == 3  # asked once
    for one, other in ((0, 1), (1, 2), (0, 2)):
        distances = [x - y for x, y in zip(product.seen[one], product.seen[other], strict=True)]
        assert len(set(distances)) == len(distances)
    for at in product.seen[:2]:
        assert all(address % (2 * alignment) == alignment for address in at[:-1])
        assert at[-1] % 256 == 0
    assert all(address % 256 == 0 for address in product.seen[2])


def test_of_bf16_there_are_no_scales() -> None:
    def plain(at: list[int]) -> KernelStep:
        assert at[1] == 0
        return KernelStep(77, (3, 2, 1), (384, 1, 1), 0, block(at[0], at[2], at[5], 0, 0), ())

    product: Any = Product(plain, scaled=False, bias=False)
    found = product_kernel(product, step_of(product, base=0), CPU)
    assert found is not None
    assert at_addresses(found, {A: 5, OUT: 6}) == block(0x1000, 5, 6, 0, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda at: None,
        lambda at: moved(understandable(at), arguments=block(at[0] >> 4)),
        lambda at: moved(understandable(at), arguments=block(at[0] + at[2])),
        lambda at: moved(understandable(at), function=77 + (at[2] % 32 == 0)),
        lambda at: moved(understandable(at), grid=(3 + (at[2] % 32 == 0), 1, 1)),
        lambda at: moved(understandable(at), attributes=b"" if at[0] % 32 == 0 else ATTRIBUTES),
        lambda at: moved(understandable(at), arguments=block(at[0], at[2] % 32)),
        lambda at: moved(understandable(at), arguments=block(at[0], FOREIGN)),
        lambda at: moved(understandable(at), arguments=block(at[0], *[0] * 512)),
        lambda at: moved(understandable(at), arguments=block(*[at[0]] * 49)),
        lambda at: moved(understandable(at), arguments=block(at[0], *[0] * (at[0] % 32 == 0))),
        lambda at: moved(understandable(at), arguments=block(at[0]) + at[5].to_bytes(8, "little")[4:6]),
    ],
    ids=[
        "no one kernel", "an address shifted", "a sum of two", "another kernel elsewhere", "another grid elsewhere",
        "other clusters elsewhere", "another number elsewhere", "memory of its own", "too long", "too many addresses",
        "another length elsewhere", "a piece of an address",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_the_librarys(make: Make) -> None:
    product: Any = Product(make)
    assert product_kernel(product, step_of(product), CPU) is None
    seen = len(product.seen)
    assert product_kernel(product, step_of(product), CPU) is None
    assert len(product.seen) == seen  # asked once


def test_a_library_that_refuses_such_addresses() -> None:
    def refuse(at: list[int]) -> KernelStep:
        raise VendorError("cublasLtMatmul: status 7")

    product: Any = Product(refuse)
    assert product_kernel(product, step_of(product), CPU) is None


def test_one_address_that_moves_with_nothing() -> None:
    before, after = (0x1000, 0x2000), (0x1100, 0x2500)
    assert vendor_kernel.followed(block(1, 0x1008), block(1, 0x1108), before, after) == ((8, 0, 8),)
    assert vendor_kernel.followed(block(1, 0x1008), block(1, 0x1109), before, after) is None
    assert vendor_kernel.followed(block(1), block(1, 2), before, after) is None
