"""Offsets beyond 32 bits: every operand of every interpreted kernel, far apart in memory that is mostly not there."""

from __future__ import annotations

import math
import mmap

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip.fused import FusedConfig, fused_refusal
from mxgemm.mx.formats import FORMATS, SCALE_ROUNDINGS, scale_addend
from mxgemm.plan import clear_plans
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.triton import quantize
from mxgemm.triton.quantize import quantize_rows
from mxgemm.triton.support import INT32_MAX, MAX_GRID_YZ, MAX_SIZE, wide_offsets
from mxgemm.triton.tile_config import TileConfig
from tests.cases import skip_without_kernels, spread
from tests.load_kernels import load_packed_kernel, load_scales_kernel
from tests.marks import first_of

M, N, K = 17, 19, 64
STRIDES = [2**27, 2**31 - 1, 2**31 + 32]


def far(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros of any strides in memory of which only the touched pages exist."""
    elements = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).as_strided(shape, strides)


def spread_out(tensor: Tensor, dimension: int, stride: int) -> Tensor:
    """The same values with ``stride`` elements between neighbours along one dimension, none between the others'."""
    strides, step = [0] * tensor.dim(), 1
    for i in reversed(range(tensor.dim())):
        if i != dimension:
            strides[i], step = step, step * tensor.shape[i]
    strides[dimension] = stride
    return far(tuple(tensor.shape), tuple(strides), tensor.dtype).copy_(tensor)


def places(**dimensions: int) -> list[tuple[str, int]]:
    return [(name, i) for name, count in dimensions.items() for i in range(count)]


FLOAT_PLACES = places(a=2, b=2, b_scales=2, bias=1, out=2)
ROUTES_OF_FLOATS = [("a16wfp4", "e2m1"), ("a16wfp4", "e4m3"), ("w4a16", "bf16"), ("dequant_mm", "e4m3")]


def operands(a_format: str, seed: int = 0) -> dict[str, Tensor]:
    weight = mxgemm.quantize(spread(N, K, seed=seed))
    bias = torch.randn(N, generator=torch.Generator().manual_seed(seed))
    return {"a": spread(M, K, torch.bfloat16), "b": weight.data, "b_scales": weight.scales, "bias": bias}


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("place", FLOAT_PLACES, ids=str)
@pytest.mark.parametrize("route, a_format", ROUTES_OF_FLOATS)
@pytest.mark.slow
def test_gemm(route: str, a_format: str, place: tuple[str, int], stride: int) -> None:
    skip_without_kernels("cpu")
    name, dimension = place
    given = operands(a_format)
    options = {"route": route, "a_format": a_format}
    want = mxgemm.gemm(**given, **options)  # type: ignore[arg-type]
    if name == "out":
        out = spread_out(torch.zeros(M, N, dtype=torch.bfloat16), dimension, stride)
        mxgemm.gemm(**given, out=out, **options)  # type: ignore[arg-type]
        assert torch.equal(out, want)
        return
    given[name] = spread_out(given[name], dimension, stride)
    assert torch.equal(mxgemm.gemm(**given, **options), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("place", places(a=2, a_scales=2, b=2, b_scales=2, bias=1, out=2), ids=str)
def test_gemm_mx(place: tuple[str, int], stride: int) -> None:
    skip_without_kernels("cpu")
    name, dimension = place
    given = operands("e4m3")
    a = mxgemm.quantize(given.pop("a"), format="e4m3")
    given |= {"a": a.data, "a_scales": a.scales, "out": torch.zeros(M, N, dtype=torch.bfloat16)}

    def run() -> Tensor:
        left = mxgemm.MXTensor.wrap(given["a"], given["a_scales"], format="e4m3")
        right = mxgemm.MXTensor.wrap(given["b"], given["b_scales"])
        return mxgemm.gemm_mx(left, right, bias=given["bias"], out=given["out"], route="gemm_mx").clone()

    want = run()
    given[name] = spread_out(given[name], dimension, stride)
    assert torch.equal(run(), want)


@pytest.mark.parametrize("stride", first_of(reversed(STRIDES)))
@pytest.mark.parametrize("one_launch", [False, True])
@pytest.mark.parametrize("place", FLOAT_PLACES, ids=str)
@pytest.mark.slow
def test_split_k(place: tuple[str, int], one_launch: bool, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    config = TileConfig(block_n=16, block_k=64, split_k=2, one_launch=one_launch)
    monkeypatch.setattr(TritonGemm, "configs", lambda self, problem: [config])
    clear_plans()
    name, dimension = place
    weight = mxgemm.quantize(spread(N, 128))
    given = {"a": spread(M, 128, torch.bfloat16), "b": weight.data, "b_scales": weight.scales, "bias": torch.randn(N)}
    given["out"] = torch.zeros(M, N, dtype=torch.bfloat16)
    want = mxgemm.gemm(**given, route="a16wfp4").clone()  # type: ignore[arg-type]
    given[name] = spread_out(given[name], dimension, stride)
    assert torch.equal(mxgemm.gemm(**given, route="a16wfp4"), want)  # type: ignore[arg-type]
    clear_plans()


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("place", FLOAT_PLACES, ids=str)
@pytest.mark.slow
def test_fp8_fold(place: tuple[str, int], memory: str, stride: int) -> None:
    skip_without_kernels("cpu")
    name, dimension = place
    given = operands("e2m1")
    given["a"][3, :32] *= 2.0**20  # a row that does not fold, for the kernel that recomputes those
    weight = mxgemm.MXTensor.wrap(given.pop("b"), given.pop("b_scales")).prepare("sm_90", memory=memory)  # type: ignore[arg-type]
    given["out"] = torch.zeros(M, N, dtype=torch.bfloat16)
    want = mxgemm.gemm(given["a"], weight, bias=given["bias"], out=given["out"], route="fp8_fold").clone()
    if name in given:
        given[name] = spread_out(given[name], dimension, stride)
    else:
        parts = {"b": weight.data, "b_scales": weight.scales}
        parts[name] = spread_out(parts[name], dimension, stride)
        weight = mxgemm.MXTensor.wrap(parts["b"], parts["b_scales"]).prepare("sm_90", memory=memory)  # type: ignore[arg-type]
    got = mxgemm.gemm(given["a"], weight, bias=given["bias"], out=given["out"], route="fp8_fold")
    assert torch.equal(got, want)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("place", places(x=2, data=1, scales=1), ids=str)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_quantise(fmt, place: tuple[str, int], stride: int) -> None:
    skip_without_kernels("cpu")
    name, dimension = place
    x = spread(M, 288)
    want = mxgemm.quantize(x, format=fmt.name)
    tensors = {"x": x, "data": torch.zeros_like(want.data), "scales": torch.zeros_like(want.scales)}
    tensors[name] = spread_out(tensors[name], dimension, stride)
    quantize_rows(tensors["x"], fmt, scale_addend(fmt, "even"), tensors["data"], tensors["scales"])
    assert torch.equal(tensors["data"], want.data)
    assert torch.equal(tensors["scales"], want.scales)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.slow
def test_quantise_in_several_launches(rounding: str, fmt, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    monkeypatch.setattr(quantize, "MAX_ROWS", 16)
    monkeypatch.setattr(quantize, "MAX_COLUMNS", 256)
    for m, k in ((1, 288), (33, 32), (50, 800), (16, 256), (17, 512)):
        x = spread(m, k)
        want = mxgemm.quantize(x, format=fmt.name, scale_rounding=rounding)  # type: ignore[arg-type]
        data, scales = torch.full_like(want.data, 0xA5), torch.full_like(want.scales, 0xA5)
        quantize_rows(x, fmt, scale_addend(fmt, rounding), data, scales)
        assert torch.equal(scales, want.scales)
        if rounding == "even":
            assert torch.equal(data, want.data)
    with pytest.raises(ValueError, match="x: got M = 17, K = 512, want at most 16, 256 for shuffled scales"):
        quantize_rows(x, fmt, 0, data, torch.empty(32, 16, dtype=torch.uint8), shuffled=True)


@pytest.mark.parametrize("m, k", [(1, 2**25), (2**27 + 5, 32), (2**20, 2**20)])
def test_a_launch_of_the_quantiser_fits_every_grid(m: int, k: int) -> None:
    for arch in ("gfx950", "sm_90"):
        fmt = FORMATS["e2m1"]
        rows, columns = min(m, quantize.MAX_ROWS), min(k, quantize.MAX_COLUMNS)
        call = quantize.quantize_call(
            KNOWN_MACHINES[arch], (rows, columns), (k, 1), torch.bfloat16, fmt, 0, (k // 2, k // 32), None
        )
        assert call.grid[0] * call.options["num_warps"] * 64 < 2**32
        assert call.grid[1] <= MAX_GRID_YZ
        assert call.constants["WIDE"] == (rows * k > 2**29)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("k", [2**27, 2**28, 2**29, 2**30 - 512])
def test_a_preshuffled_tile_far_along_k(k: int, tail: bool, fmt) -> None:
    skip_without_kernels("cpu")
    columns = k // fmt.pack
    start = k - 256 + (64 if tail else 0)  # of the last tile of 256; a tail lacks its last quarter
    weight = far((32, columns), (columns, 1), torch.uint8)
    tile = torch.randint(0, 256, (2, 16 * 256 // fmt.pack), dtype=torch.uint8)
    inside = 16 * (k - start) // fmt.pack
    weight.view(-1).view(2, 16 * columns)[:, 16 * (start // fmt.pack) : 16 * columns] = tile[:, :inside]
    got = torch.full((32, 256 // fmt.pack), 0xA5, dtype=torch.uint8)
    load_packed_kernel[(1,)](weight, got, start, 32, k, columns, 1, True, fmt.pack, 32, 256, tail)
    tile[:, inside:] = 0
    order = tile.view(2, 256 // fmt.pack // 32, 2, 16, 16).permute(0, 3, 1, 2, 4)
    assert torch.equal(got, order.reshape(32, 256 // fmt.pack))


@pytest.mark.parametrize("order", ["row_major", "row_major_words", "shuffled", "swizzled_32_4_4"])
@pytest.mark.parametrize("block_n", [16, 32])
def test_scales_far_along_k_and_rows(order: str, block_n: int) -> None:
    skip_without_kernels("cpu")
    n, k, pn = 2**15, 2**22, 2**15 // block_n - 1  # 4 GiB of scales
    columns = k // 32
    scales = far((n, columns), (columns, 1), torch.uint8)
    wanted = torch.randint(0, 256, (block_n, 8), dtype=torch.uint8)
    first_row, first_column = n - block_n, columns - 8
    if order == "shuffled":
        whole = torch.randint(0, 256, (32, 8), dtype=torch.uint8)
        tile = whole.view(2, 16, 1, 2, 4).permute(2, 4, 1, 3, 0)
        at = (n // 32 - 1) * 32 * columns + (columns // 8 - 1) * 256
        scales.view(-1)[at : at + 256] = tile.reshape(-1)
        wanted = whole[32 - block_n :]
    elif order == "swizzled_32_4_4":
        whole = torch.randint(0, 256, (128, 8), dtype=torch.uint8)
        at = (n // 128 - 1) * 128 * columns + (columns // 4 - 2) * 512
        scales.view(-1)[at : at + 1024] = whole.view(4, 32, 2, 4).permute(2, 1, 0, 3).reshape(-1)
        wanted = whole[128 - block_n :]
    else:
        scales[first_row:, first_column:] = wanted
    got = torch.zeros(block_n, 8, dtype=torch.uint8)
    stride = 4 * columns if order == "swizzled_32_4_4" else columns
    load_scales_kernel[(1,)](scales, got, pn, k - 256, n, k, stride, 1, order, block_n, 256)
    assert torch.equal(got, wanted)


def problem(m: int, n: int, k: int, arch: str, **changes) -> Problem:
    strides = Strides((k, 1), (k // 2, 1), (max(1, k // 32), 1), (n, 1))
    return Problem.of(m, n, k, KNOWN_MACHINES[arch], strides=strides, **changes)


def test_which_offsets_are_wide() -> None:
    near = Strides((K, 1), (K // 2, 1), (K // 32, 1), (N, 1), (K // 32, 1))
    plain = Problem(M, N, K, KNOWN_MACHINES["gfx950"], strides=near)
    assert not wide_offsets(plain)
    assert not wide_offsets(Problem(M, N, K, plain.machine, strides=Strides(**{**fields(near), "bias": 2**31})))
    for name, value in fields(near).items():
        for far_value in [2**30] if name == "bias" else [(2**30, value[1]), (value[0], 2**30)]:
            strides = Strides(**{**fields(near), name: far_value})
            assert wide_offsets(Problem(M, N, K, plain.machine, has_bias=True, strides=strides)), name


def fields(strides: Strides) -> dict:
    return {name: getattr(strides, name) for name in strides.__slots__}


@pytest.mark.parametrize("arch", ["gfx950", "sm_90"])
def test_grids_that_no_driver_takes_are_refused(arch: str) -> None:
    skip_without_kernels("cpu")
    tiled = ROUTES["a16wfp4"]
    for sizes, field in (((MAX_SIZE + 1, 16, 64), "m"), ((1, MAX_SIZE + 16, 64), "n"), ((1, 16, 2 * MAX_SIZE), "k")):
        refusal = tiled.can_implement(problem(*sizes, arch))
        assert refusal is not None
        assert refusal.field == field
        assert "32 bits" in refusal.needed
    assert tiled.can_implement(problem(2**27, 16, 64, arch)) is None
    many = problem(2**24, 2**24, 64, arch)
    refusal = tiled.can_implement(many)
    assert refusal is not None
    assert refusal.field == "m"
    assert "along a grid's dimension" in refusal.needed
    wide = problem(1, 2**25, 512, arch)
    two_launches = tiled.check_config(wide, TileConfig(split_k=2))
    assert two_launches is not None
    assert two_launches.field == "n"
    assert tiled.check_config(wide, TileConfig(split_k=2, one_launch=True)) is None
    long_k = ROUTES["dequant_mm"].can_implement(problem(1, 16, 2**25, arch, a_format="bf16"))
    assert long_k is not None
    assert long_k.field == "k"
    assert ROUTES["dequant_mm"].can_implement(problem(1, 16, 2**23, arch, a_format="bf16")) is None


def test_a_workgroup_of_the_hip_kernel_reaches_32_bits() -> None:
    prepared = {"weight_layout": "preshuffled", "scale_layout": "shuffled"}
    for k in (2**26, 2**27, 2**28):
        large = problem(1, 128, k, "gfx950", **prepared)
        for block_n in (16, 32, 64, 128):
            refusal = fused_refusal(large, FusedConfig(block_n=block_n, block_k=128, waves=4))
            assert (refusal is None) == (block_n * k < 2**31), (k, block_n, refusal)
            assert refusal is None or refusal.field == "k"


def test_every_grid_fits_at_the_largest_sizes() -> None:
    """What is not refused launches: the calls of every Triton route at sizes around every limit."""
    skip_without_kernels("cpu")
    sizes = (1, 16, 2**16 * 16, 2**20, 2**24, 2**26, 2**28, MAX_SIZE)
    for arch, name in ((arch, name) for arch in ("gfx950", "sm_90") for name in ("a16wfp4", "w4a16")):
        route = ROUTES[name]
        assert isinstance(route, TritonGemm)
        for m, n in ((m, n) for m in sizes for n in sizes):
            described = problem(m, n, 64, arch, a_format="bf16" if name == "w4a16" else "e2m1")
            if route.can_implement(described) is not None:
                continue
            for call in route.calls(described, route.configs(described)[0]):
                items = call.grid[0] * call.options["num_warps"] * (64 if arch == "gfx950" else 1)
                assert items < 2**32 if arch == "gfx950" else call.grid[0] <= INT32_MAX
                assert max(call.grid[1:]) <= MAX_GRID_YZ
                assert math.prod(call.grid) > 0
