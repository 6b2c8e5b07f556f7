"""Finding AITER without importing it, knowing its forms, its kernels' limits, and its code objects."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mxgemm
from mxgemm.aiter import arguments, direct, f4gemm, installed
from mxgemm.aiter.f4gemm import KERNELS, PREFIX, F4GemmKernel
from mxgemm.device import KNOWN_MACHINES
from mxgemm.measure import doctor
from mxgemm.problem import Problem, Strides
from mxgemm.routes import ROUTES
from mxgemm.routes.fused_asm import FusedAsmConfig
from tests import aiter_double

GFX950 = KNOWN_MACHINES["gfx950"]
KERNEL = KERNELS[f"{PREFIX}BpreShuffle_32x128"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(direct.FOLDER_VARIABLE, raising=False)
    direct._unfit.cache_clear()
    yield
    aiter_double.forget()


def problem(m: int = 16, n: int = 256, k: int = 512, **changes: object) -> Problem:
    strides = Strides(a=(k, 1), b=(k // 2, 1), b_scales=(k // 32, 1), out=(n, 1))
    values = {"weight_layout": "preshuffled", "scale_layout": "shuffled", "strides": strides} | changes
    return Problem.of(m, n, k, GFX950, **values)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "aiter" else find(name, *a))
    installed.find.cache_clear()


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch)
    for route in ("fused_asm", "ck_gemm"):
        refusal = ROUTES[route].refusal(problem())
        assert str(refusal) == "aiter is not installed; needs amd-aiter (pip install 'mxgemm[rocm]')"
    answer = mxgemm.explain(64, 7168, 2048, device="gfx950")
    assert answer.route == "a16wfp4"
    assert "missing here\n    ck_gemm, fused_asm: aiter is not installed; needs amd-aiter" in str(answer)
    assert dict(doctor.examine().facts)["aiter"] == "not installed"


def test_pypis_aiter_is_another_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, {"aiter/__init__.py": "raise AssertionError('imported')"})
    aiter_double.distribution(tmp_path, "aiter", "0.13.20191203")
    aiter_double.on_path(monkeypatch, tmp_path)
    text = str(ROUTES["fused_asm"].refusal(problem()))
    assert "PyPI's unrelated package aiter 0.13.20191203" in text
    assert "amd-aiter (pip install 'mxgemm[rocm]')" in text
    assert "unrelated" in dict(doctor.examine().facts)["aiter"]


@pytest.mark.parametrize(
    "files,said",
    [
        ({"aiter.py": ""}, "a single module"),
        ({"aiter/__init__.py": ""}, "amd-aiter 1.2.3, which lacks ops/gemm_op_a4w4.py"),
        ({"aiter/__init__.py": "", "aiter/ops/gemm_op_a4w4.py": "def broken("}, "cannot be read"),
        ({"aiter/__init__.py": "", "aiter/ops/gemm_op_a4w4.py": ""}, "amd-aiter 1.2.3, which lacks gemm_a4w4_asm"),
    ],
)
def test_what_is_no_aiter_of_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    write(tmp_path, files)
    aiter_double.distribution(tmp_path, "amd-aiter", "1.2.3")
    aiter_double.on_path(monkeypatch, tmp_path)
    assert said in str(ROUTES["fused_asm"].refusal(problem()))


@pytest.mark.parametrize(
    "form,fused,ck",
    [
        ("oldest", "gemm_a4w4_asm has no kernelName", "lacks get_GEMM_config"),
        ("filled", None, None),
        ("returned", None, None),
        ("future", "gemm_a4w4_asm requires workspace", "gemm_a4w4 requires tile"),
    ],
)
def test_forms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, fused: str | None, ck: str | None) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    aiter_double.install(monkeypatch, tmp_path, form, version="4.5.6")
    for route, said in (("fused_asm", fused), ("ck_gemm", ck)):
        refusal = ROUTES[route].refusal(problem())
        if said is None:
            assert refusal is None, refusal
        else:
            assert said in str(refusal)
            assert "amd-aiter 4.5.6" in str(refusal)
    assert not [name for name in sys.modules if name.split(".")[0] == "aiter"]
    assert dict(doctor.examine().facts)["aiter"].startswith("amd-aiter 4.5.6")


def test_doctor_shows_both_routes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor, "machine_of", lambda device: GFX950)
    missing = {route.name: route.missing for route in doctor.examine().routes}
    assert missing["fused_asm"] is None
    assert missing["ck_gemm"] is None


def test_an_aiter_that_cannot_be_imported_leaves_other_routes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    (tmp_path / "aiter" / "__init__.py").write_text("raise OSError('libamdhip64.so.7: cannot open')")
    assert mxgemm.explain(64, 1024, 2048, device="gfx950", prepared=True).route == "ck_gemm"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    installed._import_failure.cache_clear()
    answer = mxgemm.explain(64, 1024, 2048, device="gfx950", prepared=True)
    assert answer.route == "a16wfp4"
    assert "amd-aiter 9.9.9, which cannot be imported (OSError: libamdhip64.so.7: cannot open)" in str(answer)


def test_what_tune_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kernel that is right for the size, and none that is not: tune drops what check_config refuses."""
    aiter_double.install(monkeypatch, tmp_path)
    for name, forms in (("fused_asm", {"aiter"}), ("ck_gemm", {"triton"})):
        route = ROUTES[name]
        legal = [c.to_mapping() for c in route.candidates(problem(n=288)) if not route.check_config(problem(n=288), c)]
        assert {config["kernel"] for config in legal} == {
            kernel.name for kernel in KERNELS.values() if kernel.preshuffled and not kernel.whole_columns
        }
        assert forms <= {value for config in legal for value in config.values()}


def test_ck_kernels_need_a_release_that_takes_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = ROUTES["ck_gemm"].config_type.from_mapping({"kernel": "a4w4_blockscale_256x64x128x128"})
    for form, said in (("filled", "gemm_a4w4_blockscale has no kernelName"), ("returned", None)):
        aiter_double.install(monkeypatch, tmp_path / form, form)
        refusal = ROUTES["ck_gemm"].check_config(problem(), config)
        assert (refusal is None) == (said is None)
        assert said is None or said in str(refusal)


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"k": 2880}, "k is 2880; needs a multiple of 256"),
        ({"k": 128}, "k is 128"),
        ({"n": 272}, "n is 272; needs a multiple of 32"),
        ({"has_bias": True}, "bias"),
        ({"out_dtype": torch.float16}, "out_dtype"),
        ({"a_format": "bf16"}, "a is bf16"),
        ({"a_quantized": True}, "a is quantised already"),
        ({"scale_layout": "row_major"}, "call prepare()"),
        ({"weight_layout": "row_major"}, "call prepare()"),
        ({"b_format": "e4m3"}, "b_format"),
        ({"aligned": False}, "alignment"),
        ({"m": 1 << 23, "n": 256}, "size of out"),
        ({"strides": Strides(a=(512, 1), b=(256, 1), b_scales=(16, 1), out=(1, 16))}, "strides of out"),
    ],
)
def test_what_both_routes_refuse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    for route in ("fused_asm", "ck_gemm"):
        assert ROUTES[route].refusal(problem()) is None
        assert said in str(ROUTES[route].refusal(problem(**changes)))  # type: ignore[arg-type]


def test_the_router_goes_on_where_aiter_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    assert mxgemm.explain(64, 1024, 2048, device="gfx950", prepared=True).route == "ck_gemm"
    answer = mxgemm.explain(64, 1024, 2880, device="gfx950", prepared=True)
    assert answer.route == "a16wfp4"
    assert any(str(refusal).startswith("ck_gemm: k is 2880; needs a multiple of 256") for refusal in answer.refusals)


@pytest.mark.parametrize(
    "tile,m,n,k,broken",
    [
        ("BpreShuffle_32x128", 1, 32, 256, None),
        ("BpreShuffle_32x128", 1, 48, 256, "n"),
        ("BpreShuffle_32x128", 1, 32, 128, "k"),
        ("BpreShuffle_32x128", 1, 32, 640, "k"),
        ("BpreShuffle_192x128", 1, 32, 256, None),
        ("BpreShuffle_192x256", 1, 288, 512, "n"),
        ("BpreShuffle_224x256", 1, 288, 512, "n"),
        ("BpreShuffle_128x512", 1, 768, 512, "n"),
        ("BpreShuffle_256x256", 1, 288, 512, "n"),
        ("BpreShuffle_256x256", 1, 256, 512, None),
        ("BpreShuffle_256x256", 288, 256, 256, "k"),
        ("BpreShuffle_256x256", 289, 256, 256, None),
        ("noBpreShuffle_256x256", 255, 256, 512, "m"),
        ("noBpreShuffle_256x256", 256, 256, 256, "k"),
        ("noBpreShuffle_256x256", 256, 256, 512, None),
    ],
)
def test_limits_of_each_kernel(tile: str, m: int, n: int, k: int, broken: str | None) -> None:
    found = KERNELS[PREFIX + tile].broken(m, n, k)
    assert (found.field if found else None) == broken


def test_the_kernels_have_the_names_of_aiters_table() -> None:
    assert len(KERNELS) == 35
    assert KERNEL.symbol == "_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E"
    row_major = KERNELS["f4gemm_bf16_per1x32Fp4_noBpreShuffle_256x256"]
    assert row_major.symbol == "_ZN5aiter44f4gemm_bf16_per1x32Fp4_noBpreShuffle_256x256E"
    assert f4gemm.of_symbol(row_major.symbol) is row_major
    assert (KERNEL.scale_rows(33), row_major.scale_rows(33)) == (64, 256)
    assert KERNEL.grid(33, 2112) == (17, 2, 1)


@pytest.mark.parametrize("m", [1, 31, 64, 300, 4096, 32768])
@pytest.mark.parametrize("n,k", [(32, 256), (2112, 7168), (7168, 256), (57344, 8192)])
def test_a_guess_is_legal_and_needs_no_luck(m: int, n: int, k: int) -> None:
    found = f4gemm.guess(m, n, k, 256)
    assert found is not None
    assert found.broken(m, n, k) is None


def test_the_argument_block() -> None:
    block = arguments.ArgumentBlock(
        5, 2112, 7168, d_stride=4000, a_stride=3584, b_stride=3600, a_scales_stride=224, b_scales_stride=232
    )
    packed = block.pack(d=0x1111_0000_0001, a=0x2222_0000_0002, b=3, a_scales=4, b_scales=5)
    assert len(packed) == 384
    words = {
        0x00: 0x0000_0001, 0x04: 0x1111, 0x20: 0x0000_0002, 0x24: 0x2222, 0x30: 3, 0x110: 4, 0x120: 5,
        0x40: 0x3F80_0000, 0x80: 4000, 0xA0: 7168, 0xC0: 7200, 0xE0: 5, 0xF0: 2112, 0x100: 7168, 0x130: 224, 0x150: 232,
    }  # fmt: skip
    assert {i: w for i in range(0, 384, 4) if (w := struct.unpack_from("<I", packed, i)[0])} == words
    assert block.pack(d=1, a=1, b=1, a_scales=1, b_scales=1)[0x80:0x110] == packed[0x80:0x110]
    assert arguments.unpack(packed)["b_scales_stride"] == 232


def code_object(kernel: F4GemmKernel, mach: int = 0x4F, symbol: str | None = None) -> bytes:
    """An ELF file with nothing in it but AMD's metadata for one kernel, without a target, as AITER's are."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return b"\xd9" + bytes([len(raw)]) + raw

    argument = b"\x82" + text(".offset") + b"\xcd\x01\x70" + text(".size") + b"\x04"
    numbers = {".group_segment_fixed_size": 0, ".vgpr_count": 127, ".private_segment_fixed_size": 0}
    entry = (
        b"\x85" + text(".symbol") + text(f"{symbol or kernel.symbol}.kd") + text(".args") + b"\x91" + argument
        + b"".join(text(name) + bytes([value]) for name, value in numbers.items())
    )  # fmt: skip
    metadata = b"\x81" + text("amdhsa.kernels") + b"\x91" + entry
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata
    names = b"\0.note\0"
    fields = (3, 224, 1, 0, 0, 64, 0x500 | mach, 64, 0, 0, 64, 3, 2)
    header = b"\x7fELF\x02\x01\x01\x40\x02" + bytes(7) + struct.pack("<HHIQQQIHHHHHH", *fields)
    body = 64 + 3 * 64

    def section(name: int, kind: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 1, 0)

    table = section(0, 0, 0, 0) + section(1, 7, body, len(note)) + section(0, 3, body + len(note), len(names))
    return header + table + note + names


@pytest.mark.parametrize(
    "content,said",
    [
        (None, "missing"),
        (code_object(KERNEL), ""),
        (code_object(KERNEL, mach=0x4C), "the code object is for gfx942; this device is gfx950"),
        (code_object(KERNEL, symbol="other"), f"has other, not {KERNEL.symbol}"),
        (code_object(KERNEL)[:100], "damaged or truncated"),
        (b"hello", "want a 64-bit ELF file"),
    ],
    ids=["absent", "fits", "gfx942", "other kernel", "truncated", "no ELF"],
)
def test_direct_launch_is_refused_without_a_file_that_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, said: str
) -> None:
    monkeypatch.setenv(direct.FOLDER_VARIABLE, str(tmp_path))
    if content is not None:
        (tmp_path / f"{KERNEL.name}.co").write_bytes(content)
    refusal = ROUTES["fused_asm"].check_config(problem(), FusedAsmConfig(KERNEL.name, "direct"))
    assert (refusal is None) == (said == "")
    assert said in str(refusal)


def test_code_objects_alone_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any amd-aiter, a folder of its code objects serves direct launches, and nothing else."""
    uninstall(monkeypatch)
    monkeypatch.setenv(direct.FOLDER_VARIABLE, str(tmp_path))
    inside = tmp_path / direct.INSIDE
    inside.mkdir(parents=True)
    (inside / f"{KERNEL.name}.co").write_bytes(code_object(KERNEL))
    route = ROUTES["fused_asm"]
    assert route.refusal(problem()) is None
    assert route.configs(problem()) == [FusedAsmConfig(KERNEL.name, "direct")]
    assert "not installed" in str(route.check_config(problem(), FusedAsmConfig(KERNEL.name, "aiter")))
    assert f"1 in {inside}" in dict(doctor.examine().facts)["aiter code objects"]


def test_code_objects_are_found_in_a_wheel_and_in_a_source_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    assert direct.folder() is None
    for place in (tmp_path, tmp_path / "aiter_meta"):
        folder = place / direct.INSIDE
        folder.mkdir(parents=True)
        (folder / f"{KERNEL.name}.co").write_bytes(b"")
        assert direct.folder() == folder


@pytest.mark.parametrize(
    "config", [{"kernel": "f4gemm_made_up"}, {"launch": "hopefully"}, {"kernel": f"{PREFIX}noBpreShuffle_256x256"}]
)
def test_illegal_configurations_of_fused_asm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: dict[str, str]
) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    name, value = next(iter(config.items()))
    refusal = ROUTES["fused_asm"].check_config(problem(), FusedAsmConfig.from_mapping(config))
    assert refusal is not None
    assert refusal.field == ("weight_layout" if "noB" in value else name)


def test_code_objects_without_the_one_that_is_wanted_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The route says what is missing, and the router goes on."""
    uninstall(monkeypatch)
    monkeypatch.setenv(direct.FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / f"{PREFIX}BpreShuffle_256x128.co").write_bytes(b"")
    assert f"without {KERNEL.name}.co" in str(ROUTES["fused_asm"].refusal(problem()))
    answer = mxgemm.explain(16, 256, 512, device="gfx950", prepared=True, tables=[])
    assert answer.route == "a16wfp4"
    assert f"without {KERNEL.name}.co" in str(answer)


@pytest.mark.parametrize("form", ["filled", "returned"])
def test_an_aiter_that_can_neither_pick_nor_be_told_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    """Its own pick wants N % 256 == 0 and an output that it takes, and its gemm_a4w4_asm takes no kernel's name."""
    aiter_double.install(monkeypatch, tmp_path, form)
    source = tmp_path / "aiter" / installed.SOURCE
    source.write_text(source.read_text().replace("def gemm_a4w4_asm(", "def gemm_a4w4_asm_of_old("))
    installed.find.cache_clear()
    assert (ROUTES["ck_gemm"].refusal(problem()) is None) == (form == "filled")
    assert "which lacks gemm_a4w4_asm" in str(ROUTES["ck_gemm"].refusal(problem(n=288)))


def test_another_gpu_is_refused_without_importing_aiter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aiter_double.install(monkeypatch, tmp_path)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for route in ("fused_asm", "ck_gemm"):
        refusal = ROUTES[route].refusal(replace(problem(), machine=KNOWN_MACHINES["gfx942"]))
        assert refusal is not None
        assert refusal.field == "arch"
    assert not [name for name in sys.modules if name.split(".")[0] == "aiter"]
