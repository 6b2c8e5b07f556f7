"""Results of single instructions on which the emulator was once wrong, or might be, each with the source of its value.

P: AMD's CDNA4 pseudo-code. L: LLVM, by what it encodes, folds, or says in its source. H: AMD's host model of the
conversions, amd_hip_ocp_host.hpp. R: rocjitsu, AMD's emulator. I: AMD's ISA documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ONE_F64 = 0x3FF0000000000000
ALL = 2**64 - 1


@dataclass(frozen=True)
class Known:
    """One result.

    Attributes:
        text: the instruction; results go to v20, s20 or the first dwords of LDS.
        want: of lane 0; in s, of the wave.
        source: who says so.
        get: "v", "v64", "s", "s64", "scc", "vcc" or "lds".
        v: vector registers, the same in every lane.
        s: scalar registers.
        lds: what every dword holds before.
        modes: of MODE, where not as compilers set them.
    """

    text: str
    want: int
    source: str
    get: str = "v"
    v: Mapping[int, int] = field(default_factory=dict)
    s: Mapping[int, int] = field(default_factory=dict)
    lds: int = 0
    modes: Mapping[str, bool] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


QNAN, SNAN, F32_ONE, F32_TWO, MINUS_ZERO = 0x7FC00000, 0x7F800001, 0x3F800000, 0x40000000, 0x80000000
IEEE_OFF = {"ieee": False}

CONSTANTS = [
    Known("v_pk_add_u16 v20, v2, 7", 0x00010008, "L", v={2: 0x00010001}),
    Known("v_pk_add_u16 v20, v2, 7 op_sel_hi:[1,0]", 0x00080008, "L", v={2: 0x00010001}),
    Known("v_pk_add_u16 v20, v2, -1", 0x00000000, "L", v={2: 0x00010001}),
    Known("v_pk_mul_lo_u16 v20, 3, v2 op_sel:[1,0]", 0x00000000, "L", v={2: 0x00050005}),
    Known("v_pk_add_f16 v20, v2, 1.0", 0x3C004000, "L", v={2: 0x3C003C00}),
    Known("v_pk_add_f16 v20, v2, 1.0 op_sel_hi:[1,0]", 0x40004000, "L", v={2: 0x3C003C00}),
    Known("v_pk_add_f16 v20, v2, 1", 0x3C003C00, "L", v={2: 0x3C003C00}),
    Known("v_pk_max_u16 v20, v2, 64 op_sel:[0,1]", 0x00010001, "L", v={2: 0x00010001}),
    Known("v_pk_add_u16 v20, v2, 1.0", 0x3F810001, "L", v={2: 0x00010001}),
    Known("v_pk_lshlrev_b16 v20, 4, v2", 0x00010010, "L", v={2: 0x00010001}),
    Known("v_cvt_scalef32_pk_fp4_f16 v20, 1.0, v4", 0x00000002, "L", v={4: F32_ONE}),
    Known("v_add_u16_e64 v20, v2, 1.0", 0x3C01, "L", v={2: 1}),
    Known("v_mov_b64 v[20:21], 1.0", ONE_F64, "L", "v64"),
    Known("s_mov_b64 s[20:21], 1.0", ONE_F64, "L", "s64"),
    Known("s_mov_b64 s[20:21], -2.0", 0xC000000000000000, "L", "s64"),
    Known("s_and_b64 s[20:21], s[10:11], 2.0", 0x4000000000000000, "L", "s64", s={10: ALL >> 32, 11: ALL >> 32}),
    Known("s_xor_b64 s[20:21], s[10:11], 0.5", 0x3FE0000000000001, "L", "s64", s={10: 1}),
    Known("v_lshlrev_b64 v[20:21], 1, 1.0", ONE_F64 << 1, "L", "v64"),
    Known("v_cmp_eq_u64_e64 s[20:21], v[2:3], 1.0", ALL, "L", "s64", v={3: ONE_F64 >> 32}),
    Known("v_lshl_add_u64 v[20:21], v[2:3], 0, 1.0", ONE_F64 + 1, "L", "v64", v={2: 1}),
]
CLAMPS = [
    Known("v_pk_add_u16 v20, v2, v4 clamp", 0xFFFFFFFF, "I", v={2: 0xFFFFFFFF, 4: 0x00010001}),
    Known("v_pk_sub_u16 v20, v2, v4 clamp", 0x00010000, "I", v={2: 0x00030001, 4: 0x00020002}),
    Known("v_pk_add_i16 v20, v2, v4 clamp", 0x80007FFF, "I", v={2: 0x80007FFF, 4: 0xFFFF0001}),
    Known("v_pk_sub_i16 v20, v2, v4 clamp", 0x7FFF8000, "I", v={2: 0x7FFF8000, 4: 0xFFFF0001}),
    Known("v_pk_mad_u16 v20, v2, v4, v6 clamp", 0xFFFF0007, "I", v={2: 0x01000002, 4: 0x01000003, 6: 0x00000001}),
    Known("v_pk_add_f16 v20, v2, v4 clamp", 0x3C000000, "I", v={2: 0x3C00BC00, 4: 0x3C000000}),
    Known("v_pk_add_f32 v[20:21], v[2:3], v[4:5] clamp", F32_ONE, "I", "v64", v={2: F32_TWO, 4: F32_TWO}),
    Known("v_add_co_u32_e64 v20, s[20:21], v2, v4 clamp", 0xFFFFFFFF, "I", v={2: 0xFFFFFFFF, 4: 2}),
    Known("v_sub_co_u32_e64 v20, s[20:21], v2, v4 clamp", 0, "I", v={2: 1, 4: 2}),
    Known("v_subrev_co_u32_e64 v20, s[20:21], v2, v4 clamp", 0, "I", v={2: 2, 4: 1}),
    Known("v_addc_co_u32_e64 v20, s[20:21], v2, v4, s[10:11] clamp", 0xFFFFFFFF, "I", v={2: 0xFFFFFFFF}, s={10: 1}),
    Known("v_subb_co_u32_e64 v20, s[20:21], v2, v4, s[10:11] clamp", 0, "I", s={10: 1}),
    Known(
        "v_mad_u64_u32 v[20:21], s[20:21], v2, v4, v[6:7] clamp",
        ALL,
        "I",
        "v64",
        v={2: 2, 4: 1, 6: 0xFFFFFFFF, 7: 0xFFFFFFFF},
    ),
    Known("v_fmac_f32_e64 v20, v2, v4 clamp", F32_ONE, "I", v={2: F32_TWO, 4: F32_TWO}),
    Known("v_dot2_f32_f16 v20, v2, v4, v6 clamp", F32_ONE, "I", v={2: 0x3C003C00, 4: 0x3C003C00}),
    Known("v_add_u16_e64 v20, v2, v4 clamp", 0xFFFF, "I", v={2: 0xFFFF, 4: 2}),
    Known("v_add_i32 v20, v2, v4 clamp", 0x7FFFFFFF, "I", v={2: 0x7FFFFFFF, 4: 2}),
    Known("v_sub_i32 v20, v2, v4 clamp", 0x80000000, "I", v={2: 0x80000000, 4: 2}),
    Known("v_sub_u32_e64 v20, v2, v4 clamp", 0, "I", v={2: 1, 4: 2}),
    Known("v_mul_f32_e64 v20, v2, v4 clamp", 0, "R", v={2: MINUS_ZERO, 4: F32_ONE}),
    Known("v_add_f32_e64 v20, v2, v4 clamp", 0, "I", v={2: QNAN, 4: F32_ONE}),
    Known("v_add_f32_e64 v20, v2, v4 clamp", QNAN, "I", v={2: QNAN, 4: F32_ONE}, modes={"dx10_clamp": False}),
]
INTEGERS = [
    Known("v_lshl_add_u64 v[20:21], v[2:3], v4, v[6:7]", 2, "P", "v64", v={2: 1, 4: 9}),
    Known("v_bfe_i32 v20, v2, v4, v6", 0xFFFFFFFF, "P, L", v={2: 0x80000000, 4: 31, 6: 4}),
    Known("v_bfe_i32 v20, v2, v4, v6", 0xFFFFFFF8, "P", v={2: 0x80000000, 4: 28, 6: 9}),
    Known("v_bfe_i32 v20, v2, v4, v6", 0x4, "P", v={2: 0x40000000, 4: 28, 6: 9}),
    Known("s_bfe_i32 s20, s10, 0x4001f", 0xFFFFFFFF, "P", "s", s={10: 0x80000000}),
    Known("s_bfe_i64 s[20:21], s[10:11], 0x4003f", ALL, "P", "s64", s={11: 0x80000000}),
    Known("s_bfe_i64 s[20:21], s[10:11], 0x80004", 0xFFFFFFFFFFFFFFFF, "P", "s64", s={10: 0xFF0}),
    Known("s_max_i32 s20, s10, s11", 1, "P", "scc", s={10: 5, 11: 5}),
    Known("s_max_u32 s20, s10, s11", 1, "P", "scc", s={10: 5, 11: 5}),
    Known("s_min_i32 s20, s10, s11", 0, "P", "scc", s={10: 5, 11: 5}),
    Known("v_mad_i64_i32 v[20:21], s[20:21], v2, v4, v[6:7]", ALL, "P", "s64", v={2: 1, 4: 0xFFFFFFFF}),
    Known(
        "v_mad_i64_i32 v[20:21], s[20:21], v2, v4, v[6:7]",
        0,
        "P",
        "s64",
        v={2: 1, 4: 0xFFFFFFFF, 6: 5},
    ),
]
FLOATS = [
    Known("v_min_f32_e32 v20, v2, v4", 0x7FC00001, "P", v={2: SNAN, 4: F32_ONE}),
    Known("v_max_f32_e32 v20, v2, v4", 0x7FC00001, "P", v={2: F32_ONE, 4: SNAN}),
    Known("v_min_f32_e32 v20, v2, v4", F32_ONE, "P", v={2: QNAN, 4: F32_ONE}),
    Known("v_min_f32_e32 v20, v2, v4", F32_ONE, "P", v={2: SNAN, 4: F32_ONE}, modes=IEEE_OFF),
    Known("v_min_f32_e32 v20, v2, v4", MINUS_ZERO, "P", v={2: 0, 4: MINUS_ZERO}),
    Known("v_max_f32_e32 v20, v2, v4", 0, "P", v={2: MINUS_ZERO, 4: 0}),
    Known("v_max_f32_e32 v20, v2, v4", 0, "P", v={2: 0, 4: MINUS_ZERO}),
    Known("v_min_f16_e32 v20, v2, v4", 0x7E01, "P", v={2: 0x7C01, 4: 0x3C00}),
    Known("v_max_f64 v[20:21], v[2:3], v[4:5]", 0x7FF8000000000001, "P", "v64", v={2: 1, 3: 0x7FF00000}),
    Known("v_max3_f32 v20, v2, v4, v6", 0x7FC00001, "P", v={2: 0, 4: F32_ONE, 6: SNAN}),
    Known("v_pk_min_f16 v20, v2, v4", 0x7E013C00, "P", v={2: 0x7C013C00, 4: 0x3C007E00}),
    Known("v_med3_f32 v20, v2, v4, v6", F32_ONE, "P, L", v={2: QNAN, 4: F32_ONE, 6: F32_TWO}),
    Known("v_med3_f16 v20, v2, v4, v6", 0x3C00, "P", v={2: 0x4000, 4: 0x7E00, 6: 0x3C00}),
    Known("v_pk_maximum3_f16 v20, v2, v4, v6", 0x7E01, "P", v={2: 0x00008000, 4: 0, 6: 0x7C01}),
    Known("v_maximum3_f32 v20, v2, v4, v6", 0, "P", v={2: MINUS_ZERO, 4: 0, 6: MINUS_ZERO}),
    Known("v_minimum3_f32 v20, v2, v4, v6", MINUS_ZERO, "P", v={2: 0, 4: MINUS_ZERO, 6: 0}),
    Known("v_maximum3_f32 v20, v2, v4, v6", 0x7FC00001, "P", v={2: SNAN, 4: 0, 6: 0}),
    Known("v_cmp_class_f32_e64 s[20:21], v2, 1", 0, "P, L", "s64", v={2: QNAN}),
    Known("v_cmp_class_f32_e64 s[20:21], v2, 2", ALL, "P", "s64", v={2: QNAN}),
    Known("v_cmp_class_f32_e64 s[20:21], v2, 1", ALL, "P", "s64", v={2: SNAN}),
    Known(
        "v_cmp_class_f32_sdwa vcc, v2, v4 src0_sel:DWORD src1_sel:WORD_1", ALL, "P", "vcc", v={2: SNAN, 4: 0x00010000}
    ),
    Known("v_pack_b32_f16 v20, -v2, |v4|", 0x3C00BC00, "P", v={2: 0x3C00, 4: 0xBC00}),
    Known("v_dot2_f32_f16 v20, v2, v4, v6 neg_lo:[1,0,0]", 0xBF800000, "P", v={2: 0x00003C00, 4: 0x00003C00}),
    Known("v_dot2_f32_f16 v20, v2, v4, v6 neg_hi:[0,1,0]", 0xBF800000, "P", v={2: 0x3C000000, 4: 0x3C000000}),
    Known("v_fma_f32 v20, v2, v4, v6", 0x3F800001, "P", v={2: 0x3F800001, 4: F32_ONE, 6: 0xA2000000}),
    Known(
        "v_fma_f32 v20, v2, v4, v6",
        0x4B800001,
        "P: 2^24 + 1 - 2^-60, twice rounded 2^24",
        v={2: 0x4B800001, 4: F32_ONE, 6: 0xBF7FFFFF},
    ),
    Known(
        "v_pk_fma_f32 v[20:21], v[2:3], v[4:5], v[6:7]",
        0x3F800001,
        "P",
        "v64",
        v={2: 0x3F800001, 4: F32_ONE, 6: 0xA2000000},
    ),
    Known(
        "v_fma_f64 v[20:21], v[2:3], v[4:5], v[6:7]",
        0x3970000000000000,
        "P: (1 + 2^-52)^2 - (1 + 2^-51)",
        "v64",
        v={2: 1, 3: 0x3FF00000, 4: 1, 5: 0x3FF00000, 6: 2, 7: 0xBFF00000},
    ),
    Known("ds_min_f32 v1, v2", QNAN, "P", "lds", v={2: F32_ONE}, lds=QNAN),
    Known("ds_max_f32 v1, v2", F32_ONE, "P", "lds", v={2: QNAN}, lds=F32_ONE),
    Known("ds_max_f32 v1, v2", F32_TWO, "P", "lds", v={2: F32_TWO}, lds=F32_ONE),
]
CONVERSIONS = [
    Known("v_cvt_pk_f16_f32 v20, v2, v4", 0x7E017E00, "P", v={2: QNAN, 4: 0x7F802000}),
    Known("v_cvt_pkrtz_f16_f32 v20, v2, v4", 0x3C007E01, "P", v={2: 0x7F802000, 4: F32_ONE}),
    Known("v_cvt_scalef32_pk_fp4_f32 v20, v2, v4, v6", 0xFF, "H", v={2: 0xBF800000, 4: 0xBF800000, 6: 0x7F800000}),
    Known("v_cvt_scalef32_pk_fp8_f32 v20, v2, v4, v6", 0x7FFF, "H", v={2: 0xBF800000, 4: F32_ONE, 6: 0x7F800000}),
    Known("v_cvt_scalef32_pk_bf8_f32 v20, v2, v4, v6", 0x7EFE, "H", v={2: 0xBF800000, 4: F32_ONE, 6: 0x7F800000}),
    Known("v_cvt_scalef32_pk_fp8_f32 v20, v2, v4, v6", 0x7F7F, "H, R", v={2: 0x447A0000, 4: 0x7F800000, 6: F32_ONE}),
    Known("v_cvt_scalef32_pk_fp8_f32 v20, v2, v4, v6", 0x787E, "R", v={2: 0x43E80000, 4: 0x43800000, 6: F32_ONE}),
    Known("v_cvt_pk_fp8_f32 v20, v2, v4", 0x7F7E, "R, Triton", v={2: 0x43E80000, 4: 0x43E80001}),
    Known("v_cvt_pk_fp8_f32 v20, v2, v4", 0xFF7F, "R, Triton", v={2: 0x7F800000, 4: 0xC47A0000}),
    Known("v_cvt_pk_fp8_f32 v20, v2, v4 op_sel:[0,0,1]", 0x383C5555, "P", v={2: 0x3FC00000, 4: F32_ONE, 20: 0x5555}),
    Known("v_cvt_pk_bf8_f32 v20, v2, v4", 0x7BFE, "H, R", v={2: 0xFFC00000, 4: 0x47600000}),
    Known("v_cvt_pk_f32_fp8_e64 v[20:21], v2 clamp", F32_ONE << 32, "I", "v64", v={2: 0x7EB8}),
]
KNOWN = [*CONSTANTS, *CLAMPS, *INTEGERS, *FLOATS, *CONVERSIONS]

REFUSED: list[Known] = [
    Known("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 32), 0xff", 0, "sets the rounding mode"),
    Known("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1", 0, "sets FP16_OVFL"),
    Known("s_setreg_imm32_b32 hwreg(HW_REG_TRAPSTS, 0, 4), 1", 0, "no such register here"),
    Known("s_getreg_b32 s20, hwreg(HW_REG_MODE)", 0, "MODE is not kept"),
    Known("ds_swizzle_b32 v20, v2 offset:0xc000", 0, "ROTATE"),
    Known("ds_swizzle_b32 v20, v2 offset:0xe000", 0, "FFT"),
    Known("v_mul_f32_e64 v20, v2, v4 mul:2", 0, "R: off while IEEE is 1 or denormals are kept"),
    Known("v_fmac_f32_e64 v20, v2, v4 div:2", 0, "R: the same"),
    Known("v_pk_add_u16 v20, v2, v4 neg_lo:[1,0]", 0, "no text says what it does to integers"),
    Known("v_permlane16_swap_b32_e64 v20, v2 bound_ctrl:1", 0, "inactive lanes are not modelled"),
    Known("v_permlane32_swap_b32_e64 v20, v2 fi:1", 0, "inactive lanes are not modelled"),
    Known("v_alignbit_b32 v20, v2, v4, v6 op_sel:[0,0,1,0]", 0, "the shift's upper half"),
    Known("v_cvt_scalef32_pk_fp4_f32 v20, v2, v4, -v6", 0, "a scale has no sign"),
    Known("v_cvt_scalef32_pk_fp4_f16 v20, v2, v4 op_sel:[1,0,0,0]", 0, "not one of the bits that are documented"),
    Known("v_dot2c_f32_f16_dpp v20, v2, v4 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 0, "DPP"),
    Known("v_cmp_lt_i64_e32 vcc, 0xffffffff, v[2:3]", 0, "zero- or sign-extended"),
    Known("v_pk_mul_f32 v[20:21], v[2:3], 2.0", 0, "upper half of a constant"),
    Known(
        "v_cndmask_b32_sdwa v20, v2, v4, vcc dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
        0,
        "a part of the destination",
    ),
    Known("v_cvt_pk_u8_f32 v20, v2, v4, v6", 0, "rounding"),
    Known("v_cvt_pk_bf8_f32 v20, v2, v4", 0, "overflow: H the largest number, R infinity", v={2: 0x7F000000}),
    Known("v_cvt_scalef32_pk_bf8_f32 v20, v2, v4, v6", 0, "the same", v={2: 0x7F000000, 6: F32_ONE}),
    Known("buffer_load_dword v20, v2, s[8:11], 0 offen", 0, "ADD_TID_ENABLE", s={11: 1 << 23}),
]
"""What is not modelled, and why; ``want`` has no meaning."""
