"""Route hip_fused without a GPU: what it refuses and why, when it is chosen, what it launches, what it compiles to."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evidence import hip_compile
from evidence.cross_compile import problem_of
from evidence.hip_isa import DOCUMENT, RESULTS, figures_of, markdown_of, row_of
from mxgemm.device import KNOWN_MACHINES
from mxgemm.errors import Refusal, RouteUnavailable
from mxgemm.hip import build, fused, loaded
from mxgemm.hip.fused import FusedConfig, fused_refusal
from mxgemm.hip.fused_choice import candidates
from mxgemm.hip.kernarg import Layout
from mxgemm.measure import LEADERBOARD
from mxgemm.problem import Problem
from mxgemm.routes import ROUTES, Operands
from mxgemm.routing import router, tables
from tests.emulator import require_hip_compiler
from tests.routes.changed_problem import changed

ROUTE = ROUTES["hip_fused"]
KERNELS = Path(fused.__file__).parent / "kernels"
PREPARED = {"weight_layout": "preshuffled", "scale_layout": "shuffled"}


def problem(m: int = 16, n: int = 2112, k: int = 7168, **options: Any) -> Problem:
    return changed(problem_of(m, n, k, "gfx950", **PREPARED), **options)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: there is a compiler unless a test says otherwise."""
    monkeypatch.setattr(build, "compiler_refusal", lambda arch: None)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("arch", {"machine": KNOWN_MACHINES["gfx942"]}),
        ("a", {"a_quantized": True}),
        ("a_format", {"a_format": "e4m3"}),
        ("a.dtype", {"a_dtype": torch.float16}),
        ("b.format", {"b_format": "e4m3"}),
        ("weight_layout", {"weight_layout": "row_major"}),
        ("scale_layout", {"scale_layout": "row_major"}),
        ("n", {"n": 2120}),
        ("k", {"k": 2880}),
        ("alignment", {"aligned": False}),
        ("bias.dtype", {"has_bias": True, "bias_dtype": torch.float64}),
        ("stride of bias", {"has_bias": True, "bias_stride": 2}),
        ("strides of a", {"a_stride": (7172, 1)}),
        ("strides of a", {"a_stride": (1, 16)}),
        ("strides of out", {"out_stride": (2114, 1)}),
        ("strides of out", {"out_stride": (1, 16)}),
        ("strides of b", {"b_stride": (7168, 1)}),
        ("m", {"m": 65536 * 64}),
        ("strides of a", {"a_stride": (1 << 28, 1)}),
    ],
)
def test_refusals_name_the_field(field: str, options: dict[str, Any]) -> None:
    refusal = ROUTE.refusal(problem(**options))
    assert refusal is not None
    assert refusal.field == field, refusal


def test_a_missing_compiler_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        build,
        "compiler_refusal",
        lambda arch: Refusal("compiler", "missing", "one", words=f"nothing compiles for {arch}"),
    )
    assert "compiler is missing; needs nothing compiles for gfx950" in str(ROUTE.refusal(problem()))


@pytest.mark.parametrize(
    "options",
    [
        {"m": 1, "a_stride": (3, 1), "out_stride": (1, 1)},  # of a single row, strides mean nothing
        {"a_stride": (7176, 1), "out_stride": (2116, 1)},
        {"a_stride": (0, 1)},  # an expanded row
        {"has_bias": True, "bias_dtype": torch.float16, "out_dtype": torch.float32},
        {"scale_rounding": "rceil"},
    ],
)
def test_what_it_takes(options: dict[str, Any]) -> None:
    assert ROUTE.refusal(problem(**options)) is None


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("block_m", FusedConfig(block_m=48)),
        ("block_n", FusedConfig(block_n=256)),
        ("block_k", FusedConfig(block_k=512)),
        ("waves", FusedConfig(waves=0)),
        ("waves", FusedConfig(waves=17)),
        ("unroll", FusedConfig(unroll=0)),
        ("unroll", FusedConfig(waves=14, unroll=3)),
        ("lds", FusedConfig(block_n=128, block_m=64, waves=6)),
        ("split_k", FusedConfig(split_k=5)),
        ("split_k", FusedConfig(split_k=28)),
        ("waves", FusedConfig(waves=5, split_k=7)),
        ("registers", FusedConfig(block_m=64, block_n=16, unroll=2)),
    ],
)
def test_illegal_configurations(field: str, config: FusedConfig) -> None:
    refusal = ROUTE.check_config(problem(), config)
    assert refusal is not None
    assert refusal.field == field, refusal


def test_the_grid_has_its_limits() -> None:
    most = 8 * 65535 * 16
    wide = FusedConfig(block_n=16, block_k=128, waves=1)
    assert ROUTE.check_config(problem(n=most, k=128), wide) is None
    refusal = ROUTE.check_config(problem(n=most + 16, k=128), wide)
    assert refusal is not None
    assert refusal.field == "n"
    assert ROUTE.refusal(problem(n=most + 16, k=128)) is None  # by wider blocks


def test_a_step_must_divide_k() -> None:
    refusal = ROUTE.check_config(problem(k=384), FusedConfig(block_k=256, waves=1))
    assert str(refusal) == "block_k is 256; needs a divisor of K = 384"


@pytest.mark.parametrize("m", [1, 17, 64, 1000, 100_000])
@pytest.mark.parametrize("n", [16, 48, 2880, 128_000])
@pytest.mark.parametrize("k", [128, 384, 2176, 7168, 53_248])
def test_every_problem_it_takes_has_legal_candidates(m: int, n: int, k: int) -> None:
    wanted = problem(m, n, k)
    found = candidates(wanted)
    assert found
    assert len(set(found)) == len(found)
    for config in found[::9]:
        assert fused_refusal(wanted, config) is None
        assert FusedConfig.from_mapping(config.to_mapping()) == config
        x, y, z = fused.grid(wanted, config)
        z, rest = divmod(z, config.split_k)
        assert rest == 0
        assert x * z >= fused.blocks_n(wanted, config) > x * (z - 1)
        assert y * config.block_m >= m


@pytest.mark.parametrize("triton", [(3, 9), (3, 5), (3, 4), (3, 3), None], ids=str)
def test_it_is_the_default_only_where_there_is_no_triton_of_use(
    monkeypatch: pytest.MonkeyPatch, triton: tuple[int, int] | None
) -> None:
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: triton)
    for m in (1, 4, 16, 32, 64, 256, 4096):
        for n, k in ((2880, 512), (2112, 7168), (7168, 2048), (16, 128), (65536, 16384)):
            wanted = problem(m, n, k)
            assert ROUTE.refusal(wanted) is None
            chosen = router.choose(wanted, tables=())
            assert (chosen.route.name == "hip_fused") == (triton is None or triton < (3, 4)), chosen
            assert chosen.route.check_config(wanted, chosen.config) is None


def test_a_measured_row_or_its_name_chooses_it(tmp_path: Path) -> None:
    config = FusedConfig(waves=7, unroll=2)
    row = {
        "m": 16, "n": 2112, "k": 7168, "route": "hip_fused", "config": config.to_mapping(), "us": 1.0,
        "grade": "measured", "source": "t",
    }  # fmt: skip
    path = tmp_path / "gfx950.json"
    document = {
        "kind": tables.KIND, "version": 1, "arch": "gfx950", "rows": [row], "rules": [],
        "sources": {"t": {"title": "a run", "covers": "all"}},
    }  # fmt: skip
    path.write_text(json.dumps(document), encoding="utf-8")
    chosen = router.choose(problem(), tables=[path])
    assert (chosen.route.name, chosen.config) == ("hip_fused", config)
    asked = router.choose(problem(), route="hip_fused", tables=())
    assert asked.route.name == "hip_fused"
    assert asked.config == candidates(problem())[0]
    with pytest.raises(RouteUnavailable, match="weight_layout is row_major; needs preshuffled.*prepare"):
        router.choose(problem(weight_layout="row_major"), route="hip_fused", tables=())


class Recorder:
    """A module and its kernel, which remember what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def module(self, *arguments: Any, **defines: Any) -> Recorder:
        self.asked.append((arguments, defines))
        return self

    def function(self, name: str) -> Recorder:
        self.asked.append(name)
        return self

    def launch(self, *arguments: Any) -> None:
        self.asked.append(arguments)


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_launch(monkeypatch: pytest.MonkeyPatch, with_bias: bool) -> None:
    recorder = Recorder()
    monkeypatch.setattr(loaded, "module", recorder.module)
    built: list[Any] = []
    monkeypatch.setattr(build, "build", lambda source, **options: built.append((source, options)))
    wanted = problem(33, 80, 512, has_bias=with_bias, a_stride=(520, 1), out_stride=(96, 1))
    config = FusedConfig(32, 16, 128, 4, 1)
    launch = ROUTE.bind(wanted, config)
    assert built == [("fused_gemm.hip", {"arch": "gfx950", "defines": fused.defines(wanted, config)})]
    assert not recorder.asked
    a, b, scales, bias, out = (torch.empty(4) for _ in range(5))
    operands = Operands(a, None, b, scales, bias if with_bias else None, out)
    launch(operands)
    launch(operands)
    (arguments, defines), name, *launches = recorder.asked
    assert arguments == ("fused_gemm.hip", a.device)
    assert (defines, name) == (fused.defines(wanted, config), "fused_gemm")
    pointers = [t.data_ptr() for t in (a, b, scales, bias, out)]
    if not with_bias:
        pointers[3] = 0
    expected = ((8, 2, 1), (256, 1, 1), Layout("PPPPPIIIPP").pack(*pointers, 33, 1040, 192, 0, 0))
    assert launches == [expected, expected]


def test_what_tuning_measures_starts_with_the_guess() -> None:
    wanted = problem()
    measured = ROUTE.candidates(wanted)
    assert len(measured) == 48 < len(candidates(wanted))
    assert ROUTE.configs(wanted) == measured[:1]
    assert len({config.waves for config in measured}) > 3  # not variations of one idea only
    assert len({config.block_n for config in measured}) > 3
    assert {config.split_k for config in measured} >= {1, 7}


def test_macros() -> None:
    wanted = problem(has_bias=True, bias_dtype=torch.bfloat16, out_dtype=torch.float16)
    made = fused.defines(wanted, FusedConfig())
    assert made == {
        "GEMM_N": 2112, "GEMM_K": 7168, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 256, "WAVES": 4, "UNROLL": 1,
        "SPLIT_K": 1, "XCDS": 8, "SCALE_ADDEND": 0x20, "OUT_TYPE": "_Float16", "BIAS_TYPE": "__bf16",
    }  # fmt: skip
    addends = [
        fused.defines(replace(wanted, options=wanted.options._replace(scale_rounding=r)), FusedConfig())["SCALE_ADDEND"]
        for r in ("floor", "ceil", "rceil")
    ]
    assert addends == [0, 0x7F, 0x3F]


def test_the_source_agrees_with_its_host() -> None:
    source = (KERNELS / fused.SOURCE).read_text(encoding="utf-8")
    for macro in fused.defines(problem(has_bias=True), FusedConfig()):
        assert re.search(rf"\b{macro}\b", source), macro
    assert f"constexpr u32 LANES = {fused.LANES};" in source
    assert f"void {fused.KERNEL}(" in source
    for name in (
        fused.SOURCE,
        "vectors.h",
        "buffer.h",
        "fp4_block.h",
        "mfma.h",
        "quantize_bf16.h",
        "split_k.h",
    ):  # what a single-file submission takes in
        assert "stream" not in (KERNELS / name).read_text(encoding="utf-8").lower()


@pytest.fixture
def clang() -> None:
    require_hip_compiler()


def test_what_users_build(clang: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MXGEMM_CACHE", str(tmp_path))
    monkeypatch.setenv("MXGEMM_HIPCC", hip_compile.COMPILER)
    from mxgemm.hip.code_object import inspect

    wanted = problem(n=64, k=256)
    image = build.build(fused.SOURCE, arch="gfx950", defines=fused.defines(wanted, FusedConfig(waves=1)))
    info = inspect(image).kernels[fused.KERNEL]
    assert info.kernarg_bytes == Layout(fused.ARGUMENTS).size
    assert (info.max_threads, info.shared_bytes, info.scratch_bytes) == (64, 2048, 0)


def test_committed_figures_are_of_what_the_route_chooses() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert document["grade"] == "predicted"
    assert [(row["m"], row["n"], row["k"]) for row in document["rows"]] == list(LEADERBOARD)
    for row in document["rows"]:
        guess = candidates(problem(row["m"], row["n"], row["k"]))[0]
        assert row["config"] == guess.to_mapping(), "run: evidence/hip_isa.py -o bench/results/isa_hip_gfx950.json"
        assert markdown_of(row) in DOCUMENT.read_text(encoding="utf-8").splitlines(), "run it with --markdown"


@pytest.mark.parametrize("index", range(len(LEADERBOARD)), ids=lambda i: str(LEADERBOARD[i]))
def test_machine_code_of_the_leaderboard_s_shapes(index: int, clang: None) -> None:
    m, n, k = LEADERBOARD[index]
    row = row_of((m, n, k))
    c, f = FusedConfig(**row["config"]), row["figures"]
    assert (f["scratch"], f["spills"], f["other_mfma"]) == (0, 0, 0)
    assert f["lds"] == fused.lds_bytes(c)
    assert f["vgprs"] <= fused.registers_needed(problem(m, n, k), c)
    assert f["waves_per_simd"] >= -(-c.waves // 4)
    # One round holds all of a wave's steps: A's and the weight's blocks by 16 bytes, scales by 4, and nothing narrower.
    steps = k // c.block_k // c.split_k // c.waves
    tiles_m, tiles_n, tiles_k = c.block_m // 16, c.block_n // 16, c.block_k // 128
    if not f["in_loop"]:
        sums = -(-tiles_m * tiles_n // c.waves) * c.split_k if c.split_k > 1 else 0
        wide = steps * tiles_k * (4 * tiles_m + tiles_n) + sums
        assert f["loads"] == {4: steps * -(-tiles_n // 2), 16: wide}
    assert row["mfma"] == steps * tiles_m * tiles_n * tiles_k
    committed = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"][index]
    assert row["mfma"] == committed["mfma"]
    assert abs(row["valu"] - committed["valu"]) <= 0.1 * committed["valu"], "another clang 22? evidence/hip_isa.py -o"


def test_vector_instructions_of_a_quantisation(clang: None) -> None:
    """The difference that a second tile of A makes, its addresses and sums included; 58 of them quantise."""
    one, two = (figures_of(problem(k=512), FusedConfig(block_m, 16, 128, 4, 1)) for block_m in (16, 32))
    valu = [sum(n for op, n in f.whole.items() if op.startswith("v_") and "mfma" not in op) for f in (one, two)]
    assert valu[1] - valu[0] <= 72
    assert two.whole["v_cvt_scalef32_pk_fp4_bf16"] == 32
    assert two.whole["v_pk_maximum3_f16"] <= 2 * 12


def test_the_loop_holds_only_wide_loads(clang: None) -> None:
    """Two rounds at a time: the loads of one before the arithmetic of the other, no copies between registers."""
    f = figures_of(problem(k=7168), FusedConfig(16, 32, 256, 4, 1))
    assert f.in_loop
    assert f.loads == {4: 2, 16: 2 * 2 * (4 + 2)}
    assert (f.scaled_mfma, f.scratch, f.spills) == (8, 0, 0)
    assert (f.lds_reads, f.lds_writes) == (4, 8)  # of four tiles: their codes; two rows a write where the offsets allow
    assert f.vgprs <= fused.registers_needed(problem(k=7168), FusedConfig(16, 32, 256, 4, 1))
    assert not [op for op in f.whole if op.startswith("v_mov_b64")]
    assert f.valu / 4 <= 65  # for each 16 x 128 of A: 58 quantise


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*LEADERBOARD, (1, 4096, 4096), (300, 2880, 2176)], ids=str)
def test_no_candidate_spills(shape: tuple[int, int, int], clang: None) -> None:
    wanted = problem(*shape)
    found = candidates(wanted)
    for config in found[:: len(found) // 6]:
        f = figures_of(wanted, config)
        assert (f.scratch, f.spills) == (0, 0), config
