"""Single instructions with known results, and those that are refused."""

import numpy as np
import pytest

from tests.emulator import require_objdump
from tests.gfx950emu.known_results import KNOWN, REFUSED, Known
from tools.gfx950emu.disassemble import Instruction
from tools.gfx950emu.errors import EmulatorError
from tools.gfx950emu.operands import VCC
from tools.gfx950emu.single import assemble, execute, machine, pair_of
from tools.gfx950emu.waves import Group


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
