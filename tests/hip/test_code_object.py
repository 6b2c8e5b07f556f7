"""What is read from built files, and what damaged or foreign ones get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mxgemm.hip import code_object
from mxgemm.hip.code_object import CodeObjectError
from tests.hip.conftest import built
from tools.gfx950emu.elf import Elf


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
    assert code_object.refusal(found, "gfx942") == "the code object is for gfx950; this device is gfx942"
