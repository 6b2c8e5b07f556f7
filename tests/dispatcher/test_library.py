"""The guards: wrong operands raise before the library is called. The library is CK tile's source over stand-ins."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from mxgemm.dispatcher import (
    Inputs,
    KernelConfig,
    Library,
    MxGemmKernelConfig,
    Problem,
    codecs,
    judge,
    make_inputs,
    operands,
    operation_of,
    reference,
)

Built = dict[str, tuple[KernelConfig, Path]]


class Case:
    """One call's operands; ``run`` replaces some of them."""

    def __init__(self, config: KernelConfig, path: Path, problem: Problem) -> None:
        self.library = Library(path, config)
        self.inputs: Inputs = make_inputs(config, problem)
        self.out = np.zeros((problem.m, problem.n), dtype=np.float16)
        self.expected = reference(config, self.inputs)

    def run(self, **changes: Any) -> np.ndarray:
        given = self.inputs
        call = {"a": given.a, "b": given.b, "c": self.out, "a_scales": given.a_scales, "b_scales": given.b_scales}
        call.update(changes)
        self.library.run(**call, timed=False)
        return self.out

    def right(self) -> bool:
        return judge(self.inputs.problem, self.out, self.expected, None).passed


@pytest.fixture
def mx(built: Built) -> Case:
    return Case(*built["mx_fp4"], Problem(32, 64, 128))


@pytest.fixture
def row(built: Built) -> Case:
    return Case(*built["row_fp8"], Problem(80, 64, 256))


def test_bytes_are_told_from_numbers(row: Case, mx: Case) -> None:
    with pytest.raises(TypeError, match="a: got float32, want uint8 or float8_e4m3fn: the kernel reads raw bytes"):
        row.run(a=np.ones((80, 256), dtype=np.float32))
    with pytest.raises(TypeError, match="b: got float16"):
        row.run(b=np.ones((64, 256), dtype=np.float16))
    with pytest.raises(TypeError, match="a: got float8_e5m2, want uint8 or float8_e4m3fn"):
        row.run(a=torch.from_numpy(row.inputs.a).view(torch.float8_e5m2))
    with pytest.raises(TypeError, match="a: got float8_e4m3fnuz"):
        row.run(a=torch.from_numpy(row.inputs.a).view(torch.float8_e4m3fnuz))
    with pytest.raises(TypeError, match="a: got list, want a numpy.ndarray or a torch.Tensor"):
        row.run(a=row.inputs.a.tolist())
    with pytest.raises(TypeError, match="b: got float8_e4m3fn, want uint8 or float4_e2m1fn_x2"):
        mx.run(b=torch.from_numpy(mx.inputs.b).view(torch.float8_e4m3fn))
    assert not row.out.any()


def test_fnuz_bytes_are_what_gfx942_takes(built: Built) -> None:
    case = Case(*built["row_bf8_gfx942"], Problem(80, 64, 256))
    with pytest.raises(TypeError, match="a: got float8_e5m2, want uint8 or float8_e5m2fnuz"):
        case.run(a=torch.from_numpy(case.inputs.a).view(torch.float8_e5m2))


def test_typed_bytes_and_torch_tensors_are_taken(row: Case, mx: Case) -> None:
    row.run(a=torch.from_numpy(row.inputs.a).view(torch.float8_e4m3fn), c=torch.from_numpy(row.out))
    assert row.right()
    if hasattr(torch, "float4_e2m1fn_x2"):
        scales = torch.from_numpy(mx.inputs.a_scales).view(torch.float8_e8m0fnu)
        mx.run(b=torch.from_numpy(mx.inputs.b).view(torch.float4_e2m1fn_x2), a_scales=scales)
        assert mx.right()


def test_inputs_may_be_strided(row: Case) -> None:
    wide = np.zeros((80, 512), dtype=np.uint8)
    wide[:, ::2] = row.inputs.a
    row.run(a=wide[:, ::2], b=np.asfortranarray(row.inputs.b))
    assert row.right()


def test_memory_is_read_as_its_values_or_refused(row: Case, mx: Case) -> None:
    def negated(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return torch._neg_view(-tensor if tensor.is_floating_point() else 0 - tensor)

    for case in (row, mx):
        given = {name: getattr(case.inputs, name) for name in ("a", "b", "a_scales", "b_scales")}
        for name, array in given.items():
            case.out[:] = 0
            everything = {other: torch.from_numpy(values) for other, values in given.items()}
            case.run(**{**everything, name: negated(array), "c": torch.from_numpy(case.out)})
            assert case.right(), name
        everything = {name: torch.from_numpy(values) for name, values in given.items()}
        out = torch.from_numpy(case.out)
        with pytest.raises(ValueError, match="c: got a lazily negated view"):
            case.run(**everything, c=torch._neg_view(out))
        for name in everything:
            with pytest.raises(TypeError, match=f"{name}: got a tensor of layout sparse_coo"):
                case.run(**{**everything, name: everything[name].to_sparse(), "c": out})
            freed = everything[name].clone()
            freed.untyped_storage().resize_(0)
            with pytest.raises(ValueError, match=f"{name}: got 0 bytes of storage"):
                case.run(**{**everything, name: freed, "c": out})


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_the_output_is_apart_from_the_inputs(shift: int, row: Case) -> None:
    size = row.out.nbytes
    memory = np.zeros(4 * size + row.inputs.a.nbytes, dtype=np.uint8)
    start = 2 * size + shift * (size - 2)
    out = memory[start : start + size].view(np.float16).reshape(row.out.shape)
    a = memory[2 * size : 2 * size + row.inputs.a.nbytes].reshape(row.inputs.a.shape)
    a[:] = row.inputs.a
    with pytest.raises(ValueError, match="c: shares memory with a, want memory of its own"):
        row.run(a=a, c=out)
    with pytest.raises(ValueError, match="c: shares memory with a, want memory of its own"):
        row.run(
            a=torch.from_numpy(a),
            c=torch.from_numpy(out),
            **{name: torch.from_numpy(getattr(row.inputs, name)) for name in ("b", "a_scales", "b_scales")},
        )
    assert np.array_equal(a, row.inputs.a)
    row.run(a=a, c=memory[size : 2 * size].view(np.float16).reshape(row.out.shape))


def test_shapes(row: Case, mx: Case) -> None:
    with pytest.raises(ValueError, match=r"b: got \(64, 128\), want \[n, 256\] like a"):
        row.run(b=row.inputs.b[:, :128])
    with pytest.raises(ValueError, match=r"a: got \(0, 256\), want two dimensions, none of them zero"):
        row.run(a=row.inputs.a[:0])
    with pytest.raises(ValueError, match=r"a: got \(20480,\)"):
        row.run(a=row.inputs.a.ravel())
    with pytest.raises(ValueError, match="k: got 16, want a positive multiple of 32"):
        mx.run(a=mx.inputs.a[:, :8], b=mx.inputs.b[:, :8])


def test_the_output_is_written_in_place_or_refused(row: Case) -> None:
    with pytest.raises(TypeError, match="c: got list, want a numpy.ndarray or a torch.Tensor"):
        row.run(c=row.out.tolist())
    with pytest.raises(TypeError, match="c: got float32, want float16"):
        row.run(c=row.out.astype(np.float32))
    with pytest.raises(ValueError, match=r"c: got \(80, 63\), want \(80, 64\)"):
        row.run(c=row.out[:, :63])
    with pytest.raises(ValueError, match="c: got strided memory"):
        row.run(c=np.asfortranarray(row.out))
    with pytest.raises(ValueError, match="c: got strided memory"):
        row.run(c=torch.zeros(64, 80, dtype=torch.float16).T)
    sealed = row.out.copy()
    sealed.flags.writeable = False
    with pytest.raises(ValueError, match="c: got a read-only array"):
        row.run(c=sealed)
    assert row.run() is row.out
    assert row.right()


def test_scales_are_coerced_where_that_loses_nothing(row: Case, mx: Case) -> None:
    row.run(a_scales=row.inputs.a_scales.astype(np.float64)[:, None], b_scales=row.inputs.b_scales[None, :])
    assert row.right()
    mx.run(a_scales=mx.inputs.a_scales.astype(np.int64), b_scales=torch.from_numpy(mx.inputs.b_scales).int())
    assert mx.right()
    for wrong in (np.full((32, 4), 1.0), np.full((32, 4), 300), np.full((32, 4), -1), np.full((32, 4), np.nan)):
        with pytest.raises(TypeError, match="a_scales: got .* want E8M0 bytes"):
            mx.run(a_scales=wrong)
    with pytest.raises(TypeError, match="b_scales: got float32 numbers, want E8M0 bytes"):
        mx.run(b_scales=torch.ones(64, 4))
    with pytest.raises(ValueError, match=r"a_scales: got \(4, 32\), want \(32, 4\)"):
        mx.run(a_scales=mx.inputs.a_scales.T)
    with pytest.raises(ValueError, match=r"b_scales: got \(80,\), want \(64,\)"):
        row.run(b_scales=row.inputs.a_scales)


def test_e8m0_scales_where_numbers_belong_keep_their_values(row: Case) -> None:
    powers = np.exp2(np.arange(80) % 5 - 2).astype(np.float32)
    expected = row.run(a_scales=powers).copy()
    row.out[:] = 0
    given = torch.from_numpy(powers).to(torch.float8_e8m0fnu)
    assert np.array_equal(row.run(a_scales=given), expected)


def _texts(values: Any) -> np.ndarray:
    return np.vectorize(str)(values)


@pytest.mark.parametrize(
    "change", [_texts, lambda s: s.astype(np.complex64), lambda s: s.astype(object)], ids=["text", "complex", "object"]
)
def test_scales_are_real_numbers(change: Any, row: Case, mx: Case) -> None:
    """A complex scale would lose its imaginary part without a word, a text would be read as a number."""
    for case in (row, mx):
        given = case.inputs
        with pytest.raises(TypeError, match="b_scales: got .*, want real numbers"):
            case.run(b_scales=change(given.b_scales))
        for name in ("a_scales", "b_scales"):
            wrong = replace(given, **{name: change(getattr(given, name))})
            with pytest.raises(TypeError, match=f"{name}: got .*, want real numbers"):
                reference(case.library.config, wrong)
        with pytest.raises(TypeError, match="out: got .*, want real numbers"):
            judge(given.problem, change(case.expected), case.expected, None)
        with pytest.raises(TypeError, match="expected: got .*, want real numbers"):
            judge(given.problem, case.out, change(case.expected), None)
        assert not case.out.any()
    with pytest.raises(TypeError, match="a_scales: got complex64, want real numbers"):
        row.run(a_scales=torch.from_numpy(row.inputs.a_scales).to(torch.complex64))
    with pytest.raises(TypeError, match="scales: got .*, want real numbers"):
        codecs.encode_e8m0(change(np.ones(3)))
    with pytest.raises(TypeError, match="values: got .*, want real numbers"):
        codecs.encode(change(np.ones((2, 32))), "fp4", "gfx950")


def test_derivatives_are_refused(row: Case) -> None:
    """An output that autograd follows would change behind its back, and no scale would get its gradient."""
    given = row.inputs
    a, b, a_scales, b_scales = map(torch.from_numpy, (given.a, given.b, given.a_scales, given.b_scales))
    call = {"a": a, "b": b, "c": torch.zeros(80, 64, dtype=torch.float16), "a_scales": a_scales, "b_scales": b_scales}
    for name in ("c", "a_scales", "b_scales"):
        held = {**call, name: call[name].clone().requires_grad_()}
        with pytest.raises(RuntimeError, match=f"{name}: requires grad"):
            row.library.run(**held, timed=False)
        with pytest.raises(RuntimeError, match=f"{name}: requires grad"):
            row.library.bind(**held)
        with torch.no_grad():
            row.library.run(**held, timed=False)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(call[name], torch.ones_like(call[name]))
            with torch.no_grad(), pytest.raises(RuntimeError, match=f"{name}: carries a forward-mode tangent"):
                row.library.run(**{**call, name: dual}, timed=False)


def test_writing_c_is_seen_by_autograd(row: Case) -> None:
    given = row.inputs
    c = torch.zeros(80, 64, dtype=torch.float16)
    bound = row.library.bind(
        *map(torch.from_numpy, (given.a, given.b)), c, *map(torch.from_numpy, (given.a_scales, given.b_scales))
    )
    before = c._version
    bound()
    assert c._version > before
    assert judge(given.problem, c.numpy(), row.expected, None).passed


def test_two_objects_of_one_library(row: Case) -> None:
    other = Library(row.library.path, row.library.config)
    row.run()
    other.close()
    row.out[:] = 0
    row.run()
    assert row.right()


def test_sizes_beyond_an_int_are_refused() -> None:
    assert Problem(2**31 - 1, 1, 32).m == 2**31 - 1
    with pytest.raises(ValueError, match=f"m: got {2**31}, want an int from 1 to {2**31 - 1}"):
        Problem(2**31, 1, 32)


def test_addresses_on_a_device_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "_device", lambda value: torch.device("cuda", 0))
    config = MxGemmKernelConfig(gpu_target="gfx950")

    def off(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        view = torch.arange(math.prod(shape) + 1).to(dtype)[1:].view(shape)
        assert view.data_ptr() % operands.ALIGNMENT
        return view

    given = [off(3, 64), off(5, 64), torch.zeros(3, 5, dtype=torch.float16), off(3, 2), off(5, 2)]
    found = operands.gather(operation_of(config), config, "gfx950", *given, k_batch=1)
    assert all(address % operands.ALIGNMENT == 0 for address in found.at)
    assert found.at.c == given[2].data_ptr()
    assert all(torch.equal(kept, value) for kept, value in zip(found.keep, given, strict=True))
    given[2] = off(3, 5, dtype=torch.float16)
    with pytest.raises(ValueError, match="c: got an address off a multiple of 16 bytes"):
        operands.gather(operation_of(config), config, "gfx950", *given, k_batch=1)


def test_host_and_device_do_not_mix(row: Case) -> None:
    with pytest.raises(ValueError, match="operands: got a on meta, b on the host, .* want all on one device"):
        row.run(a=torch.empty(80, 256, dtype=torch.uint8, device="meta"))


def test_a_bound_call_repeats(row: Case) -> None:
    given = row.inputs
    launch = row.library.bind(given.a, given.b, row.out, given.a_scales, given.b_scales)
    launch()
    assert row.right()
    row.out[:] = 0
    launch()
    assert row.right()


def test_the_wrong_file_is_refused(built: Built, tmp_path: Path) -> None:
    config, path = built["mx_fp4"]
    with pytest.raises(FileNotFoundError, match="want the shared library of mx_gemm_fp4"):
        Library(tmp_path / "none.so", config)
    with pytest.raises(ValueError, match="want a library of the bridge"):
        Library(built["row_fp8"][1], config)
    with pytest.raises(ValueError, match=r"got the library of mx_gemm_fp4_.*, want mx_gemm_fp8_"):
        Library(path, built["mx_fp8"][0])
    other = tmp_path / "text.so"
    other.write_text("no library")
    with pytest.raises(OSError, match="text.so"):
        Library(other, config)


def test_all_zeros_from_something_is_reported() -> None:
    expected = np.array([[1.0, 0.0]], dtype=np.float16)
    verdict = judge(Problem(1, 2, 32), np.zeros((1, 2)), expected, None)
    assert not verdict.passed
    assert "all zeros from non-zero input" in verdict.complaint
    assert judge(Problem(1, 2, 32), expected, expected, None).passed
    off = judge(Problem(1, 2, 32), np.array([[1.002, 0.0]]), expected, None)
    assert "max relative error 2.00e-03" in off.complaint
    assert judge(Problem(1, 2, 32), np.array([[np.nan, 0.0]]), expected, None).max_relative_error == np.inf


@pytest.mark.parametrize("name", ["mx_fp8", "mx_fp4", "row_fp8", "tensor_fp8"])
def test_the_reference_is_the_sum_written_out(name: str, built: Built) -> None:
    config, _ = built[name]
    inputs = make_inputs(config, Problem(3, 2, 64), seed=4)
    values = {0x30: 0.5, 0x38: 1.0, 0x3C: 1.5, 0x40: 2.0, 0x00: 0.0}
    e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

    def element(data: np.ndarray, row: int, k: int) -> float:
        if config.dtype == "fp4":
            code = int(data[row, k // 2]) >> (4 * (k % 2)) & 15
            return -e2m1[code & 7] if code & 8 else e2m1[code]
        byte = int(data[row, k])
        return -values[byte & 0x7F] if byte & 0x80 else values[byte]

    def scale(scales: np.ndarray, row: int, k: int) -> float:
        return float(scales[row % len(scales)]) if scales.ndim == 1 else 2.0 ** (int(scales[row, k // 32]) - 127)

    assert len(np.unique(inputs.a_scales)) >= min(3, inputs.a_scales.size)
    got = reference(config, inputs)
    assert got.dtype == np.float16
    for m in range(3):
        for n in range(2):
            terms = (
                element(inputs.a, m, k)
                * scale(inputs.a_scales, m, k)
                * element(inputs.b, n, k)
                * scale(inputs.b_scales, n, k)
                for k in range(64)
            )
            assert got[m, n] == pytest.approx(sum(terms), rel=2**-10)


@pytest.mark.gpu
def test_gpu_tensors_need_an_amd_gpu(built: Built) -> None:
    if torch.version.hip:
        pytest.skip("there the library runs: see tests of native libraries")
    config, path = built["row_fp8"]
    inputs = make_inputs(config, Problem(80, 64, 256))
    on_gpu = [torch.from_numpy(x).cuda() for x in (inputs.a, inputs.b)]
    with pytest.raises(ValueError, match="operands: got a on cuda:0, b on cuda:0, c on the host"):
        Library(path, config).run(*on_gpu, np.zeros((80, 64), np.float16), inputs.a_scales, inputs.b_scales)
