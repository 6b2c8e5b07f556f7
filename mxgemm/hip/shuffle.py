"""The layouts of ``mxgemm/mx/layouts.py`` by HIP kernels: a launch each, the same bytes, on AMD and on NVIDIA GPUs.

Row-major operands may have any row stride; their columns must be contiguous. Every function launches on the current
stream of its operand's device and allocates nothing but its result.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

from mxgemm.device import Machine
from mxgemm.errors import Refusal
from mxgemm.hip import build, loaded, runtime
from mxgemm.hip.kernarg import Layout
from mxgemm.memory import check_memory
from mxgemm.mx.formats import BLOCK
from mxgemm.mx.layouts import (
    SCALE_PAD_COLUMNS,
    WEIGHT_TILE_ROWS,
    padded_scale_shape,
    preshuffle_refusal,
    round_up,
)

SCALES_SOURCE: Final = "shuffle_scales.hip"
WEIGHT_SOURCE: Final = "preshuffle_weight.hip"
SOURCES: Final = (SCALES_SOURCE, WEIGHT_SOURCE)

_THREADS: Final = (256, 1, 1)
_TILE_ROWS: Final = 32
_TILES_PER_GROUP: Final = 64
_UNIT_BYTES: Final = 16
_UNITS_PER_GROUP: Final = 16

_SCALES: Final = Layout("PPqIIII")
"""source, target, row stride, rows, columns, tiles in a row, tiles."""
_WEIGHT: Final = Layout("PPqII")
"""source, target, row stride, units in a row, workgroups along a row."""


def refusal(machine: Machine) -> Refusal | None:
    """Say why these kernels cannot run on a machine, or return None if they can."""
    return build.compiler_refusal(machine.arch) or runtime.driver_refusal()


def shuffle_scales(scales: Tensor, out: Tensor | None = None) -> Tensor:
    """Shuffle row-major scale bytes ``[rows, columns]``; padding is written as zeros.

    Args:
        scales: uint8 on a GPU, columns contiguous.
        out: contiguous uint8 of ``mxgemm.mx.layouts.padded_scale_shape``, 16-byte aligned; None for fresh memory.

    Returns:
        ``out``, or fresh memory of that shape.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, on no GPU, of wrong strides, or ``out`` has another shape.
    """
    rows, columns, _ = _check_row_major(scales, "scales")
    shape = padded_scale_shape(rows, columns * BLOCK)
    if out is None:
        out = torch.empty(shape, dtype=torch.uint8, device=scales.device)
    elif tuple(out.shape) != shape:
        raise ValueError(f"out: got shape {tuple(out.shape)}, want {shape}")
    _shuffle(scales, out, shape[0])
    return out


def shuffle_scales_into(scales: Tensor, out: Tensor) -> Tensor:
    """Shuffle scales ``[rows, columns]`` and write no more than whole tiles: rows to a multiple of 32.

    Args:
        scales: uint8 on a GPU, columns contiguous.
        out: contiguous uint8 ``[at least rows padded to 32, columns padded to 8]``, 16-byte aligned.

    Returns:
        ``out``; what lies beyond the padded rows is left as it was.

    Raises:
        TypeError, ValueError: as :func:`shuffle_scales`.
    """
    rows, columns, _ = _check_row_major(scales, "scales")
    padded = round_up(rows, _TILE_ROWS)
    wanted = round_up(columns, SCALE_PAD_COLUMNS)
    if out.dim() != 2 or out.shape[0] < padded or out.shape[1] != wanted:
        raise ValueError(f"out: got shape {tuple(out.shape)}, want at least {padded} rows of {wanted} columns")
    _shuffle(scales, out, padded)
    return out


def unshuffle_scales(shuffled: Tensor, rows: int, columns: int) -> Tensor:
    """Undo :func:`shuffle_scales` and drop the padding, whatever bytes it holds.

    Args:
        shuffled: contiguous uint8 on a GPU, ``[>= rows, >= columns]``, a multiple of 32 by a multiple of 8.
        rows: logical rows to return.
        columns: logical columns (K/32) to return.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, on no GPU, not contiguous, misaligned, not whole tiles, or too small.
    """
    padded_rows, padded_columns = _check_tiled(shuffled, "shuffled")
    whole_tiles = padded_rows % _TILE_ROWS == 0 and padded_columns % SCALE_PAD_COLUMNS == 0
    if not whole_tiles or padded_rows < rows or padded_columns < columns:
        raise ValueError(
            f"shuffled: got shape {tuple(shuffled.shape)}, want at least ({rows}, {columns}) in whole tiles of 32 x 8"
        )
    out = torch.empty(rows, columns, dtype=torch.uint8, device=shuffled.device)
    if out.numel():
        name = f"unshuffle_scales_{_width(columns, out.data_ptr(), 8)}"
        _launch_scales(name, shuffled, out, (columns, rows, columns), padded_columns, round_up(rows, _TILE_ROWS))
    return out


def preshuffle_weight(packed: Tensor) -> Tensor:
    """Reorder row-major weight bytes ``[N, bytes]`` for 16-byte loads straight to registers.

    Args:
        packed: uint8 on a GPU, columns contiguous.

    Returns:
        uint8 ``[N, bytes]`` in preshuffled order.

    Raises:
        TypeError: not uint8.
        ValueError: not two-dimensional, on no GPU, columns not contiguous, N % 16 != 0 or bytes % 32 != 0.
    """
    n, columns, stride = _check_row_major(packed, "packed")
    _check_preshuffle(packed)
    out = torch.empty(n, columns, dtype=torch.uint8, device=packed.device)
    if out.numel():
        _launch_weight(f"preshuffle_weight_{_width(stride, packed.data_ptr(), 16)}", packed, out, stride)
    return out


def unpreshuffle_weight(packed: Tensor) -> Tensor:
    """Undo :func:`preshuffle_weight`; ``packed`` must be contiguous and 16-byte aligned."""
    n, columns = _check_tiled(packed, "packed")
    _check_preshuffle(packed)
    out = torch.empty(n, columns, dtype=torch.uint8, device=packed.device)
    if out.numel():
        _launch_weight("unpreshuffle_weight", packed, out, columns)
    return out


def _shuffle(scales: Tensor, out: Tensor, padded_rows: int) -> None:
    _check_tiled(out, "out")
    if out.device != scales.device:
        raise ValueError(f"out: got device {out.device}, want {scales.device} as scales")
    rows, columns = scales.shape
    stride = scales.stride(0)
    if rows and columns:
        name = f"shuffle_scales_{_width(stride, scales.data_ptr(), 8)}"
        _launch_scales(name, scales, out, (stride, rows, columns), out.shape[1], padded_rows)
    else:
        out[:padded_rows].zero_()


def _launch_scales(
    name: str, source: Tensor, target: Tensor, row_major: tuple[int, int, int], tiled_columns: int, tiled_rows: int
) -> None:
    """Launch over the tiles of the shuffled side; ``row_major`` is (row stride, rows, columns) of the other."""
    tile_columns = tiled_columns // SCALE_PAD_COLUMNS
    tiles = tiled_rows // _TILE_ROWS * tile_columns
    kernarg = _SCALES.pack(source.data_ptr(), target.data_ptr(), *row_major, tile_columns, tiles)
    kernel = _kernel(SCALES_SOURCE, name, source.device)
    kernel.launch((-(-tiles // _TILES_PER_GROUP), 1, 1), _THREADS, kernarg)


def _launch_weight(name: str, source: Tensor, target: Tensor, row_stride: int) -> None:
    n, columns = target.shape
    units = columns // _UNIT_BYTES
    groups = -(-units // _UNITS_PER_GROUP)
    kernarg = _WEIGHT.pack(source.data_ptr(), target.data_ptr(), row_stride, units, groups)
    kernel = _kernel(WEIGHT_SOURCE, name, source.device)
    kernel.launch((n // WEIGHT_TILE_ROWS * groups, 1, 1), _THREADS, kernarg)


@cache
def _kernel(source: str, name: str, device: torch.device) -> runtime.Function:
    return loaded.module(source, device).function(name)


def _width(row_stride: int, address: int, most: int) -> int:
    """Return the widest access, in bytes, that every row of a row-major operand allows."""
    return next(width for width in (16, 8, 4, 2, 1) if width <= most and (row_stride | address) % width == 0)


def _check_row_major(tensor: Tensor, name: str) -> tuple[int, int, int]:
    _check_bytes(tensor, name)
    rows, columns = tensor.shape
    stride, step = tensor.stride()
    if step != 1 and columns > 1:
        raise ValueError(f"{name}: got strides {tensor.stride()}, want contiguous columns (a stride of 1)")
    return rows, columns, stride


def _check_tiled(tensor: Tensor, name: str) -> tuple[int, int]:
    _check_bytes(tensor, name)
    if not tensor.is_contiguous() or tensor.data_ptr() % 16:
        raise ValueError(f"{name}: got strides {tensor.stride()}, want contiguous memory at a multiple of 16 bytes")
    return tensor.shape[0], tensor.shape[1]


def _check_bytes(tensor: Tensor, name: str) -> None:
    if tensor.dtype != torch.uint8:
        raise TypeError(f"{name}: got dtype {tensor.dtype}, want torch.uint8")
    check_memory(name, tensor, as_it_lies=True)
    if tensor.dim() != 2:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, want two dimensions")
    if tensor.device.type != "cuda":
        raise ValueError(f"{name}: got device {tensor.device}, want a CUDA/ROCm device")


def _check_preshuffle(packed: Tensor) -> None:
    reason = preshuffle_refusal(*packed.shape)
    if reason:
        raise ValueError(f"packed: got shape {tuple(packed.shape)}; {reason}, so it cannot be preshuffled")
