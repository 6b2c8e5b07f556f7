"""``mxgemm dispatcher`` by name, by JSON and by sweep, and what it hands out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mxgemm.dispatcher import Library, config_named, document_of, read_config
from tests.command import command, output
from tests.dispatcher.native_libraries import CONFIGS, built, shared_cache

A950 = "gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x128_qg1x1x128"
A942 = A950.replace("16x16x128", "16x16x32")


def run(*arguments: str | Path, code: int = 0) -> str:
    return output("dispatcher", *map(str, arguments), code=code)


def test_names_by_name_json_and_sweep(tmp_path: Path) -> None:
    config, sweep = tmp_path / "config.json", tmp_path / "sweep.json"
    config.write_text(json.dumps(document_of(config_named(A950, "gfx950"))))
    tiles = [
        {"tile_m": 16, "tile_n": 64, "tile_k": 256, "warp_m": 1, "warp_n": 4, "warp_k": 1, "warp_tile_k": k}
        for k in (32, 128)
    ]
    sweep.write_text(json.dumps({"variant_keys": ["fp8"], "tile_configs": tiles}))
    assert run("names", "--name", A942, "--name", A950).split() == [A942, A942, A950]  # gfx942's is gfx950's too
    assert run("names", "--config", config).split() == [A950]
    assert run("build", "--list-names", "--config", config, "--arch", "gfx950").split() == [A950]
    swept = run("names", "--op", "aquant", "--sweep", sweep, "--arch", "gfx942").splitlines()
    assert swept[-1] == A942
    assert swept[0].startswith("left out, gfx942: gemm_aquant_fp8")
    assert "silently gives zeros" in swept[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["names", "--name", "gemm_" + A950], "want the name of a kernel of mx_gemm"),
        (["names", "--name", A950, "--arch", "gfx942"], "silently gives zeros"),
        (["names", "--config", "{file}"], "operation: got none, want one of"),
        (["names", "--config", "{file}", "--op", "aquant", "--op", "bquant"], "want one operation for --config"),
        (["names", "--sweep", "{file}", "--op", "bquant"], "got no kernel that may be built"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps({"variant_keys": ["int3"]}))
    done = command("dispatcher", *(argument.format(file=file) for argument in arguments))
    assert done.code == 2
    assert message in done.err


def test_a_missing_file_is_the_commands_failure(tmp_path: Path) -> None:
    done = command("dispatcher", "names", "--config", str(tmp_path / "none.json"), "--op", "aquant")
    assert done.code == 1
    assert "none.json" in done.err


def test_built_kernels_are_handed_out(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("b-fp8", tmp_path_factory)
    monkeypatch.setenv("MXGEMM_CACHE", str(shared_cache(tmp_path_factory)))
    name = CONFIGS["b-fp8"][0].name
    folder = tmp_path / "kernels"
    text = run("build", "--name", name, "--arch", "gfx950", "--output-dir", folder)
    library = folder / f"lib_{name}_gfx950.so"
    assert str(library) in text
    config = read_config(library.with_suffix(".json"), "gfx950")
    assert Library(library, config).name == name
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [library.name, f"lib_{name}_gfx950.json", f"lib_{name}_gfx950.native.json"]
    )
    assert run("build", "--config", library.with_suffix(".json"), "--arch", "gfx950", "--build-only")
