"""From a configuration to a native library: the mapping, the key, the instructions, and what a failed build says."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gfx950emu.elf import Elf
from mxgemm import build_cache, import_closure
from mxgemm.dispatcher import native
from mxgemm.dispatcher.abquant import EIGHT_WAVES, ABQuantKernelConfig
from mxgemm.dispatcher.aquant import AQuantKernelConfig
from mxgemm.dispatcher.bquant import BQuantKernelConfig
from mxgemm.dispatcher.errors import ToolchainMissing
from mxgemm.dispatcher.kernel_arguments import Argument, ArgumentTable, read_arguments
from mxgemm.dispatcher.mx_gemm import MxGemmKernelConfig
from mxgemm.dispatcher.native import argument_table, build_native, native_key
from mxgemm.dispatcher.native_kernel import (
    ARGUMENTS,
    blocks,
    element_type,
    kernel_call,
    native_refusals,
    persistent_programs,
    variants,
    wanted_instruction,
)
from mxgemm.dispatcher.rowcolquant import RowColQuantKernelConfig
from mxgemm.errors import BuildError
from tests.dispatcher.native_libraries import CONFIGS, SUM_SCALED, built, description, require_compilers
from tests.marks import first_of

INSTRUCTIONS = {
    "mx-fp8": "v_mfma_scale_f32_16x16x128_f8f6f4",
    "mx-fp4": "v_mfma_scale_f32_16x16x128_f8f6f4",
    "mx-padded-persistent": "v_mfma_scale_f32_16x16x128_f8f6f4",
    "rowcol-fp8": "v_mfma_f32_16x16x128_f8f6f4",
    "rowcol-bf8": "v_mfma_f32_16x16x128_f8f6f4",
    "tensor-fp8": "v_mfma_f32_16x16x128_f8f6f4",
    "rowcol-fp8-16x16x32": "v_mfma_f32_16x16x32_fp8_fp8",
    "tensor-bf8-16x16x64": "v_mfma_f32_16x16x32_bf8_bf8",  # two of them, as in CK
    "tensor-fp8-32x32x16": "v_mfma_f32_32x32x16_fp8_fp8",
    "rowcol-bf8-32x32x32": "v_mfma_f32_32x32x16_bf8_bf8",
    "tensor-bf8-32x32x64": "v_mfma_f32_32x32x64_f8f6f4",
    "rowcol-fp8-gfx942": "v_mfma_f32_16x16x32_fp8_fp8",
    "rowcol-bf8-gfx942": "v_mfma_f32_16x16x32_bf8_bf8",
}


@pytest.mark.parametrize("name", first_of(SUM_SCALED, 6))
def test_matrix_instructions_and_registers(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = built(name, tmp_path_factory)
    for variant in description(library)["variants"]:
        assert set(variant["matrix_instructions"]) == {INSTRUCTIONS[name]}, variant["name"]
        assert variant["scratch_bytes"] == variant["spills"] == 0, variant["name"]
        assert 0 < variant["vgprs"] <= 256


@pytest.mark.parametrize("name", ["mx-fp8", "rowcol-fp8-gfx942"])
def test_argument_table_is_the_code_objects(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = built(name, tmp_path_factory)
    for variant in description(library)["variants"]:
        (kernel,) = Elf((library.parent / f"{variant['name']}.hsaco").read_bytes()).metadata["amdhsa.kernels"]
        said = [
            (argument[".offset"], argument[".size"])
            for argument in kernel[".args"]
            if not argument[".value_kind"].startswith("hidden_")
        ]
        table = argument_table(variant)
        assert [(a.offset, a.size) for a in table.arguments] == said
        assert [a.name for a in table.arguments] == [*ARGUMENTS, None, None]


def test_packing() -> None:
    table = ArgumentTable((Argument("a", 0, 8), Argument("m", 8, 4), Argument(None, 16, 8)), 24)
    packed = table.pack({"a": 0x1122334455667788, "m": 5})
    assert packed == bytes.fromhex("8877665544332211 05000000 00000000 0000000000000000")
    assert table.unpack(packed) == {"a": 0x1122334455667788, "m": 5}
    with pytest.raises(ValueError, match="no kernel metadata"):
        read_arguments("s_endpgm", ARGUMENTS)


def test_gfx942_has_fnuz_bytes() -> None:
    assert element_type(RowColQuantKernelConfig(), "gfx942") == "e4m3fnuz"
    assert element_type(RowColQuantKernelConfig(variant_key="bf8"), "gfx942:sramecc+:xnack-") == "e5m2fnuz"
    assert element_type(RowColQuantKernelConfig(variant_key="bf8"), "gfx950") == "e5m2"
    assert element_type(MxGemmKernelConfig(datatype="fp4"), "gfx950") == "e2m1"


def test_fields_map_to_the_launch() -> None:
    pytest.importorskip("triton")
    config = MxGemmKernelConfig(
        tile_m=64, tile_n=256, tile_k=256, warp_m=1, warp_n=4, warp_k=2, k_block_per_cu=2, persistent=True
    )
    call = kernel_call(config, "gfx950", variants(config)[0])
    assert {name: call.constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PROGRAMS")} == {
        "BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 256, "PROGRAMS": 512,
    }  # fmt: skip
    assert call.options == {"num_warps": 8, "num_stages": 2, "matrix_instr_nonkdim": 16, "waves_per_eu": 4}
    other = RowColQuantKernelConfig(double_smem_buffer=True, warp_tile_m=32, warp_tile_n=32, warp_tile_k=64)
    options = kernel_call(other, "gfx950", variants(other)[0]).options
    assert options["num_stages"] == 3
    assert options["matrix_instr_nonkdim"] == 32
    assert options["waves_per_eu"] == 0


def test_a_tile_that_is_no_power_of_two_is_cut() -> None:
    eight = ABQuantKernelConfig(**EIGHT_WAVES, pipeline="eightwaves", bquant_group_n=128)  # type: ignore[arg-type]
    assert native_refusals(eight, "gfx950") == ()
    assert blocks(eight, "gfx950") == (64, 256, 128)
    assert blocks(MxGemmKernelConfig(tile_m=192, tile_k=384), "gfx950") == (64, 128, 128)


def test_a_block_of_k_lies_within_one_group() -> None:
    assert blocks(AQuantKernelConfig(), "gfx950").k == 128
    assert blocks(AQuantKernelConfig(quant_group_k=64), "gfx950").k == 64
    assert blocks(AQuantKernelConfig(warp_tile_k=32), "gfx950").k == 64  # and shallow, for the instruction
    microscale = BQuantKernelConfig(variant_key="mx_bf16fp4", pipeline="microscale", quant_group_k=32, warp_tile_k=32)
    assert blocks(microscale, "gfx950").k == 256  # E8M0 scales multiply elements, whatever the block


def test_padding_decides_the_variants() -> None:
    assert [v.name for v in variants(MxGemmKernelConfig())] == ["even", "masked", "wide"]
    assert [v.name for v in variants(MxGemmKernelConfig(pad_m=True))] == ["even", "masked", "wide"]
    for flag in ("pad_n", "pad_k"):
        assert [v.name for v in variants(MxGemmKernelConfig(**{flag: True}))] == ["masked", "wide"]
    assert persistent_programs(MxGemmKernelConfig(), "gfx950") == 0


@pytest.mark.parametrize(
    "config, arch, says",
    [
        (
            RowColQuantKernelConfig(tile_m=512, warp_m=2),
            "gfx950",
            "tile_m: got 512, want a size whose largest power of two is from 16 to 256",
        ),
        (
            AQuantKernelConfig(quant_group_k=192, tile_k=384),
            "gfx950",
            "group of K: got 192, want a power of two from 32",
        ),
        (
            BQuantKernelConfig(
                variant_key="mx_bf16fp4", pipeline="microscale", quant_group_k=32, tile_m=32, tile_n=64, warp_tile_k=16
            ),
            "gfx950",
            "warp_tile_k: got 16, want 32 or 64 of 16 rows",
        ),
        (MxGemmKernelConfig(warp_m=1, warp_n=1), "gfx950", "got 1, want a power of two from 2 to 16"),
        (RowColQuantKernelConfig(tile_n=192, warp_n=3), "gfx950", "warp_m * warp_n * warp_k: got 3"),
        (MxGemmKernelConfig(), "gfx942", "gfx950"),
        (RowColQuantKernelConfig(), "gfx942", "warp_tile_k: got 128, want 32"),
    ],
)
def test_refused_configurations(config: Any, arch: str, says: str, tmp_path: Path) -> None:
    assert any(says in str(refusal) for refusal in native_refusals(config, arch)), native_refusals(config, arch)
    with pytest.raises(ValueError, match=config.name):
        build_native(config, arch, tmp_path)


def test_wrong_instructions_and_too_much_lds_are_errors() -> None:
    config = MxGemmKernelConfig()
    good = {"name": "even", "matrix_instructions": {wanted_instruction(config, "gfx950"): 32}, "lds": 160 * 1024}
    native._check_variant(config, "gfx950", good)
    for bad, says in (
        ({"matrix_instructions": {"v_mfma_f32_16x16x16_bf16": 4}}, "want only v_mfma_scale_f32_16x16x128_f8f6f4"),
        ({"matrix_instructions": {}}, "got none"),
        ({"lds": 160 * 1024 + 1}, "LDS: got 163841 bytes, want at most 163840"),
    ):
        with pytest.raises(BuildError, match=says.replace("*", r"\*")):
            native._check_variant(config, "gfx950", good | bad)
    older = RowColQuantKernelConfig(variant_key="bf8", warp_tile_k=32)
    for widened in ("v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x32_fp8_fp8"):
        with pytest.raises(BuildError, match="want only v_mfma_f32_16x16x32_bf8_bf8"):
            native._check_variant(older, "gfx942", good | {"matrix_instructions": {widened: 1}})


def test_key_changes_with_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_compilers()
    config = RowColQuantKernelConfig(warp_tile_k=32)
    keys = [native_key(config, "gfx942"), native_key(dataclasses.replace(config, k_block_per_cu=2), "gfx942")]
    keys.append(native_key(RowColQuantKernelConfig(), "gfx950"))
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho another compiler 1.0\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    keys.append(native_key(config, "gfx942"))
    monkeypatch.delenv("CC")
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-g"))
    keys.append(native_key(config, "gfx942"))
    monkeypatch.undo()
    shim = tmp_path / "shim"
    shim.mkdir()
    for file in native.SHIM.iterdir():
        (shim / file.name).write_bytes(file.read_bytes() + (b"\n" if file.name == "shim.c" else b""))
    monkeypatch.setattr(native, "SHIM", shim)
    keys.append(native_key(config, "gfx942"))
    monkeypatch.setattr(native, "_triton_version", lambda: "triton 0.0")
    keys.append(native_key(config, "gfx942"))
    monkeypatch.undo()
    for variable in ("AMDGCN_USE_BUFFER_OPS", "TRITON_F32_DEFAULT", "LLVM_PASS_PLUGIN_PATH", "CPATH"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variable, "0")
            keys.append(native_key(config, "gfx942"))
    assert all(a != b for i, a in enumerate(keys) for b in keys[:i])
    monkeypatch.undo()
    assert native_key(config, "gfx942") == keys[0]


def test_the_kernels_sources_are_in_the_key() -> None:
    require_compilers()
    files = native_key(RowColQuantKernelConfig(), "gfx950")["files"]
    assert {
        "triton/kernels/quant_gemm.py",
        "triton/compile.py",
        "device.py",
        "shim/shim.c",
        "shim/hip_runtime.h",
    } <= set(files)


def test_every_source_behind_a_kernel_is_in_its_key_and_so_is_what_it_comes_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_compilers()
    copy = tmp_path / "mxgemm"
    shutil.copytree(native.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(native, "sources_of", lambda modules: import_closure.sources_of(modules, copy))

    def key() -> str:
        return build_cache.digest(native_key(RowColQuantKernelConfig(), "gfx950"))

    names = [name for name in native_key(RowColQuantKernelConfig(), "gfx950")["files"] if name.endswith(".py")]
    assert {"triton/kernels/epilogue.py", "dispatcher/native_kernel.py", "triton/launch.py"} <= set(names)
    seen = {key()}
    for name in names:  # a change of any source, and any source that imports something new, which changes then
        (copy / name).write_text((copy / name).read_text(encoding="utf-8") + "\n", encoding="utf-8")
        seen.add(key())
        fresh = f"fresh_{name.replace('/', '_').removesuffix('.py')}"
        (copy / f"{fresh}.py").write_text("ONE = 1\n", encoding="utf-8")
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(f"\n\ndef _later():\n    from mxgemm.{fresh} import ONE\n    return ONE\n")
        seen.add(key())
        (copy / f"{fresh}.py").write_text("ONE = 2\n", encoding="utf-8")
        seen.add(key())
    assert len(seen) == 1 + 3 * len(names)
    (copy / "gemm.py").write_text("# no part of a native kernel\n", encoding="utf-8")
    assert key() in seen


def test_nothing_behind_a_kernel_imports_what_the_text_does_not_name() -> None:
    sources = import_closure.sources_of([native.__name__, native.WORKER])
    assert not [name for name, text in sources.items() if b"import_module" in text or b"__import__" in text]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainMissing, match="none of cc, gcc, clang is on PATH"):
        build_native(RowColQuantKernelConfig(), "gfx950", tmp_path)
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(ToolchainMissing, match="CC is 'no-such-cc'"):
        native_key(RowColQuantKernelConfig(), "gfx950")


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise native.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(native.importlib.metadata, "version", missing)
    with pytest.raises(ToolchainMissing, match=r"triton: not installed, want triton >= 3\.6"):
        native._triton_version()


@pytest.mark.parametrize("compiler", ["gcc", "clang-22"])
@pytest.mark.parametrize("name", ["mx-fp4", "rowcol-fp8", "tensor-fp8"])
def test_the_shim_compiles_without_warnings(
    name: str, compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    library = built(name, tmp_path_factory)
    for file in library.parent.glob("*.hsaco"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(native, "_cross_compile", lambda *_: description(library))
    monkeypatch.setattr(
        native, "FLAGS", (*native.FLAGS, "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")
    )
    monkeypatch.setenv("CC", compiler)
    config, arch = CONFIGS[name]
    build_native(config, arch, tmp_path)


def test_a_failed_compilation_says_what_the_compiler_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = built("rowcol-fp8", tmp_path_factory)
    for file in library.parent.glob("*.hsaco"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(native, "_cross_compile", lambda *_: description(library))
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-include", "missing.h"))
    with pytest.raises(BuildError, match=r"(?s)shim\.c.* failed:.*missing\.h: No such file"):
        build_native(RowColQuantKernelConfig(), "gfx950", tmp_path)


def test_a_failing_worker_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_compilers()
    (tmp_path / "torch.py").write_text("raise ImportError('an installation that is broken')\n")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    with pytest.raises(BuildError, match="(?s)the kernel did not compile for gfx950:.*an installation that is broken"):
        build_native(RowColQuantKernelConfig(), "gfx950", tmp_path)
