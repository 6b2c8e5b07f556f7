"""AITER's f4gemm kernels in the emulator, given the library's own quantised A, shuffled scales and argument block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mxgemm
from evidence.gfx950_cases import spread
from evidence.hip_cases import poisoned_padding
from gfx950emu import Stats, run_code_object
from mxgemm.aiter import direct
from mxgemm.aiter.arguments import THREADS, ArgumentBlock
from mxgemm.aiter.f4gemm import KERNELS, F4GemmKernel
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import Accuracy, compare
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.triton.quantize import quantize_rows

UNWRITTEN = 0xC3C3
Array = NDArray[Any]


def available() -> list[F4GemmKernel]:
    """Return the kernels whose code objects are here."""
    folder = direct.folder()
    return [] if folder is None else [k for k in KERNELS.values() if (folder / f"{k.name}.co").is_file()]


def image(kernel: F4GemmKernel) -> bytes:
    """Return the code object of a kernel that is here."""
    folder = direct.folder()
    assert folder is not None
    return (folder / f"{kernel.name}.co").read_bytes()


@dataclass(frozen=True)
class Operands:
    """One multiplication in the bytes that a kernel reads, and its exact result."""

    arrays: dict[str, Array]
    a64: oracle.Float64
    b64: oracle.Float64

    def judge(self, after: Mapping[str, Array]) -> Accuracy:
        """Ask both gates. A store past D, which has M rows, has raised in the emulator."""
        return compare(_result(after), self.exact, self.a64, self.b64)

    def wrong_rows(self, after: Mapping[str, Array]) -> list[int]:
        """Return the rows that miss the gates by themselves, where the whole misses them."""
        if self.judge(after).passed:
            return []
        out, ref = _result(after), self.exact
        parts = [slice(row, row + 1) for row in range(len(out))]
        return [part.start for part in parts if not compare(out[part], ref[part], self.a64[part], self.b64).passed]

    @cached_property
    def exact(self) -> oracle.Float64:
        """The product of the operands in float64, ``[M, N]``."""
        return oracle.matmul(self.a64, self.b64)


def operands(kernel: F4GemmKernel, m: int, n: int, k: int, seed: int = 0) -> Operands:
    """Quantise as ``fused_asm`` does (in Triton's interpreter), B as ``prepare()`` does with poisoned padding."""
    a = spread(m, k, 2 * seed).bfloat16()
    data = torch.full((m, k // 2), 0xAA, dtype=torch.uint8)
    scales = torch.full((kernel.scale_rows(m), k // 32), 0xFF, dtype=torch.uint8)
    quantize_rows(a, E2M1, scale_addend(E2M1, "even"), data, scales, shuffled=True)
    weight = mxgemm.quantize(spread(n, k, 2 * seed + 1))
    packed = layouts.preshuffle_weight(weight.data) if kernel.preshuffled else weight.data
    columns = layouts.padded_scale_shape(n, k)[1]
    arrays: dict[str, Array] = {
        "a": data.numpy(), "b": packed.numpy(), "a_scales": scales.numpy(),
        "b_scales": poisoned_padding(weight.scales).reshape(-1, columns), "d": np.full((m, n), UNWRITTEN, np.uint16),
    }  # fmt: skip
    a64 = oracle.decode(*oracle.encode(a.float().numpy(), "e2m1", "even"), "e2m1")
    return Operands(arrays, a64, oracle.decode(weight.data.numpy(), weight.scales.numpy(), "e2m1"))


def execute(
    kernel: F4GemmKernel, problem: Operands, *, strict: bool, code: bytes | None = None
) -> tuple[dict[str, Array], Stats]:
    """Run a kernel on operands of which every one lies in memory of exactly its size; return what memory then holds."""
    arrays = problem.arrays
    (m, n), k = arrays["d"].shape, problem.a64.shape[1]
    block = ArgumentBlock(
        m, n, k, d_stride=n, a_stride=k // 2, b_stride=k // 2, a_scales_stride=arrays["a_scales"].shape[1],
        b_scales_stride=arrays["b_scales"].shape[1],
    )  # fmt: skip
    return run_code_object(
        image(kernel) if code is None else code, kernel.symbol, kernel.grid(m, n), THREADS,
        lambda address: block.pack(**{name: address[name] for name in arrays}), arrays,
        strict=strict, read_only=arrays.keys() - {"d"},
    )  # fmt: skip


def run(
    kernel: F4GemmKernel, m: int, n: int, k: int, *, strict: bool, code: bytes | None = None
) -> tuple[Accuracy, Stats]:
    """Multiply one size; return how exact it is, and what was executed."""
    problem = operands(kernel, m, n, k)
    after, stats = execute(kernel, problem, strict=strict, code=code)
    return problem.judge(after), stats


def _result(after: Mapping[str, Array]) -> torch.Tensor:
    return torch.from_numpy(after["d"].view(np.int16).copy()).view(torch.bfloat16)
