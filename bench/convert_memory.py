"""Peak memory of converting a checkpoint, each conversion a process of its own: mxgemm convert.

    python bench/convert_memory.py [--megabytes 2000] [-o FILE]

Makes checkpoints of that size, each in one file: matrices in bf16, which are quantised to Quark's format, and weights
in Quark's format, which are converted to others. Prints and checks: the peak resident memory of each process, torch
and mapped parts of files included, stays under 600 MB. Linux alone (/proc).
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm import files
from mxgemm.checkpoints.writer import Spec, write_safetensors
from mxgemm.measure import output

KIND: Final = "mxgemm-convert-memory"
LIMIT_MB: Final = 600
N, K = 4096, 11008
"""A projection of a model of 7 billion parameters: 90 MB in bf16, 24 MB in MXFP4."""
_CHILD: Final = """
import sys, mxgemm_cli
status = mxgemm_cli.main(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
sys.exit(status)
"""
"""A command that says its peak resident kilobytes last; ru_maxrss would have those of the process that started it."""


def main() -> None:
    """Measure; exit status 1 where a conversion is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000, help="of each source")
    output.add_options(parser)
    options = parser.parse_args()
    keep = output.json_file(options, KIND)
    with tempfile.TemporaryDirectory() as name:
        cases = list(_cases(Path(name), options.megabytes * 10**6))
    document = {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "limit_mb": LIMIT_MB,
        "method": "VmHWM of a process of mxgemm convert, whose source is one file of matrices of 4096 x 11008",
        "cases": cases,
    }
    sys.stdout.write(files.json_text(document))
    keep(document)
    sys.exit(any(case["peak_mb"] > LIMIT_MB for case in cases))


def _cases(folder: Path, size: int) -> Iterator[dict[str, Any]]:
    dense, quark = folder / "dense", folder / "quark"
    _make(dense, [(f"l{i}.weight", torch.bfloat16, (N, K)) for i in range(max(1, size // (N * K * 2)))], {})
    yield _case("dense", "quark", dense, folder / "q", "--quantize", "*.weight", "--a-format", "bf16")
    _remove(folder / "q", dense)
    count = max(1, size // (N * K * 17 // 32))
    parts: list[Spec] = [
        (f"l{i}.weight{part}", torch.uint8, (N, K // by))
        for i in range(count)
        for part, by in (("", 2), ("_scale", 32))
    ]
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    whole = {"weight": weight, "input_tensors": None}
    _make(quark, parts, {"quantization_config": {"quant_method": "quark", "global_quant_config": whole}})
    for target in ("compressed-tensors", "gpt-oss", "gguf"):
        made = folder / ("out.gguf" if target == "gguf" else "out")
        yield _case("quark", target, quark, made)
        _remove(made)


def _make(folder: Path, specs: list[Spec], config: dict[str, Any]) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in specs:
            if dtype == torch.bfloat16:
                yield name, torch.randn(shape, generator=generator).to(dtype)
            else:
                yield name, torch.randint(0, 255, shape, generator=generator, dtype=dtype)

    write_safetensors(folder / "model.safetensors", specs, tensors(), {"format": "pt"})
    files.write(folder / "config.json", files.json_text(config), files.Mark("a configuration", b""))


def _case(source: str, target: str, read: Path, made: Path, *more: str) -> dict[str, Any]:
    """Run one conversion, and return what it took."""
    line = [sys.executable, "-c", _CHILD, "convert", str(read), str(made), "--to", target, *more]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    return {
        "from": source,
        "to": target,
        "read_mb": round(_size(read) / 1e6),
        "written_mb": round(_size(made) / 1e6),
        "peak_mb": round(int(done.stdout.split()[-1]) * 1024 / 1e6),
    }


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def _remove(*paths: Path) -> None:
    for path in paths:
        for file in [path] if path.is_file() else path.iterdir():
            file.unlink()
        if path.is_dir():
            path.rmdir()


if __name__ == "__main__":
    main()
