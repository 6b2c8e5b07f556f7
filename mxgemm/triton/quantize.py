"""Host side of the quantising kernel: used by ``mxgemm.quantize`` on GPUs, and by routes that feed another kernel.

The bytes are those of the torch code in ``codec.py``, which remains the definition and runs where Triton does not.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product
from typing import Final

import torch
from torch import Tensor

from mxgemm.device import Machine, machine_of
from mxgemm.mx.formats import BLOCK, E2M1, ElementFormat
from mxgemm.mx.layouts import SCALE_PAD_COLUMNS, round_up
from mxgemm.notices import say_once
from mxgemm.triton.launch import KernelCall, Launcher
from mxgemm.triton.support import INT32_MAX, MAX_GRID_YZ, interpreting, next_power_of_two, triton_missing

SHUFFLE_ROWS: Final = 32
SHUFFLE_K: Final = 256
MAX_ROWS: Final = 1 << 26
"""Rows of a launch; more take several. HIP takes 2**32 - 1 work items along x."""
MAX_COLUMNS: Final = MAX_GRID_YZ * SHUFFLE_K
"""Columns of a launch; more take several."""
_MAX_LAUNCHERS: Final = 4096

_launchers: dict[Hashable, Launcher] = {}


def available(device: torch.device) -> bool:
    """Say whether the kernel runs on a device. On a CPU only in Triton's interpreter, which nobody asks for here."""
    if device.type != "cuda":
        return False
    machine = machine_of(device)
    refusal = triton_missing(machine, "quantiser")
    if refusal:
        say_once(f"quantising by torch's own operations, which are slower, on {machine.arch}; {refusal}")
    return refusal is None


def quantize_rows(
    x: Tensor, fmt: ElementFormat, addend: int, data: Tensor, scales: Tensor, *, shuffled: bool = False
) -> None:
    """Quantise a matrix, in one launch up to ``MAX_ROWS`` and ``MAX_COLUMNS``.

    Args:
        x: ``[M, K]``, bf16, fp16 or fp32, any strides, M and K at least 1, K % 32 == 0.
        fmt: element format.
        addend: of the scale rule, see :func:`mxgemm.mx.formats.scale_addend`.
        data: uint8 ``[M, K/pack]``, contiguous rows.
        scales: uint8 ``[M, K/32]`` with contiguous rows; or, if ``shuffled``, ``[rows, columns]`` contiguous in
            shuffled order, rows a multiple of 32 that holds M, columns a multiple of 8 that holds K/32: all written.
        shuffled: store the scales in the order of ``mxgemm.mx.layouts.shuffle_scales``.

    Raises:
        ValueError: ``shuffled`` and more than one launch would take.
    """
    m, k = x.shape
    if m > MAX_ROWS or k > MAX_COLUMNS:
        if shuffled:
            raise ValueError(f"x: got M = {m}, K = {k}, want at most {MAX_ROWS}, {MAX_COLUMNS} for shuffled scales")
        for row, column in product(range(0, m, MAX_ROWS), range(0, k, MAX_COLUMNS)):
            rows, stop = slice(row, row + MAX_ROWS), column + MAX_COLUMNS
            part_of_data = data[rows, column // fmt.pack : stop // fmt.pack]
            part_of_scales = scales[rows, column // BLOCK : stop // BLOCK]
            quantize_rows(x[rows, column:stop], fmt, addend, part_of_data, part_of_scales)
        return
    key = (
        x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, fmt.name, addend, shuffled, scales.shape,
        data.stride(0), scales.stride(0), (data.data_ptr() | scales.data_ptr()) & 15,
    )  # fmt: skip
    launcher = _launchers.get(key)
    if launcher is None:
        call = quantize_call(
            machine_of(x.device), (x.shape[0], x.shape[1]), (x.stride(0), x.stride(1)), x.dtype, fmt, addend,
            (data.stride(0), scales.stride(0)), scales.shape[0] if shuffled else None,
        )  # fmt: skip
        if len(_launchers) >= _MAX_LAUNCHERS:
            _launchers.clear()
        launcher = _launchers.setdefault(key, Launcher(call))
    launcher(x, data, scales)


def quantize_call(
    machine: Machine,
    shape: tuple[int, int],
    strides: tuple[int, int],
    dtype: torch.dtype,
    fmt: ElementFormat,
    addend: int,
    out_strides: tuple[int, int],
    shuffled_rows: int | None,
) -> KernelCall:
    """Describe the launch; ``shuffled_rows`` is None for row-major scales, else the rows to write."""
    from mxgemm.triton.kernels.quantize import quantize_kernel

    m, k = shape
    shuffled = shuffled_rows is not None
    block_m = SHUFFLE_ROWS if shuffled else min(16, next_power_of_two(m))
    block_k = SHUFFLE_K if shuffled else min(256, next_power_of_two(k))
    rows = round_up(m, SHUFFLE_ROWS) if shuffled_rows is None else shuffled_rows
    tiles_m = -(-rows // block_m) if shuffled else -(-m // block_m)
    columns = round_up(k // BLOCK, SCALE_PAD_COLUMNS) * BLOCK if shuffled else k
    reach = max(
        (m + block_m) * strides[0] + (k + block_k) * strides[1],
        (rows + block_m) * max(k, *out_strides) + (rows + block_m) * block_k,
    )
    constants = {
        "EMAX": fmt.emax,
        "MANTISSA": fmt.mantissa_bits,
        "ADDEND": addend,
        "HARDWARE": machine.arch == "gfx950" and fmt is E2M1,
        "SHUFFLED": shuffled,
        "BLOCK_M": block_m,
        "BLOCK_K": block_k,
        "EVEN_M": m % block_m == 0 and not shuffled,
        "EVEN_K": k % block_k == 0,
        "WIDE": reach > INT32_MAX,
        "INTERPRETED": interpreting(),
    }
    return KernelCall(
        quantize_kernel,
        (dtype, torch.uint8, torch.uint8),
        (m, k, *strides, *out_strides),
        constants,
        {"num_warps": 4},
        (tiles_m, -(-columns // block_k), 1),
    )
