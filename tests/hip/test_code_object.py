"""What is read from built files, and what damaged or foreign ones get."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest

from gfx950emu.elf import Elf
from mxgemm.hip import code_object
from mxgemm.hip.code_object import CodeObjectError
from tests.hip.conftest import built


def test_kernels_of_an_amd_code_object_agree_with_their_descriptors() -> None:
    image = built("shuffle_scales.hip", "gfx950")
    found = code_object.inspect(image)
    assert (found.arch, found.target) == ("gfx950", "gfx950")
    descriptors = Elf(image).descriptors()
    assert set(found.kernels) == set(descriptors)
    for name, info in found.kernels.items():
        descriptor = descriptors[name]
        assert info.kernarg_bytes == 40 <= descriptor.kernarg_size
        assert info.shared_bytes == descriptor.lds
        assert info.scratch_bytes == descriptor.scratch
        assert 0 < info.registers <= ((descriptor.rsrc1 & 63) + 1) * 8


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
def test_every_truncation_is_noticed(arch: str) -> None:
    image = built("preshuffle_weight.hip", arch)
    for size in range(0, len(image) - 16, 97):  # the last bytes are padding
        with pytest.raises(CodeObjectError):
            code_object.inspect(image[:size])


KINDS = {
    "one byte": lambda image, draw: _overwritten(image, [draw.randrange(len(image))], draw),
    "several bytes": lambda image, draw: _overwritten(image, draw.choices(range(len(image)), k=16), draw),
    "the header": lambda image, draw: _overwritten(image, draw.choices(range(5, 64), k=3), draw),
    "the section table": lambda image, draw: _overwritten(image, draw.choices(range(*_table(image)), k=3), draw),
    "the metadata": lambda image, draw: _overwritten(image, draw.choices(range(*_notes(image)), k=3), draw),
    "a bit": lambda image, draw: _overwritten(image, [draw.randrange(len(image))], draw, flip=True),
    "cut": lambda image, draw: image[: draw.randrange(len(image))],
    "longer": lambda image, draw: image + draw.randbytes(draw.randrange(1, 500)),
    "a part left out": lambda image, draw: image[: (at := draw.randrange(len(image)))] + image[at + 8 :],
    "a part doubled": lambda image, draw: image[: (at := draw.randrange(len(image)))] + image[max(0, at - 8) :],
    "ones": lambda image, draw: image[: (at := draw.randrange(len(image) - 8))] + b"\xff" * 8 + image[at + 8 :],
}
"""Ways to damage a file."""


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read(kind: str, arch: str) -> None:
    image = built("shuffle_scales.hip", arch)
    draw = random.Random(f"{kind} {arch}")
    for _ in range(250):
        mutant = KINDS[kind](image, draw)
        try:
            found = code_object.inspect(mutant)
        except CodeObjectError:
            continue
        for name, info in found.kernels.items():
            assert isinstance(name, str)
            numbers = (info.kernarg_bytes, info.shared_bytes, info.registers, info.scratch_bytes, info.max_threads)
            assert all(type(number) is int and number >= 0 for number in numbers)


def _overwritten(image: bytes, places: list[int], draw: random.Random, flip: bool = False) -> bytes:
    mutant = bytearray(image)
    for place in places:
        mutant[place] = mutant[place] ^ 1 << draw.randrange(8) if flip else draw.randrange(256)
    return bytes(mutant)


def _table(image: bytes) -> tuple[int, int]:
    (start,) = struct.unpack_from("<Q", image, 0x28)
    entry, count = struct.unpack_from("<HH", image, 0x3A)
    return start, start + entry * count


def _notes(image: bytes) -> tuple[int, int]:
    """Return the first bytes of AMD's metadata, or of the first section of a cubin."""
    start = image.find(b"amdhsa.kernels")
    return (start, start + 800) if start > 0 else (64, 300)


def test_hostile_metadata_is_no_trap() -> None:
    image = built("shuffle_scales.hip", "gfx950")
    start = image.index(b"AMDGPU\0\0") + 8
    for hostile in (
        b"\x91" * 3000,  # lists of lists
        b"\x81" * 3000,  # maps with maps as keys
        b"\xdd\xff\xff\xff\xff" + b"\x01" * 99,  # a list of four thousand million
        b"\xdb\xff\xff\xff\xff" + b"x" * 99,  # as long a text
        b"\x05" * 99,  # a number
    ):
        with pytest.raises(CodeObjectError, match="damaged or truncated"):
            code_object.inspect(image[:start] + hostile + image[start + len(hostile) :])
    for wrong in (None, "text", 3, [1]):
        with pytest.raises(TypeError, match="image: got"):
            code_object.inspect(wrong)  # type: ignore[arg-type]
    assert code_object.inspect(bytearray(image)) == code_object.inspect(memoryview(image)) == code_object.inspect(image)


def test_other_files_are_named() -> None:
    with pytest.raises(CodeObjectError, match="ELF file for machine"):
        code_object.inspect(Path(sys.executable).resolve().read_bytes())
    with pytest.raises(CodeObjectError, match="offload bundle"):
        code_object.inspect(b"__CLANG_OFFLOAD_BUNDLE__" + bytes(100))
    with pytest.raises(CodeObjectError, match="got 3 bytes"):
        code_object.inspect(b"abc")


def test_the_header_names_the_machine_where_metadata_does_not() -> None:
    image = built("preshuffle_weight.hip", "gfx950")
    assert image.count(b"amdhsa.target") == 1
    assert code_object.inspect(image.replace(b"amdhsa.target", b"amdhsa.tarmac")).arch == "gfx950"


def test_cubins_of_both_abis() -> None:
    image = bytearray(built("preshuffle_weight.hip", "sm_90"))
    assert code_object.inspect(bytes(image)).arch == "sm_90"
    image[8] = 7  # the ABI of CUDA 12 has the capability in the lowest byte
    image[0x30:0x34] = (0x5A055A).to_bytes(4, "little")
    assert code_object.inspect(bytes(image)).arch == "sm_90"


def test_refusal_names_both() -> None:
    found = code_object.inspect(built("preshuffle_weight.hip", "gfx950"))
    assert code_object.refusal(found, "gfx950") is None
    assert str(code_object.refusal(found, "gfx942")) == "the code object is for gfx950; this device is gfx942"
