"""What is not compared, and where the table differs from the pseudo-code on purpose."""

from __future__ import annotations

from typing import Final

SKIPPED: Final = (
    (r"v_mfma_.*", "the text is D = A * B + C"),
    (r"s_(buffer_)?load_.*|s_memtime|s_memrealtime|s_dcache_.*|s_icache_inv", "memory"),
    (r"s_(getreg|setreg)_.*|s_setreg_imm32_b32|s_getpc_b64|s_set_gpr_idx_.*", "hardware registers"),
    (r"s_(nop|sleep|waitcnt|endpgm|setprio|sendmsg|wakeup|incperflevel|decperflevel|ttracedata|sethalt)|v_nop",
     "no result"),
    (r"v_(exp|log|sin|cos|rsq|rcp|rcp_iflag)_.*", "correctly rounded here, within 1 ulp in hardware"),
    (r"v_div_(scale|fmas|fixup)_.*", "the division as a whole is correctly rounded"),
    (r"v_cvt_(scalef32_)?pk_.*(fp4|fp8|bf8).*|v_cvt_f32_(fp8|bf8)|v_cvt_pk_(fp8|bf8)_f32",
     "the conversion is a function that the text does not define"),
    (r"v_(pk_)?(minimum|maximum)3_.*", "v_minimum_f32 and the like are not defined in the text"),
    (r"v_permlane.*_swap_b32|v_swap_b32|v_writelane_b32|v_accvgpr_.*", "writes more registers than one lane's result"),
    (r"v_dot2.*", "the text rounds between the sums"),
)  # fmt: skip
"""(names, reason)."""

DIFFERENCES: Final = (
    (r"v_cvt_rpi_i32_f32", "the text adds 0.5 in float32, so 0.49999997 becomes 1; here, and in rocjitsu, exactly"),
    (r"v_frexp_exp_i32_f32", "of a subnormal the text gives its exponent field; LLVM needs the true exponent"),
    (r"v_rndne_f32", "the text adds 0.5 in float32: -0 becomes +0, and numbers from 2^23 on move"),
    (r"v_fract_f32", "the text lets a tiny negative number become 1; here at most 1 - 2^-24, which LLVM relies on"),
)  # fmt: skip
"""(names, reason): instructions on which some results may differ."""
