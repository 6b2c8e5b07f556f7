"""The routes, one file each. Adding one, with the forms of weights it reads, is its file and its line here."""

from __future__ import annotations

from typing import Final

from mxgemm.mx.prepared import register
from mxgemm.problem import Config
from mxgemm.routes.a16wfp4 import A16WFP4
from mxgemm.routes.base import Launch, Operands, Route
from mxgemm.routes.ck_gemm import CKGemm
from mxgemm.routes.cpu_dequant_mm import CpuDequantMM
from mxgemm.routes.cpu_native import CpuNative
from mxgemm.routes.dequant_mm import DequantMM
from mxgemm.routes.fp8_fold import FP8Fold
from mxgemm.routes.fused_asm import FusedAsm
from mxgemm.routes.gemm_mx import GemmMX
from mxgemm.routes.hip_fused import HipFused
from mxgemm.routes.hip_mx import HipMX
from mxgemm.routes.quant_gemm_mx import QuantGemmMX
from mxgemm.routes.reference import Reference
from mxgemm.routes.scaled_mm import ScaledMM
from mxgemm.routes.w4_fp8 import W4FP8
from mxgemm.routes.w4_mma import W4MMA
from mxgemm.routes.w4_wgmma import W4Wgmma
from mxgemm.routes.w4a16 import W4A16

ROUTES: Final[dict[str, Route]] = {
    route.name: route
    for route in (
        *(W4MMA(), A16WFP4(), W4A16(), GemmMX(), QuantGemmMX(), FusedAsm(), CKGemm(), FP8Fold(), W4FP8(), W4Wgmma()),
        *(ScaledMM(), DequantMM()),
        *(CpuNative(), CpuDequantMM(), Reference()),
        # Behind the one that takes everything: chosen by name or by a table's row only.
        *(HipFused(), HipMX()),
    )
}
"""Every route by name, in the order in which the router tries them when neither table nor rule decides."""

for _route in ROUTES.values():
    register(_route.forms)

__all__ = ["ROUTES", "Config", "Launch", "Operands", "Route"]
