"""Compile the variants of a configuration, in a process of its own: ``python -m mxgemm.dispatcher.native_worker``.

For each line of JSON on standard input, ``{"operation", "config", "arch", "folder"}``, it writes each variant's code
object into the folder and prints a line ``{"triton", "variants": [...]}``. A process of its own because triton decides
at import whether it interprets kernels, and because builds run side by side. With its parent's number as an argument it
ends when that process does.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from mxgemm.dispatcher.config import KernelConfig
from mxgemm.dispatcher.kernel_arguments import read_arguments
from mxgemm.dispatcher.native_kernel import Variant, arguments, blocks, kernel_call, variants
from mxgemm.dispatcher.operations import OPERATIONS
from mxgemm.triton.compile import compile_call

_PR_SET_PDEATHSIG: Final = 1


def compile_variant(config: KernelConfig, arch: str, variant: Variant, folder: Path) -> dict[str, Any]:
    """Compile one variant, write ``<variant>.hsaco`` and describe it."""
    compiled = compile_call(kernel_call(config, arch, variant), arch, small=not variant.wide)
    assembly, metadata = compiled.asm["amdgcn"], compiled.metadata
    scratch = [getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if any(scratch):
        raise RuntimeError(f"the kernel wants scratch memory from its launcher: {scratch} bytes")
    (folder / f"{variant.name}.hsaco").write_bytes(compiled.asm["hsaco"])
    table = read_arguments(assembly, arguments(config))
    return {
        "name": variant.name,
        "even": variant.even,
        "wide": variant.wide,
        "kernel": metadata.name,
        "threads": metadata.num_warps * metadata.warp_size,
        "lds": metadata.shared,
        "arguments": [asdict(argument) for argument in table.arguments],
        "kernarg_size": table.size,
        "matrix_instructions": dict(Counter(re.findall(r"\bv_s?mfma\w+", assembly))),
        "vgprs": _metadata(assembly, "vgpr_count"),
        "scratch_bytes": _metadata(assembly, "private_segment_fixed_size"),
        "spills": _metadata(assembly, "vgpr_spill_count") + _metadata(assembly, "sgpr_spill_count"),
    }


def _metadata(assembly: str, field: str) -> int:
    match = re.search(rf"\.{field}:\s*(\d+)", assembly)
    return int(match[1]) if match else 0


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, however it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before that
        sys.exit(f"the process {parent} that wanted these kernels has ended")


def main() -> None:
    """Serve the jobs on standard input; the first that fails ends the process."""
    for parent in sys.argv[1:]:
        _end_with(int(parent))
    import triton

    for line in sys.stdin:
        job = json.loads(line)
        config = OPERATIONS[job["operation"]].config_type(**job["config"])
        folder = Path(job["folder"])
        found = [compile_variant(config, job["arch"], variant, folder) for variant in variants(config)]
        described = {"triton": triton.__version__, "blocks": blocks(config, job["arch"])._asdict(), "variants": found}
        print(json.dumps(described), flush=True)


if __name__ == "__main__":
    main()
