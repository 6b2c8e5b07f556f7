"""Route a16wfp4: the kernel, in Triton's interpreter and on the GPU, against the oracle."""

import pytest
import torch

import mxgemm
from mxgemm import layouts
from mxgemm.device import Machine
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES
from mxgemm.routes.tile import TileConfig
from tests.cases import DEVICES, OUT_DTYPES, make, shuffled_with_poison, skip_without_kernels, spread

LAYOUTS = [(w, s) for w in layouts.WEIGHT_LAYOUTS for s in layouts.SCALE_LAYOUTS]
ROUTE = ROUTES["a16wfp4"]


def run(case, weight_layout="row_major", scale_layout="row_major", **options) -> torch.Tensor:
    w = case.weight
    data = layouts.preshuffle_weight(w.data) if weight_layout == "preshuffled" else w.data
    scales = shuffled_with_poison(w) if scale_layout == "shuffled" else w.scales
    wrapped = mxgemm.MXTensor.wrap(
        data, scales, format=w.format.name, weight_layout=weight_layout, scale_layout=scale_layout
    )
    return mxgemm.gemm(case.a, wrapped, route="a16wfp4", **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_layout, scale_layout", LAYOUTS)
@pytest.mark.parametrize(
    "m, n, k", [(1, 16, 64), (2, 48, 96), (33, 2112, 32), (16, 258, 128), (31, 32, 2880), (64, 64, 512), (257, 16, 192)]
)
def test_shapes_and_layouts(m: int, n: int, k: int, weight_layout: str, scale_layout: str, device: str) -> None:
    skip_without_kernels(device)
    if weight_layout == "preshuffled" and layouts.preshuffle_refusal(n, k // 2):
        pytest.skip(f"({n}, {k}) cannot be preshuffled")
    case = make(m, n, k, device=device)
    case.check(run(case, weight_layout, scale_layout))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("b_format", ["e2m1", "e4m3", "e5m2"])
@pytest.mark.parametrize("a_format", ["e2m1", "e4m3", "bf16"])
def test_formats(a_format: str, b_format: str, device: str) -> None:
    skip_without_kernels(device)
    for rounding in ("even", "rceil"):
        case = make(5, 48, 160, device=device, a_format=a_format, b_format=b_format, scale_rounding=rounding)
        case.check(run(case, a_format=a_format, scale_rounding=rounding))
        if b_format == "e2m1":
            even = make(5, 48, 192, device=device, a_format=a_format, scale_rounding=rounding)
            case = even
            case.check(run(case, "preshuffled", "shuffled", a_format=a_format, scale_rounding=rounding))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_dtype", OUT_DTYPES)
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
def test_dtypes_and_bias(out_dtype: torch.dtype, a_dtype: torch.dtype, device: str) -> None:
    skip_without_kernels(device)
    bias = torch.randn(40, device=device)
    case = make(7, 40, 128, device=device, a_dtype=a_dtype, bias=bias)
    case.check(run(case, bias=bias, out_dtype=out_dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_guard_bytes_and_poisoned_output(device: str) -> None:
    skip_without_kernels(device)
    case = make(33, 48, 96, device=device)
    memory = torch.full((35, 50), torch.nan, dtype=torch.bfloat16, device=device)
    run(case, out=memory[1:34, 1:49])
    case.check(memory[1:34, 1:49].clone())
    memory[1:34, 1:49] = torch.nan
    assert memory.isnan().all()
    # A in the middle of NaN, B and its scales in the middle of 0xFF: nothing outside may be read into a result.
    a = torch.full((35, 128), torch.nan, dtype=torch.bfloat16, device=device)
    a[1:34, 16:112] = case.a
    b, s = (torch.full((50, width), 255, dtype=torch.uint8, device=device) for width in (64, 5))
    b[1:49, 8:56], s[1:49, 1:4] = case.weight.data, case.weight.scales
    case.check(mxgemm.gemm(a[1:34, 16:112], b[1:49, 8:56], s[1:49, 1:4], route="a16wfp4"))


@pytest.mark.parametrize("device", DEVICES)
def test_one_hot_gives_the_decoded_weight(device: str) -> None:
    skip_without_kernels(device)
    w = mxgemm.quantize(spread(48, 128, seed=3)).to(device)
    eye = torch.eye(128, dtype=torch.bfloat16, device=device)
    for a_format in ("e2m1", "e4m3"):
        out = mxgemm.gemm(eye, w, a_format=a_format, out_dtype=torch.float32, route="a16wfp4")  # type: ignore[arg-type]
        assert torch.equal(out, w.dequantize().t())


@pytest.mark.parametrize("device", DEVICES)
def test_nan_blocks(device: str) -> None:
    skip_without_kernels(device)
    case = make(4, 32, 96, device=device)
    clean = run(case)
    case.a[2, 40] = torch.nan
    case.weight.scales[5, 1] = 255
    out = run(case)
    assert out[2].isnan().all()
    assert out[:, 5].isnan().all()
    keep = torch.ones(4, 32, dtype=torch.bool, device=device)
    keep[2], keep[:, 5] = False, False
    assert torch.equal(out[keep], clean[keep])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", ["transposed a", "strided a", "transposed b", "strided out", "expanded a"])
def test_strides(view: str, device: str) -> None:
    skip_without_kernels(device)
    case = make(4, 32, 128, device=device)
    a, b, s, out = case.a, case.weight.data, case.weight.scales, None
    if view == "transposed a":
        a = a.t().contiguous().t()
    elif view == "strided a":
        a = torch.stack((a, a * 3), dim=-1)[..., 0]
    elif view == "transposed b":
        b, s = b.t().contiguous().t(), s.t().contiguous().t()
    elif view == "strided out":
        out = torch.full((32, 8), torch.nan, dtype=torch.bfloat16, device=device)[:, ::2].t()
    else:
        a = a[:1].expand(4, -1)
        case = make(4, 32, 128, device=device)
        case.a, case.a64, case.ref = a, case.a64[[0] * 4], case.ref[[0] * 4]
    case.check(mxgemm.gemm(a, b, s, out=out, route="a16wfp4"))


@pytest.mark.gpu
def test_offsets_past_32_bits() -> None:
    k, n = 64, 32
    w = mxgemm.quantize(spread(n, k)).to("cuda")
    stride = 2**31 // 8 + 64
    memory = torch.zeros(9 * stride, dtype=torch.bfloat16, device="cuda")
    a = memory.as_strided((9, k), (stride, 1))
    a.copy_(spread(9, k, torch.bfloat16))
    assert torch.equal(mxgemm.gemm(a, w, route="a16wfp4"), mxgemm.gemm(a.contiguous(), w, route="a16wfp4"))


def test_what_the_route_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Machine("gfx950", 256, "MI355X")
    assert ROUTE.can_implement(Problem(1, 48, 96, gpu, weight_layout="preshuffled")).field == "weight_layout"  # type: ignore[union-attr]
    assert ROUTE.can_implement(Problem(1, 48, 96, gpu, a_quantized=True)).field == "a"  # type: ignore[union-attr]
    monkeypatch.setattr("mxgemm.routes.triton_support.triton_version", lambda: None)
    assert "pip install" in str(ROUTE.can_implement(Problem(1, 48, 96, gpu)))
    monkeypatch.setattr("mxgemm.routes.triton_support.triton_version", lambda: (3, 6))
    assert ROUTE.can_implement(Problem(1, 48, 96, gpu)) is None
    assert "3.9" in str(ROUTE.can_implement(Problem(1, 48, 96, Machine("gfx942", 304, "MI300X"))))


@pytest.mark.parametrize(
    "config, field",
    [
        (TileConfig(block_m=8), "block_m"),
        (TileConfig(block_n=48), "block_n"),
        (TileConfig(block_n=512), "block_n"),
        (TileConfig(block_k=32), "block_k"),
        (TileConfig(num_warps=3), "num_warps"),
        (TileConfig(cache=".wt"), "cache"),
    ],
)
def test_illegal_configurations(config: TileConfig, field: str) -> None:
    problem = Problem(16, 64, 256, Machine("gfx950", 256, "MI355X"))
    assert ROUTE.check_config(problem, config).field == field  # type: ignore[union-attr]
    assert ROUTE.check_config(problem, TileConfig()) is None


def test_non_contiguous_shuffled_operands_go_to_another_route(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(3, 32, 128)
    data = torch.stack([layouts.preshuffle_weight(case.weight.data)] * 2, dim=1)[:, 0]
    with pytest.raises(mxgemm.RouteUnavailable, match="strides of b is .128, 1.; needs .64, 1.: a contiguous"):
        mxgemm.gemm(case.a, data, case.weight.scales, weight_layout="preshuffled", route="a16wfp4")
    case.check(mxgemm.gemm(case.a, data, case.weight.scales, weight_layout="preshuffled"))
