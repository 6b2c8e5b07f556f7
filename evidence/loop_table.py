"""The main loops of large tiles, counted by one analyser: ours in HIP, ours by each Triton, AITER's.

    MXGEMM_AITER_CO=FOLDER python evidence/loop_table.py [-o bench/results/loops_gfx950.json] [--markdown]

Needs triton, clang-22 and LLVM's objdump; AITER's kernels are left out where their code objects are not to be had. To
compare tiles, everything is of a CU that does 256 x 256 x 256 of the product, during which the matrix unit of each of
its SIMDs works for 2048 cycles: whatever takes longer holds it up. Counts, no measurement.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from evidence import hip_compile
from evidence.gfx950_cases import Case, compile_cases
from evidence.hip_cases import problem_of_case
from evidence.loops import Loop, main_loop
from evidence.predict import of
from evidence.tritons import ROOT, other_triton
from gfx950emu.api import load
from mxgemm import files
from mxgemm.aiter import direct
from mxgemm.aiter.f4gemm import KERNELS
from mxgemm.device import KNOWN_MACHINES
from mxgemm.hip import mx
from mxgemm.hip.code_object import inspect
from mxgemm.hip.prepared import ARCH
from mxgemm.measure import output
from mxgemm.mx.formats import BLOCK
from mxgemm.routes.quant_gemm_mx import quantized_problem
from mxgemm.triton.support import triton_version

KIND: Final = "mxgemm-loops"
RESULTS: Final = ROOT / "bench" / "results" / "loops_gfx950.json"
DOCUMENT: Final = ROOT / "docs" / "hip-mx.md"
AITER: Final = "ROCm/aiter e4048607, hsa/gfx950/f4gemm"
SHAPE: Final = (1024, 7168, 2048)
UNIT: Final = 256**3
"""Multiplications that figures of a CU are for."""
PRODUCTS_A_CYCLE: Final = 16 * 16 * 128 // 16
"""Of the matrix unit of a SIMD, e2m1 by e2m1."""
LDS_BYTES_A_CYCLE: Final = 128
"""Of a CU: CDNA4's, twice CDNA3's (AMD, CDNA4 architecture white paper)."""
TRITON_TILES: Final = {
    (128, 128): {"block_m": 128, "block_n": 128, "block_k": 256},
    (256, 256): {"block_m": 256, "block_n": 256, "block_k": 256, "num_warps": 8},
}
AITER_TILES: Final = ("BpreShuffle_256x256", "BpreShuffle_192x256", "BpreShuffle_128x512", "BpreShuffle_128x256")


def main() -> None:
    """Count, print, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--markdown", action="store_true", help="print the rows of the table in docs/hip-mx.md")
    arguments = parser.parse_args()
    keep = output.json_file(arguments, KIND)
    rows = [*hip_rows(), *(row for triton in (None, other_triton()) for row in triton_rows(triton)), *aiter_rows()]
    for row in rows:
        print(markdown_of(row) if arguments.markdown else row)
    if arguments.output:
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        method = "counted in the code objects by evidence/loops.py; nothing ran on a GPU"
        keep({"kind": KIND, "arch": ARCH, "date": date, "method": method, "aiter": AITER, "rows": rows})


def hip_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the HIP kernel, one for each block."""
    problem = quantized_problem(problem_of_case(Case("loop", "hip_mx", *SHAPE)))
    for block_m in reversed(mx.BLOCKS):
        for block_n in reversed(mx.BLOCKS):
            defines = mx.defines(problem, mx.MXConfig(block_m, block_n))
            yield row_of("hip_mx", (block_m, block_n), hip_compile.code_object(mx.SOURCE, defines))


def triton_rows(triton: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``gemm_mx`` as one Triton compiles it."""
    version = "3.6" if triton else ".".join(map(str, triton_version() or ()))
    cases = {tile: Case(f"loop-{tile[0]}", "quant_gemm_mx", *SHAPE, config=c) for tile, c in TRITON_TILES.items()}
    with tempfile.TemporaryDirectory() as folder:
        compile_cases(cases.values(), Path(folder), triton)
        for tile, case in cases.items():
            yield row_of(f"gemm_mx, triton {version}", tile, (Path(folder) / f"{case.name}.1.hsaco").read_bytes())


def aiter_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of AITER's kernels with large tiles, where they are here."""
    folder = direct.folder()
    for kernel in KERNELS.values() if folder else ():
        assert folder is not None
        path = folder / f"{kernel.name}.co"
        if kernel.name.endswith(AITER_TILES) and kernel.preshuffled and path.is_file():
            yield row_of("AITER f4gemm", (kernel.tile_m, kernel.tile_n), path.read_bytes())


def row_of(name: str, tile: tuple[int, int], code: bytes) -> dict[str, Any]:
    """Count the main loop of the one kernel of a code object."""
    (kernel,) = inspect(code).kernels.values()
    loop = main_loop(load(code))
    waves = kernel.max_threads // KNOWN_MACHINES[ARCH].wave_size
    return {
        "kernel": name,
        "block_m": tile[0],
        "block_n": tile[1],
        "waves": waves,
        "vgprs": kernel.registers,
        "scratch": kernel.scratch_bytes,
        "lds": kernel.shared_bytes,
        "loop": loop.to_json(),
        "of_a_cu": of_a_cu(loop, waves),
    }


def of_a_cu(loop: Loop, waves: int) -> dict[str, int]:
    """Return cycles of a CU for 256 x 256 x 256: of a SIMD's matrix unit and issue, of L1 and of LDS."""
    simds, wave = KNOWN_MACHINES[ARCH].simds, KNOWN_MACHINES[ARCH].wave_size
    passes = UNIT / (loop.matrix_cycles * PRODUCTS_A_CYCLE)  # of all waves together
    written = loop.copied_bytes + loop.written_bytes
    return {
        "matrix": round(passes * loop.matrix_cycles / simds),
        "issue": round(passes * loop.issue_cycles / simds),
        "l1": round(passes * wave * loop.loaded_bytes / of("l1")),
        "lds": round(passes * wave * (loop.read_bytes + written) / LDS_BYTES_A_CYCLE),
        "barriers": round(passes * loop.counts.get("barrier", 0) / waves),
    }


def markdown_of(row: dict[str, Any]) -> str:
    """Return a row as docs/hip-mx.md has it: instructions of a wave and a step of 256 of K, cycles of a CU."""
    loop, cu = row["loop"], row["of_a_cu"]
    products = loop["matrix_cycles"] * PRODUCTS_A_CYCLE * row["waves"]
    steps = products / (row["block_m"] * row["block_n"] * 8 * BLOCK)

    def each(*names: str) -> str:
        return f"{sum(loop['counts'].get(name, 0) for name in names) / steps:.4g}"

    cells = (
        row["kernel"], f"{row['block_m']} x {row['block_n']}", row["waves"], row["vgprs"], row["scratch"] or "",
        each("mfma"), each("valu"), each("salu", "nop"), each("lds_read"), each("load"), each("load_to_lds"),
        each("wait"), each("barrier"), cu["issue"], cu["l1"], cu["lds"],
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def committed_rows() -> list[dict[str, Any]]:
    """Return the rows that are committed."""
    rows: list[dict[str, Any]] = files.read_json(RESULTS)["rows"]
    return rows


if __name__ == "__main__":
    main()
