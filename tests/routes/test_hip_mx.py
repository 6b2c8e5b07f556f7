"""Route hip_mx without a GPU: what it refuses and why, when it is chosen, what it launches, what it compiles to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evidence.cross_compile import problem_of
from evidence.loop_table import DOCUMENT, committed_rows, hip_rows, markdown_of
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip import build, loaded, mx
from mxgemm.hip.kernarg import Layout
from mxgemm.hip.mx import MXConfig
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands
from mxgemm.routes import hip_mx as hip_mx_module
from mxgemm.routes.quant_gemm_mx import quantized_problem
from mxgemm.routing import router
from tests.emulator import require_hip_compiler
from tests.routes.changed_problem import changed
from tests.routes.test_hip_fused import Recorder

ROUTE = ROUTES["hip_mx"]
PREPARED = {"weight_layout": "preshuffled", "scale_layout": "shuffled"}


def problem(m: int = 1024, n: int = 7168, k: int = 2048, *, quantized: bool = True, **options: Any) -> Problem:
    made = problem_of(m, n, k, "gfx950", **PREPARED)
    return changed(quantized_problem(made) if quantized else made, **options)


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: there is a compiler, and a Triton to quantise with."""
    monkeypatch.setattr(build, "compiler_refusal", lambda arch: None)
    monkeypatch.setattr(hip_mx_module, "triton_missing", lambda machine, dot: None)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("arch", {"machine": KNOWN_MACHINES["gfx942"]}),
        ("a_format", {"a_format": "e4m3"}),
        ("a_format", {"a_format": "bf16", "quantized": False}),
        ("a_scale_layout", {"a_scale_layout": "row_major"}),
        ("b.format", {"b_format": "e4m3"}),
        ("weight_layout", {"weight_layout": "row_major"}),
        ("scale_layout", {"scale_layout": "row_major", "quantized": False}),
        ("n", {"n": 2120}),
        ("k", {"k": 2880}),
        ("alignment", {"aligned": False}),
        ("bias.dtype", {"has_bias": True, "bias_dtype": torch.float64}),
        ("stride of bias", {"has_bias": True, "bias_stride": 2}),
        ("strides of a", {"a_stride": (1032, 1)}),
        ("strides of a", {"a_stride": (1, 16)}),
        ("strides of out", {"out_stride": (7170, 1)}),
        ("strides of b", {"b_stride": (7168, 1)}),
        ("strides of a_scales", {"a_scales_stride": (128, 1)}),
        ("strides of a", {"a_stride": (1 << 25, 1)}),
        ("m", {"m": 1 << 31, "n": 16, "k": 128}),
        ("k", {"m": 1, "k": 1 << 24}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, Any]) -> None:
    refusal = ROUTE.refusal(problem(**options))
    assert refusal is not None
    assert refusal.field == field, refusal


@pytest.mark.parametrize(
    "options",
    [
        {"m": 1, "a_stride": (3, 1), "out_stride": (1, 1)},  # of a single row, strides mean nothing
        {"a_stride": (1040, 1), "out_stride": (7172, 1)},
        {"quantized": False, "a_dtype": torch.float32, "a_stride": (1, 3)},  # the launch before reads it
        {"has_bias": True, "bias_dtype": torch.float16, "out_dtype": torch.float32},
        {"m": 5, "n": 16, "k": 128},
    ],
)
def test_what_it_takes(options: dict[str, Any]) -> None:
    assert ROUTE.refusal(problem(**options)) is None


@pytest.mark.parametrize(
    ("field", "config"),
    [("block_m", MXConfig(block_m=64)), ("block_n", MXConfig(block_n=512)), ("run", MXConfig(run=0))],
)
def test_illegal_configurations(field: str, config: MXConfig) -> None:
    refusal = ROUTE.check_config(problem(), config)
    assert refusal is not None
    assert refusal.field == field


@pytest.mark.parametrize(
    ("size", "config"),
    [
        ((8192, 8192, 8192), MXConfig(256, 256)),
        ((1024, 7168, 2048), MXConfig(256, 128)),  # 112 of 256 x 256 would leave half of the CUs idle
        ((256, 3072, 1536), MXConfig(128, 128)),
    ],
    ids=str,
)
def test_the_block_that_keeps_most_of_the_gpu_busy(size: tuple[int, int, int], config: MXConfig) -> None:
    for quantized in (True, False):
        wanted = problem(*size, quantized=quantized)
        assert ROUTE.configs(wanted) == [config]
        found = ROUTE.candidates(wanted)
        assert len(found) == len(set(found)) == 12
        assert all(ROUTE.check_config(wanted, c) is None for c in found)


def test_it_is_chosen_by_name_only() -> None:
    for m in (1, 64, 1024, 8192):
        wanted = problem(m, quantized=False)
        assert router.choose(wanted, tables=()).route.name != "hip_mx"
        assert router.choose(wanted, route="hip_mx", tables=()).route.name == "hip_mx"


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_launch(monkeypatch: pytest.MonkeyPatch, with_bias: bool) -> None:
    recorder = Recorder()
    monkeypatch.setattr(loaded, "module", recorder.module)
    built: list[Any] = []
    monkeypatch.setattr(build, "build", lambda source, **options: built.append((source, options)))
    wanted = problem(300, 272, 512, has_bias=with_bias, a_stride=(272, 1), out_stride=(288, 1))
    config = MXConfig(128, 256, 4)
    launch = ROUTE.bind(wanted, config)
    assert built == [(mx.SOURCE, {"arch": "gfx950", "defines": mx.defines(wanted, config)})]
    a, a_scales, b, scales, bias, out = (torch.empty(4) for _ in range(6))
    for _ in range(2):
        launch(Operands(a, a_scales, b, scales, bias if with_bias else None, out))
    (arguments, defines), name, *launches = recorder.asked
    assert (arguments, defines, name) == ((mx.SOURCE, a.device), mx.defines(wanted, config), mx.KERNEL)
    pointers = [t.data_ptr() for t in (a, a_scales, b, scales, bias, out)]
    if not with_bias:
        pointers[4] = 0
    assert launches == [((6, 1, 1), (512, 1, 1), Layout("PPPPPPIII").pack(*pointers, 300, 272, 576))] * 2


def test_a_row_behind_a_single_one_is_not_stored() -> None:
    """Its address has to lie behind the end of C."""
    assert mx.row_bytes(problem(1, 48, 256, out_stride=(0, 1))) == (0, 96)


def test_the_source_agrees_with_its_host() -> None:
    source = (Path(mx.__file__).parent / "kernels" / mx.SOURCE).read_text(encoding="utf-8")
    for macro in mx.defines(problem(has_bias=True), MXConfig()):
        assert macro in source
    assert "WAVES_M = 2, WAVES_N = 4" in source
    assert f"void {mx.KERNEL}(" in source


def test_machine_code() -> None:
    """The matrix unit has most to do in a step of the large block; no spill, no instruction on the way of its loads."""
    require_hip_compiler()
    rows = list(hip_rows())
    for row in rows:
        c, cu = MXConfig(row["block_m"], row["block_n"]), row["of_a_cu"]
        assert (row["scratch"], row["loop"]["counts"].get("valu", 0)) == (0, 0), row
        share = c.block_m * c.block_n / 65536
        assert mx.step_cycles(c) == round(share * max(cu["matrix"], cu["l1"], cu["lds"])), row
    large = rows[0]
    assert large["vgprs"] <= 256
    assert large["of_a_cu"]["matrix"] == 2048 > max(large["of_a_cu"][name] for name in ("issue", "l1", "lds"))
    committed = [row for row in committed_rows() if row["kernel"] == "hip_mx"]
    for row, before in zip(rows, committed, strict=True):
        assert row["loop"]["counts"]["mfma"] == before["loop"]["counts"]["mfma"]
        assert abs(row["of_a_cu"]["issue"] / before["of_a_cu"]["issue"] - 1) < 0.1, "evidence/loop_table.py -o"


def test_committed_rows_are_in_the_page() -> None:
    page = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert {row["kernel"].split(",")[0] for row in committed_rows()} == {"hip_mx", "gemm_mx", "AITER f4gemm"}
    for row in committed_rows():
        assert markdown_of(row) in page, "evidence/loop_table.py --markdown"
