"""Drawn calls against the float64 oracle: the quantiser to the byte, every route that runs here within the gate.

``MXGEMM_FUZZ`` is the number of calls to draw, 250 by default and then always the same; the quantiser and each route
get an equal part of them. Any other number draws from another seed each time::

    MXGEMM_FUZZ=5000 python -m pytest tests/test_fuzz.py -q
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mxgemm
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import LEAST_ERROR, OUT_BITS, element_gate
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS, scale_addend
from mxgemm.triton.quantize import quantize_rows
from tests.cases import bytes_of, skip_without_kernels, stored_scales
from tests.strategies import Call, Matrix, calls, depths, matrices, seeds, sizes, values, view_of, weight_bytes

pytestmark = pytest.mark.slow

DEFAULT = 250
EXAMPLES = int(os.environ.get("MXGEMM_FUZZ", str(DEFAULT)))
ROUTES = {
    "reference": ("e2m1", "e4m3", "bf16"),
    "a16wfp4": ("e2m1", "e4m3"),
    "w4a16": ("bf16",),
    "gemm_mx": ("e2m1", "e4m3", "e5m2"),
    "dequant_mm": ("e2m1", "e4m3", "bf16"),
    "fp8_fold": ("e2m1",),
    "cpu_native": ("e2m1", "e4m3", "bf16"),
    "cpu_dequant_mm": ("e2m1", "e4m3", "bf16"),
}
FUZZ = settings(
    max_examples=max(1, -(-EXAMPLES // (1 + len(ROUTES)))),
    deadline=None,
    derandomize=EXAMPLES == DEFAULT,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def drawn(matrix: Matrix, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return view_of(values(matrix.values, rows, columns, matrix.dtype, generator), matrix.view)


@FUZZ
@given(matrices(), st.tuples(sizes, depths), st.sampled_from(sorted(FORMATS)), st.sampled_from(SCALE_ROUNDINGS), seeds)
def test_quantise_to_the_byte(matrix: Matrix, size: tuple[int, int], fmt: str, rounding: str, seed: int) -> None:
    skip_without_kernels("cpu")
    m, k = size
    x = drawn(matrix, m, k, torch.Generator().manual_seed(seed))
    data, scales = oracle.encode(x.float().resolve_neg().numpy(), fmt, rounding)
    got = mxgemm.quantize(x, format=fmt, scale_rounding=rounding)  # type: ignore[arg-type]
    assert np.array_equal(bytes_of(got.scales), scales)
    assert np.array_equal(bytes_of(got.data), data)
    assert np.array_equal(
        bytes_of(got.dequantize()), oracle.decode(data, scales, fmt).astype(np.float32), equal_nan=True
    )
    by_kernel = torch.full_like(got.data, 0xA5), torch.full_like(got.scales, 0xA5)
    quantize_rows(x.resolve_neg(), FORMATS[fmt], scale_addend(FORMATS[fmt], rounding), *by_kernel)  # type: ignore[arg-type]
    assert torch.equal(by_kernel[1], got.scales)
    assert torch.equal(by_kernel[0], got.data)


def check(out: Tensor, a64: np.ndarray, b64: np.ndarray, bias: Tensor | None, *, flushes: bool) -> None:
    """Hold a result against the elementwise gate, with what docs/numbers.md says lies outside equality left out.

    Where a decoded operand or a sum may pass fp32's or the output's range only NaN is compared. ``flushes``: the
    route's product is a bf16 GEMM of the CPU's, which takes subnormal operands and products for zero.
    """
    bias64 = np.zeros(b64.shape[0]) if bias is None else bias.double().resolve_neg().numpy()
    ref = oracle.matmul(a64, b64, bias64)
    got = out.double().resolve_neg().numpy()
    dead = np.isnan(ref)
    assert np.isnan(got[dead]).all(), "a NaN block gave a number"
    k = a64.shape[1]
    left, right = np.nan_to_num(np.abs(a64), nan=0.0), np.nan_to_num(np.abs(b64), nan=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        size = left @ right.T + np.abs(bias64)
        room = element_gate(k) * 2.0**-24 * size + (k + 1) * 2.0**-149  # fp32 keeps products to its least subnormal
        if flushes:
            least = 2.0**-126
            room += k * least + np.where(left < least, left, 0) @ right.T + left @ np.where(right < least, right, 0).T
    limit = min(float(torch.finfo(out.dtype).max), 2.0**127) / 2
    fits = (size < limit) & (left.max(axis=1) < 2.0**128)[:, None] & (right.max(axis=1) < 2.0**128)[None, :]
    least = {torch.bfloat16: 2.0**-134, torch.float16: LEAST_ERROR[torch.float16], torch.float32: 0.0}[out.dtype]
    allowed = np.maximum(2.0 ** -OUT_BITS[out.dtype] * np.abs(ref), least) + room
    with np.errstate(invalid="ignore"):
        wrong = fits & ~dead & ~(np.abs(got - ref) <= allowed)
    assert not wrong.any(), (np.argwhere(wrong)[:4], got[wrong][:4], ref[wrong][:4])


def run(call: Call, route: str, a_format: str, *, layout: tuple[str, str], memory: str) -> None:
    skip_without_kernels("cpu")
    generator = torch.Generator().manual_seed(call.seed)
    a = drawn(call.a, call.m, call.k, generator)
    data, scales = weight_bytes(call.weight, call.n, call.k, generator)
    options: dict = {"route": route, "out_dtype": call.out_dtype}
    options["bias"] = bias = None if call.bias is None else drawn(call.bias, 1, call.n, generator)[0]
    if call.out_view is not None:
        empty = torch.full((call.m, call.n), torch.nan, dtype=call.out_dtype)
        options["out"] = view_of(empty, call.out_view)
    shuffled = {"weight_layout": layout[0], "scale_layout": layout[1]}
    if layout[0] == "preshuffled" and layouts.preshuffle_refusal(call.n, data.shape[1]):
        shuffled["weight_layout"] = "row_major"
    data = view_of(data, call.weight.data_view)
    scales = view_of(scales, call.weight.scales_view)
    plain = mxgemm.MXTensor.wrap(data, scales, format=call.weight.format)  # type: ignore[arg-type]
    stored = (
        layouts.preshuffle_weight(plain.data) if shuffled["weight_layout"] == "preshuffled" else data,
        stored_scales(plain, layout[1]),
    )
    weight = mxgemm.MXTensor.wrap(*stored, format=call.weight.format, **shuffled)  # type: ignore[arg-type]
    if route in ("fp8_fold", "dequant_mm") and memory != "raw":
        prepared = plain.prepare("sm_90", memory=memory)  # type: ignore[arg-type]
        if route == "fp8_fold" and not prepared.operand()[3].startswith("fp8_fold"):
            options["route"] = "dequant_mm"  # it does not fold: the route that takes it then
        weight = prepared if options["route"] == "fp8_fold" or prepared.operand()[3] in ("", "bf16") else weight
    elif route == "fp8_fold":
        options["route"] = "dequant_mm"
    floats = a.float().resolve_neg().numpy()
    if route == "gemm_mx":
        left = mxgemm.quantize(a, format=a_format, scale_rounding=call.scale_rounding)  # type: ignore[arg-type]
        out = mxgemm.gemm_mx(left, weight, **options)
    else:
        options |= {"a_format": a_format, "scale_rounding": call.scale_rounding}
        out = mxgemm.gemm(a, weight, **options)
    flushes = options["route"] in ("dequant_mm", "cpu_dequant_mm")
    a64 = (
        a.to(torch.bfloat16).double().resolve_neg().numpy()
        if a_format == "bf16"
        else oracle.decode(*oracle.encode(floats, a_format, call.scale_rounding), a_format)
    )
    check(
        out,
        a64,
        oracle.decode(bytes_of(plain.data), bytes_of(plain.scales), call.weight.format),
        bias,
        flushes=flushes,
    )


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_against_the_oracle(route: str) -> None:
    formats = ("e2m1",) if route in ("dequant_mm", "fp8_fold", "cpu_native", "cpu_dequant_mm") else tuple(FORMATS)

    @FUZZ
    @given(
        calls(formats),
        st.sampled_from(ROUTES[route]),
        st.tuples(st.sampled_from(layouts.WEIGHT_LAYOUTS), st.sampled_from(layouts.SCALE_LAYOUTS)),
        st.sampled_from(("raw", "fast", "compact")),
    )
    def fuzz(call: Call, a_format: str, layout: tuple[str, str], memory: str) -> None:
        run(call, route, a_format, layout=layout, memory=memory)

    fuzz()
