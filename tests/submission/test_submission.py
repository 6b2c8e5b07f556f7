"""The submission file: what it may contain, that it is right by itself, and that it runs what the library would."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mxgemm
from bench import leaderboard
from bench.leaderboard_task import BENCHMARKS, TESTS, Case, disagreement, make_inputs
from evidence.cross_compile import problem_of
from evidence.submission_compile import load
from evidence.tritons import ROOT, compiler_environment, other_triton
from mxgemm import submission
from mxgemm.device import machine_of
from mxgemm.mx import layouts, oracle
from mxgemm.routes import ROUTES
from mxgemm.routes.triton_gemm import TritonGemm
from mxgemm.routing import tables
from mxgemm.routing.router import choose
from mxgemm.submission import generate
from mxgemm.submission.bundle import bundle
from mxgemm.triton.tile_config import TileConfig
from tests import cross
from tests.cases import skip_without_kernels
from tests.command import output

BENCHMARKED = [(case.m, case.n, case.k) for case in BENCHMARKS]
PUBLISHED = [*((case.m, case.n, case.k) for case in TESTS), *BENCHMARKED]
COMPILED = [(16, 2112, 7168), (256, 3072, 1536)]
"""The one that splits K, and one whose tiles share a weight."""
INTERPRETED = [Case(1, 16, 64, 1), Case(5, 80, 192, 2), Case(17, 80, 512, 3), Case(8, 16, 1088, 4), Case(6, 48, 256, 5)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text() -> str:
    return submission.render()


@pytest.fixture(scope="module")
def module(text: str, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The generated file, imported here."""
    path = tmp_path_factory.mktemp("submission") / "submission.py"
    path.write_text(text, encoding="utf-8")
    return load(path)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A file with launches of small shapes for Triton's interpreter."""
    skip_without_kernels("cpu")
    path = tmp_path_factory.mktemp("interpreted") / "submission.py"
    return load(submission.write(path, arch="cpu", shapes=[shape_of(case) for case in INTERPRETED]))


def shape_of(case: Case) -> tuple[int, int, int]:
    return case.m, case.n, case.k


def test_text_is_what_the_leaderboard_takes(text: str) -> None:
    assert text.splitlines()[:2] == ["#!POPCORN leaderboard amd-mxfp4-mm", "#!POPCORN gpu MI355X"]
    assert "stream" not in text.lower()
    assert "not measured on an MI355X" in text
    tree = ast.parse(text)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    standard = {"os", "sys", "typing", "collections", "ctypes", "struct", "time", "math", "itertools"}
    assert imported <= standard | {"torch", "triton", "aiter"}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    tricks = {"id", "gc", "inspect", "globals", "locals", "eval", "exec", "_getframe", "currentframe", "modules"}
    assert not (names | attributes) & tricks


def test_names_and_comments_survive(text: str) -> None:
    kernels = ROOT / "mxgemm" / "triton" / "kernels"
    for name in (
        "block_order",
        "convert_gfx950",
        "epilogue",
        "load_operand",
        "quantize_block",
        "split_k",
        "gemm_program",
        "gemm_a16w",
    ):
        source = (kernels / f"{name}.py").read_text(encoding="utf-8")
        lines = [line.split("  # fmt: skip")[0] for line in source.splitlines()]
        start = next(index for index, line in enumerate(lines) if line.startswith(("@triton.jit", "def ", "BLOCK =")))
        assert "\n".join(lines[start:]).strip() in text, name


@pytest.mark.parametrize(
    "line, message",
    [
        ("# an Up" + "Stream fix", "which the leaderboard refuses"),
        ("import mxgemm", "stand alone"),
        ("def f():\n    from mxgemm.mx import quantize", "stand alone"),
    ],
)
def test_a_text_that_would_be_refused(line: str, message: str, text: str) -> None:
    generate.check(text)
    with pytest.raises(ValueError, match=message):
        generate.check(f"{text}\n{line}\n")
    with pytest.raises(ValueError, match="want the tags"):
        generate.check(f"\n{text}")


def test_forms_can_be_chosen() -> None:
    only = submission.render(["triton"])
    assert "aiter" not in only.partition('"""\n\n')[2]
    assert 'FORMS = {\n    "triton": FormKind(triton_tiles, triton_form),\n}' in only
    assert "import triton" not in submission.render(["hip", "aiter"])
    for forms in ([], ["triton", "triton"], ["cuda"]):
        with pytest.raises(ValueError, match="forms: got"):
            submission.render(forms)


@pytest.mark.parametrize(
    "source, message",
    [
        ("from mxgemm import tables as t", "want 'from mxgemm.module import name'"),
        ("import mxgemm.routing.tables", "want 'from mxgemm.module import name'"),
        ("def f():\n    from mxgemm.routing.tables import load", "inside a function"),
        ("from mxgemm.triton.kernels.quantize_block import BLOCK\n\n\ndef divide(): ...", "divide: defined by"),
    ],
)
def test_what_cannot_be_bundled(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundle("mxgemm.made_up", {"mxgemm.made_up": source})


def tile_of(launch: Any) -> TileConfig:
    """Read a tile back from a launch."""
    of, options = launch.constants, launch.options
    sizes = (of["BLOCK_M"], of["BLOCK_N"], of["BLOCK_K"], of["SPLIT_K"], of["ONE_LAUNCH"])
    return TileConfig(*sizes, options["num_warps"], options["num_stages"], options["waves_per_eu"], of["CACHE"])


def test_launches_are_the_librarys(module: ModuleType) -> None:
    assert sorted(module.TRITON_LAUNCHES) == sorted(PUBLISHED)
    rows = {(row.m, row.n, row.k): row.config for row in tables.shipped("gfx950")[0].rows if row.source == "isa"}
    for shape, alternatives in module.TRITON_LAUNCHES.items():
        problem = problem_of(*shape, "gfx950", weight_layout="preshuffled", scale_layout="shuffled")
        chosen = choose(problem, route="a16wfp4", tables=())
        assert isinstance(chosen.route, TritonGemm)
        assert isinstance(chosen.config, TileConfig)
        if shape in BENCHMARKED:
            assert chosen.config == TileConfig.from_mapping(rows[shape])
        configs = [tile_of(launches[0]) for launches in alternatives]
        assert configs[0] == chosen.config
        assert len(set(configs)) == len(configs) >= 2
        assert all(chosen.route.check_config(problem, config) is None for config in configs)
        for config, launches in zip(configs, alternatives, strict=True):
            for launch, call in zip(launches, chosen.route.calls(problem, config), strict=True):
                assert launch.kernel is getattr(module, call.kernel.fn.__name__)
                assert (launch.grid, launch.scalars, launch.options) == (call.grid, call.scalars, call.options)
                # The values' types too: True == 1, and Triton tells them apart.
                assert repr(launch.constants) == repr({**call.constants, "INTERPRETED": False})


def test_the_text_does_not_depend_on_where_it_is_made(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert submission.render() == text
    with pytest.raises(ValueError, match="arch: got 'gfx900', want one of cpu, gfx950"):
        submission.render(arch="gfx900")
    monkeypatch.setattr("mxgemm.triton.support.triton_version", lambda: (3, 5))
    with pytest.raises(mxgemm.RouteUnavailable, match="triton is 3.5; needs 3.6 or newer, as the leaderboard has"):
        submission.render()


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_numbers_in_the_interpreter(case: Case, interpreted: ModuleType) -> None:
    inputs = make_inputs(case, CPU)
    first = interpreted.custom_kernel(inputs.data)
    assert disagreement(first, inputs.expected) is None
    second = interpreted.custom_kernel(inputs.data)
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def split_launches(module: ModuleType, one_launch: bool) -> list[Any]:
    """Launches of (5, 48, 1024) by the file's own kernels, K in four parts."""
    problem = problem_of(5, 48, 1024, "cpu", weight_layout="preshuffled", scale_layout="shuffled")
    route = ROUTES["a16wfp4"]
    assert isinstance(route, TritonGemm)
    return [
        module.KernelLaunch(
            getattr(module, call.kernel.fn.__name__), call.grid, call.scalars, dict(call.constants), dict(call.options)
        )
        for call in route.calls(problem, TileConfig(block_k=128, split_k=4, one_launch=one_launch))
    ]


@pytest.mark.parametrize("one_launch", [False, True])
def test_split_k_in_both_forms(one_launch: bool, interpreted: ModuleType) -> None:
    launches = split_launches(interpreted, one_launch)
    assert len(launches) == (1 if one_launch else 2)
    operands = interpreted.synthetic_operands(5, 48, 1024, CPU)
    form = interpreted.triton_form(5, 48, 1024, CPU, launches)
    assert interpreted.disagrees(form, operands) is None
    assert torch.equal(form(*operands[:3]), form(*operands[:3]))


def test_counters_are_made_anew_after_a_failure(interpreted: ModuleType) -> None:
    """A call that ends half way leaves counts; the next one must not add to them."""
    (real,) = split_launches(interpreted, one_launch=True)
    fail = [False]

    class HalfWay:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **options: Any) -> None:
                if not fail[0]:
                    real.kernel[grid](*arguments, **options)
                    return
                arguments[6].fill_(1)
                raise RuntimeError("half way")

            return launch

    form = interpreted.triton_form(5, 48, 1024, CPU, [real._replace(kernel=HalfWay())])
    operands = interpreted.synthetic_operands(5, 48, 1024, CPU)
    assert interpreted.disagrees(form, operands) is None
    fail[0] = True
    with pytest.raises(RuntimeError, match="half way"):
        form(*operands[:3])
    fail[0] = False
    assert interpreted.disagrees(form, operands) is None


class Aiter:
    """The four functions of AITER that the form calls, from the documented layouts."""

    bf16 = torch.bfloat16
    fp4x2 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    fp8_e8m0 = getattr(torch, "float8_e8m0fnu", torch.uint8)

    @staticmethod
    def dynamic_mxfp4_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantized = mxgemm.quantize(x)
        return quantized.data, quantized.scales.t().contiguous().t()  # AITER's scales are column-major

    @staticmethod
    def e8m0_shuffle(scales: torch.Tensor) -> torch.Tensor:
        return layouts.shuffle_scales(scales)

    @classmethod
    def gemm_a4w4(
        cls, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, *, dtype: object,
        bpreshuffle: bool,
    ) -> torch.Tensor:  # fmt: skip
        assert (a.dtype, b.dtype, a_scale.dtype, b_scale.dtype) == (cls.fp4x2, cls.fp4x2, cls.fp8_e8m0, cls.fp8_e8m0)
        assert dtype == cls.bf16
        assert bpreshuffle
        weight = layouts.unpreshuffle_weight(b.view(torch.uint8))
        decoded = [
            oracle.decode(data.numpy(), layouts.unshuffle_scales(scales.view(torch.uint8), *of).numpy(), "e2m1")
            for data, scales, of in (
                (a.view(torch.uint8), a_scale, (a.shape[0], a.shape[1] // 16)),
                (weight, b_scale, (b.shape[0], b.shape[1] // 16)),
            )
        ]
        return torch.from_numpy(oracle.matmul(*decoded)).to(torch.bfloat16)


def test_shapes_beyond_the_published_take_the_aiter_form(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (
        "aiter",
        "aiter.ops",
        "aiter.ops.triton",
        "aiter.ops.triton.quant",
        "aiter.utility",
        "aiter.utility.fp4_utils",
    )
    for name in names:
        package = ModuleType(name)
        for function in ("dynamic_mxfp4_quant", "e8m0_shuffle", "gemm_a4w4"):
            setattr(package, function, getattr(Aiter, function))
        package.dtypes = Aiter  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(module, "architecture_of", lambda device: "gfx950")
    module.chosen_forms.clear()
    inputs = make_inputs(Case(5, 64, 256, 6), CPU)  # a shape that the HIP and Triton forms are not meant for
    assert disagreement(module.custom_kernel(inputs.data), inputs.expected) is None
    assert "is not used" not in capsys.readouterr().err
    module.chosen_forms.clear()


def test_launches_for_another_machine_are_not_used(module: ModuleType) -> None:
    with pytest.raises(module.NotHere, match="for the published shapes on gfx950"):
        module.triton_tiles(4, 2880, 512, "sm_90")
    with pytest.raises(module.NotHere, match="for the published shapes on gfx950"):
        module.triton_tiles(5, 2880, 512, "gfx950")


def test_sizes_outside_the_contract(module: ModuleType) -> None:
    for m, n, k in ((0, 16, 64), (4, 24, 64), (4, 16, 96)):
        with pytest.raises(ValueError, match="want m >= 1, n a multiple of 16 and k a multiple of 64"):
            module.choose_form(m, n, k, CPU)


def test_it_passes_where_mxgemm_cannot_be_imported(tmp_path: Path) -> None:
    """The harness's own process hides mxgemm from the submission (test_leaderboard.py shows that it does)."""
    skip_without_kernels("cpu")
    cases = [Case(4, 48, 192, 7), Case(9, 32, 512, 8)]
    path = submission.write(tmp_path / "submission.py", arch="cpu", shapes=[shape_of(case) for case in cases])
    document = leaderboard.evaluate(path, "test", cases, CPU)
    assert document["passed"], leaderboard.summary(document)


def test_the_commands_write_the_same_file(tmp_path: Path, text: str) -> None:
    output("submission", "-o", tmp_path / "a.py")
    command = [sys.executable, "-m", "mxgemm", "submission", "-o", str(tmp_path / "b.py"), "--form", "triton"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == text
    assert (tmp_path / "b.py").read_text(encoding="utf-8") == submission.render(["triton"])


@pytest.mark.gpu
def test_published_shapes_in_leaderboard_mode(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    path = submission.write(tmp_path / "submission.py", arch=machine_of(device).arch)
    cases = TESTS + BENCHMARKS
    document = leaderboard.evaluate(path, "leaderboard", cases, device, secret=20260, repeats=4)
    assert document["passed"], leaderboard.summary(document)
    assert len(document["cases"]) == 10


@pytest.mark.gpu
def test_other_shapes_on_the_gpu(tmp_path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    shapes = [(1, 16, 64), (3, 48, 192), (33, 272, 2880), (129, 528, 1088)]
    module = load(submission.write(tmp_path / "submission.py", arch=machine_of(device).arch, shapes=shapes))
    for shape in shapes:
        inputs = make_inputs(Case(*shape, seed=5), device)
        assert disagreement(module.custom_kernel(inputs.data), inputs.expected) is None, shape


@pytest.mark.parametrize("triton", cross.TRITONS)
def test_machine_code_is_the_librarys(triton: str, tmp_path: Path) -> None:
    """Instruction by instruction, so what tests/evidence shows of the library's kernels holds for the file's."""
    reason = cross.available(triton)
    if reason:
        pytest.skip(reason)
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "evidence.submission_compile", str(submission.write(tmp_path / "submission.py"))],
        input=json.dumps(COMPILED),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=compiler_environment(None if triton == "own" else other_triton()),
    )
    for shape, line in zip(COMPILED, done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert found["submission"] == found["library"], shape
        assert any(op.startswith("v_mfma_scale") for op, _ in found["submission"][0])
