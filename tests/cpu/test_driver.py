"""The kernels in a program of their own: under sanitizers, and for CPUs that only an emulator has here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mxgemm.cpu import build, variants
from mxgemm.device import cpu_features
from mxgemm.errors import Refusal
from tests.marks import EXHAUSTIVE

DRIVER = Path(__file__).with_name("driver.c")
ARM = ("aarch64-linux-gnu-gcc", ("qemu-aarch64", "qemu-aarch64-static"))

pytestmark = pytest.mark.slow


def compiled(folder: Path, compiler: str, *flags: str) -> str:
    program = str(folder / "driver")
    shared = [flag for flag in build.FLAGS if flag not in ("-O3", "-shared")]
    command = [compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", *shared, *flags, f"-I{build.KERNELS}", str(DRIVER)]
    done = subprocess.run(
        [*command, "-o", program, "-lm"], capture_output=True, encoding="utf-8", timeout=300, check=False
    )  # a warning quotes the source, comments in UTF-8 too, whatever the locale
    assert done.returncode == 0, done.stderr
    return program


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def sanitizes(folder: Path, sanitizer: str) -> bool:
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    command = ["cc", f"-fsanitize={sanitizer}", str(probe), "-o", str(folder / "probe")]
    return (
        shutil.which("cc") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
        and subprocess.run([str(folder / "probe")], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    "name, sanitizer, options",
    [
        ("amx_bf16", "address,undefined", ()),
        ("avx512_vnni", "address,undefined", ("-DMX_EMULATED_AMX",)),
        ("avx2", "address,undefined", ("-DMX_EMULATED_AMX",)),
        pytest.param("avx512_vnni", "address,undefined", (), marks=EXHAUSTIVE),
        pytest.param("avx2", "address,undefined", (), marks=EXHAUSTIVE),
        ("avx2", "thread", ()),
    ],
)
def test_sanitizers(name: str, sanitizer: str, options: tuple[str, ...], tmp_path: Path) -> None:
    found = variants.usable(name)
    if isinstance(found, Refusal):
        pytest.skip(f"this CPU is not one for {name}")
    if not sanitizes(tmp_path, sanitizer):
        pytest.skip(f"no compiler with -fsanitize={sanitizer} whose programs run here")
    flags = found[0].flags_for(cpu_features())
    run(compiled(tmp_path, "cc", *flags, *options, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"))


def test_without_what_only_some_cpus_of_a_variant_have(tmp_path: Path) -> None:
    """AVX-512 with VNNI, but neither byte permutations nor bf16 products."""
    found = variants.usable("avx512_vnni")
    if isinstance(found, Refusal):
        pytest.skip("this CPU is not one for avx512_vnni")
    run(compiled(tmp_path, "cc", *found[0].flags))


@pytest.mark.parametrize("options", [(), ("-DMX_EMULATED_AMX",)], ids=["vectors", "matrix unit"])
def test_avx512_as_functions(options: tuple[str, ...], tmp_path: Path) -> None:
    """Its bf16 products and byte permutations, on a CPU that has AVX2 alone."""
    if isinstance(variants.usable("avx2"), Refusal) or not isinstance(variants.usable("avx512_vnni"), Refusal):
        pytest.skip("for CPUs with AVX2 and without AVX-512")
    if not Path("/usr/include/simde/x86/avx512.h").exists():
        pytest.skip("Debian and Ubuntu: apt install libsimde-dev")
    functions = DRIVER.with_name("simde.h")
    run(
        compiled(
            tmp_path,
            "cc",
            "-mavx2",
            "-mfma",
            "-mf16c",
            "-Wno-all",
            "-Wno-extra",
            "-Wno-error",
            f"-include{functions}",
            *options,
        )
    )


def test_arm_in_an_emulator(tmp_path: Path) -> None:
    emulator = next((path for name in ARM[1] if (path := shutil.which(name))), None)
    if emulator is None or shutil.which(ARM[0]) is None:
        pytest.skip("Debian and Ubuntu: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static")
    (neon,) = (variant for variant in variants.VARIANTS if variant.name == "neon_dotprod")
    run(emulator, compiled(tmp_path, ARM[0], *neon.flags, "-static", "-O2"))
