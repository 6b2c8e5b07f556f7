"""Single instructions with known results, and those that are refused."""

import numpy as np
import pytest

from gfx950emu.device_memory import Memory
from gfx950emu.disassemble import Instruction
from gfx950emu.elf import KernelDescriptor
from gfx950emu.errors import EmulatorError
from gfx950emu.launch import check_mode
from gfx950emu.operands import VCC
from gfx950emu.program import Kernel
from gfx950emu.single import assemble, execute, machine, pair_of
from gfx950emu.waves import Group
from tests.emulator import require_objdump
from tests.gfx950emu.known_results import KNOWN, REFUSED, Known


@pytest.fixture(scope="module")
def assembled() -> dict[str, Instruction | str]:
    require_objdump()
    texts = [known.text for known in (*KNOWN, *REFUSED)]
    return dict(zip(texts, assemble(texts), strict=True))


def run(known: Known, assembled: dict[str, Instruction | str]) -> Group:
    i = assembled[known.text]
    assert isinstance(i, Instruction), i
    lds = np.full(1024, known.lds, np.uint32)
    return execute(i, machine(known.v, known.s, lds=lds, modes=known.modes))


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_known(known: Known, assembled: dict[str, Instruction | str]) -> None:
    g = run(known, assembled)
    read = {
        "v": lambda: int(g.v[20, 0, 0]),
        "v64": lambda: pair_of(g.v[20, 0, 0], g.v[21, 0, 0]),
        "s": lambda: int(g.s[20, 0]),
        "s64": lambda: pair_of(g.s[20, 0], g.s[21, 0]),
        "vcc": lambda: pair_of(g.s[VCC, 0], g.s[VCC + 1, 0]),
        "scc": lambda: int(g.scc[0]),
        "lds": lambda: int(g.run.lds_dwords[0]),
    }
    assert f"0x{read[known.get]():x}" == f"0x{known.want:x}", known.source


@pytest.mark.parametrize("known", REFUSED, ids=str)
def test_refused(known: Known, assembled: dict[str, Instruction | str]) -> None:
    with pytest.raises(
        EmulatorError, match=r"not modelled|can be (read|written)|not in the emulator's table|whose|\?|says"
    ):
        run(known, assembled)


def buffer_load(text: str, vectors: dict[int, int], stride: int, records: int) -> int:
    """Load from a buffer of 1024 dwords, each its own number."""
    require_objdump()
    memory = Memory()
    address = memory.add("x", np.arange(1024, dtype=np.uint32))
    descriptor = {8: address & 0xFFFFFFFF, 9: address >> 32 | stride << 16, 10: records, 11: 0}
    (i,) = assemble([text])
    assert isinstance(i, Instruction), i
    return int(execute(i, machine(vectors, descriptor, memory=memory)).v[20, 0, 0])


def test_a_buffer_offset_wraps_at_32_bits() -> None:
    """rocjitsu, addr_calc_buffer.h: the sum of the VGPR's offset and the instruction's is a dword."""
    text = "buffer_load_dword v20, v2, s[8:11], 0 offen offset:32"
    assert buffer_load(text, {2: 0xFFFFFFF0}, 0, 64) == 4
    assert buffer_load(text, {2: 32}, 0, 64) == 0, "64 + 4 bytes are out of range"


def test_of_an_indexed_buffer_only_the_index_is_checked() -> None:
    text = "buffer_load_dword v20, v[2:3], s[8:11], 0 idxen offen"
    assert buffer_load(text, {2: 3, 3: 20}, 16, 8) == (3 * 16 + 20) // 4
    assert buffer_load(text, {2: 8, 3: 0}, 16, 8) == 0


@pytest.mark.parametrize("bits", [1 << 26, 1 << 12])
def test_a_kernel_that_asks_for_another_float_mode_is_refused(bits: int) -> None:
    raw = bytearray(64)
    raw[48:52] = (0xF << 16 | 1 << 21 | 1 << 23 | bits).to_bytes(4, "little")
    descriptor = KernelDescriptor(bytes(raw), 0)
    assert descriptor.ieee
    assert descriptor.dx10_clamp
    with pytest.raises(EmulatorError, match="float mode that is not modelled: .*FP16_OVFL"):
        check_mode(Kernel("k", descriptor, [], 0))
