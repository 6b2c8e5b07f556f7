"""AITER's f4gemm kernels for gfx950: which there are, and the one statement of what each multiplies correctly.

Names, tiles and the preshuffle flag are those of AITER's ``hsa/gfx950/f4gemm/f4gemm_bf16_per1x32Fp4.csv`` (commit
e4048607; the same 35 kernels, byte for byte, come with ``amd-aiter`` 0.1.7.post2.dev18). The clauses were found by
running every kernel in the gfx950 emulator with guarded memory; docs/aiter.md says what happens where one is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mxgemm.errors import Refusal
from mxgemm.mx.layouts import SCALE_PAD_ROWS, round_up

PREFIX: Final = "f4gemm_bf16_per1x32Fp4_"
K_STEP: Final = 256
N_STEP: Final = 32
SCALE_ROWS: Final = 32
"""Shuffled scales come in groups of this many rows, and a kernel reads whole groups."""
MAX_BYTES: Final = 1 << 32
"""Some kernels compute a byte offset into an operand in 32 bits."""


@dataclass(frozen=True, slots=True)
class F4GemmKernel:
    """One kernel, and the clauses that it has beside those of all.

    Attributes:
        tile_m: rows of D that a workgroup computes.
        tile_n: columns of D that a workgroup computes.
        preshuffled: B is read in preshuffled order, otherwise row-major.
        whole_columns: N % tile_n == 0.
        whole_rows: M % tile_m == 0.
        reads_ahead: K of more than one step where the last tile has at most 32 rows of its own.
        long_k: K of more than one step.
        adds_splits: takes log2_k_split; mxgemm always passes 0.
    """

    tile_m: int
    tile_n: int
    preshuffled: bool = True
    whole_columns: bool = False
    whole_rows: bool = False
    reads_ahead: bool = False
    long_k: bool = False
    adds_splits: bool = False

    @property
    def name(self) -> str:
        """Name as routing tables hold it, and the code object's file name without ``.co``."""
        return f"{PREFIX}{'' if self.preshuffled else 'no'}BpreShuffle_{self.tile_m}x{self.tile_n}"

    @property
    def symbol(self) -> str:
        """Mangled name, as AITER's entry points and the code objects have it."""
        return f"_ZN5aiter{len(self.name)}{self.name}E"

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Workgroups along x (N), y (M) and z (splits of K: one)."""
        return -(-n // self.tile_n), -(-m // self.tile_m), 1

    def scale_rows(self, m: int) -> int:
        """Rows of A's scales that the kernel may read."""
        return round_up(m, SCALE_ROWS if self.preshuffled else SCALE_PAD_ROWS)

    def broken(self, m: int, n: int, k: int) -> Refusal | None:
        """Return the first clause that a size breaks, or None if the kernel multiplies it correctly."""
        tile = f"tile {self.tile_m}x{self.tile_n}"
        if (found := broken_by_any(n, k)) is not None:
            return found
        if self.whole_columns and n % self.tile_n:
            return Refusal("n", n, f"a multiple of {self.tile_n} for {tile}: it writes past the end of a row")
        if self.whole_rows and m % self.tile_m:
            return Refusal("m", m, f"a multiple of {self.tile_m} for {tile} without preshuffle: it writes whole tiles")
        if self.long_k and k <= K_STEP:
            return Refusal("k", k, f"more than {K_STEP} for {tile} without preshuffle: it reads past B")
        if self.reads_ahead and k <= K_STEP and 0 < m % self.tile_m <= SCALE_ROWS:
            return Refusal("k", k, f"more than {K_STEP} for {tile} and M = {m}: it reads past A")
        return None


def broken_by_any(n: int, k: int) -> Refusal | None:
    """Return the clause of every kernel that a size breaks, or None."""
    if k < K_STEP or k % K_STEP:
        return Refusal(
            "k", k, f"a multiple of {K_STEP}: the kernels read scales in steps of {K_STEP}, padding included"
        )
    if n % N_STEP:
        return Refusal("n", n, f"a multiple of {N_STEP}, the columns that the kernels store at a time")
    return None


def _table() -> dict[str, F4GemmKernel]:
    special = (
        F4GemmKernel(256, 256, preshuffled=False, whole_columns=True, whole_rows=True, long_k=True),
        F4GemmKernel(256, 256, whole_columns=True, reads_ahead=True, adds_splits=True),
        F4GemmKernel(128, 512, whole_columns=True, adds_splits=True),
        F4GemmKernel(192, 256, whole_columns=True),
        F4GemmKernel(224, 256, whole_columns=True),
    )
    columns = {
        32: (128, 256, 384, 512, 640, 768, 896, 1024),
        64: (128, 256, 384, 512, 640, 768, 896, 1024),
        96: (128, 256, 384, 512, 640),
        128: (128, 256, 384),
        160: (128, 256, 384),
        192: (128,),
        224: (128,),
        256: (128,),
    }
    plain = (F4GemmKernel(tile_m, tile_n) for tile_m, widths in columns.items() for tile_n in widths)
    return {kernel.name: kernel for kernel in (*special, *plain)}


KERNELS: Final[dict[str, F4GemmKernel]] = _table()
"""Every kernel by name."""


def of_symbol(symbol: str) -> F4GemmKernel | None:
    """Return the kernel of a mangled name, or None if it is none of these."""
    return _BY_SYMBOL.get(symbol)


_BY_SYMBOL: Final = {kernel.symbol: kernel for kernel in KERNELS.values()}


def guess(m: int, n: int, k: int, compute_units: int, *, preshuffled: bool = True) -> F4GemmKernel | None:
    """Return a kernel for a size that no table row speaks for: the largest tile that still fills the machine.

    Of AITER's tuned rows that fill few compute units most take 32x128, the smallest tile; larger tiles read less memory
    for each output and pay as soon as there are enough of them.
    """
    legal = [kern for kern in KERNELS.values() if kern.preshuffled == preshuffled and kern.broken(m, n, k) is None]
    if not legal:
        return None
    by_area = sorted(legal, key=lambda kern: (kern.tile_m * kern.tile_n, kern.tile_m), reverse=True)
    for kern in by_area:
        groups = -(-m // kern.tile_m) * -(-n // kern.tile_n)
        if kern.tile_m <= max(32, m) and groups >= compute_units:
            return kern
    return by_area[-1]
