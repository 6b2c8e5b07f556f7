"""Every rule of wait states, on the shortest code that breaks it, and on the same code with the s_nop that mends it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gfx950emu import hazards
from gfx950emu.program import Program
from tests.emulator import INSTALL, require_objdump

MFMA_16 = "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[16:19], v[20:23], v[0:3] cbsz:4 blgp:4"
MFMA_32 = "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15]"
QUAD = "quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf"

RULES = [
    ("v_exp_f32 v0, v1", "v_add_f32 v2, v0, v1", 1, "transcendental"),
    ("v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3 op_sel:[0,0,1,0]", "v_mov_b32 v4, v0", 1, "part of a VGPR"),
    ("v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3 op_sel:[0,0,0,1]",
     "v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3", 1, "part of a VGPR"),
    ("v_add_u16_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:WORD_0",
     "v_mov_b32 v3, v0", 1, "part of a VGPR"),
    ("v_mov_b32 v0, v1", f"v_mov_b32_dpp v2, v0 {QUAD}", 2, "DPP reads it"),
    ("v_mov_b32 v0, v1", "v_readfirstlane_b32 s0, v0", 1, "v_readlane reads it"),
    ("v_mov_b32 v0, v1", "v_permlane32_swap_b32 v2, v0", 2, "v_permlane_swap"),
    ("v_cmp_eq_u32 vcc, v0, v1", "v_cndmask_b32 v2, v0, v1, vcc", 2, "VALU writes an SGPR, VALU reads it"),
    ("v_readfirstlane_b32 s4, v0", "v_add_u32 v2, s4, v1", 2, "VALU writes an SGPR, VALU reads it"),
    ("v_readfirstlane_b32 s4, v0", "v_readlane_b32 s5, v1, s4", 4, "takes it as lane"),
    ("v_readfirstlane_b32 s4, v0", "global_load_dword v1, v2, s[4:5]", 5, "vector memory reads it"),
    ("v_cmp_eq_u32 vcc, v0, v1", "v_div_fmas_f32 v2, v3, v4, v5", 4, "v_div_fmas"),
    ("v_cmpx_eq_u32 vcc, v0, v1", f"v_mov_b32_dpp v2, v3 {QUAD}", 5, "EXEC, DPP"),
    ("v_cmpx_eq_u32 vcc, v30, v31", MFMA_16, 4, "EXEC, MFMA"),
    ("v_mov_b32 v16, v30", MFMA_16, 2, "MFMA reads it"),
    (MFMA_16, "v_add_f32 v40, v0, v40", 8, "VALU or memory reads it"),
    (MFMA_32, "v_add_f32 v40, v15, v40", 20, "VALU or memory reads it"),
    (MFMA_16, "global_store_dword v[40:41], v2, off", 8, "VALU or memory reads it"),
    (MFMA_16, "v_mov_b32 v2, v40", 7, "overwrites it"),
    (MFMA_16, "v_mfma_f32_16x16x32_bf16 v[40:43], v[0:3], v[20:23], v[40:43]", 8, "as A or B"),
    (MFMA_16, "v_mfma_f32_16x16x32_bf16 v[40:43], v[44:47], v[20:23], v[2:5]", 6, "overlapping range as C"),
    ("v_mfma_f32_16x16x32_bf16 v[40:43], v[44:47], v[20:23], v[0:3]", "v_mov_b32 v2, v48", 3, "as C, VALU overwrites"),
]  # fmt: skip
ALLOWED = [
    (MFMA_16, MFMA_16),  # accumulation into the same registers forwards
    ("v_cvt_scalef32_pk_fp4_f32 v0, v1, v2, v3", "v_mov_b32 v4, v0"),
    ("v_mov_b32 v0, v1", "v_add_u32 v2, v0, v0"),
    ("v_exp_f32 v0, v1", "v_log_f32 v2, v0"),
    ("s_mov_b32 s4, 1", "v_add_u32 v2, s4, v1"),
]


def found(tmp_path: Path, *lines: str) -> list[hazards.Hazard]:
    require_objdump()
    if not shutil.which("clang-22"):
        pytest.skip(f"clang-22 is not installed; {INSTALL}")
    out = tmp_path / "code.o"
    command = ["clang-22", "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx950", "-x", "assembler", "-c", "-", "-o", str(out)]
    subprocess.run(command, input="\n".join([*lines, "s_endpgm\n"]), text=True, check=True)
    program = Program(out.read_bytes())
    return hazards.find(program, program.instructions[0].pc)


@pytest.mark.parametrize("first, second, wanted, rule", RULES)
def test_rule(first: str, second: str, wanted: int, rule: str, tmp_path: Path) -> None:
    close = max(found(tmp_path, first, second), key=lambda hazard: hazard.wanted)
    assert (close.wanted, close.found) == (wanted, 0)
    assert rule in close.rule
    fewer = ["s_nop 0"] * (wanted - 1)
    assert [(hazard.wanted, hazard.found) for hazard in found(tmp_path, first, *fewer, second)] == [
        (wanted, wanted - 1)
    ]
    waits = [f"s_nop {min(8, wanted - at) - 1}" for at in range(0, wanted, 8)]
    assert not found(tmp_path, first, *waits, second)


@pytest.mark.parametrize("first, second", ALLOWED)
def test_allowed(first: str, second: str, tmp_path: Path) -> None:
    assert not found(tmp_path, first, second)


def test_every_path_is_followed(tmp_path: Path) -> None:
    loop = ["loop:", "v_add_f32 v2, v0, v1", "s_nop 4", "v_exp_f32 v0, v1", "s_cbranch_scc1 loop", "s_nop 0"]
    assert not found(tmp_path, *loop)  # the branch itself is one wait state
    short = ["v_exp_f32 v0, v1", "s_cbranch_scc1 far", "s_nop 4", "far:", "v_add_f32 v2, v0, v1"]
    assert not found(tmp_path, *short)
    matrix = [MFMA_16, "s_cbranch_scc1 far", "s_nop 7", "far:", "v_add_f32 v40, v0, v40"]
    (hazard,) = found(tmp_path, *matrix)
    assert (hazard.wanted, hazard.found) == (8, 1)


def test_a_result_that_is_overwritten_does_not_count(tmp_path: Path) -> None:
    assert not found(tmp_path, "v_exp_f32 v0, v1", "v_mov_b32 v0, 1.0", "v_add_f32 v2, v0, v1")
