"""Vector arithmetic, one line an instruction (CDNA3 ISA, sections 12.6 to 12.13; CDNA4 ISA for what gfx950 adds).

v_rcp, v_rsq, v_sqrt, v_exp, v_log, v_sin and v_cos are correctly rounded here; the hardware is within 1 ulp. LLVM's
division expansion (v_div_scale, v_div_fmas, v_div_fixup) gives the correctly rounded quotient, by the last of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gfx950emu import minmax
from gfx950emu import numeric as n
from gfx950emu.numeric import F16, F32, F64, I16, I32, I64, U16, U32, U64, Array
from gfx950emu.vector_operands import pure


def _low5(x: Array) -> Array:
    return x & U32(31)


def _low6(x: Array) -> Array:
    return (x & U32(63)).astype(U64)


def _mantissa(a: Array) -> Array:
    mantissa, _ = np.frexp(a)
    return np.where(np.isfinite(a), mantissa, a)


def _f64(function: Any) -> Any:
    """Compute in float64 and round once to float32."""
    return lambda a: function(a.astype(F64)).astype(F32)


# Moves and integers.
pure("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", "u32", "u32", lambda a: a)
pure("v_mov_b64", "u64", "u64", lambda a: a)
for _sign in "ui":
    pure(f"v_add_{_sign}32", f"{_sign}32", f"{_sign}32 {_sign}32", lambda a, b: a + b)
    pure(f"v_sub_{_sign}32", f"{_sign}32", f"{_sign}32 {_sign}32", lambda a, b: a - b)
pure("v_subrev_u32", "u32", "u32 u32", lambda a, b: b - a)
pure("v_mul_lo_u32", "u32", "u32 u32", lambda a, b: a * b)
pure("v_mul_hi_u32", "u32", "u32 u32", lambda a, b: (n.multiply_u64(a, b) >> U64(32)).astype(U32))
pure("v_mul_hi_i32", "i32", "i32 i32", lambda a, b: (n.multiply_i64(a, b) >> I64(32)).astype(I32))
pure("v_mul_u32_u24", "u32", "u32 u32", lambda a, b: n.low_24(a) * n.low_24(b))
pure(
    "v_mul_hi_u32_u24", "u32", "u32 u32",
    lambda a, b: (n.multiply_u64(n.low_24(a), n.low_24(b)) >> U64(32)).astype(U32),
)  # fmt: skip
pure("v_mul_i32_i24", "u32", "u32 u32", lambda a, b: n.signed_24(a) * n.signed_24(b))
pure("v_mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: n.low_24(a) * n.low_24(b) + c)
pure("v_mad_i32_i24", "u32", "u32 u32 u32", lambda a, b, c: n.signed_24(a) * n.signed_24(b) + c)
pure("v_lshl_add_u32", "u32", "u32 u32 u32", lambda a, b, c: (a << _low5(b)) + c)
pure("v_lshl_add_u64", "u64", "u64 u32 u64", lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c)
pure("v_add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, c: (a + b) << _low5(c))
pure("v_lshl_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a << _low5(b)) | c)
pure("v_and_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | c)
pure("v_or3_b32", "u32", "u32 u32 u32", lambda a, b, c: a | b | c)
pure("v_xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
pure("v_add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c)
pure("v_and_b32", "u32", "u32 u32", lambda a, b: a & b)
pure("v_or_b32", "u32", "u32 u32", lambda a, b: a | b)
pure("v_xor_b32", "u32", "u32 u32", lambda a, b: a ^ b)
pure("v_xnor_b32", "u32", "u32 u32", lambda a, b: ~(a ^ b))
pure("v_not_b32", "u32", "u32", lambda a: ~a)
pure("v_lshlrev_b32", "u32", "u32 u32", lambda a, b: b << _low5(a))
pure("v_lshrrev_b32", "u32", "u32 u32", lambda a, b: b >> _low5(a))
pure("v_ashrrev_i32", "i32", "u32 i32", lambda a, b: b >> _low5(a).view(I32))
pure("v_lshlrev_b64", "u64", "u32 u64", lambda a, b: b << _low6(a))
pure("v_lshrrev_b64", "u64", "u32 u64", lambda a, b: b >> _low6(a))
pure("v_ashrrev_i64", "i64", "u32 i64", lambda a, b: b >> _low6(a).view(I64))
pure("v_bfe_u32", "u32", "u32 u32 u32", n.field_unsigned)
pure("v_bfe_i32", "i32", "u32 u32 u32", n.field_signed)
pure("v_bfi_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | (~a & c))
pure("v_bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << _low5(a)) - U32(1)) << _low5(b))
pure("v_bfrev_b32", "u32", "u32", n.reverse_bits)
pure("v_bcnt_u32_b32", "u32", "u32 u32", lambda a, b: n.ones(a) + b)
pure("v_ffbh_u32", "u32", "u32", n.leading_zeros)
pure("v_ffbh_i32", "u32", "u32", lambda a: n.leading_zeros(np.where(a >> U32(31), ~a, a)))
pure("v_ffbl_b32", "u32", "u32", n.trailing_zeros)
pure("v_alignbit_b32", "u32", "u32 u32 u32", lambda a, b, c: (n.pair(b, a) >> _low5(c).astype(U64)).astype(U32))
pure(
    "v_alignbyte_b32", "u32", "u32 u32 u32",
    lambda a, b, c: (n.pair(b, a) >> ((c & U32(3)) * U32(8)).astype(U64)).astype(U32),
)  # fmt: skip
pure("v_perm_b32", "u32", "u32 u32 u32", n.permute_bytes)
pure("v_sad_u8", "u32", "u32 u32 u32", n.sum_of_differences)

# Minimum, maximum, median.
for _kind in ("u32", "i32", "u16", "i16"):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    pure(f"v_min_{_kind}", _kind, _two, np.minimum)
    pure(f"v_max_{_kind}", _kind, _two, np.maximum)
    pure(f"v_min3_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    pure(f"v_max3_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    pure(f"v_med3_{_kind}", _kind, _three, minmax.median_of_integers)
for _kind in ("f32", "f16", "f64"):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    pure(f"v_min_{_kind}", _kind, _two, minmax.minimum, by_mode=True)
    pure(f"v_max_{_kind}", _kind, _two, minmax.maximum, by_mode=True)
    if _kind != "f64":
        pure(f"v_min3_{_kind}", _kind, _three, minmax.minimum3, by_mode=True)
        pure(f"v_max3_{_kind}", _kind, _three, minmax.maximum3, by_mode=True)
        pure(f"v_med3_{_kind}", _kind, _three, minmax.median, by_mode=True)
pure("v_minimum3_f32", "f32", "f32 f32 f32", minmax.propagating_minimum3)
pure("v_maximum3_f32", "f32", "f32 f32 f32", minmax.propagating_maximum3)

# float32.
pure("v_add_f32", "f32", "f32 f32", lambda a, b: a + b)
pure("v_sub_f32", "f32", "f32 f32", lambda a, b: a - b)
pure("v_subrev_f32", "f32", "f32 f32", lambda a, b: b - a)
pure("v_mul_f32", "f32", "f32 f32", lambda a, b: a * b)
pure("v_mul_legacy_f32", "f32", "f32 f32", lambda a, b: np.where((a == 0) | (b == 0), F32(0), a * b))
pure("v_fma_f32", "f32", "f32 f32 f32", n.fma)
pure("v_fmamk_f32", "f32", "f32 f32 f32", n.fma)
pure("v_fmaak_f32", "f32", "f32 f32 f32", n.fma)
pure("v_ldexp_f32", "f32", "f32 i32", lambda a, b: np.ldexp(a.astype(F64), np.clip(b, -400, 400)).astype(F32))
pure("v_rcp_f32 v_rcp_iflag_f32", "f32", "f32", lambda a: F32(1) / a)
pure("v_rsq_f32", "f32", "f32", _f64(lambda a: 1 / np.sqrt(a)))
pure("v_sqrt_f32", "f32", "f32", np.sqrt)
pure("v_exp_f32", "f32", "f32", _f64(np.exp2))
pure("v_log_f32", "f32", "f32", _f64(np.log2))
pure("v_sin_f32", "f32", "f32", _f64(lambda a: np.sin(a * 2 * np.pi)))
pure("v_cos_f32", "f32", "f32", _f64(lambda a: np.cos(a * 2 * np.pi)))
pure("v_fract_f32", "f32", "f32", lambda a: np.minimum(a - np.floor(a), F32(0.99999994)))
pure("v_trunc_f32", "f32", "f32", np.trunc)
pure("v_ceil_f32", "f32", "f32", np.ceil)
pure("v_floor_f32", "f32", "f32", np.floor)
pure("v_rndne_f32", "f32", "f32", np.rint)
pure("v_frexp_exp_i32_f32", "i32", "f32", lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32))
pure("v_frexp_mant_f32", "f32", "f32", _mantissa)
pure("v_div_fmas_f32", "f32", "f32 f32 f32", n.fma)
pure("v_div_fixup_f32", "f32", "f32 f32 f32", lambda q, b, c: c / b)

# float64.
pure("v_add_f64", "f64", "f64 f64", lambda a, b: a + b)
pure("v_mul_f64", "f64", "f64 f64", lambda a, b: a * b)
pure("v_fma_f64", "f64", "f64 f64 f64", n.fma_f64)
pure("v_rcp_f64", "f64", "f64", lambda a: 1 / a)
pure("v_div_fmas_f64", "f64", "f64 f64 f64", n.fma_f64)
pure("v_div_fixup_f64", "f64", "f64 f64 f64", lambda q, b, c: c / b)

# 16 bits.
pure("v_add_u16", "u16", "u16 u16", lambda a, b: a + b)
pure("v_sub_u16", "u16", "u16 u16", lambda a, b: a - b)
pure("v_subrev_u16", "u16", "u16 u16", lambda a, b: b - a)
pure("v_mul_lo_u16", "u16", "u16 u16", lambda a, b: a * b)
pure("v_mad_u16 v_mad_legacy_u16", "u16", "u16 u16 u16", lambda a, b, c: a * b + c)
pure("v_lshlrev_b16", "u16", "u16 u16", lambda a, b: b << (a & U16(15)))
pure("v_lshrrev_b16", "u16", "u16 u16", lambda a, b: b >> (a & U16(15)))
pure("v_ashrrev_i16", "i16", "u16 i16", lambda a, b: b >> (a & U16(15)).view(I16))
pure("v_add_f16", "f16", "f16 f16", lambda a, b: a + b)
pure("v_sub_f16", "f16", "f16 f16", lambda a, b: a - b)
pure("v_mul_f16", "f16", "f16 f16", lambda a, b: a * b)
pure("v_fma_f16", "f16", "f16 f16 f16", n.fma)
pure("v_rcp_f16", "f16", "f16", lambda a: (1 / a.astype(F64)).astype(F16))
pure("v_pack_b32_f16", "u32", "f16 f16", n.pack_halves)
