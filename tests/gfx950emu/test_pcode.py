"""The comparison with AMD's pseudo-code: its reader on texts of our own, and the real file where someone has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gfx950emu.pcode.__main__ import main
from gfx950emu.pcode.compare import compare, programs_of, read_texts
from gfx950emu.pcode.expected import DIFFERENCES
from gfx950emu.pcode.functions import Functions
from gfx950emu.pcode.language import Reader
from gfx950emu.pcode.values import Unsupported, Value, of_bits
from gfx950emu.table import TABLE
from tests.emulator import require_objdump

EXCERPT = {
    "v_sub_u32": "D0.u32 = S0.u32 - S1.u32",
    "v_mul_f32": "// one rounding\nD0.f32 = S0.f32 * S1.f32",
    "v_mad_u32_u24": "D0.u32 = 32'U(S0.u24) * 32'U(S1.u24) + S2.u32",
    "v_bfrev_b32": "for i in 0 : 31 do\nD0.u32[31 - i] = S0.u32[i]\nendfor",
    "v_ffbl_b32": "D0.i32 = -1;\nfor i in 0 : 31 do\nif S0.u32[i] == 1'1U then\nD0.i32 = i;\nbreak\nendif\nendfor",
    "v_pk_sub_i16": "declare t : 32'B;\nt[31 : 16].i16 = S0[31 : 16].i16 - S1[31 : 16].i16;\n"
    "t[15 : 0].i16 = S0[15 : 0].i16 - S1[15 : 0].i16;\nD0.b32 = t",
    "v_alignbit_b32": "D0.u32 = 32'U({ S0.u32, S1.u32 } >> S2.u32[4 : 0])",
    "v_cmp_le_f32": "D0.u64[laneId] = S0.f32 <= S1.f32",
    "v_cndmask_b32": "D0.u32 = VCC.u64[laneId] ? S1.u32 : S0.u32",
    "v_sub_co_u32": "t = 64'I(S0.u32) - 64'I(S1.u32);\nVCC.u64[laneId] = t < 0LL;\nD0.u32 = 32'U(t)",
    "v_sad_u8": "APART = lambda(x, y) (\nx > y ? x - y : y - x);\nt = S2.u32;\n"
    + "".join(f"t += 32'U(APART(S0.u32[{k + 7} : {k}], S1.u32[{k + 7} : {k}]));\n" for k in (0, 8, 16, 24))
    + "D0.u32 = t",
    "v_fma_f16": "D0.f16 = fma(S0.f16, S1.f16, S2.f16)",
    "v_cvt_u32_f32": "D0.u32 = f32_to_u32(S0.f32)",
    "v_readfirstlane_b32": "lane = 0;\nfor i in 0 : 63 do\nif EXEC.u64[i] == 1'1U then\nlane = i;\nbreak\nendif\n"
    "endfor;\nD0.b32 = VGPR[lane][SRC0.u32]",
    "s_add_i32": "t = 64'I(S0.i32) + 64'I(S1.i32);\nSCC = t != 64'I(t.i32);\nD0.i32 = t.i32",
    "s_andn2_b64": "D0.u64 = S0.u64 & ~S1.u64;\nSCC = D0.u64 != 0ULL",
    "s_bitset0_b32": "D0.u32[S0.u32[4 : 0]] = 1'0U",
    "s_cmp_lg_u32": "SCC = S0.u32 <> S1.u32",
}
REAL = "MXGEMM_GFX950_PCODE"


@pytest.fixture
def excerpt(tmp_path: Path) -> Path:
    require_objdump()
    return written(tmp_path / "texts.py", EXCERPT)


def written(path: Path, texts: dict[str, str]) -> Path:
    lines = [f"  AnyOp.{name.upper()}{'_E64' * name.startswith('v_')}: {text!r},\n" for name, text in texts.items()]
    path.write_text("PCODE = {\n" + "".join(lines) + "}\n", encoding="utf-8")
    return path


def test_the_excerpt_agrees(excerpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "found.json"
    assert main([str(excerpt), "--rounds", "2", "--commit", "abc", "--save", str(saved)]) == 0
    found = json.loads(saved.read_text(encoding="utf-8"))
    assert found["instructions"] == len(EXCERPT)
    assert found["source"]["commit"] == "abc"
    assert found["differences"] == {}
    assert found["texts"] > 5 * len(EXCERPT)
    assert found["results"] > found["texts"]
    assert f"{len(EXCERPT)} instructions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("v_sub_u32", "D0.u32 = S1.u32 - S0.u32"),
        ("v_pk_sub_i16", EXCERPT["v_pk_sub_i16"].replace("S0[31 : 16]", "S0[15 : 0]", 1)),
        ("v_sub_co_u32", EXCERPT["v_sub_co_u32"].replace("t < 0LL", "t > 0LL")),
        ("v_cmp_le_f32", "D0.u64[laneId] = S0.f32 < S1.f32"),
        ("s_add_i32", EXCERPT["s_add_i32"].replace("!=", "==")),
        ("s_bitset0_b32", "D0.u32[S0.u32[4 : 0]] = 1'1U"),
    ],
)
def test_a_difference_is_found(name: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_objdump()
    path = written(tmp_path / "texts.py", {**EXCERPT, name: wrong})
    assert main([str(path), "--rounds", "2", "--only", name]) == 1
    assert f"{name}: " in capsys.readouterr().out


def test_an_error_in_the_emulator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inactive lanes count too."""
    require_objdump()

    def build(i):  # type: ignore[no-untyped-def]
        source, result = i.operands[1].index, i.operands[0].index

        def step(g) -> None:  # type: ignore[no-untyped-def]
            g.v[result] = np.vectorize(lambda x: int(f"{x:032b}"[::-1], 2))(g.v[source])

        return step

    monkeypatch.setitem(TABLE, "v_bfrev_b32", build)
    outcome = compare(EXCERPT, 1, {"v_bfrev_b32"})
    assert outcome.unexpected == ["v_bfrev_b32"]
    assert "inactive lane" in outcome.differences["v_bfrev_b32"][0]


def test_what_the_reader_does_not_know_is_skipped() -> None:
    require_objdump()
    for text in ("D0 = A * B $ C", "D0.u32 = = 1", "if S0 then"):
        with pytest.raises(Unsupported):
            Reader(text).program()
    outcome = compare({"v_add_u32": "D0.u32 = nosuch(S0.u32)", "v_sub_u32": "for x"}, 1, {"v_add_u32", "v_sub_u32"})
    assert set(outcome.skipped) == {"v_add_u32", "v_sub_u32"}
    assert not outcome.results


@pytest.mark.parametrize(
    ("text", "kind", "want"),
    [
        ("D0 = 32'I(S0.i8)", "i32", -128),
        ("D0 = { S0.u8, 8'0x7f }", "u16", 0x807F),
        ("D0.f32 = 2.0F ** S1.i32", "f32", 8.0),
        ("D0.u32 = S0.u32[0 : 7]", "u32", 1),
        ("D0.i32 = ~S1.i32 | 0x10", "i32", -4),
        ("D0.u32 = !(S1.u32 >= 4U && S0.u32 != 0U) ? 5U : 6U", "u32", 5),
        ("D0.f16 = f32_to_f16(1.0F / 3.0F)", "f16", float(np.float16(1 / 3))),
        ("a = D0.u32 = 3U;\nD0.u32 = a * 0x55555556U", "u32", 2),
    ],
)
def test_the_language(text: str, kind: str, want: float) -> None:
    scope = Functions({}).scope({"S0": of_bits("b", 32, 0x80), "S1": of_bits("b", 32, 3), "D0": Value("b", 64, 0)})
    Reader(text).program()(scope)
    assert of_bits(kind[0], int(kind[1:]), scope.names["D0"].bits).x == want


def test_the_published_file() -> None:
    """tinygrad's file: nothing differs but what is listed, and all that is listed still does."""
    path = os.environ.get(REAL)
    if not path:
        pytest.skip(f"{REAL} does not name tinygrad/runtime/autogen/amd/cdna/str_pcode.py of tinygrad/tinygrad")
    require_objdump()
    texts = read_texts(Path(path))
    assert len(programs_of(texts)) > 1000
    outcome = compare(texts, 2)
    assert outcome.unexpected == []
    assert len(outcome.instructions) > 450
    assert set(outcome.differences) <= {names for names, _ in DIFFERENCES}
