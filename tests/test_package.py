"""The package as its users get it: a wheel, a clean import."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CLEAN_IMPORT = """
import sys, subprocess, socket
def refuse(*a, **k): raise AssertionError("import mxgemm started a process")
subprocess.Popen.__init__ = refuse
import torch
before = set(sys.modules)
torch.cuda.is_available = refuse
torch.cuda.init = refuse
import mxgemm
new = {name.split(".")[0] for name in set(sys.modules) - before}
for heavy in ("triton", "aiter", "typer", "rich", "jsonschema", "transformers"):
    assert heavy not in new, heavy
assert not torch.cuda.is_initialized()
print(mxgemm.__version__)
"""


def test_import_touches_no_device_compiler_or_process() -> None:
    done = subprocess.run([sys.executable, "-c", CLEAN_IMPORT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_triton_leaves_the_rest_working() -> None:
    code = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else find(name, *a)
sys.modules["triton"] = None
import torch, mxgemm
w = mxgemm.quantize(torch.ones(32, 64))
assert mxgemm.gemm(torch.ones(1, 64), w).eq(64).all()
print(mxgemm.explain(1, 32, 64, device="gfx950"))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "dequant_mm: triton is not installed; needs triton >= 3.6 (pip install 'mxgemm[triton]')" in done.stdout


@pytest.mark.slow
def test_wheel_in_a_clean_environment(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")

    def call(*command: str | Path, cwd: Path = ROOT) -> str:
        done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("mxgemm-*.whl")
    environment = tmp_path / "env"
    call(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    # torch and friends come from this environment's site-packages; the editable mxgemm does not: .pth files of a
    # folder that a .pth file names are not read.
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "extras.pth").write_text("import sys; sys.modules.update(dict.fromkeys(('rich', 'typer', 'matplotlib')))\n")
    call(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = call(python, "-c", "import mxgemm; print(mxgemm.__file__)", cwd=elsewhere).strip()
    assert where.startswith(str(site)), where
    command = environment / "bin" / "mxgemm"
    assert "reference" in call(command, "doctor", cwd=elsewhere)
    assert call(command, "--version", cwd=elsewhere) == call(python, "-m", "mxgemm", "--version", cwd=elsewhere)
    assert "route     a16wfp4" in call(command, "explain", "16,2112,7168", "--device", "gfx950", cwd=elsewhere)
    sizes = ("--shape", "3,32,64", "--device", "cpu")
    call(command, "bench", *sizes, "--seconds", "0", "--json", "r.json", cwd=elsewhere)
    assert "0 of 1 slower" in call(command, "bench", "--compare", "r.json", "r.json", cwd=elsewhere)
    assert "1 sizes" in call(command, "parity", "route:auto", "peer:torch_mm", *sizes, "--repeats", "2", cwd=elsewhere)
    assert "wrote t.json" in call(command, "tune", *sizes, "--seconds", "0", "-o", "t.json", cwd=elsewhere)
    assert "wrote s.py" in call(command, "submission", "--form", "aiter", "-o", "s.py", cwd=elsewhere)
    assert "gemm_" in call(command, "dispatcher", "names", cwd=elsewhere)
    gemm = "import torch, mxgemm; print(mxgemm.gemm(torch.ones(2, 64), mxgemm.quantize(torch.ones(32, 64))).sum())"
    assert "4096" in call(python, "-c", gemm, cwd=elsewhere)
    tables = "from mxgemm.routing import tables; print(len(tables.shipped('gfx950')[0].rows), tables.shipped_folder())"
    count, folder = call(python, "-c", tables, cwd=elsewhere).split(maxsplit=1)
    assert int(count) > 1500
    assert folder.startswith(str(site))
    assert (site / "mxgemm" / "py.typed").exists()
    kernels = ROOT / "mxgemm" / "hip" / "kernels"
    shipped = {file.name for file in (site / "mxgemm" / "hip" / "kernels").iterdir()}
    assert shipped == {file.name for file in kernels.iterdir()} >= {"portable.h", "shuffle_scales.hip"}
