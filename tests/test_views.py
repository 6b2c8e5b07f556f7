"""Views of memory: what shares bytes is refused, what negates lazily is resolved, what has no memory is named."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mxgemm
from mxgemm.memory import overlap, overlaps_itself
from mxgemm.plan import clear_plans
from tests.cases import make, skip_without_kernels

BUFFER = torch.zeros(4096, dtype=torch.uint8)


@st.composite
def views(draw: st.DrawFn, most_dimensions: int = 4) -> Tensor:
    """Any view into the buffer: strides that repeat, cross, nest or leave gaps; elements of one to four bytes."""
    dtype = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]))
    shape = draw(st.lists(st.integers(0, 5), max_size=most_dimensions))
    strides = draw(st.lists(st.integers(0, 16), min_size=len(shape), max_size=len(shape)))
    return BUFFER.view(dtype).as_strided(shape, strides, draw(st.integers(0, 24)))


def byte_addresses(tensor: Tensor) -> list[int]:
    """Every byte of every element, by walking over them."""
    size = tensor.element_size()
    starts = (
        tensor.data_ptr() + size * sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True))
        for index in itertools.product(*map(range, tensor.shape))
    )
    return [start + i for start in starts for i in range(size)]


@settings(max_examples=3000, deadline=None, derandomize=True, database=None)
@given(views(), views())
def test_overlap_is_what_walking_over_the_bytes_finds(left: Tensor, right: Tensor) -> None:
    ours, theirs = byte_addresses(left), byte_addresses(right)
    assert overlap(left, right) == overlap(right, left) == (not set(ours).isdisjoint(theirs))
    assert overlaps_itself(left) == (len(set(ours)) < len(ours))


@pytest.mark.parametrize(
    "shape, strides, meet",
    [
        ((3, 3), (2, 3), False),  # neither dimension steps over the other, yet no two elements meet
        ((4, 3), (2, 3), True),  # 3 * 2 == 2 * 3
        ((4, 2), (0, 1), True),
        ((1, 4), (0, 1), False),
        ((0, 4), (0, 1), False),
        ((5, 7), (7, 5), False),
        ((6, 8), (7, 5), True),
        ((2, 3, 4), (12, 4, 1), False),
        ((2, 3, 4), (6, 4, 1), True),
    ],
)
def test_self_overlap(shape: tuple[int, ...], strides: tuple[int, ...], meet: bool) -> None:
    assert overlaps_itself(torch.zeros(256).as_strided(shape, strides)) == meet


@pytest.fixture
def operands() -> dict[str, Tensor]:
    torch.manual_seed(0)
    w = mxgemm.quantize(torch.randn(64, 64))
    return {"a": torch.randn(64, 64).bfloat16(), "b": w.data, "b_scales": w.scales, "bias": torch.randn(64).bfloat16()}


def output_at(address: int, shape: tuple[int, int]) -> Tensor:
    """A bf16 output at an address, of a storage that knows no other tensor."""
    memory = (ctypes.c_uint8 * (2 * shape[0] * shape[1])).from_address(address)
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(shape)


def in_a_buffer(tensor: Tensor) -> Tensor:
    """A copy with 16 KB of its buffer before and behind it, owned by numpy."""
    buffer = np.zeros(tensor.nbytes + (1 << 15), dtype=np.uint8)
    copy = torch.from_numpy(buffer)[1 << 14 : (1 << 14) + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def test_two_views_of_one_array() -> None:
    array = np.zeros(3 * 2048 * 64, dtype=np.uint16)
    a = torch.from_numpy(array[: 2048 * 64]).view(torch.bfloat16).view(2048, 64)
    weight = mxgemm.quantize(torch.randn(64, 64))
    for start in (0, 1, 64, 2048 * 64 - 1):
        out = torch.from_numpy(array[start : start + 2048 * 64]).view(torch.bfloat16).view(2048, 64)
        with pytest.raises(ValueError, match="out: shares memory with a"):
            mxgemm.gemm(a, weight, out=out)
    behind = torch.from_numpy(array[2048 * 64 : 2 * 2048 * 64]).view(torch.bfloat16).view(2048, 64)
    mxgemm.gemm(a, weight, out=behind)


@pytest.mark.parametrize("name", ["a", "b", "b_scales", "bias"])
def test_an_output_over_an_input_of_another_storage_is_refused(name: str, operands: dict[str, Tensor]) -> None:
    operands[name] = in_a_buffer(operands[name])
    size = operands[name].nbytes
    before = operands[name].clone()
    for shift in (-8192 + 16, -16, 0, 16, size - 16):
        out = output_at(operands[name].data_ptr() + shift, (64, 64))
        with pytest.raises(ValueError, match=f"^out: shares memory with {name}, want memory of its own"):
            mxgemm.gemm(**operands, out=out)  # type: ignore[arg-type]
    assert torch.equal(operands[name], before)
    want = mxgemm.gemm(**operands)  # type: ignore[arg-type]
    for shift in (-8192, size + size % 2):  # ends where the input begins; begins where it ends
        out = output_at(operands[name].data_ptr() + shift, (64, 64))
        assert torch.equal(mxgemm.gemm(**operands, out=out), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("route", ["reference", "a16wfp4", "dequant_mm"])
def test_interleaved_views_of_one_buffer_are_apart(route: str, operands: dict[str, Tensor]) -> None:
    skip_without_kernels("cpu")
    buffer = torch.zeros(64, 128, dtype=torch.bfloat16)
    a, out = buffer[:, 1::2], buffer[:, 0::2]
    a.copy_(operands["a"])
    mxgemm.gemm(**{**operands, "a": a}, out=out, route=route)  # type: ignore[arg-type]
    assert torch.equal(a, operands["a"])
    assert torch.equal(out, mxgemm.gemm(**operands, route=route))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out: shares memory with a"):
        mxgemm.gemm(**{**operands, "a": a}, out=buffer[:, :64])  # type: ignore[arg-type]


def test_one_memory_by_dlpack_and_by_storage(operands: dict[str, Tensor]) -> None:
    a = operands["a"]
    storage = a.untyped_storage()
    again = torch.empty(0, dtype=torch.bfloat16).set_(storage, 32, (64, 62), (64, 1))  # type: ignore[call-overload]
    weight = mxgemm.quantize(torch.randn(62, 64))
    for out in (torch.from_dlpack(a)[:, :62], again, a[:, 2:]):
        with pytest.raises(ValueError, match="out: shares memory with a"):
            mxgemm.gemm(a, weight, out=out)


def parts_of(weight: mxgemm.MXTensor, name: str) -> dict[str, Tensor]:
    parts = {f"{name}.data": weight.data, f"{name}.scales": weight.scales}
    made = () if weight.prepared is None else weight.prepared.tensors
    return parts | {f"{name}.prepared.tensors[{i}]": tensor for i, tensor in enumerate(made)}


@pytest.mark.parametrize("arch, memory", [("gfx950", "fast"), ("sm_90", "fast"), ("sm_90", "compact")])
def test_an_output_over_any_part_of_a_weight_is_refused(arch: str, memory: str) -> None:
    weight = mxgemm.quantize(torch.randn(256, 256)).prepare(arch, memory=memory)  # type: ignore[arg-type]
    a = torch.randn(1, 256)
    quantized = mxgemm.quantize(a)
    parts = parts_of(weight, "b")
    assert len(parts) == (3 if memory == "compact" else 4)
    for part, tensor in parts.items():
        for shift in (2 - 512, tensor.nbytes - 2):
            out = output_at(tensor.data_ptr() + shift, (1, 256))
            with pytest.raises(ValueError, match="^out: shares memory with b") as error:
                mxgemm.gemm(a, weight, out=out)
            # Parts may lie side by side in memory, so that the output reaches into two.
            hit = [other for other, bytes_ in parts.items() if overlap(out, bytes_)]
            assert part in hit
            assert str(error.value).startswith(tuple(f"out: shares memory with {other}, " for other in hit))
            with pytest.raises(ValueError, match="^out: shares memory with [ab]"):  # A's may lie beside B's
                mxgemm.gemm_mx(quantized, weight, out=out)
    for part, tensor in parts_of(quantized, "a").items():
        with pytest.raises(ValueError, match=f"^out: shares memory with {part}, "):
            mxgemm.gemm_mx(quantized, weight, out=output_at(tensor.data_ptr() - 510, (1, 256)))


NEGATED: dict[str, Callable[[Tensor], Tensor]] = {
    "_neg_view": lambda x: torch._neg_view(-x if x.is_floating_point() else (0 - x)),
    "conj().imag": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
    "a strided slice": lambda x: torch._neg_view(torch.stack((-x, x), dim=-1))[..., 0],
}


def negated(tensor: Tensor, how: str) -> Tensor:
    """The same values as a lazily negated view."""
    if how == "conj().imag" and tensor.dtype != torch.float32:
        return negated(tensor, "_neg_view")  # torch's complex numbers are fp32's
    view = NEGATED[how](tensor)
    assert view.is_neg()
    assert torch.equal(view.resolve_neg(), tensor)
    return view


ROUTES = ["reference", "a16wfp4", "w4a16", "dequant_mm", "fp8_fold"]


@pytest.mark.parametrize("how", NEGATED)
@pytest.mark.parametrize("route", ROUTES)
def test_lazily_negated_arguments_are_resolved(route: str, how: str) -> None:
    skip_without_kernels("cpu")
    a_format = "bf16" if route == "w4a16" else "e2m1"
    case = make(5, 32, 64, a_format=a_format, a_dtype=torch.float32, octaves=2)
    bias = torch.randn(32)
    weight = case.weight.prepare("sm_90") if route == "fp8_fold" else case.weight
    loose = {"a": case.a, "b": weight.data, "b_scales": weight.scales, "bias": bias}
    options = {"a_format": a_format, "route": route, "out_dtype": torch.float32}
    if route == "fp8_fold":
        loose = {"a": case.a, "b": weight, "bias": bias}  # type: ignore[dict-item]
    want = mxgemm.gemm(**loose, **options)  # type: ignore[arg-type]
    for names in (*((name,) for name in loose), tuple(loose)):
        changed = {name: negated(t, how) if name in names and isinstance(t, Tensor) else t for name, t in loose.items()}
        for _ in range(2):  # with and without a plan for tensors of these shapes and strides
            assert torch.equal(mxgemm.gemm(**changed, **options), want), names  # type: ignore[arg-type]
            assert torch.equal(mxgemm.gemm(**loose, **options), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("m, k", [(5, 64), (0, 64), (5, 0)])
@pytest.mark.parametrize("route", ROUTES)
def test_a_lazily_negated_output_gets_the_values(route: str, m: int, k: int) -> None:
    skip_without_kernels("cpu")
    a, bias = torch.randn(m, k), torch.randn(32)
    weight = mxgemm.quantize(torch.randn(32, k))
    weight = weight.prepare("sm_90") if route == "fp8_fold" else weight
    options = {"bias": bias, "a_format": "bf16" if route == "w4a16" else "e2m1", "route": route}
    want = mxgemm.gemm(a, weight, **options)  # type: ignore[arg-type]
    memory = torch.full((m, 64), torch.nan, dtype=torch.bfloat16)
    out = torch._neg_view(memory[:, ::2])
    for _ in range(2):
        assert mxgemm.gemm(a, weight, out=out, **options) is out  # type: ignore[arg-type]
        assert torch.equal(out.resolve_neg(), want)
        assert torch.equal(memory[:, ::2], -want)
        assert memory[:, 1::2].isnan().all()
        out.fill_(torch.nan)


def test_lazily_negated_parts_of_mx_tensors(operands: dict[str, Tensor]) -> None:
    x = torch.randn(8, 64)
    for how in NEGATED:
        for fmt in ("e2m1", "e4m3", "e5m2"):
            plain, lazy = mxgemm.quantize(x, format=fmt), mxgemm.quantize(negated(x, how), format=fmt)  # type: ignore[arg-type]
            assert torch.equal(plain.data, lazy.data)
            assert torch.equal(plain.scales, lazy.scales)
    data, scales = operands["b"], operands["b_scales"]
    want = mxgemm.gemm(x, data, scales)
    wrapped = mxgemm.MXTensor.wrap(negated(data, "_neg_view"), negated(scales, "_neg_view"))
    assert torch.equal(mxgemm.gemm(x, wrapped), want)
    assert torch.equal(wrapped.dequantize(), mxgemm.MXTensor.wrap(data, scales).dequantize())
    with pytest.raises(ValueError, match=r"^data: got a lazily negated view, want its values in memory"):
        mxgemm.MXTensor(negated(data, "_neg_view"), scales, wrapped.format, wrapped.shape)
    with pytest.raises(ValueError, match=r"^scales: got a lazily negated view"):
        mxgemm.MXTensor(data, negated(scales, "_neg_view"), wrapped.format, wrapped.shape)
    got = torch.ops.mxgemm.gemm(negated(x, "_neg_view"), negated(data, "_neg_view"), negated(scales, "_neg_view"))
    assert torch.equal(got, want)


def freed(tensor: Tensor) -> Tensor:
    """A view a little into its storage, as sharded training frees them."""
    memory = torch.zeros(tensor.numel() + 64, dtype=tensor.dtype)
    view = memory[64:].view(tensor.shape).copy_(tensor)
    memory.untyped_storage().resize_(0)
    return view


def cut(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    copy.untyped_storage().resize_(copy.nbytes - 1)
    return copy


def nested(tensor: Tensor, layout: torch.layout = torch.strided) -> Tensor:
    return torch.nested.nested_tensor([tensor, tensor], layout=layout)


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], type[Exception], str]] = {
    "coo": (lambda t: t.to_sparse(), TypeError, "a tensor of layout sparse_coo"),
    "csr": (lambda t: t.to_sparse_csr(), TypeError, "a tensor of layout sparse_csr"),
    "csc": (lambda t: t.to_sparse_csc(), TypeError, "a tensor of layout sparse_csc"),
    "bsr": (lambda t: t.to_sparse_bsr((2, 2)), TypeError, "a tensor of layout sparse_bsr"),
    "mkldnn": (lambda t: t.to_mkldnn(), TypeError, "a tensor of layout _mkldnn"),
    "nested": (nested, TypeError, "a nested tensor"),
    "jagged": (lambda t: nested(t, torch.jagged), TypeError, "a nested tensor"),
    "zero": (lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype), TypeError, "a tensor without storage"),
    "functional": (torch._to_functional_tensor, TypeError, "a tensor without storage"),
    "quantised": (lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8), TypeError, "a torch.quint8"),
    "complex": (lambda t: torch.complex(t.float(), t.float()).conj(), TypeError, "a torch.complex64"),
    "freed": (freed, ValueError, "0 bytes of storage, want [0-9]+: it was freed"),
    "cut": (cut, ValueError, "[0-9]+ bytes of storage, want [0-9]+: it was freed or resized"),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about the kinds themselves
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_tensors_are_named(kind: str, operands: dict[str, Tensor]) -> None:
    make_kind, error, message = KINDS[kind]
    if kind == "functional":
        pytest.importorskip("torch._subclasses.functional_tensor")
    out = torch.zeros(64, 64, dtype=torch.bfloat16)
    everything = {**operands, "out": out}
    mxgemm.gemm(**everything)  # type: ignore[arg-type]  # a plan for these shapes, which must not serve the others
    tried = 0
    for name, tensor in everything.items():
        try:
            other = make_kind(tensor)
        except (RuntimeError, IndexError):  # torch has no such tensor of this dtype or shape
            continue
        tried += 1
        if kind == "cut":  # looked at when a plan is made: a steady call asks only whether there is storage
            clear_plans()
        with pytest.raises(error, match=f"^{name}: got {message}"):
            mxgemm.gemm(**{**everything, name: other})  # type: ignore[arg-type]
    assert tried >= 3
    for name, tensor in (("data", operands["b"]), ("scales", operands["b_scales"])):
        try:
            other = make_kind(tensor)
        except (RuntimeError, IndexError):
            continue
        parts = {"data": operands["b"], "scales": operands["b_scales"], name: other}
        with pytest.raises(error, match=f"^{name}: got {message}"):
            mxgemm.MXTensor.wrap(**parts)
        with pytest.raises(error, match=f"^{name}: got "):
            mxgemm.MXTensor(**parts, format=mxgemm.quantize(torch.ones(1, 32)).format, shape=(64, 64))
    with pytest.raises(error, match=f"^x: got {message}"):
        mxgemm.quantize(make_kind(operands["a"]))


def test_parts_freed_after_an_mx_tensor_was_made() -> None:
    a = torch.randn(4, 64)
    for part in ("data", "scales"):
        weight = mxgemm.quantize(torch.randn(32, 64))
        quantized = mxgemm.quantize(a)
        mxgemm.gemm(a, weight)
        mxgemm.gemm_mx(quantized, weight)
        getattr(weight, part).untyped_storage().resize_(0)
        name = {"data": "b", "scales": "b_scales"}[part]
        with pytest.raises(ValueError, match=f"^{name}: got 0 bytes of storage"):
            mxgemm.gemm(a, weight)
        with pytest.raises(ValueError, match=f"^{name}: got 0 bytes of storage"):
            mxgemm.gemm_mx(quantized, weight)
        with pytest.raises(ValueError, match=f"^{part}: got 0 bytes of storage"):
            weight.dequantize()
        getattr(quantized, part).untyped_storage().resize_(0)
        name = {"data": "a", "scales": "a.scales"}[part]
        with pytest.raises(ValueError, match=f"^{name}: got 0 bytes of storage"):
            mxgemm.gemm_mx(quantized, mxgemm.quantize(torch.randn(32, 64)))


@pytest.mark.parametrize("kind", ["coo", "mkldnn", "zero", "freed"])
def test_other_kinds_of_outputs_beside_an_mx_weight(kind: str) -> None:
    make_kind, error, message = KINDS[kind]
    a, weight = torch.randn(4, 64), mxgemm.quantize(torch.randn(32, 64))
    out = make_kind(torch.ones(4, 32, dtype=torch.bfloat16))
    with pytest.raises(error, match=f"^out: got {message}"):
        mxgemm.gemm(a, weight, out=out)
    with pytest.raises(error, match=f"^out: got {message}"):
        mxgemm.gemm_mx(mxgemm.quantize(a), weight, out=out)
