"""AITER's f4gemm kernels in the emulator, given the library's own quantised A, shuffled scales and argument block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

import mxgemm
from gfx950emu import Stats, run_code_object
from mxgemm.aiter import direct
from mxgemm.aiter.arguments import THREADS, ArgumentBlock
from mxgemm.aiter.f4gemm import KERNELS, F4GemmKernel
from mxgemm.mx import layouts, oracle
from mxgemm.mx.accuracy import Accuracy, compare
from mxgemm.mx.formats import E2M1, scale_addend
from mxgemm.triton.quantize import quantize_rows
from tests.cases import shuffled_with_poison, spread

UNWRITTEN = 0xC3C3


def available() -> list[F4GemmKernel]:
    """The kernels whose code objects are here."""
    folder = direct.folder()
    return [] if folder is None else [k for k in KERNELS.values() if (folder / f"{k.name}.co").is_file()]


def image(kernel: F4GemmKernel) -> bytes:
    folder = direct.folder()
    assert folder is not None
    return (folder / f"{kernel.name}.co").read_bytes()


@dataclass(frozen=True)
class Operands:
    """One multiplication in the bytes that a kernel reads, and its exact result."""

    arrays: dict[str, np.ndarray]
    a64: np.ndarray
    b64: np.ndarray

    def judge(self, after: Mapping[str, np.ndarray]) -> Accuracy:
        """Both gates. A store past D, which has M rows, has raised in the emulator."""
        out = torch.from_numpy(after["d"].view(np.int16).copy()).view(torch.bfloat16)
        return compare(out, oracle.matmul(self.a64, self.b64), self.a64, self.b64)


def operands(kernel: F4GemmKernel, m: int, n: int, k: int, seed: int = 0) -> Operands:
    """Quantise as ``fused_asm`` does (in Triton's interpreter), B as ``prepare()`` does with poisoned padding."""
    a = spread(m, k, torch.bfloat16, seed=seed)
    data = torch.full((m, k // 2), 0xAA, dtype=torch.uint8)
    scales = torch.full((kernel.scale_rows(m), k // 32), 0xFF, dtype=torch.uint8)
    quantize_rows(a, E2M1, scale_addend(E2M1, "even"), data, scales, shuffled=True)
    weight = mxgemm.quantize(spread(n, k, seed=seed + 1))
    packed = layouts.preshuffle_weight(weight.data) if kernel.preshuffled else weight.data
    arrays = {
        "a": data.numpy(), "b": packed.numpy(), "a_scales": scales.numpy(),
        "b_scales": shuffled_with_poison(weight).numpy(), "d": np.full((m, n), UNWRITTEN, np.uint16),
    }  # fmt: skip
    a64 = oracle.decode(*oracle.encode(a.float().numpy(), "e2m1", "even"), "e2m1")
    return Operands(arrays, a64, oracle.decode(weight.data.numpy(), weight.scales.numpy(), "e2m1"))


def run(
    kernel: F4GemmKernel, m: int, n: int, k: int, *, strict: bool, code: bytes | None = None
) -> tuple[Accuracy, Stats]:
    """Multiply one size, every operand in memory of exactly its size; return how exact it is, and what was executed."""
    problem = operands(kernel, m, n, k)
    arrays = problem.arrays
    block = ArgumentBlock(
        m, n, k, d_stride=n, a_stride=k // 2, b_stride=k // 2, a_scales_stride=arrays["a_scales"].shape[1],
        b_scales_stride=arrays["b_scales"].shape[1],
    )  # fmt: skip
    after, stats = run_code_object(
        image(kernel) if code is None else code, kernel.symbol, kernel.grid(m, n), THREADS,
        lambda address: block.pack(**{name: address[name] for name in arrays}), arrays,
        strict=strict, read_only=arrays.keys() - {"d"},
    )  # fmt: skip
    return problem.judge(after), stats
