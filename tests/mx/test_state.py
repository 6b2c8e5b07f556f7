"""A weight whose memory changes after prepare(): noticed by every entry, whatever changed it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.mx import freshness
from mxgemm.mx.layouts import preshuffle_weight, shuffle_scales
from mxgemm.mx.tensor import MXTensor
from tests.cases import make, skip_without_kernels, spread

N, K = 48, 128

KINDS: dict[str, tuple[str, str, int]] = {  # arch, memory, octaves of the weight's scales
    "preshuffled": ("gfx950", "fast", 3),
    "fp8_fold": ("sm_90", "fast", 3),
    "fp8_fold_compact": ("sm_90", "compact", 3),
    "bf16": ("sm_90", "fast", 12),
}

WRITES: dict[str, Callable[[Tensor], object]] = {
    "copy_": lambda t: t.copy_(t.flip(0)),
    "fill_": lambda t: t.fill_(120),
    "zero_": lambda t: t.zero_(),
    "add_": lambda t: t.add_(1),
    "bitwise_xor_": lambda t: t.bitwise_xor_(1),
    "setitem": lambda t: t.__setitem__((0, 0), 9),
    "index_put_": lambda t: t.index_put_((torch.tensor([1]),), torch.tensor(9, dtype=torch.uint8)),
    "masked_fill_": lambda t: t.masked_fill_(t > 3, 3),
    "scatter_": lambda t: t.scatter_(0, torch.zeros(1, 1, dtype=torch.int64), 7),
    "row view": lambda t: t[1:].mul_(2),
    "transposed view": lambda t: t.t().copy_(t.t().flip(0)),
    "dtype view": lambda t: t.view(torch.int8).neg_(),
    "flat view of a view": lambda t: t[:2].view(-1)[3:].random_(),
    "detached": lambda t: t.detach().add_(1),
    "as_strided": lambda t: t.as_strided((2,), (1,)).add_(1),
    "foreach": lambda t: torch._foreach_add_([t], 1),
    "out=": lambda t: torch.add(t, 1, out=t),
    "numpy back": lambda t: t.copy_(torch.from_numpy(t.numpy() + 1)),
    "set_": lambda t: t.set_(t.clone()),
    "resize_": lambda t: t.resize_(1, 1),
    "resize_ larger": lambda t: t.resize_(4 * t.shape[0], t.shape[1]),
    "transpose_": lambda t: t.t_(),
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    ".data =": lambda t: setattr(t, "data", t.flip(0)),
    "swap_tensors": lambda t: torch.utils.swap_tensors(t, t.flip(0)),
}
MULTIPLY: dict[str, Callable[[MXTensor], Tensor]] = {
    "gemm": lambda p: mxgemm.gemm(A, p, route="reference"),
    "gemm a16": lambda p: mxgemm.gemm(A, p, a_format="bf16", route="reference"),
    "gemm_mx": lambda p: mxgemm.gemm_mx(QA, p, route="reference"),
}
A = spread(3, K, torch.bfloat16)
QA = mxgemm.quantize(A)
STALE = r"b: its bytes were changed after prepare\(\); call prepare\(\) again"


def prepared(kind: str, weight: MXTensor | None = None) -> MXTensor:
    arch, memory, octaves = KINDS[kind]
    p = (weight or mxgemm.quantize(spread(N, K, octaves=octaves))).prepare(arch, memory=memory)  # type: ignore[arg-type]
    assert p.prepared is not None
    assert p.prepared.kind == kind
    return p


def made(p: MXTensor) -> tuple[Tensor, ...]:
    """What prepare() made."""
    assert p.prepared is not None
    return p.prepared.tensors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["data", "scales"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_after_prepare_is_refused_by_every_multiplication(write: str, part: str, kind: str) -> None:
    w = mxgemm.quantize(spread(N, K, octaves=KINDS[kind][2]))
    p = prepared(kind, w)
    for multiply in MULTIPLY.values():
        multiply(p)  # the plan is known: no check of metadata stands in for the one of the bytes
    WRITES[write](getattr(w, part))  # w and p share the bytes
    for multiply in MULTIPLY.values():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=STALE):
                multiply(p)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["data", "scales"])
def test_writing_under_no_grad_inference_mode_and_another_thread_counts(part: str, kind: str) -> None:
    for guard in (torch.no_grad, torch.inference_mode):
        p = prepared(kind)
        with guard():
            getattr(p, part)[0].fill_(3)
            with pytest.raises(RuntimeError, match=STALE):
                mxgemm.gemm(A, p)
        with pytest.raises(RuntimeError, match=STALE):
            mxgemm.gemm(A, p)
    p = prepared(kind)
    thread = threading.Thread(target=lambda: getattr(p, part).add_(1))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match=STALE):
        mxgemm.gemm(A, p)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_derived_may_not_change_either(kind: str) -> None:
    for write in ("copy_", "resize_", "set_", "row view"):
        for index in range(len(made(prepared(kind)))):
            p = prepared(kind)
            tensor = made(p)[index]
            if write == "copy_":
                tensor.copy_(torch.ones_like(tensor))
            elif write == "resize_":
                tensor.resize_(1)
            elif write == "set_":
                tensor.set_(tensor.clone())
            else:
                tensor[1:].zero_()
            with pytest.raises(RuntimeError, match=STALE):
                mxgemm.gemm(A, p)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inference", [False, True])
def test_preparing_again_reads_the_new_bytes(kind: str, inference: bool) -> None:
    other = mxgemm.quantize(spread(N, K, octaves=KINDS[kind][2], seed=5))
    with torch.inference_mode(inference):
        p = prepared(kind)
        p.data.copy_(other.data)
        p.scales.copy_(other.scales)
        for anew in (p.prepare(KINDS[kind][0], memory=KINDS[kind][1]), p.to("cpu"), p.to(torch.device("cpu"))):  # type: ignore[arg-type]
            assert torch.equal(mxgemm.gemm(A, anew, route="reference"), MULTIPLY["gemm"](other))
            assert [tensor.shape for tensor in made(anew)] == [tensor.shape for tensor in made(p)]
        assert torch.equal(p.dequantize(), other.dequantize())
        assert torch.equal(p.row_major().dequantize(), other.dequantize())
        assert torch.equal(mxgemm.gemm(A, replace(p), route="reference"), MULTIPLY["gemm"](other))
        with pytest.raises(RuntimeError, match=STALE):
            mxgemm.gemm(A, p)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_made_under_inference_mode_are_copied_because_torch_does_not_count_them(kind: str) -> None:
    with torch.inference_mode():
        w = mxgemm.quantize(spread(N, K, octaves=KINDS[kind][2]))
        w = replace(w, data=w.data.clone(), scales=w.scales.clone())
        assert w.data.is_inference()
        p = prepared(kind, w)
        want = mxgemm.gemm(A, p)
        assert p.data.data_ptr() != w.data.data_ptr()
        w.data.zero_()  # p holds its own
        assert torch.equal(mxgemm.gemm(A, p), want)
        p.scales.add_(1)
        with pytest.raises(RuntimeError, match=STALE):
            mxgemm.gemm(A, p)
        w.data.copy_(prepared(kind).data)
        assert w.data.is_inference()
    p = prepared(kind, w)  # prepared outside, of bytes made inside
    p.data.zero_()
    with pytest.raises(RuntimeError, match=STALE):
        mxgemm.gemm_mx(QA, p)


def test_reading_is_no_change() -> None:
    for kind in KINDS:
        p = prepared(kind)
        want = mxgemm.gemm(A, p)
        p.dequantize(), p.row_major(), p.data.clone(), p.data.view(torch.int8)[1:], p.data.numpy(), repr(p)
        p.data.to(torch.int32).add_(1)
        assert torch.equal(mxgemm.gemm(A, p), want)


@pytest.mark.parametrize("make_unprepared", [lambda w: w, lambda w: w.prepare(), lambda w: w.prepare("sm_100")])
def test_without_derived_data_every_call_reads_the_bytes(make_unprepared: Callable[[MXTensor], MXTensor]) -> None:
    p = make_unprepared(mxgemm.quantize(spread(N, K)))
    other = mxgemm.quantize(spread(N, K, seed=3))
    for multiply in MULTIPLY.values():
        multiply(p)
    p.data.copy_(other.data)
    p.scales.copy_(other.scales)
    for multiply in MULTIPLY.values():
        assert torch.equal(multiply(p), multiply(other))


def test_a_weight_in_the_wanted_layout_already_shares_its_bytes_and_stays_current() -> None:
    w, other = mxgemm.quantize(spread(N, K)), mxgemm.quantize(spread(N, K, seed=3))
    p = MXTensor.wrap(
        preshuffle_weight(w.data), shuffle_scales(w.scales), weight_layout="preshuffled", scale_layout="shuffled"
    ).prepare("gfx950")
    assert made(p) == (p.data, p.scales)
    assert p.nbytes == p.data.nbytes + p.scales.nbytes
    p.data.copy_(preshuffle_weight(other.data))
    p.scales.copy_(shuffle_scales(other.scales))
    for multiply in MULTIPLY.values():
        assert torch.equal(multiply(p), multiply(other))


def test_a_compact_form_that_does_not_exist_leaves_the_bytes_current() -> None:
    p = mxgemm.quantize(spread(N, K, octaves=12)).prepare("sm_90", memory="compact")
    assert made(p) == ()
    other = mxgemm.quantize(spread(N, K, octaves=12, seed=3))
    p.data.copy_(other.data)
    p.scales.copy_(other.scales)
    assert torch.equal(mxgemm.gemm(A, p), mxgemm.gemm(A, other))


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_over_a_weights_bytes_counts_as_a_write(kind: str) -> None:
    p = prepared(kind)
    small = mxgemm.quantize(spread(N // 2, K))
    out = p.data.view(-1)[: 3 * N].view(torch.bfloat16).view(3, N // 2)
    mxgemm.gemm(A, small, out=out)
    with pytest.raises(RuntimeError, match=STALE):
        mxgemm.gemm(A, p)


def test_an_output_counts_as_written_in_every_mode() -> None:
    out = torch.empty(3, N, dtype=torch.bfloat16)
    w = mxgemm.quantize(spread(N, K))
    before = out._version
    mxgemm.gemm(A, w, out=out)
    assert out._version > before
    with torch.inference_mode():
        uncounted = torch.empty(3, N, dtype=torch.bfloat16)
        assert torch.equal(mxgemm.gemm(A, w, out=uncounted), mxgemm.gemm(A, w))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("entry", ["gemm", "gemm_mx"])
@pytest.mark.slow
def test_a_compiled_graph_notices_too(entry: str, out: bool, kind: str) -> None:
    torch.compiler.reset()
    p, into = prepared(kind), torch.empty(3, N, dtype=torch.bfloat16) if out else None

    def call(x: Tensor) -> Tensor:
        if entry == "gemm":
            return mxgemm.gemm(x, p, out=into, route="reference") * 2
        return mxgemm.gemm_mx(QA, p, out=into, route="reference") + x[:, :1] * 0

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(compiled(A), call(A))
    if entry == "gemm_mx" and kind != "preshuffled":  # such a graph holds nothing derived: it reads the bytes
        p.scales.sub_(1)
        assert torch.equal(compiled(A), call_fresh(p))
        return
    p.scales.add_(1)
    with pytest.raises(RuntimeError, match=STALE):
        compiled(A)
    p = prepared(kind)
    assert torch.equal(compiled(A), call(A))  # the graph takes the new one
    for tensor in made(p):
        tensor.view(-1)[:1].zero_()
    with pytest.raises(RuntimeError, match=STALE):
        compiled(A)


def call_fresh(p: MXTensor) -> Tensor:
    return mxgemm.gemm_mx(QA, replace(p), route="reference") + A[:, :1] * 0


def test_an_exported_program_notices_too() -> None:
    p = prepared("fp8_fold")

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return mxgemm.gemm(x, p, route="reference")

    program = torch.export.export(Layer(), (A,)).module()
    assert torch.equal(program(A), mxgemm.gemm(A, p, route="reference"))
    p.data.fill_(0x11)
    with pytest.raises(RuntimeError, match=STALE):
        program(A)


def test_a_steady_call_compares_the_stamp_and_checks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [mxgemm.quantize(spread(N, K)), *map(prepared, KINDS)]
    entries = [MULTIPLY["gemm a16"], MULTIPLY["gemm_mx"]]  # the third quantises, which constructs an MXTensor
    want = [[multiply(w) for multiply in entries] for w in weights]

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("checked again")

    for name in ("mxgemm.mx.tensor.check_parts", "mxgemm.validation.check_parts", "mxgemm.validation.check_call"):
        monkeypatch.setattr(name, refuse)
    for w, results in zip(weights, want, strict=True):
        for multiply, result in zip(entries, results, strict=True):
            assert torch.equal(multiply(w), result)


def test_nothing_is_remembered_of_a_weight_that_is_gone() -> None:
    before = len(freshness._sources)
    weights = [prepared(kind) for kind in KINDS]
    assert len(freshness._sources) > before
    del weights
    assert len(freshness._sources) == before


@pytest.mark.parametrize("kind", KINDS)
def test_to(kind: str) -> None:
    p = prepared(kind)
    assert p.to("cpu") is p  # as a torch.Tensor's
    away = p.to("meta")
    assert away.prepared is not None
    assert (away.prepared.tensors, away.prepared.arguments) == ((), (*KINDS[kind][:2], True, "e2m1"))
    assert away.shape == p.shape
    for device, error, message in (
        ("gpu", ValueError, "device: got 'gpu', want one that torch knows"),
        (torch.float16, TypeError, "device: got dtype, want a torch.device or its name"),
        (None, TypeError, "device: got NoneType"),
    ):
        with pytest.raises(error, match=message):
            p.to(device)  # type: ignore[arg-type]
    plain = mxgemm.quantize(spread(N, K))
    assert plain.to("cpu") is plain
    assert plain.to("meta").prepared is None
    p.data.add_(0)
    moved = p.to("cpu")
    assert moved is not p
    assert moved.prepared is not None
    assert (moved.prepared.kind, moved.prepared.arguments) == (kind, (*KINDS[kind][:2], True, "e2m1"))
    mxgemm.gemm(A, moved)


@pytest.mark.parametrize("route", ["fp8_fold", "dequant_mm", "a16wfp4"])
def test_the_kernels_of_prepared_weights_are_not_reached(route: str) -> None:
    skip_without_kernels("cpu")
    case = make(5, N, K, octaves=3)
    p = case.weight.prepare("gfx950" if route == "a16wfp4" else "sm_90")
    first = mxgemm.gemm(case.a, p, route=route)
    case.check(first)
    p.scales.add_(2)
    with pytest.raises(RuntimeError, match=STALE):
        mxgemm.gemm(case.a, p, route=route)
    anew = p.to("cpu")
    torch.testing.assert_close(mxgemm.gemm(case.a, anew, route=route), first * 4, rtol=2e-2, atol=1e-3)
