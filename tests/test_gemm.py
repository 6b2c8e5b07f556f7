"""The call: numbers on every option, views, edges, bad input, no caching of what a caller may change."""

import threading

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm import plan
from mxgemm.mx import layouts
from mxgemm.mx.formats import ACTIVATION_FORMATS, FORMATS, SCALE_ROUNDINGS
from mxgemm.plan import clear_plans
from mxgemm.problem import Problem
from mxgemm.routing import router
from tests.cases import DEVICES, OUT_DTYPES, make, spread, stored_scales

ODD_SHAPES = [(1, 1, 32), (1, 2112, 96), (33, 16, 2880), (33, 2880, 64), (8, 48, 512), (257, 50, 128)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", ACTIVATION_FORMATS)
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_numbers(m: int, n: int, k: int, a_format: str, device: str) -> None:
    case = make(m, n, k, device=device, a_format=a_format)
    out = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    assert out.dtype == torch.bfloat16
    case.check(out)
    loose = mxgemm.gemm(case.a, case.weight.data, case.weight.scales, a_format=a_format)  # type: ignore[arg-type]
    assert torch.equal(out, loose)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("a_dtype", OUT_DTYPES)
def test_every_scale_rule_and_activation_dtype(a_dtype: torch.dtype, rounding: str, device: str) -> None:
    for a_format in ACTIVATION_FORMATS:
        case = make(5, 48, 192, device=device, a_format=a_format, scale_rounding=rounding, a_dtype=a_dtype)
        case.check(mxgemm.gemm(case.a, case.weight, a_format=a_format, scale_rounding=rounding))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("bias_dtype", [None, *OUT_DTYPES])
def test_bias_and_output_dtype(bias_dtype: torch.dtype | None, out_dtype: torch.dtype, device: str) -> None:
    bias = None if bias_dtype is None else torch.randn(48).to(bias_dtype).to(device)
    case = make(3, 48, 128, device=device, bias=bias)
    out = mxgemm.gemm(case.a, case.weight, bias=bias, out_dtype=out_dtype)
    assert out.dtype == out_dtype
    case.check(out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("b_format", FORMATS)
@pytest.mark.parametrize("weight_layout", layouts.WEIGHT_LAYOUTS)
@pytest.mark.parametrize("scale_layout", layouts.SCALE_LAYOUTS)
def test_every_layout_and_weight_format(scale_layout: str, weight_layout: str, b_format: str, device: str) -> None:
    case = make(17, 96, 320, device=device, b_format=b_format)
    w = case.weight
    data = layouts.preshuffle_weight(w.data) if weight_layout == "preshuffled" else w.data
    scales = stored_scales(w, scale_layout)
    wrapped = mxgemm.MXTensor.wrap(
        data, scales, format=b_format, weight_layout=weight_layout, scale_layout=scale_layout  # type: ignore[arg-type]
    )  # fmt: skip
    case.check(mxgemm.gemm(case.a, wrapped))
    if b_format == "e2m1":
        loose = mxgemm.gemm(case.a, data, scales, weight_layout=weight_layout, scale_layout=scale_layout)  # type: ignore[arg-type]
        case.check(loose)


@pytest.mark.parametrize("device", DEVICES)
def test_prepared_weight_gives_the_same(device: str) -> None:
    case = make(7, 64, 256, device=device)
    ready = case.weight.prepare(arch="gfx950")
    case.check(mxgemm.gemm(case.a, ready))
    assert torch.equal(
        mxgemm.gemm(case.a, ready, route="reference"), mxgemm.gemm(case.a, case.weight, route="reference")
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", FORMATS)
@pytest.mark.parametrize("b_format", FORMATS)
def test_gemm_mx_mixes_formats(b_format: str, a_format: str, device: str) -> None:
    case = make(9, 33, 160, device=device, a_format=a_format, b_format=b_format)
    a = mxgemm.quantize(case.a, format=a_format)  # type: ignore[arg-type]
    bias = torch.randn(33, device=device)
    case.check(mxgemm.gemm_mx(a, case.weight))
    with_bias = make(9, 33, 160, device=device, a_format=a_format, b_format=b_format, bias=bias)
    with_bias.check(mxgemm.gemm_mx(a, case.weight, bias=bias, out_dtype=torch.float32))


def test_gemm_mx_leading_dimensions_and_shuffled_scales() -> None:
    case = make(6, 32, 64)
    a = mxgemm.quantize(case.a.view(2, 3, 64))
    out = mxgemm.gemm_mx(a, case.weight)
    assert out.shape == (2, 3, 32)
    case.check(out)
    flat = mxgemm.quantize(case.a)
    for layout in ("shuffled", "swizzled_32_4_4"):
        stored = mxgemm.MXTensor.wrap(flat.data, stored_scales(flat, layout), scale_layout=layout)  # type: ignore[arg-type]
        case.check(mxgemm.gemm_mx(stored, case.weight))


def test_a_stack_of_weights_is_multiplied_one_by_one() -> None:
    stack = mxgemm.quantize(spread(3 * 40, 96).view(3, 40, 96))
    a = spread(5, 96, seed=9)
    for call in (lambda: mxgemm.gemm(a, stack), lambda: mxgemm.gemm(a, stack.data, stack.scales)):
        with pytest.raises(ValueError, match=r"b: got shape \(3, 40, 48\).*one of its 3 matrices is b\[e\]"):
            call()
    for e, one in enumerate(stack):
        alone = mxgemm.MXTensor.wrap(stack.data[e].clone(), stack.scales[e].clone())
        assert torch.equal(mxgemm.gemm(a, stack[e]), mxgemm.gemm(a, alone))
        assert one.data.data_ptr() == stack.data[e].data_ptr()


def test_quantised_activations_equal_activations_quantised_inside() -> None:
    case = make(12, 48, 96)
    for fmt in ("e2m1", "e4m3"):
        a = mxgemm.quantize(case.a, format=fmt, scale_rounding="rceil")  # type: ignore[arg-type]
        inside = mxgemm.gemm(case.a, case.weight, a_format=fmt, scale_rounding="rceil", route="reference")  # type: ignore[arg-type]
        assert torch.equal(mxgemm.gemm_mx(a, case.weight, route="reference"), inside)


@pytest.mark.parametrize("device", DEVICES)
def test_torchs_own_dtypes(device: str) -> None:
    case = make(4, 32, 64, device=device)
    w = case.weight
    out = mxgemm.gemm(case.a, w.data.view(torch.float4_e2m1fn_x2), w.scales.view(torch.float8_e8m0fnu))
    assert torch.equal(out, mxgemm.gemm(case.a, w))


VIEWS = {
    "every other row": lambda x: x[::2],
    "rows from the middle": lambda x: x[3:9],
    "columns from the middle": lambda x: x[:, 64:192],
    "strided columns": lambda x: x[:, ::2],
    "transposed storage": lambda x: x.t().contiguous().t(),
    "expanded row": lambda x: x[:1].expand(4, -1),
    "odd storage offset": lambda x: (
        torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_activations(view: object, device: str) -> None:
    a = view(spread(16, 256, torch.bfloat16).to(device))  # type: ignore[operator]
    w = mxgemm.quantize(spread(32, a.shape[1], seed=5)).to(device)
    assert torch.equal(mxgemm.gemm(a, w), mxgemm.gemm(a.contiguous().clone(), w))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "view", ["every other row", "rows from the middle", "transposed storage", "odd storage offset"]
)
def test_views_of_weight_and_scales(view: str, device: str) -> None:
    big = mxgemm.quantize(spread(16, 256, seed=5)).to(device)
    data, scales = VIEWS[view](big.data), VIEWS[view](big.scales)
    a = spread(3, 256, torch.bfloat16).to(device)
    out = mxgemm.gemm(a, data, scales)
    assert torch.equal(out, mxgemm.gemm(a, data.contiguous().clone(), scales.contiguous().clone()))


@pytest.mark.parametrize("device", DEVICES)
def test_leading_dimensions(device: str) -> None:
    case = make(12, 48, 64, device=device)
    want = mxgemm.gemm(case.a, case.weight)
    for shape in [(3, 4), (2, 1, 6), (12,)]:
        out = mxgemm.gemm(case.a.view(*shape, 64), case.weight)
        assert out.shape == (*shape, 48)
        assert torch.equal(out.view(12, 48), want)
    permuted = case.a.view(3, 4, 64).transpose(0, 1)
    assert torch.equal(mxgemm.gemm(permuted, case.weight), want.view(3, 4, 48).transpose(0, 1))
    vector = mxgemm.gemm(case.a[0], case.weight)
    assert vector.shape == (48,)
    assert torch.equal(vector, want[0])


@pytest.mark.parametrize("device", DEVICES)
def test_out(device: str) -> None:
    case = make(6, 48, 64, device=device)
    want = mxgemm.gemm(case.a, case.weight)
    for out in (
        torch.full((6, 48), torch.nan, dtype=torch.bfloat16, device=device),
        torch.full((6, 96), torch.nan, dtype=torch.bfloat16, device=device)[:, ::2],
        torch.full((48, 6), torch.nan, dtype=torch.bfloat16, device=device).t(),
    ):
        assert mxgemm.gemm(case.a, case.weight, out=out) is out
        assert torch.equal(out, want)
    batched = torch.full((3, 48, 2), torch.nan, dtype=torch.bfloat16, device=device).permute(2, 0, 1)
    mxgemm.gemm(case.a.view(2, 3, 64), case.weight, out=batched)  # no two-dimensional view exists
    assert torch.equal(batched.reshape(6, 48), want)
    guarded = torch.full((8, 50), 7.0, dtype=torch.bfloat16, device=device)
    mxgemm.gemm(case.a, case.weight, out=guarded[1:7, 1:49])
    assert torch.equal(guarded[1:7, 1:49], want)
    guarded[1:7, 1:49] = 7
    assert guarded.eq(7).all()


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_multiply(device: str) -> None:
    w = mxgemm.quantize(spread(16, 64)).to(device)
    assert mxgemm.gemm(torch.ones(0, 64, dtype=torch.bfloat16, device=device), w).shape == (0, 16)
    assert mxgemm.gemm(torch.ones(2, 0, 64, device=device), w).shape == (2, 0, 16)
    empty = mxgemm.MXTensor.wrap(torch.empty(16, 0, dtype=torch.uint8), torch.empty(16, 0, dtype=torch.uint8)).to(
        device
    )
    a = torch.ones(3, 0, dtype=torch.bfloat16, device=device)
    assert mxgemm.gemm(a, empty).eq(0).all()
    bias = torch.arange(16.0, device=device)
    assert torch.equal(mxgemm.gemm(a, empty, bias=bias), bias.bfloat16().expand(3, 16))
    out = torch.full((3, 16), torch.nan, dtype=torch.bfloat16, device=device)
    assert mxgemm.gemm(a, empty, out=out).eq(0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a_format", ACTIVATION_FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_activation_spoils_its_row_only(bad: float, a_format: str, device: str) -> None:
    case = make(4, 32, 96, device=device, a_format=a_format)
    clean = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    case.a[2, 40] = bad
    out = mxgemm.gemm(case.a, case.weight, a_format=a_format)  # type: ignore[arg-type]
    keep = torch.tensor([0, 1, 3], device=device)
    assert torch.equal(out[keep], clean[keep])
    if a_format == "bf16":  # Inf is a bf16 value: times a zero weight it is NaN, else Inf
        assert not out[2].isfinite().any() or case.weight.dequantize()[:, 40].eq(0).any()
    else:
        assert out[2].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_nan_scale_spoils_its_column_only(device: str) -> None:
    case = make(4, 32, 96, device=device)
    clean = mxgemm.gemm(case.a, case.weight)
    case.weight.scales[5, 1] = 255
    out = mxgemm.gemm(case.a, case.weight)
    assert out[:, 5].isnan().all()
    out[:, 5] = clean[:, 5]
    assert torch.equal(out, clean)


@pytest.mark.parametrize("device", DEVICES)
def test_zeros(device: str) -> None:
    w = mxgemm.quantize(torch.zeros(16, 64)).to(device)
    assert mxgemm.gemm(torch.ones(2, 64, device=device), w).eq(0).all()
    full = mxgemm.quantize(spread(16, 64)).to(device)
    assert mxgemm.gemm(torch.full((2, 64), -0.0, device=device), full).eq(0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_one_hot_activations_give_the_decoded_weight_bit_for_bit(device: str) -> None:
    w = mxgemm.quantize(spread(48, 96, seed=3)).to(device)
    eye = torch.eye(96, dtype=torch.bfloat16, device=device)
    assert torch.equal(mxgemm.gemm(eye, w, out_dtype=torch.float32), w.dequantize().t())


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_fresh_and_inputs_are_read_anew(device: str) -> None:
    case = make(4, 32, 64, device=device)
    first = mxgemm.gemm(case.a, case.weight)
    kept = first.clone()
    second = mxgemm.gemm(case.a, case.weight)
    assert first.data_ptr() != second.data_ptr()
    case.a.mul_(2)
    assert torch.equal(mxgemm.gemm(case.a, case.weight), kept * 2)
    case.weight.scales.add_(1)
    assert torch.equal(mxgemm.gemm(case.a, case.weight), kept * 4)
    assert torch.equal(first, kept)


def test_threads_agree() -> None:
    case = make(8, 64, 128)
    want = mxgemm.gemm(case.a, case.weight)
    clear_plans()
    results: list[Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(mxgemm.gemm(case.a, case.weight))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, want) for result in results)


def test_threads_plan_while_plans_are_forgotten() -> None:
    cases = [make(m, 48, 96) for m in (1, 7, 16, 33)]
    wanted = [mxgemm.gemm(case.a, case.weight) for case in cases]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(100):
            which = (seed + i) % len(cases)
            if not torch.equal(mxgemm.gemm(cases[which].a, cases[which].weight), wanted[which]):
                wrong.append(which)
            if i % 3 == seed % 3:
                clear_plans()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_plan_made_while_plans_are_forgotten_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have changed the tables: what was planned by the old ones serves that call alone."""
    case = make(3, 16, 32)
    made = []

    def choose_and_clear(problem: Problem, *, route: str | None) -> object:
        made.append(problem)
        clear_plans()
        return router.choose(problem, route=route)

    monkeypatch.setattr(plan, "choose", choose_and_clear)
    for _ in range(2):
        case.check(mxgemm.gemm(case.a, case.weight))
    assert len(made) == 2


def test_a_call_may_plan_while_the_thread_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finaliser that multiplies may run anywhere: the same call, and another, in the midst of a plan."""
    case, other = make(3, 16, 32), make(5, 16, 32)
    clear_plans()
    inner: list[Tensor] = []

    def choose_and_multiply(problem: Problem, *, route: str | None) -> object:
        monkeypatch.setattr(plan, "choose", router.choose)
        inner.extend(mxgemm.gemm(each.a, each.weight) for each in (case, other))
        return router.choose(problem, route=route)

    monkeypatch.setattr(plan, "choose", choose_and_multiply)
    case.check(mxgemm.gemm(case.a, case.weight))
    case.check(inner[0])
    other.check(inner[1])


def test_output_must_not_share_memory_with_an_input() -> None:
    memory = torch.zeros(64, 64, dtype=torch.bfloat16)
    w = mxgemm.quantize(torch.ones(64, 64))
    for _ in range(2):  # the second call finds its plan made
        with pytest.raises(ValueError, match="out: shares memory with a, want memory of its own"):
            mxgemm.gemm(memory, w, out=memory)
    mxgemm.gemm(memory[:32], w, out=memory[32:])


def test_gradients() -> None:
    w = mxgemm.quantize(torch.ones(32, 64))
    a = torch.ones(4, 64, requires_grad=True)
    with torch.no_grad():
        assert not mxgemm.gemm(a, w).requires_grad
    for _ in range(2):  # a plan made without grad must not let the call through
        with pytest.raises(RuntimeError, match="a: requires grad"):
            mxgemm.gemm(a, w)
    assert mxgemm.gemm(torch.nn.Parameter(torch.ones(4, 64), requires_grad=False), w).shape == (4, 32)


def test_chunks_of_the_reference_route_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxgemm.routes import reference

    monkeypatch.setattr(reference, "TILE_BYTES", 4 * 96 * 20)  # twenty rows a tile: 16 and 32 do not divide it
    clear_plans()
    bias = torch.randn(112)
    case = make(45, 112, 96, bias=bias)
    w = case.weight
    case.check(mxgemm.gemm(case.a, w, bias=bias, route="reference"))
    prepared = mxgemm.MXTensor.wrap(
        layouts.preshuffle_weight(mxgemm.quantize(spread(112, 128)).data),
        layouts.shuffle_scales(mxgemm.quantize(spread(112, 128)).scales),
        weight_layout="preshuffled",
        scale_layout="shuffled",
    )
    a = spread(45, 128, torch.bfloat16)
    small = mxgemm.gemm(a, prepared, route="reference")
    monkeypatch.undo()
    clear_plans()
    torch.testing.assert_close(small, mxgemm.gemm(a, prepared, route="reference"), rtol=1e-2, atol=1e-5)
