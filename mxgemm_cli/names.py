"""Names that options take, written down so that a line is read without torch; a test compares them to mxgemm's."""

from __future__ import annotations

from typing import Final

ACTIVATION_FORMATS: Final = ("e2m1", "e4m3", "bf16")
ROUTES: Final = (
    *("w4_mma", "a16wfp4", "w4a16", "gemm_mx", "quant_gemm_mx", "fused_asm", "ck_gemm", "fp8_fold", "w4_fp8"),
    *("w4_wgmma", "scaled_mm", "dequant_mm"),
    *("cpu_native", "cpu_dequant_mm", "reference", "hip_fused", "hip_mx"),
)
METRICS: Final = ("device", "eager", "host")
SCALE_ROUNDINGS: Final = ("even", "floor", "ceil", "rceil")
CHECKPOINTS: Final = (*("quark", "compressed-tensors", "torchao", "torchao-swizzled", "gpt-oss", "gguf", "dense"),)
DTYPES: Final = ("bfloat16", "float16", "float32")
FORMS: Final = ("hip", "triton", "aiter")
WEIGHT_FORMS: Final = ("fast", "bf16", "compact", "raw")
OPERATIONS: Final = (
    *("mx_gemm", "rowcolquant", "tensor_quant", "aquant", "abquant", "bquant"),
    *("grouped_rowcolquant", "grouped_tensorquant", "grouped_aquant", "grouped_abquant", "grouped_bquant"),
)
SOURCES: Final = ("native", "ck_tile")
PEERS: Final = (
    "torch_mm",
    "torch_mm_fp32",
    "scaled_mm_fp8",
    "aiter_a4w4",
    "aiter_a16wfp4",
    "triton_kernels",
    "humming",
)
MACHINES: Final = ("cpu", "gfx950", "gfx942", "sm_90", "sm_100", "gfx1250", "sm_120")
