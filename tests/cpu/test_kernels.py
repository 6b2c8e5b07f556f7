"""The C kernels of every variant that this CPU runs: values, memory, threads, forks."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import plan
from mxgemm.cpu import abi, build, elements, team, variants
from mxgemm.cpu.launch import Product
from mxgemm.device import CPU
from mxgemm.errors import Refusal
from mxgemm.mx import layouts, oracle
from mxgemm.mx.codec import encode_rows
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS, scale_addend
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes.cpu_native import CpuNative, CpuNativeConfig
from tests.cases import OUT_DTYPES, Case, bytes_of, cpu_route, make, run_route, spread, stored_scales
from tests.strategies import VALUES, values, view_of
from tests.test_wide import spread_out

FOUND = variants.usable()
RUN_HERE = {} if isinstance(FOUND, Refusal) else {variant.name: variant for variant in FOUND}
EMULATED = "emulated amx_bf16"
if "avx2" in RUN_HERE:  # the matrix unit's instructions as functions
    RUN_HERE[EMULATED] = variants.Variant(EMULATED, frozenset(), (*RUN_HERE["avx2"].flags, "-DMX_EMULATED_AMX"))
METHODS = [(fmt, method) for fmt in ("e2m1", "e4m3", "bf16") for method in abi.methods_of(fmt)]

pytestmark = pytest.mark.skipif(
    not RUN_HERE or cpu_route() == "reference", reason="no variant of the kernels for this CPU, or no C compiler"
)


VARIANTS_HERE = [pytest.param(name, marks=[pytest.mark.slow] if name == EMULATED else []) for name in RUN_HERE]


@pytest.fixture(params=VARIANTS_HERE or ["none"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """A variant's library, in place of the best one's."""
    opened = build.load(RUN_HERE[request.param])
    assert opened.mx_variant().decode() == request.param.split()[-1]
    monkeypatch.setattr(build, "library", lambda: opened)
    before = torch.get_num_threads()
    plan.clear_plans()
    yield opened
    plan.clear_plans()
    torch.set_num_threads(before)


@pytest.fixture(params=["torch's threads", "own threads"])
def helpers(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[None]:
    if request.param == "own threads":
        library.mx_use_team(None)
    elif team.starter() is None:
        pytest.skip("torch has no OpenMP runtime of its own here")
    yield
    library.mx_use_team(team.starter())


@pytest.fixture
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method, in place of the route's choice."""
    monkeypatch.setattr(CpuNative, "configs", lambda *_: [CpuNativeConfig(request.param)])
    return request.param  # type: ignore[no-any-return]


def run(case: Case, a_format: str, method: str, **options: object) -> Tensor:
    return run_route("cpu_native", case, a_format=a_format, config=CpuNativeConfig(method), **options)  # type: ignore[arg-type]


SHAPES = [(1, 1, 32), (1, 2112, 96), (2, 33, 2880), (4, 31, 160), (5, 64, 128), (7, 65, 256), (33, 40, 8256)]
SHAPES += [(12, 70, 4192), (22, 40, 2080)]  # more blocks than few rows of A meet at a time, and fewer than more do


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_sizes(m: int, n: int, k: int, a_format: str, method: str, library: ctypes.CDLL) -> None:
    case = make(m, n, k, a_format=a_format, octaves=3)  # fp16 holds the results
    for dtype in OUT_DTYPES:
        case.check(run(case, a_format, method, out_dtype=dtype))


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
@pytest.mark.parametrize("data", layouts.WEIGHT_LAYOUTS)
@pytest.mark.parametrize("scales", layouts.SCALE_LAYOUTS)
def test_layouts(data: str, scales: str, a_format: str, method: str, library: ctypes.CDLL) -> None:
    for m, n, k in ((3, 48, 320), (11, 48, 4224), (20, 304, 8256)):
        bias = torch.randn(n)
        case = make(m, n, k, a_format=a_format, bias=bias)
        case.check(run(case, a_format, method, layout=(data, scales), bias=bias))


@pytest.mark.parametrize("m", [13, 29])  # of more than 16 rows some are multiplied by other units (lookups.h)
@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
def test_exact_sums_have_the_references_bits(a_format: str, method: str, m: int, library: ctypes.CDLL) -> None:
    """Small integers: no sum is rounded, whatever its order."""
    a = torch.randint(-3, 4, (m, 320)).to(torch.bfloat16)
    a[:, ::32] = 4
    weight = mxgemm.MXTensor.wrap(
        torch.randint(0, 256, (37, 160), dtype=torch.uint8), torch.randint(125, 130, (37, 10), dtype=torch.uint8)
    )
    case = Case(a, weight, *[np.zeros(0)] * 2, np.zeros((m, 37)))
    want = mxgemm.gemm(a, weight, a_format=a_format, out_dtype=torch.float32, route="reference")  # type: ignore[arg-type]
    assert torch.equal(run(case, a_format, method, out_dtype=torch.float32), want)


@pytest.mark.parametrize("method", ["rows", "tiles"], indirect=True)
@pytest.mark.parametrize("octaves", [2, 20, 120])
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
def test_activations_are_rounded_to_e4m3(rounding: str, octaves: int, method: str, library: ctypes.CDLL) -> None:
    """By a weight that has one 1 a row: every element as it is multiplied, among them ties, zeros, the largest ones."""
    m, k = 40, 256
    scales = torch.exp2(torch.randint(-octaves, octaves + 1, (m, k // 32)).float())
    a = torch.randn(m, k) * scales.repeat_interleave(32, 1)
    a[:, ::7] *= torch.exp2(torch.randint(-16, 1, a[:, ::7].shape).float())
    kept = torch.tensor([-1, -8], dtype=torch.int16)[torch.randint(0, 2, (m, k))]  # with three bits less: ties
    a = (a.to(torch.bfloat16).view(torch.int16) & kept).view(torch.bfloat16)
    a[torch.rand(m, k) < 0.1] = 0
    codes = torch.eye(k, dtype=torch.uint8) * 2
    ones = torch.full((k, k // 32), 127, dtype=torch.uint8)
    weight = mxgemm.MXTensor.wrap(codes[:, ::2] | codes[:, 1::2] << 4, ones)
    rounded = mxgemm.quantize(a, format="e4m3", scale_rounding=rounding)  # type: ignore[arg-type]
    want = rounded.dequantize(dtype=torch.float32)
    case = Case(a, weight, *[np.zeros(0)] * 2, np.zeros((m, k)))
    got = run(case, "e4m3", method, out_dtype=torch.float32, scale_rounding=rounding)
    assert torch.equal(got, want)


@pytest.mark.parametrize("m", [4, 11, 16])
@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
def test_equal_rows_have_equal_bits(a_format: str, method: str, m: int, library: ctypes.CDLL) -> None:
    """Of few rows, wherever they stand: none is multiplied by other units."""
    case = make(1, 70, 2080, a_format=a_format)
    rows = Case(case.a.expand(m, -1).contiguous(), case.weight, *[np.zeros(0)] * 2, np.zeros((m, 70)))
    got = run(rows, a_format, method, out_dtype=torch.float32)
    assert torch.equal(got, got[:1].expand_as(got))


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
@pytest.mark.parametrize("m, n, k", [(3, 700, 1024), (40, 96, 2880), (200, 20, 1024), (67, 1200, 96)])
def test_the_number_of_threads_changes_no_bit(
    m: int, n: int, k: int, a_format: str, method: str, helpers: None
) -> None:
    case = make(m, n, k, a_format=a_format)
    got = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        got.append(run(case, a_format, method))
    case.check(got[0])
    assert all(torch.equal(got[0], other) for other in got[1:])


@pytest.mark.parametrize("m", [9, 20, 80])  # the last of eight rows is each of the nine once
@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
def test_ends_of_the_scales(a_format: str, method: str, m: int, library: ctypes.CDLL) -> None:
    """E8M0 0, 254 and NaN, rows that fp32 scales of integers do not reach, NaN and infinity in A."""
    n, k = 40, 2880
    a = spread(m, k, torch.float32)
    factors = torch.tensor([1, 2.0**-100, 2.0**100, 2.0**-126, 2.0**-60, 1, 1, 0, 2.0**-110])
    a *= factors[torch.arange(m) % 9][:, None]
    a[5::9, 33], a[6::9, 100] = torch.nan, torch.inf
    a = a.to(torch.bfloat16)
    weight = mxgemm.quantize(spread(n, k, seed=1))
    scales = weight.scales
    scales[1], scales[2], scales[3, 5], scales[4] = 0, 245, 255, 252
    scales[5, ::2], scales[6] = 250, torch.randint(0, 253, (k // 32,), dtype=torch.uint8)
    a64 = (
        a.double().numpy()
        if a_format == "bf16"
        else oracle.decode(*oracle.encode(a.float().numpy(), a_format, "even"), a_format)
    )
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(scales), "e2m1")
    got = run(Case(a, weight, a64, b64, oracle.matmul(a64, b64)), a_format, method, out_dtype=torch.float32)
    with np.errstate(invalid="ignore"):
        ref, size = a64 @ b64.T, np.abs(a64) @ np.abs(b64).T
        right = np.where(
            np.isnan(ref), np.isnan(got.numpy()), np.abs(got.numpy().astype("f8") - ref) <= room(ref, size, k)
        )
    fits = np.isnan(ref) | (size < 2.0**126)
    assert fits.sum() > 250
    assert right[fits].all()


def room(ref: oracle.Float64, size: oracle.Float64, k: int) -> oracle.Float64:
    """What a sum of K products may be off, subnormals included."""
    return (32 + k / 64) * 2.0**-24 * size + (k + 1) * 2.0**-149 + 2.0**-23 * np.abs(ref)


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
def test_what_meets_zeros_adds_no_error(a_format: str, method: str, library: ctypes.CDLL) -> None:
    """Large values of A, where a weight's codes are 0 under a scale that is not, beside products of small ones."""
    m, n, k = 17, 24, 256
    a, weight = spread(m, k, torch.float32), mxgemm.quantize(spread(n, k, seed=1))
    a[:, :32] *= 2.0**30
    a = a.to(torch.bfloat16)
    weight.data[:, :16] = 0
    assert (weight.scales[:, 0] > 0).all()
    a64 = a.double().numpy()
    if a_format != "bf16":
        a64 = oracle.decode(*oracle.encode(a.float().numpy(), a_format, "even"), a_format)
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
    got = run(Case(a, weight, a64, b64, oracle.matmul(a64, b64)), a_format, method, out_dtype=torch.float32)
    ref, size = a64 @ b64.T, np.abs(a64) @ np.abs(b64).T
    assert (np.abs(got.numpy().astype("f8") - ref) <= room(ref, size, k)).all()


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
def test_small_products_are_not_lost(a_format: str, method: str, library: ctypes.CDLL) -> None:
    """Products that a bf16 unit flushes to zero, alone in a sum and beside others; rows near the ends of its range."""
    m, n, k = 37, 40, 256
    a = spread(m, k, torch.float32) * 2.0**-75
    a[:, :32] *= 2.0**75
    a *= torch.tensor([1, 2.0**-45, 2.0**60, 2.0**-20])[torch.arange(m) % 4][:, None]
    a = a.to(torch.bfloat16)
    weight = mxgemm.quantize(spread(n, k, seed=1))
    weight.scales.copy_(torch.tensor([67, 87, 127, 127])[torch.arange(n) % 4][:, None])
    weight.data[::3, :16] = 0
    weight.scales[::3, 0] = 0  # as blocks of zeros are quantised
    b64 = oracle.decode(bytes_of(weight.data), bytes_of(weight.scales), "e2m1")
    a64 = a.double().numpy()
    if a_format != "bf16":
        a64 = oracle.decode(*oracle.encode(a.float().numpy(), a_format, "even"), a_format)
    got = run(Case(a, weight, a64, b64, oracle.matmul(a64, b64)), a_format, method, out_dtype=torch.float32)
    ref, size = a64 @ b64.T, np.abs(a64) @ np.abs(b64).T
    assert (size[size > 0] < 2.0**-120).sum() > 50
    assert (np.abs(got.numpy().astype("f8") - ref) <= room(ref, size, k)).all()


@pytest.mark.parametrize("method", abi.METHODS, indirect=True)
def test_quantised_activations(method: str, library: ctypes.CDLL) -> None:
    for a_format in FORMATS if method != "panels" else ("e2m1",):
        left = mxgemm.quantize(spread(11, 160), format=a_format)  # type: ignore[arg-type]
        case = make(11, 37, 160)
        got = mxgemm.gemm_mx(left, case.weight, route="cpu_native", out_dtype=torch.float32)
        a64 = oracle.decode(bytes_of(left.data), bytes_of(left.scales), a_format)
        Case(case.a, case.weight, a64, case.b64, oracle.matmul(a64, case.b64)).check(got)


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
@pytest.mark.parametrize("kind", ["transposed", "sliced", "offset", "misaligned", "expanded"])
def test_views(kind: str, a_format: str, method: str, library: ctypes.CDLL) -> None:
    case, plain = make(7, 37, 96, a_format=a_format), torch.float32
    weight = mxgemm.MXTensor.wrap(view_of(case.weight.data, kind), view_of(case.weight.scales, kind))
    a, out = view_of(case.a, kind), torch.full((7, 37), torch.nan)
    want = mxgemm.gemm(a, weight, a_format=a_format, route="reference", out_dtype=plain)  # type: ignore[arg-type]
    if kind != "expanded":
        out = view_of(out, kind)
    mxgemm.gemm(a, weight, a_format=a_format, route="cpu_native", out_dtype=plain, out=out)  # type: ignore[arg-type]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("a_format, method", METHODS, indirect=["method"])
@pytest.mark.parametrize("operand, dimension", [(x, d) for x in ("a", "b", "b_scales", "out") for d in (0, 1)])
def test_offsets_beyond_32_bits(operand: str, dimension: int, a_format: str, method: str, library: ctypes.CDLL) -> None:
    case = make(6, 5, 64, a_format=a_format)
    parts = {"a": case.a, "b": case.weight.data, "b_scales": case.weight.scales, "out": torch.zeros(6, 5)}
    parts[operand] = spread_out(parts[operand], dimension, 2**31 + 32)
    weight = mxgemm.MXTensor.wrap(parts["b"], parts["b_scales"])
    mxgemm.gemm(
        parts["a"],
        weight,
        a_format=a_format,
        route="cpu_native",
        out=parts["out"],
        out_dtype=torch.float32,  # type: ignore[arg-type]
    )
    case.check(parts["out"].contiguous())


def test_scratch_stays_bounded(library: ctypes.CDLL) -> None:
    """64 MB with the threads of a small machine, whatever M and N are."""
    for m, k in ((1, 1 << 20), (64, 1 << 17), (4096, 16384), (1 << 20, 512)):
        for a_format, method in METHODS:
            strides = contiguous_strides(1 << 20, k, FORMATS["e2m1"], k // 32)
            problem = Problem.of(m, 1 << 20, k, CPU, strides=strides, a_format=a_format)
            call = Product(library, problem, method)._call
            call.threads = 4
            assert 0 < library.mx_scratch_bytes(ctypes.byref(call)) <= 1 << 26, (m, k, a_format, method)


def test_flushing_subnormals_changes_no_bit(library: ctypes.CDLL) -> None:
    """A setting of the calling thread's arithmetic, which its kernels do without."""
    a = spread(6, 64) * 2.0**-120
    weight = mxgemm.MXTensor.wrap(
        torch.randint(0, 256, (9, 32), dtype=torch.uint8), torch.randint(100, 128, (9, 2), dtype=torch.uint8)
    )
    for a_format in ("e2m1", "e4m3"):
        options: dict = {"a_format": a_format, "route": "cpu_native", "out_dtype": torch.float32}
        want = mxgemm.gemm(a, weight, **options)
        if not torch.set_flush_denormal(True):
            pytest.skip("torch cannot set it here")
        try:
            got = mxgemm.gemm(a, weight, **options)
        finally:
            torch.set_flush_denormal(False)
        assert want.count_nonzero() > 40
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))


def test_threads_at_once(helpers: None) -> None:
    """One call has the helpers, the others do their own work; each has its own scratch."""
    torch.set_num_threads(3)
    cases = [make(m, 200, 2880, seed=m) for m in (1, 3, 7, 30)]
    want = [mxgemm.gemm(case.a, case.weight, route="cpu_native") for case in cases]
    wrong, start = [], threading.Barrier(6)

    def work(seed: int) -> None:
        start.wait()
        for i in range(30):
            which = (seed + i) % len(cases)
            got = mxgemm.gemm(cases[which].a, cases[which].weight, route="cpu_native")
            if not torch.equal(got, want[which]):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
def test_children_forked_while_helpers_work(helpers: None, library: ctypes.CDLL) -> None:
    torch.set_num_threads(3)
    case = make(8, 600, 2880)
    want, stop = mxgemm.gemm(case.a, case.weight, route="cpu_native"), threading.Event()

    def work() -> None:
        while not stop.is_set():
            mxgemm.gemm(case.a, case.weight, route="cpu_native")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                build.load(next(iter(RUN_HERE.values())))  # as if it were the first use
                same = all(torch.equal(mxgemm.gemm(case.a, case.weight, route="cpu_native"), want) for _ in range(3))
                os._exit(0 if same else 3)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", VALUES)
def test_quantised_bytes(kind: str, fmt: str, library: ctypes.CDLL) -> None:
    for dtype in OUT_DTYPES:
        x = values(kind, 5, 160, dtype, torch.Generator().manual_seed(1))
        for rounding in SCALE_ROUNDINGS:
            addend = scale_addend(FORMATS[fmt], rounding)
            want = encode_rows(x, FORMATS[fmt], addend)
            for view in ("contiguous", "transposed"):
                got = tuple(torch.full_like(part, 0xA5) for part in want)
                elements.encode(library, view_of(x, view), FORMATS[fmt], addend, *got)
                assert torch.equal(got[1], want[1])
                assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
def test_every_bf16_value_is_quantised(rounding: str, library: ctypes.CDLL) -> None:
    """In blocks of near values, and beside one that is larger by a power of two, whose scale they get."""
    near = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(-1, 32)
    rows = [near]
    for step in range(1, 5):
        rows.append(near.clone())
        rows[-1][:, 7] = ((near[:, 0] & 0x7FFF) + step * 128).clamp(max=0x7F7F)
    x = torch.cat(rows).view(-1, 32 * 20).view(torch.bfloat16)
    addend = scale_addend(FORMATS["e2m1"], rounding)
    want = encode_rows(x, FORMATS["e2m1"], addend)
    got = tuple(torch.full_like(part, 0xA5) for part in want)
    elements.encode(library, x, FORMATS["e2m1"], addend, *got)
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("data", layouts.WEIGHT_LAYOUTS)
@pytest.mark.parametrize("scales", layouts.SCALE_LAYOUTS)
def test_decoded_values(data: str, scales: str, library: ctypes.CDLL) -> None:
    weight = mxgemm.MXTensor.wrap(
        torch.randint(0, 256, (48, 160), dtype=torch.uint8),
        torch.arange(480, dtype=torch.int32).remainder(256).to(torch.uint8).view(48, 10),
    )
    weight.scales[weight.scales > 252] = 255
    stored = layouts.preshuffle_weight(weight.data) if data == "preshuffled" else weight.data
    for dtype in (torch.bfloat16, torch.float32):
        out = torch.empty(48, 320, dtype=dtype)
        elements.decode(library, stored, stored_scales(weight, scales), data, scales, out)
        torch.testing.assert_close(out, weight.dequantize(dtype=dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
@pytest.mark.parametrize("m, n, k", [(1, 40, 96), (33, 700, 2880)])
def test_decoding_and_multiplying(m: int, n: int, k: int, a_format: str, library: ctypes.CDLL) -> None:
    bias = torch.randn(n)
    for dtype in OUT_DTYPES:
        for given in (None, bias):
            case = make(m, n, k, a_format=a_format, a_dtype=torch.float32, bias=given, octaves=3)
            case.check(run_route("cpu_dequant_mm", case, a_format=a_format, bias=given, out_dtype=dtype))


def test_parts_of_activations_and_weights_meet(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    from mxgemm.routes import cpu_dequant_mm

    monkeypatch.setattr(cpu_dequant_mm, "SLICE_BYTES", 1)
    monkeypatch.setattr(cpu_dequant_mm, "ACTIVATION_BYTES", 4 * 96 * 5)
    for layout in (("row_major", "row_major"), ("preshuffled", "shuffled")):
        case = make(13, 560, 128, a_format="bf16")
        case.check(run_route("cpu_dequant_mm", case, a_format="bf16", layout=layout, out_dtype=torch.float32))


def test_the_struct_is_the_librarys(library: ctypes.CDLL) -> None:
    assert library.mx_call_bytes() == ctypes.sizeof(abi.Call)
