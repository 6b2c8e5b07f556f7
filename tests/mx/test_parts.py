"""The parts of an MX tensor belong together wherever they are read: construction, torch operators, resized tensors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.mx.formats import E2M1, E4M3, E5M2, FORMATS, ElementFormat
from mxgemm.mx.layouts import Layout, preshuffle_weight, scale_shape, shuffle_scales, swizzle_scales
from mxgemm.mx.tensor import MXTensor
from tests.cases import spread

M, N, K = 5, 48, 128
U8 = torch.uint8
REFUSED = (TypeError, ValueError)


def weight(fmt: str = "e2m1", layout: tuple[str, str] = ("row_major", "row_major")) -> MXTensor:
    w = mxgemm.quantize(spread(N, K, octaves=3), format=fmt)  # type: ignore[arg-type]
    data = preshuffle_weight(w.data) if layout[0] == "preshuffled" else w.data
    scales = {"shuffled": shuffle_scales, "swizzled_32_4_4": swizzle_scales}.get(layout[1], torch.clone)(w.scales)
    return MXTensor(data, scales, w.format, w.shape, Layout(*layout))  # type: ignore[arg-type]


LAYOUTS = list(itertools.product(("row_major", "preshuffled"), ("row_major", "shuffled", "swizzled_32_4_4")))


def belongs(data: Tensor, scales: Tensor, fmt: Any, shape: Any, layout: Layout) -> bool:
    """The rule, said again."""
    if data.dtype != U8 or scales.dtype != U8 or data.device != scales.device or fmt not in (E2M1, E4M3, E5M2):
        return False
    if not shape or shape[-1] % 32 or (layout != Layout() and len(shape) != 2):
        return False
    if list(data.shape) != [*shape[:-1], shape[-1] // (2 if fmt.bits == 4 else 1)]:
        return False
    if layout.data == "preshuffled" and (data.shape[0] % 16 or data.shape[1] % 32):
        return False
    if layout.scales == "shuffled":
        return list(scales.shape) == [-(-shape[0] // 256) * 256, -(-shape[1] // 256) * 8]
    if layout.scales == "swizzled_32_4_4":
        return list(scales.shape) == [-(-shape[0] // 128) * 32, -(-shape[1] // 128) * 16]
    return list(scales.shape) == [*shape[:-1], shape[-1] // 32]


def test_construction_takes_exactly_what_belongs_together() -> None:
    draw = random.Random(0)
    shapes = [(32,), (0, 64), (16, 64), (17, 64), (16, 96), (256, 256), (2, 16, 64), (64, 16), (), (48,), (16, 48)]
    taken = 0
    for _ in range(3000):
        fmt, shape, layout = draw.choice((E2M1, E4M3, E5M2)), draw.choice(shapes), Layout(*draw.choice(LAYOUTS))  # type: ignore[arg-type]
        data_shape = [*shape[:-1], shape[-1] // fmt.pack] if shape else []
        good_scales = [*shape[:-1], shape[-1] // 32] if shape else []
        if layout.scales != "row_major" and len(shape) == 2:
            good_scales = list(scale_shape(layout.scales, *shape))
        if draw.random() < 0.25 and data_shape:
            data_shape[draw.randrange(len(data_shape))] += draw.choice((1, 16, 32))
        if draw.random() < 0.25 and good_scales:
            good_scales[draw.randrange(len(good_scales))] += draw.choice((1, 8, 256))
        if draw.random() < 0.1:
            data_shape.insert(0, 1)
        if draw.random() < 0.1:
            good_scales = good_scales[::-1]
        kinds = [(U8, "cpu")] * 8 + [(torch.int8, "cpu"), (torch.float32, "cpu"), (U8, "meta")]
        (dtype, device), (scale_dtype, scale_device) = draw.choice(kinds), draw.choice(kinds)
        data = torch.zeros(data_shape, dtype=dtype, device=device)
        scales = torch.zeros(good_scales, dtype=scale_dtype, device=scale_device)
        if belongs(data, scales, fmt, shape, layout):
            taken += 1
            x = MXTensor(data, scales, fmt, shape, layout)
            if device == "cpu":
                assert x.dequantize().shape == shape
        else:
            with pytest.raises(REFUSED):
                MXTensor(data, scales, fmt, shape, layout)
    assert 300 < taken < 2700


def data(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=U8)


def made(**parts: Any) -> MXTensor:
    """Build a (4, 32) tensor with some parts replaced by wrong ones."""
    return MXTensor(**{"data": data(4, 16), "scales": data(4, 1), "format": E2M1, "shape": (4, 32), **parts})


def wrapped(**options: Any) -> MXTensor:
    return MXTensor.wrap(data(16, 32), data(16, 2), **options)


BAD_PARTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "format by name": (lambda: made(format="e2m1"), TypeError, "format: got str 'e2m1', want an ElementFormat"),
    "format None": (lambda: made(format=None), TypeError, "format: got NoneType"),
    "a format of one's own": (
        lambda: made(format=ElementFormat("e2m1", 7.0, 2, 1, 4, 2)), ValueError, "format: got ElementFormat"
    ),
    "a format equal to a real one": (
        lambda: made(format=ElementFormat("e2m1", 6.0, 2, 1, 4, 2)), ValueError, "format: got ElementFormat"
    ),
    "an unknown format": (
        lambda: made(format=ElementFormat("e3m2", 28.0, 4, 2, 6, 1)), ValueError, "format: got"  # type: ignore[arg-type]
    ),
    "layout by name": (lambda: made(layout="row_major"), TypeError, "layout: got str"),
    "layout a tuple": (lambda: made(layout=("row_major", "row_major")), TypeError, "layout: got tuple"),
    "shape a list": (lambda: made(shape=[4, 32]), TypeError, r"shape: got \[4, 32\], want a tuple of integers"),
    "shape of floats": (lambda: made(shape=(4.0, 32.0)), TypeError, "shape: got"),
    "shape of booleans": (lambda: made(shape=(True, 32)), TypeError, "shape: got"),
    "shape None": (lambda: made(shape=None), TypeError, "shape: got None"),
    "shape empty": (lambda: made(shape=()), ValueError, r"shape: got \(\)"),
    "sparse": (lambda: made(data=data(4, 16).to_sparse()), TypeError, "data: got a tensor of layout sparse_coo"),
    "sparse scales": (lambda: made(scales=data(4, 1).to_sparse()), TypeError, "scales: got a tensor of layout"),
    "data a list": (lambda: made(data=[1]), TypeError, "data: got list"),
    "wrap weight_layout": (
        lambda: wrapped(weight_layout="typo"), ValueError, "weight_layout: got 'typo', want one of row_major, pre"
    ),
    "wrap scale_layout": (lambda: wrapped(scale_layout="preshuffled"), ValueError, "scale_layout: got 'preshuffled'"),
    "wrap an unhashable layout": (lambda: wrapped(scale_layout=[]), ValueError, r"scale_layout: got list"),
    "wrap format": (lambda: wrapped(format="fp4"), ValueError, "format: got 'fp4'"),
    "Layout": (lambda: Layout("shuffled"), ValueError, "weight_layout: got 'shuffled'"),  # type: ignore[arg-type]
    "Layout of scales": (lambda: Layout(scales=None), ValueError, "scale_layout: got None"),  # type: ignore[arg-type]
    "prepared": (lambda: made(prepared=weight()), TypeError, "prepared"),
    "replace prepared": (lambda: replace(weight(), prepared=weight()), ValueError, "prepared"),
    "replace data": (lambda: replace(weight(), data=data(N, K)), ValueError, r"data: got shape \(48, 128\), want"),
    "replace scales": (lambda: replace(weight(), scales=data(N, 3)), ValueError, "scales: got shape"),
    "replace shape": (lambda: replace(weight(), shape=(K, N)), ValueError, "shape: got"),
    "replace format": (lambda: replace(weight(), format=E4M3), ValueError, "data: got shape"),
    "replace layout": (lambda: replace(weight(), layout=Layout(scales="shuffled")), ValueError, "scales: got shape"),
}  # fmt: skip


@pytest.mark.parametrize("build, error, message", BAD_PARTS.values(), ids=BAD_PARTS.keys())
def test_bad_parts(build: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_replacing_bytes_drops_what_was_made_of_the_old_ones() -> None:
    for arch in ("gfx950", "sm_90"):
        p, other = weight().prepare(arch), mxgemm.quantize(spread(N, K, seed=9))
        changed = replace(p, data=other.data, scales=other.scales)
        assert changed.prepared is None
        a = spread(M, K, torch.bfloat16)
        assert torch.equal(mxgemm.gemm(a, changed), mxgemm.gemm(a, other))


@pytest.mark.parametrize("fmt", FORMATS)
def test_meta_and_fake_tensors_construct(fmt: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    pack = FORMATS[fmt].pack
    for layout in LAYOUTS:
        w = weight(fmt, layout).to("meta")
        assert (w.shape, w.layout) == ((N, K), Layout(*layout))  # type: ignore[arg-type]
        for arch in ("sm_90", "gfx950"):
            prepared = w.prepare(arch).prepared
            assert prepared is not None
            assert (prepared.kind, prepared.tensors, prepared.arguments.arch) == ("", (), arch)
    with FakeTensorMode():
        data, scales = torch.empty(N, K // pack, dtype=U8), torch.empty(N, K // 32, dtype=U8)
        w = MXTensor.wrap(data, scales, format=fmt)  # type: ignore[arg-type]
        assert w.shape == (N, K)
        assert mxgemm.gemm(torch.empty(M, K), w).shape == (M, N) if fmt == "e2m1" else True
        with pytest.raises(ValueError, match="scales: got shape"):
            MXTensor.wrap(data, data, format=fmt)  # type: ignore[arg-type]


RESIZES: dict[str, Callable[[MXTensor], object]] = {
    "scales to one byte": lambda t: t.scales.resize_(1, 1),
    "scales lose a row": lambda t: t.scales.resize_(t.scales.shape[0] - 1, t.scales.shape[1]),
    "scales transposed": lambda t: t.scales.t_(),
    "scales flat": lambda t: t.scales.resize_(t.scales.numel()),
    "scales empty": lambda t: t.scales.resize_(0),
    "scales set to a row": lambda t: t.scales.set_(torch.zeros(1, t.scales.shape[1], dtype=U8)),
    "scales of another dtype": lambda t: setattr(t.scales, "data", t.scales.to(torch.int32)),
    "data to one byte": lambda t: t.data.resize_(1, 1),
    "data loses half its columns": lambda t: t.data.resize_(t.data.shape[0], t.data.shape[1] // 2),
    "data gains a dimension": lambda t: t.data.unsqueeze_(0),
    "data set to nothing": lambda t: t.data.set_(),
    "data of another dtype": lambda t: setattr(t.data, "data", t.data.to(torch.float32)),
    "both lose rows alike": lambda t: (t.data.resize_(16, t.data.shape[1]), t.scales.resize_(16, t.scales.shape[1])),
    "both lose columns alike": lambda t: (t.data.resize_(t.data.shape[0], 32), t.scales.resize_(t.scales.shape[0], 2)),
}  # fmt: skip
ENTRIES: dict[str, Callable[[MXTensor], object]] = {
    "gemm": lambda t: mxgemm.gemm(spread(M, K, torch.bfloat16), t),
    "gemm fewer columns": lambda t: mxgemm.gemm(spread(M, 64, torch.bfloat16), t),
    "gemm_mx b": lambda t: mxgemm.gemm_mx(mxgemm.quantize(spread(M, K)), t),
    "gemm_mx a": lambda t: mxgemm.gemm_mx(t.row_major() if t.layout.data == "preshuffled" else t, weight()),
    "dequantize": lambda t: mxgemm.dequantize(t),
    "row_major": lambda t: t.row_major(),
    "prepare": lambda t: t.prepare("sm_90"),
    "prepare gfx950": lambda t: t.prepare("gfx950"),
    "to": lambda t: t.to("cpu"),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("resize", RESIZES)
def test_resized_parts_are_refused_by_every_entry(resize: str, entry: str) -> None:
    for layout in LAYOUTS:
        t = weight(layout=layout)
        if entry != "gemm fewer columns":
            ENTRIES[entry](t)  # its plan is known
        RESIZES[resize](t)
        with pytest.raises(REFUSED):
            ENTRIES[entry](t)
        assert t.nbytes == t.data.nbytes + t.scales.nbytes  # what is held, whatever it is


@pytest.mark.parametrize("entry", ["gemm", "gemm_mx b"])
def test_resized_parts_are_refused_while_tracing(entry: str) -> None:
    for resize in ("scales to one byte", "both lose rows alike", "data loses half its columns"):
        t = weight()
        compiled = torch.compile(lambda x, t=t: ENTRIES[entry](t), backend="eager")
        compiled(torch.ones(1))
        RESIZES[resize](t)
        with pytest.raises(Exception, match=r"data: got|scales: got|b: got|b_scales: got"):
            compiled(torch.ones(1))


def gemm_mx_op(
    a: Tensor,
    a_scales: Tensor,
    b: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    a_format: str,
    b_format: str = "e2m1",
    a_scale_layout: str = "row_major",
) -> Tensor:
    named = {"b_format": b_format, "a_scales": a_scales, "a_scale_layout": a_scale_layout}
    return torch.ops.mxgemm.gemm(a, b, b_scales, bias, a_format, **named)


def test_scales_of_quantised_activations() -> None:
    w, refused = weight(), 0
    for fmt, shape in itertools.product(FORMATS, [(M, K), (K,), (2, 3, K), (1, K), (0, K), (300, K)]):
        q = mxgemm.quantize(torch.randn(shape), format=fmt)  # type: ignore[arg-type]
        good = mxgemm.gemm_mx(q, w)
        op = gemm_mx_op
        assert torch.equal(op(q.data, q.scales, w.data, w.scales, None, fmt), good)
        s, columns = q.scales, K // 32
        wrong = {
            "one row": s.reshape(-1, columns)[:1].expand(2, columns) if s.dim() < 2 else data(1, 1, columns),
            "flat": s.flatten() if s.dim() != 1 else s[:1],
            "transposed": data(columns, 7),
            "one byte": data(1),
            "a scalar": data(1)[0],
            "a column short": s[..., :-1],
            "a column long": torch.cat([s, s[..., :1]], -1),
            "float": s.float(),
            "int8": s.view(torch.int8),
            "shuffled and not said": data(256, 8),
        }
        for scales in wrong.values():
            with pytest.raises(REFUSED, match=r"a\.scales: "):
                op(q.data, scales, w.data, w.scales, None, fmt)
            refused += 1
        for bad_a in (q.data.float(), q.data.view(torch.int8), q.data[..., :-1], data(1)[0]):
            with pytest.raises(REFUSED, match=r"a: |a\.scales: "):
                op(bad_a, s, w.data, w.scales, None, fmt)
            refused += 1
        if len(shape) == 2 and shape[0]:
            shuffled = shuffle_scales(s)
            assert torch.equal(op(q.data, shuffled, w.data, w.scales, None, fmt, "e2m1", "shuffled"), good)
            for scales in (shuffled[:-1], shuffled[:, :-1], shuffled.flatten(), shuffled.t(), s):
                with pytest.raises(REFUSED, match=r"a\.scales: got shape"):
                    op(q.data, scales, w.data, w.scales, None, fmt, "e2m1", "shuffled")
                refused += 1
        elif len(shape) != 2:
            with pytest.raises(ValueError, match="layout: got .*, want two dimensions"):
                op(q.data, data(256, 8), w.data, w.scales, None, fmt, "e2m1", "shuffled")
        for options in (("e3m2", "e2m1"), ("e2m1", "fp4"), ("", "e2m1"), ("bf16", "e2m1")):
            with pytest.raises(ValueError, match="_format: got"):
                op(q.data, s, w.data, w.scales, None, *options)
        with pytest.raises(ValueError, match="a_scale_layout: got 'typo'"):
            op(q.data, s, w.data, w.scales, None, fmt, "e2m1", "typo")
    assert refused > 250


@pytest.mark.parametrize("kind", ["fp8_fold", "fp8_fold_compact", "bf16"])
def test_derived_tensors_that_do_not_belong(kind: str) -> None:
    octaves, memory = (12 if kind == "bf16" else 3), ("compact" if kind.endswith("compact") else "fast")
    p = mxgemm.quantize(spread(50, K, octaves=octaves)).prepare("sm_90", memory=memory)  # type: ignore[arg-type]
    assert p.prepared is not None
    assert p.prepared.kind == kind
    a = spread(M, K, torch.bfloat16)

    def call(kind: object, *derived: object, b_format: str = "e2m1") -> Tensor:
        return torch.ops.mxgemm.gemm(  # type: ignore[no-any-return]
            a, p.data, p.scales, None, "e2m1", "even", torch.bfloat16, "row_major", "row_major", b_format, None, kind,
            *derived,
        )  # fmt: skip

    good = tuple(tensor.clone() for tensor in p.prepared.tensors)
    assert torch.equal(call(kind, *good), mxgemm.gemm(a, p))
    refused = 0
    for index, tensor in enumerate(good):
        shape = tensor.shape
        for wrong in (
            tensor[:-1], tensor.flatten()[:1], tensor.unsqueeze(0), torch.cat([tensor, tensor]), tensor.to(torch.int64),
            tensor.float() if tensor.dtype != torch.float32 else tensor.double(),
            torch.zeros(2 * shape[0], *shape[1:], dtype=tensor.dtype)[::2],
            torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(shape), None,
        ):  # fmt: skip
            mutant = [*good[:index], wrong, *good[index + 1 :]]
            with pytest.raises(REFUSED, match=r"derived_(data|base)"):
                call(kind, *mutant)
            refused += 1
    for other in ("", "fp8", "layout", "gfx950", "FP8_FOLD", *({"fp8_fold", "fp8_fold_compact", "bf16"} - {kind})):
        with pytest.raises(REFUSED, match="derived_"):
            call(other, *good)
        with pytest.raises(REFUSED, match="derived_"):
            call(other or kind)
        refused += 2
    for fmt in ("e4m3", "e5m2", "fp4"):
        with pytest.raises(REFUSED, match="derived_kind|b_format"):
            call(kind, *good, b_format=fmt)
    assert refused >= 20
    with pytest.raises(REFUSED):
        torch.ops.mxgemm.gemm_out(
            a, p.data, p.scales, torch.empty(M, 50, dtype=torch.bfloat16), derived_kind="bf16", derived_data=data(3)
        )
