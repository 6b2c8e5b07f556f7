"""Triton 3.6's own launcher for AMD, compiled here and given a double of HIP's driver: launched past its Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.tritons import MISSING, ROOT, compiler_environment, other_triton
from mxgemm import c_compiler

DOUBLE = Path(__file__).with_name("hip_double.c")
WORKER = """
import ctypes, json, sys
from types import SimpleNamespace
import torch, triton
from triton.backends.amd.driver import HIPLauncher
from mxgemm.triton.direct import direct

double = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
ctypes.c_int.in_dll(double, "arguments").value = 6
SIZE = 8 + 8 + 7 * 4 + 4 + 32 * 8
kept = (ctypes.c_ubyte * SIZE).in_dll(double, "kept")
signature = {"x": "*bf16", "out": "*fp32", "M": "i32", "K": "i32", "stride": "constexpr", "BLOCK": "constexpr"}
metadata = SimpleNamespace(warp_size=64, launch_cooperative_grid=False, profile_scratch_size=0, profile_scratch_align=1)
names = SimpleNamespace(arg_names=list(signature))
source = SimpleNamespace(constants={"stride": 1, "BLOCK": 16}, signature=signature, fn=names)
launcher = HIPLauncher(source, metadata)
hooks = triton.knobs.runtime

class Compiled:
    run, function, packed_metadata = launcher, 0x1234567, (4, 1, 4096)
    def __getitem__(self, grid):
        return lambda *arguments, stream: launcher(
            *grid, stream, self.function, self.packed_metadata, None, hooks.launch_enter_hook, hooks.launch_exit_hook,
            *arguments)

compiled, grid, tail = Compiled(), (7, 5, 3), (-3, 4096, 1, 16)
tensors = torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64)
found = []
compiled[grid](*tensors, *tail, stream=0)
found.append(bytes(kept).hex())
ctypes.memset(kept, 0, SIZE)
launch = direct(compiled, grid, tail)
launch(tensors)
found.append(bytes(kept).hex())
print(json.dumps([triton.__version__, *found, [t.data_ptr() for t in tensors]]))
"""


@pytest.mark.slow
def test_the_c_function_launches_what_its_python_does(tmp_path: Path) -> None:
    if other_triton() is None:
        pytest.skip(MISSING)
    command = next((command for command in c_compiler.commands() if isinstance(command, list)), None)
    if command is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "libamdhip64.so"
    subprocess.run([*command, "-O1", "-shared", "-fPIC", str(DOUBLE), "-ldl", "-o", str(library)], check=True)
    environment = compiler_environment(other_triton()) | {
        "TRITON_LIBHIP_PATH": str(library), "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(library)], capture_output=True, text=True, cwd=ROOT, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    version, by_python, by_c, pointers = json.loads(done.stdout.splitlines()[-1])
    assert version.startswith("3.6.")
    assert by_c == by_python
    kept = bytes.fromhex(by_c)
    words = [int.from_bytes(kept[at : at + 4], "little") for at in range(16, 44, 4)]
    assert int.from_bytes(kept[:8], "little") == 0x1234567
    assert words == [7, 5, 3, 256, 1, 1, 4096]
    arguments = [int.from_bytes(kept[at : at + 8], "little") for at in range(44, 44 + 48, 8)]
    assert arguments == [*pointers, 2**32 - 3, 4096, 0, 0]
