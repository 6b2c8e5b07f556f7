"""The native libraries of every operation, whole, in the gfx950 emulator, against exact products."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from evidence.dispatcher_emulated import EmulatedLibrary
from evidence.quant_cases import Operands
from evidence.tritons import MISSING, other_triton
from gfx950emu import run_code_object
from gfx950emu.hip_runtime import POINTERS, EmulatedHip
from mxgemm.dispatcher.native import argument_table, build_native
from tests.dispatcher.native_libraries import CONFIGS, SUM_SCALED, built, description, draw
from tests.emulator import require_objdump

DEFAULTS = ("mx-fp8", "mx-fp4", "rowcol-fp8", "rowcol-bf8", "tensor-fp8")
SHALLOW = tuple(name for name in SUM_SCALED if re.search(r"-\d+x\d+x\d+$", name))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_objdump()
    return EmulatedHip.build(tmp_path_factory.mktemp("hip")).path


def opened(name: str, factory: pytest.TempPathFactory, runtime: Path, strict: bool = False) -> EmulatedLibrary:
    library = built(name, factory)
    return EmulatedLibrary(library, CONFIGS[name][0], EmulatedHip(runtime), strict=strict)


def sizes(name: str) -> list[tuple[int, int, int]]:
    config = CONFIGS[name][0]
    whole = [(m, config.tile_n, config.tile_k) for m in (1, 33)]
    least = [(m, 1, 32) for m in (1, 33)]
    return [*whole, *least, (33, 2 * config.tile_n, 3 * config.tile_k), (130, config.tile_n + 40, config.tile_k + 160)]


@pytest.mark.parametrize("strict", [False, True], ids=["normal", "strict"])
@pytest.mark.parametrize("name", DEFAULTS + SHALLOW)
def test_product(name: str, strict: bool, tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library = opened(name, tmp_path_factory, runtime, strict)
    for m, n, k in sizes(name):
        operands = draw(name, m, n, k, seed=m + n + k)
        accuracy = operands.judge(library.host(operands))
        assert accuracy.passed, (m, n, k, accuracy)
        assert not library.hip.allocations()


def test_scales_are_read_as_words(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library = opened("mx-words", tmp_path_factory, runtime, strict=True)
    for shape in ((33, 64, 512), (1, 32, 256), (3, 33, 288)):
        operands = draw("mx-words", *shape)
        assert operands.judge(library.host(operands)).passed, shape


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_numpy_reference_agrees(name: str, tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    operands = draw(name, 33, 48, 288)
    out = opened(name, tmp_path_factory, runtime).host(operands)
    np.testing.assert_allclose(out, operands.fp32_reference(), rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("name", ["mx-fp8", "rowcol-bf8"])
def test_device_pointers(name: str, tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    operands = draw(name, 40, 64, 256)
    library = opened(name, tmp_path_factory, runtime, strict=True)
    assert operands.judge(library.device(operands, stream=0x1234)).passed
    assert library.hip.launches[-1].stream == 0x1234
    assert "hipStreamSynchronize" not in library.hip.calls()


def test_padded_and_persistent(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    name = "mx-padded-persistent"
    library = opened(name, tmp_path_factory, runtime, strict=True)
    for shape in ((1, 1, 32), (33, 32, 128), (40, 32 * 140 - 5, 160)):
        operands = draw(name, *shape)
        assert operands.judge(library.host(operands)).passed, shape
    assert library.hip.launches[-1].grid == (256, 1, 1)  # of 280 tiles
    masked = (library.path.parent / "masked.hsaco").read_bytes()
    assert {launch.code for launch in library.hip.launches} == {masked}  # even where the sizes fill the tile


def test_scale_nan_reaches_its_row_and_column_only(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library = opened("mx-fp8", tmp_path_factory, runtime)
    operands = draw("mx-fp8", 20, 32, 128)
    operands.a_scales[3, 1] = 255
    operands.b_scales[7, 2] = 255
    out = np.isnan(library.host(operands))
    expected = np.zeros_like(out)
    expected[3], expected[:, 7] = True, True
    np.testing.assert_array_equal(out, expected)


def test_sums_beyond_fp16_become_infinite(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> None:
    library = opened("rowcol-fp8", tmp_path_factory, runtime)
    operands = draw("rowcol-fp8", 16, 64, 256)
    operands.a_scales[5] = 1e30
    out = library.host(operands)
    assert np.isinf(out[5]).all()
    np.testing.assert_array_equal(np.sign(out[5]), np.sign(operands.exact()[5]))
    assert np.isfinite(np.delete(out, 5, axis=0)).all()


@pytest.mark.parametrize("name", ["mx-fp8", "mx-fp4", "rowcol-fp8"])
def test_wide_variant(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The variant for operands of 2 GiB and more, on small ones, which the library would give to another."""
    require_objdump()
    library = built(name, tmp_path_factory)
    config = CONFIGS[name][0]
    variant = next(v for v in description(library)["variants"] if v["name"] == "wide")
    table = argument_table(variant)
    operands: Operands = draw(name, 33, config.tile_n + 24, config.tile_k + 96)
    (m, k), n = operands.a64.shape, operands.b64.shape[0]
    arrays = {"a": operands.a, "b": operands.b, "a_scales": operands.a_scales, "b_scales": operands.b_scales}
    arrays["out"] = np.full((m, n), np.nan, np.float16)
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
    after, _ = run_code_object(
        library.parent / "wide.hsaco", variant["kernel"], (tiles,), (variant["threads"],),
        lambda at: table.pack({**at, "m": m, "n": n, "k_blocks": k // 32}), arrays,
        dynamic_lds=variant["lds"], strict=True, read_only=set(POINTERS) - {"out"},
    )  # fmt: skip
    assert operands.judge(after["out"]).passed


@pytest.mark.parametrize("name", ["mx-fp4"])
def test_with_the_other_triton(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    installation = other_triton()
    if installation is None:
        pytest.skip(MISSING)
    config, arch = CONFIGS[name]
    monkeypatch.setenv("PYTHONPATH", str(installation))
    library = build_native(config, arch, tmp_path)
    assert re.match(r"3\.6\.", description(library)["triton"])
    run = EmulatedLibrary(library, config, EmulatedHip(runtime), strict=True)
    operands = draw(name, 33, 72, 352)
    assert operands.judge(run.host(operands)).passed
