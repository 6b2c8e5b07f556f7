"""Route ``bridge``: which kernel a problem is, and its result by the kernel's source and by whole libraries.

No AMD GPU is here. A double takes the library's place, with its guards and, in Triton's interpreter, its kernel; whole
libraries run in the gfx950 emulator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import mxgemm
from gfx950emu.hip_runtime import EmulatedHip
from mxgemm import ABBlock, ABlock, BBlock, QuantTensor, RouteUnavailable, RowCol, TensorWise
from mxgemm.device import KNOWN_MACHINES
from mxgemm.dispatcher import Call, Inputs, KernelConfig, operation_of
from mxgemm.dispatcher.execution import RUNTIME_VARIABLE
from mxgemm.dispatcher.jit import run_config
from mxgemm.dispatcher.native import argument_table
from mxgemm.dispatcher.operands import Operands, gather
from mxgemm.dispatcher.several import FIELDS, OUTPUT_WORD, gather_several
from mxgemm.scaled import bridge, plan, table
from mxgemm.scaled.bridge_kernels import kernel_of
from mxgemm.scaled.schemes import Scheme
from tests.cases import skip_without_kernels
from tests.dispatcher import native_libraries
from tests.dispatcher.native_libraries import built, description, environment, shared_cache
from tests.emulator import require_objdump
from tests.scaled.cases import Case, ids, make, worth
from tests.scaled.test_choice import problem

Pair = tuple[Scheme, str, str]
GFX942 = KNOWN_MACHINES["gfx942"]
TAKEN: tuple[Pair, ...] = (
    (TensorWise(), "e4m3", "e4m3"),
    (RowCol(), "e5m2", "e5m2"),
    (ABlock(128), "e4m3", "e4m3"),
    (ABlock(64), "e5m2", "e5m2"),
    (ABlock(128), "int4", "e4m3"),
    (ABlock(32), "int4", "e5m2"),
    (ABBlock(128, 128, 128), "e4m3", "e4m3"),
    (ABBlock(64, 1, 64), "e5m2", "e5m2"),
    (ABBlock(128, 128, 128), "e2m1", "e2m1"),
    (BBlock(1, 128), "e4m3", "e4m3"),
    (BBlock(48, 64), "e5m2", "e5m2"),
    (BBlock(1, 128), "e4m3", "int4"),
    (BBlock(16, 32), "e5m2", "int4"),
    (BBlock(1, 32, "e8m0"), "bf16", "bf16"),
    (BBlock(1, 128, "e8m0"), "bf16", "e5m2"),
    (BBlock(4, 32, "e8m0"), "bf16", "e2m1"),
)
"""A scheme with the formats of each variant of the bridge's operations."""
QUICK = (1, 4, 6, 15)
PRODUCTS = [pytest.param(pair, marks=() if i in QUICK else pytest.mark.slow) for i, pair in enumerate(TAKEN)]


def case_of(pair: Pair, m: int, n: int, k: int, seed: int = 0) -> Case:
    """Draw a case that stays within fp16, with int4's scales in the other operand's type."""
    case = make(pair, m, n, k, seed=seed, scale=pair[2] if pair[1] == "int4" else pair[1])
    if isinstance(case.a, QuantTensor) and isinstance(case.b, QuantTensor):
        a = QuantTensor(case.a.data, case.a.scales / 64, case.a.format)
        return dataclasses.replace(case, a=a, a64=worth(a, pair[1], pair[0], "a"))
    return case


def dtype_of(pair: Pair) -> torch.dtype:
    return torch.bfloat16 if pair[0].b_powers else torch.float16


class Interpreted:
    """A library of the bridge whose kernel runs in Triton's interpreter."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    def run(self, *operands: Any, timed: bool) -> None:
        assert not timed
        self._run(gather(operation_of(self.config), self.config, "gfx950", *operands, 1))

    def run_several(self, calls: Sequence[Call], *, timed: bool) -> None:
        assert not timed
        for operands in gather_several(operation_of(self.config), self.config, "gfx950", calls):
            self._run(operands)

    def _run(self, operands: Operands) -> None:
        a, b, c, a_scales, b_scales = operands.keep
        arrays = (_array(tensor) for tensor in (a, b, a_scales, b_scales))
        one = dataclasses.replace(self.config, several=False)
        found = torch.from_numpy(run_config(one, Inputs(operands.problem, *arrays), torch.device("cpu")))
        c.copy_(found.view(c.dtype))


def _array(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.fixture
def gfx950(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that ``quant_gemm`` sees."""
    for module in (plan, table):
        monkeypatch.setattr(module, "machine_of", lambda device: KNOWN_MACHINES["gfx950"])
    monkeypatch.setattr(plan, "_plans", {})
    return None


@pytest.fixture
def asked(gfx950: None, monkeypatch: pytest.MonkeyPatch) -> list[KernelConfig]:
    """Libraries that are asked for, each a double."""
    skip_without_kernels("cpu")
    found: list[KernelConfig] = []

    def library_of(config: KernelConfig) -> Interpreted:
        found.append(config)
        return Interpreted(config)

    monkeypatch.setattr(bridge, "library_of", library_of)
    return found


@pytest.mark.parametrize("pair", PRODUCTS, ids=ids)
def test_products(pair: Pair, asked: list[KernelConfig]) -> None:
    """Off the tile, over several groups of K and of N, into a strided output."""
    m, n, k = 17, 136 if pair[0].b_group[0] == 128 else 72, 160
    case = case_of(pair, m, n, k)
    out = torch.full((m, 2 * n), torch.nan, dtype=dtype_of(pair))[:, ::2]
    mxgemm.quant_gemm(case.a, case.b, scheme=pair[0], out=out, out_dtype=dtype_of(pair), route="bridge")
    case.check(out)
    (config,) = asked
    assert config.operation == pair[0].name
    assert config.arch == "gfx950"
    assert config.layout == "rcr"


@pytest.mark.parametrize("layout", ["rrr", "crr", "ccr"])
def test_orders_of_memory(layout: str, asked: list[KernelConfig]) -> None:
    """A as ``[K, M]``, B as ``[K, N]``, and scales whose rows lie along memory's fast dimension."""
    pair = (ABlock(128), "e4m3", "e4m3")
    case = case_of(pair, 34, 72, 160)
    assert isinstance(case.a, QuantTensor)
    assert isinstance(case.b, torch.Tensor)
    a = case.a.data.t().contiguous().t() if layout[0] == "c" else case.a.data
    b = case.b.t().contiguous().t() if layout[1] == "r" else case.b
    left = QuantTensor(a, case.a.scales.t().contiguous().t())
    case.check(mxgemm.quant_gemm(left, b, scheme=pair[0], out_dtype=torch.float16, route="bridge"))
    assert [config.layout for config in asked] == [layout]


@pytest.mark.parametrize("pair", [TAKEN[1], TAKEN[6], TAKEN[15]], ids=ids)
def test_problems_of_their_own_sizes(pair: Pair, asked: list[KernelConfig]) -> None:
    """One launch for all, empty ones and one without K among them."""
    sizes = ((5, 40, 64), (0, 16, 96), (17, 70, 160), (1, 1, 32), (2, 3, 0))
    cases = [case_of(pair, *size, seed=at) for at, size in enumerate(sizes)]
    dtype = dtype_of(pair)
    outs = [torch.full((m, n), torch.nan, dtype=dtype) for m, n, _ in sizes]
    a, b = [case.a for case in cases], [case.b for case in cases]
    given = mxgemm.quant_gemm_grouped(a, b, scheme=pair[0], out=outs, out_dtype=dtype, route="bridge")
    made = mxgemm.quant_gemm_grouped(a, b, scheme=pair[0], out_dtype=dtype, route="bridge")
    assert len(asked) == 2
    assert asked[0].several
    for case, size, first, second in zip(cases, sizes, given, made, strict=True):
        assert torch.equal(first, second)
        assert tuple(first.shape) == size[:2]
        if size[2] and size[0]:
            case.check(first)
        else:
            assert first.eq(0).all()


def test_problems_in_different_orders_are_launched_one_by_one(asked: list[KernelConfig]) -> None:
    pair = (ABlock(128), "e4m3", "e4m3")
    cases = [case_of(pair, 3, 8, 64, seed=at) for at in range(2)]
    assert isinstance(cases[1].b, torch.Tensor)
    turned = cases[1].b.t().contiguous().t()
    outs = mxgemm.quant_gemm_grouped(
        [case.a for case in cases], [cases[0].b, turned], scheme=pair[0], out_dtype=torch.float16, route="bridge"
    )
    assert [(config.layout, config.several) for config in asked] == [("rcr", False), ("rrr", False)]
    for case, out in zip(cases, outs, strict=True):
        case.check(out)


@pytest.mark.parametrize(
    "scheme, sizes, given, reason",
    [
        ("abquant", [64, 128, 128], {}, "aquant_group_k: got 64, want bquant_group_k = 128"),
        ("abquant", [128, 64, 128], {}, "bquant_group_n: got 64, want 1 or 128 for fp8"),
        ("abquant", [128, 1, 128], {"a": "e2m1", "b": "e2m1"}, "bquant_group_n: got 1, want 128 for fp4"),
        ("aquant", [96], {}, "tile_k: got 256, want a multiple of quant_group_k = 96"),
        ("aquant", [1024], {}, "tile_k: got 256, want a multiple of quant_group_k = 1024"),
        ("bquant", [1, 512], {"arch": "gfx942", "a": "e5m2fnuz", "b": "e5m2fnuz"}, "tile_k: got 256"),
        ("aquant", [128], {"b": "e5m2"}, "formats is e4m3 by e5m2; needs what aquant of the bridge has"),
        ("aquant", [128], {"a": "e4m3fnuz", "b": "e4m3fnuz"}, "needs OCP fp8 types on gfx950"),
        ("aquant", [128], {"a": "int4"}, "a.scales is fp32; needs e4m3 (fp8i4 of the bridge)"),
        ("bquant_e8m0", [1, 32], {"a": "bf16"}, "formats is bf16 by e4m3; needs what bquant of the bridge has"),
        ("bquant_e8m0", [1, 32], {"a": "bf16", "b": "e2m1"}, "needs torch.bfloat16 (mx_bf16fp4 of bquant)"),
        ("bquant_e8m0", [1, 32], {"a": "bf16", "b": "e2m1", "arch": "gfx942"}, "formats is bf16 by e2m1"),
        ("rowcolquant", [], {"arch": "gfx942"}, "needs FNUZ fp8 types on gfx942"),
    ],
)
def test_what_the_bridge_has_no_kernel_of(scheme: str, sizes: list[int], given: dict[str, str], reason: str) -> None:
    found = problem(scheme, sizes, 16, **({"arch": "gfx950"} | given))
    if "torch.bfloat16" not in reason:
        dtype = torch.bfloat16 if found.scheme.b_powers else torch.float16
        found = dataclasses.replace(found, options=found.options._replace(out_dtype=dtype))
    else:
        found = dataclasses.replace(found, options=found.options._replace(out_dtype=torch.float16), b_scale="e8m0")
    assert reason in str(bridge.Bridge().refusal(found))


def test_a_long_group_makes_the_tile_deeper() -> None:
    for scheme, sizes, depth in (("aquant", [512], 512), ("abquant", [256, 128, 256], 256), ("bquant", [1, 64], 256)):
        found = problem(scheme, sizes, 16, arch="gfx950")
        config = kernel_of(dataclasses.replace(found, options=found.options._replace(out_dtype=torch.float16)))
        assert isinstance(config, KernelConfig)
        assert config.tile_k == depth


def test_operands_that_no_kernel_reads(gfx950: None) -> None:
    pair = (ABlock(128), "e4m3", "e4m3")
    case = case_of(pair, 4, 8, 64)
    assert isinstance(case.a, QuantTensor)
    assert isinstance(case.b, torch.Tensor)
    wide = torch.zeros(8, 128, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, ::2]
    odd = QuantTensor(case.a.data[:, :48].contiguous(), case.a.scales)
    abquant = QuantTensor(case.b.t().contiguous().t(), torch.ones(1, 1))
    offsets = torch.tensor([4], dtype=torch.int32)
    calls: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("b.strides", lambda: _call(case.a, wide, pair[0])),
        ("k is 48; needs a multiple of 32", lambda: _call(odd, case.b[:, :48].contiguous(), pair[0])),
        ("layout is rrr; needs rcr, those of abquant", lambda: _call(case.a, abquant, ABBlock())),
        ("out_dtype is torch.bfloat16", lambda: _call(case.a, case.b, pair[0], out_dtype=torch.bfloat16)),
        ("bias is torch.float32; needs none", lambda: _call(case.a, case.b, pair[0], bias=torch.zeros(8))),
        (
            "groups is 1; needs one problem",
            lambda: mxgemm.quant_gemm_grouped(
                case.a, case.b[None], offsets, scheme=pair[0], out_dtype=torch.float16, route="bridge"
            ),
        ),
    )
    for reason, call in calls:
        with pytest.raises(RouteUnavailable, match=reason):
            call()


def _call(a: Any, b: Any, scheme: Scheme, **options: Any) -> torch.Tensor:
    return mxgemm.quant_gemm(a, b, scheme=scheme, **({"out_dtype": torch.float16, "route": "bridge"} | options))


def test_the_fnuz_types_of_gfx942() -> None:
    found = problem("rowcolquant", [], 16, a="e5m2fnuz", b="e5m2fnuz", arch="gfx942")
    found = dataclasses.replace(found, options=found.options._replace(out_dtype=torch.float16))
    config = kernel_of(found)
    assert isinstance(config, KernelConfig)
    assert (config.dtype, config.arch, config.warp_tile_k) == ("bf8", "gfx942", 32)
    int4 = problem("aquant", [128], 16, a="int4", b="e4m3fnuz", arch="gfx942")
    assert "FNUZ fp8 on gfx942" in str(kernel_of(dataclasses.replace(int4, a_scale="e4m3")))


@pytest.mark.slow
@pytest.mark.parametrize("several, at", [(False, 2), (True, 4), (True, 9), (True, 11)])
def test_whole_libraries_in_the_emulator(
    several: bool, at: int, gfx950: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From ``quant_gemm`` to a code object: the library is built, loaded and launched as on a GPU."""
    require_objdump()
    pair = TAKEN[at]
    cases = [case_of(pair, *size) for size in ((33, 72, 288), (1, 1, 32), (5, 64, 256))]
    found = problem(pair[0].name, list(pair[0].groups), 33, arch="gfx950", a=pair[1], b=pair[2])
    stored = {"a_scale": "e4m3"} if pair[1] == "int4" else {"b_scale": "e4m3"} if pair[2] == "int4" else {}
    options = found.options._replace(out_dtype=torch.float16)
    config = kernel_of(dataclasses.replace(found, options=options, **stored), several=several)
    assert isinstance(config, KernelConfig)
    monkeypatch.setitem(native_libraries.CONFIGS, "bridge", (config, "gfx950"))
    path = built("bridge", tmp_path_factory)
    monkeypatch.setattr(bridge, "_libraries", {})
    runtime: Path = EmulatedHip.build(tmp_path_factory.mktemp("hip")).path
    hip = EmulatedHip(runtime)
    layout = argument_table(description(path)["variants"][0])
    if several:
        hip.emulate_several(layout, outputs=(OUTPUT_WORD,), fields=FIELDS, strict=True)
    else:
        hip.emulate(layout, strict=True)
    cache = str(shared_cache(tmp_path_factory))
    said: dict[str, Any] = {"scheme": pair[0], "out_dtype": torch.float16, "route": "bridge"}
    with environment(**{RUNTIME_VARIABLE: str(runtime), "MXGEMM_CACHE": cache}):
        library = bridge.library_of(config)
        library.close()  # another test may have a runtime open
        assert library.path == path
        if several:
            outs = mxgemm.quant_gemm_grouped([c.a for c in cases], [c.b for c in cases], **said)
        else:
            outs = [mxgemm.quant_gemm(case.a, case.b, **said) for case in cases]
        library.close()
    assert len(hip.launches) == (1 if several else len(cases))
    for case, out in zip(cases, outs, strict=True):
        case.check(out)
