"""Routes whose product is asked of cublasLt directly, with a library that is not there: what it is asked, and where."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mxgemm
from mxgemm.cuda import fold_last
from mxgemm.cuda import fold_rows as cuda_fold_rows
from mxgemm.device import KNOWN_MACHINES
from mxgemm.memory import extent
from mxgemm.mx.accuracy import judge
from mxgemm.mx.formats import BLOCK, E2M1
from mxgemm.mx.layouts import round_up
from mxgemm.native.program import BIAS, FIXED, OUT, SCRATCH, A, KernelStep, Place, ProductStep, Program
from mxgemm.native.vendor import VendorError
from mxgemm.problem import Problem, contiguous_strides
from mxgemm.routes import Operands, dequant_mm, fold_chain, fold_plain
from mxgemm.triton.launch import Launcher
from tests.cases import skip_without_kernels
from tests.cuda import lanes

M, N, K = 5, 48, 96
MEMORY_BYTES = 640


class Vendor:
    """The library: it notes what it is told when a plan is made, and multiplies what it is given."""

    refuses = False

    def __init__(
        self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, bias_dtype: Any, *,
        fast: bool = False, alignment: int = 16, bases: bool = True, place: int = 0,
    ) -> None:  # fmt: skip
        assert alignment == 16
        self.bases, self.place = bases and dtype == torch.float8_e4m3fn, place
        self.sizes, self.dtypes, self.fast = (m, n, k), (dtype, out_dtype, bias_dtype), fast
        self.bias_dtype = bias_dtype

    def step(
        self, device: torch.device, weight: Place, weight_base: int, a: Place, base: Any, bias: Any, out: Place,
        memory: Place,
    ) -> ProductStep:  # fmt: skip
        if self.refuses:
            raise VendorError("cublasLt: it has no algorithm for this product")
        owner = self, weight_base
        return ProductStep(1, (2, 3, 4), (5,), weight, a, base, bias, out, memory, MEMORY_BYTES, bytes(64), owner)


def multiply(step: ProductStep, weight: int, a: int, base: int, bias: int, out: int, memory: int, stream: int) -> None:
    """Multiply what lies at addresses, as ``mxgemm.native.vendor.run`` does."""
    vendor, weight_base = step.owner  # type: ignore[misc]
    (m, n, k), (dtype, out_dtype, bias_dtype) = vendor.sizes, vendor.dtypes
    left, right, result = at(a, (m, k), dtype), at(weight, (n, k), dtype), at(out, (m, n), out_dtype)
    added = None if bias_dtype is None else at(bias, (n,), bias_dtype)
    at(memory, (MEMORY_BYTES,), torch.uint8).fill_(255)  # which is nobody else's
    if not vendor.bases:
        assert (base, weight_base) == (0, 0)
        sums = left.float() @ right.float().T
        result.copy_(sums if added is None else sums + added.float())
        return
    scales = at(base, (m, 1), torch.float32), at(weight_base, (1, n), torch.float32)
    torch._scaled_mm(
        left, right.t(), *scales, bias=added, out_dtype=out_dtype, use_fast_accum=vendor.fast, out=result
    )  # fmt: skip


def at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype).view(shape)


class Last:
    """The last launch where it applies bases, lane by lane on what lies at addresses."""

    def __init__(self, problem: Problem, product_dtype: torch.dtype, product_row: int) -> None:
        self.problem, self.dtype, self.row, self.loaded = problem, product_dtype, product_row, False
        macros = tuple(sorted(fold_last.macros(problem, product_dtype).items()))
        self.library = lanes._built(macros, (fold_last.SOURCE, fold_last.KERNEL, "Arguments", 0))

    def build(self, machine: Any) -> Last:
        assert machine.arch == "sm_90"
        return self

    def __call__(self, device: torch.device | None, *addresses: int) -> None:
        del device
        p, self.loaded = self.problem, True
        unfolded, product, base, a, w, w_base, bias, out = addresses
        row, column = p.strides.out  # type: ignore[union-attr]
        given = (
            at(unfolded, (round_up(p.m, 4),), torch.int32), at(product, (p.m, self.row), self.dtype),
            at(base, (p.m,), torch.float32), at(a, (p.m, p.k), p.a_dtype), at(w, (self.row, p.k), torch.uint8),
            at(w_base, (self.row,), torch.float32), at(bias, (p.n,), p.bias_dtype) if bias else None,
            at(out, ((p.m - 1) * row + (p.n - 1) * column + 1,), p.out_dtype),
        )  # fmt: skip
        packed = fold_last.POINTERS.pack(*addresses) + fold_last.constants(p, self.row)
        lanes._run(self.library, packed, fold_last.grid(p), (fold_last.THREADS, 1, 1), given, 0)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels("cpu")
    monkeypatch.setattr(cuda_fold_rows, "refused", lambda problem: True)  # the interpreter is there, no GPU
    for chain in (dequant_mm, fold_chain, fold_plain):
        monkeypatch.setattr(chain, "VendorProduct", Vendor)
        monkeypatch.setattr(chain, "run", multiply)
        monkeypatch.setattr(chain, "product_kernel", lambda *arguments: None)
        if hasattr(chain, "relaxed"):
            monkeypatch.setattr(chain, "relaxed", nullcontext)
    monkeypatch.setattr(fold_plain, "fold_last", Last)
    monkeypatch.setattr(fold_plain.workspace, "raw_stream", lambda device: 0)


def case(a_format: str, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, prepared: bool) -> tuple[Any, Any, Any]:
    weight = mxgemm.quantize(torch.randn(N, K))
    derived = weight.prepare("sm_90", a_format="bf16").operand()[4] if prepared else ()
    p = Problem.of(
        M, N, K, KNOWN_MACHINES["sm_90"], a_format=a_format, out_dtype=out_dtype, derived="bf16" if prepared else "",
        has_bias=bias_dtype is not None, bias_dtype=bias_dtype or torch.float32,
        strides=contiguous_strides(N, K, E2M1, K // BLOCK),
    )  # fmt: skip
    bias = None if bias_dtype is None else torch.randn(N).to(bias_dtype)
    a, out = torch.randn(M, K, dtype=torch.bfloat16), torch.full((M, N), torch.nan, dtype=out_dtype)
    return dequant_mm._Launch(p), Operands(a, None, weight.data, weight.scales, bias, out, derived), weight


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("a_format", ["bf16", "e2m1", "e4m3"])
@pytest.mark.parametrize(
    ("bias_dtype", "out_dtype"),
    [(None, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)],
)
def test_dequant_mm(a_format: Any, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, prepared: bool) -> None:
    launch, operands, weight = case(a_format, bias_dtype, out_dtype, prepared)
    assert isinstance(launch.vendor, Vendor)
    assert launch.vendor.dtypes == (torch.bfloat16, out_dtype, bias_dtype)
    for _ in range(2):
        launch(operands)
        assert judge(operands.out, operands.a, weight, bias=operands.bias, a_format=a_format).passed
        operands.out.fill_(torch.nan)


@pytest.mark.parametrize(
    ("bias_dtype", "out_dtype"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (None, torch.float16)],
)
def test_what_the_library_does_not_add_or_write_is_torchs(
    bias_dtype: torch.dtype | None, out_dtype: torch.dtype
) -> None:
    launch, operands, weight = case("e2m1", bias_dtype, out_dtype, False)
    assert launch.vendor is None
    launch(operands)
    assert launch.program(operands) is None
    assert judge(operands.out, operands.a, weight, bias=operands.bias).passed


def test_a_library_that_refuses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Vendor, "refuses", True)
    launch, operands, weight = case("e2m1", None, torch.bfloat16, False)
    for _ in range(2):
        launch(operands)
        assert judge(operands.out, operands.a, weight).passed
    assert launch.vendor is None
    assert launch.program(operands) is None


class Replayed:
    """Programs as C runs them: kernels by Triton's interpreter and products, on what lies at the addresses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[tuple[Any, tuple[Tensor, ...]]] = []
        replayed = self

        def last_step(self: Last, device: torch.device, *places: Place) -> KernelStep:
            replayed.launches.append((self, ()))
            patches = tuple((8 * i, place) for i, place in enumerate(places))
            return KernelStep(len(replayed.launches), (1, 1, 1), (32, 1, 1), 0, bytes(128), patches)

        monkeypatch.setattr(Last, "step", last_step, raising=False)

        def step(self: Launcher, tensors: tuple[Tensor, ...], places: tuple[Place, ...]) -> KernelStep:
            assert len(tensors) == len(places)
            replayed.launches.append((self, tuple(tensors)))
            patches = tuple((8 * i, place) for i, place in enumerate(places))
            return KernelStep(len(replayed.launches), (1, 1, 1), (32, 1, 1), 0, bytes(128), patches)

        monkeypatch.setattr(Launcher, "step", step)

    def __call__(self, program: Program, operands: Operands) -> None:
        scratch = torch.full((program.scratch_bytes,), 255, dtype=torch.uint8)
        brought = {A: operands.a, BIAS: operands.bias, OUT: operands.out, SCRATCH: scratch}
        begins = {slot.slot: 0 if tensor is None else tensor.data_ptr() for slot, tensor in brought.items()}
        begins[FIXED] = 0

        def address(place: Place | None) -> int:
            return 0 if place is None else begins[place.slot] + place.add

        for step in program.steps:
            if isinstance(step, ProductStep):
                places = step.a, step.b, step.b_scale, step.bias, step.out, step.memory
                assert step.memory.add + step.memory_bytes <= program.scratch_bytes
                multiply(step, *map(address, places), 0)
                continue
            launcher, tensors = self.launches[step.function - 1]
            if isinstance(launcher, Last):
                launcher(None, *(address(place) for _, place in step.places))
                continue
            moved = []
            for tensor, (_, place) in zip(tensors, step.places, strict=True):
                memory = at(address(place), (extent(tensor)[1] - extent(tensor)[0],), torch.uint8)
                moved.append(torch.empty(0, dtype=tensor.dtype).set_(memory.view(tensor.dtype).untyped_storage()))
                moved[-1] = moved[-1].as_strided(tensor.shape, tensor.stride())
            launcher(*moved)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("a_format", ["bf16", "e2m1"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_what_c_is_told(a_format: str, prepared: bool, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replayed(monkeypatch)
    launch, operands, _ = case(a_format, torch.bfloat16 if with_bias else None, torch.bfloat16, prepared)
    assert launch.program(operands) is None  # nothing has been launched yet
    launch(operands)
    program = launch.program(operands)
    assert program is not None
    assert program.fits()
    assert len(program.steps) == 1 + (a_format != "bf16" or not prepared)
    other = operands._replace(a=torch.randn_like(operands.a), out=torch.full_like(operands.out, torch.nan))
    replay(program, other)
    launch(operands._replace(a=other.a))
    assert torch.equal(other.out, operands.out)


@pytest.mark.parametrize("chain", [dequant_mm, fold_chain])
def test_a_product_that_needs_no_library(chain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes the product's place; scratch is what it was, and what its arguments point to is kept."""
    Replayed(monkeypatch)
    if chain is dequant_mm:
        launch, operands, _ = case("e2m1", None, torch.bfloat16, False)
    else:
        weight = mxgemm.quantize(torch.randn(N, K))
        _, _, _, kind, derived = weight.prepare("sm_90").operand()
        strides = contiguous_strides(N, K, E2M1, K // BLOCK)
        p = Problem.of(M, N, K, KNOWN_MACHINES["sm_90"], derived=kind, a_dtype=torch.float32, strides=strides)
        launch = fold_chain.FoldChain(p)
        out = torch.empty(M, N, dtype=torch.bfloat16)
        operands = Operands(torch.randn(M, K), None, weight.data, weight.scales, None, out, derived)
    launch(operands)
    asked = launch.program(operands)
    (at,) = (i for i, step in enumerate(asked.steps) if isinstance(step, ProductStep))
    kernel = KernelStep(77, (1, 1, 1), (384, 1, 1), 0, bytes(1720), ())

    def product_kernel(product: Any, step: ProductStep, device: torch.device) -> KernelStep:
        assert product is launch.vendor
        assert replace(step, owner=None) == replace(asked.steps[at], owner=None)
        return kernel

    monkeypatch.setattr(chain, "product_kernel", product_kernel)
    found = launch.program(operands)
    assert found.steps[at] is kernel
    assert len(found.steps) == len(asked.steps)
    assert (found.scratch_bytes, found.owned) == (asked.scratch_bytes, asked.owned)
    assert found.fits()


@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("finishes_last", [True, False])
@pytest.mark.parametrize(
    ("n", "bias_dtype", "out_dtype", "strided", "direct"),
    [
        (48, None, torch.bfloat16, False, True),
        (48, torch.bfloat16, torch.bfloat16, False, True),
        (48, torch.float32, torch.bfloat16, False, False),
        (48, torch.bfloat16, torch.bfloat16, True, False),
        (40, None, torch.bfloat16, False, False),
        (40, torch.bfloat16, torch.float32, True, False),
    ],
)
def test_what_c_is_told_of_fp8_fold(
    n: int, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, strided: bool, direct: bool, finishes_last: bool,
    memory: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    replay = Replayed(monkeypatch)
    if not finishes_last:
        monkeypatch.setattr(fold_chain, "_FEW_A_UNIT", 0)
    weight = mxgemm.quantize(torch.randn(n, K))
    form = weight.prepare("sm_90", memory=memory)
    _, _, _, kind, derived = form.operand()
    strides = contiguous_strides(n, K, E2M1, K // BLOCK)
    strides = replace(strides, out=(2 * n, 1)) if strided else strides
    p = Problem.of(
        M, n, K, KNOWN_MACHINES["sm_90"], out_dtype=out_dtype, derived=kind, has_bias=bias_dtype is not None,
        bias_dtype=bias_dtype or torch.float32, a_dtype=torch.float32, strides=strides,
    )  # fmt: skip
    bias = None if bias_dtype is None else torch.randn(n).to(bias_dtype)
    a, out = torch.randn(M, K), torch.full((M, 2 * n), torch.nan, dtype=out_dtype)  # bf16 is quantised by PTX
    a[1, :32] *= 2.0**20  # a row that does not fold
    out = out[:, :n] if strided else torch.full((M, n), torch.nan, dtype=out_dtype)
    operands = Operands(a, None, weight.data, weight.scales, bias, out, derived)
    chain = fold_chain.FoldChain(p)
    chain(operands)
    assert judge(out, a, weight, bias=bias).passed
    program = chain.program(operands)
    assert program is not None
    assert program.fits()
    assert len(program.steps) == 3 + (not direct and not finishes_last)
    again = torch.full((M, 2 * n), torch.nan, dtype=out_dtype)
    again = again[:, :n] if strided else torch.full((M, n), torch.nan, dtype=out_dtype)
    replay(program, operands._replace(out=again))
    assert torch.equal(again, out)


@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize(
    ("n", "bias_dtype", "out_dtype", "strided", "in_place"),
    [
        (48, None, torch.bfloat16, False, True),
        (48, None, torch.float32, False, True),
        (48, torch.bfloat16, torch.bfloat16, False, False),
        (48, None, torch.float16, False, False),
        (48, torch.float32, torch.bfloat16, True, False),
        (40, None, torch.bfloat16, False, False),
        (40, torch.bfloat16, torch.float32, True, False),
    ],
)
def test_a_last_launch_that_applies_bases(
    n: int, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, strided: bool, in_place: bool, memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The library is asked for a product without bases, by its place, from Python and for C."""
    replay = Replayed(monkeypatch)
    chain, operands, weight = plain(n, bias_dtype, out_dtype, strided, memory)
    assert chain.program(operands) is None  # nothing has been launched yet
    chain(operands)
    assert chain.in_place is in_place
    assert isinstance(chain.vendor, Vendor)
    wide = out_dtype == torch.float16 or bias_dtype is not None
    assert chain.vendor.dtypes == (torch.float8_e4m3fn, torch.float32 if wide else out_dtype, None)
    assert (chain.vendor.bases, chain.vendor.place, chain.vendor.fast) == (False, 3, False)
    assert judge(operands.out, operands.a, weight, bias=operands.bias).passed
    program = chain.program(operands)
    assert program is not None
    assert program.fits()
    assert len(program.steps) == 3
    assert isinstance(program.steps[1], ProductStep)
    again = operands._replace(out=torch.full_like(operands.out, torch.nan))
    if strided:
        again = operands._replace(out=torch.full((M, 2 * n), torch.nan, dtype=out_dtype)[:, :n])
    replay(program, again)
    assert torch.equal(again.out, operands.out)


def test_torch_multiplies_without_bases_where_the_library_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Vendor, "refuses", True)
    said: list[str] = []
    monkeypatch.setattr(fold_plain, "say_once", said.append)
    chain, operands, weight = plain(48, torch.bfloat16, torch.bfloat16, False, "fast")
    for _ in range(2):
        chain(operands)
        assert judge(operands.out, operands.a, weight, bias=operands.bias).passed
        operands.out.fill_(torch.nan)
    assert said == ["fp8_fold multiplies through torch: cublasLt: it has no algorithm for this product"]
    assert chain.vendor is None
    assert chain.program(operands) is None


def plain(
    n: int, bias_dtype: torch.dtype | None, out_dtype: torch.dtype, strided: bool, memory: Any
) -> tuple[fold_plain.PlainFoldChain, Operands, mxgemm.MXTensor]:
    """Return the chain of a problem, its operands, of which one row does not fold, and the weight."""
    weight = mxgemm.quantize(torch.randn(n, K))
    _, _, _, kind, derived = weight.prepare("sm_90", memory=memory).operand()
    strides = contiguous_strides(n, K, E2M1, K // BLOCK)
    p = Problem.of(
        M, n, K, KNOWN_MACHINES["sm_90"], out_dtype=out_dtype, derived=kind, has_bias=bias_dtype is not None,
        bias_dtype=bias_dtype or torch.float32, a_dtype=torch.float32,
        strides=replace(strides, out=(2 * n, 1)) if strided else strides,
    )  # fmt: skip
    bias = None if bias_dtype is None else torch.randn(n).to(bias_dtype)
    a, out = torch.randn(M, K), torch.full((M, 2 * n if strided else n), torch.nan, dtype=out_dtype)
    a[1, 32:] *= 2.0**-20
    return (
        fold_plain.PlainFoldChain(p, 3),
        Operands(a, None, weight.data, weight.scales, bias, out[:, :n], derived),
        weight,
    )
