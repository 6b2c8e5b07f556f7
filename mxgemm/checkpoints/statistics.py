"""What the bytes of an MX weight say about it: blocks at the end of the format's range, zeros, NaN, and the scales."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from mxgemm.checkpoints.base import Entry
from mxgemm.checkpoints.reader import KINDS, Checkpoint
from mxgemm.mx.codec import row_chunks
from mxgemm.mx.formats import BLOCK, E8M0_NAN
from mxgemm.mx.tensor import MXTensor

KIND: Final = "mxgemm-checkpoint"
VERSION: Final = 1
_LARGEST: Final = {"e2m1": 0x7, "e4m3": 0x7E, "e5m2": 0x7B}
"""The code of each format's largest finite magnitude."""
_MAGNITUDE: Final = {"e2m1": 0x7, "e4m3": 0x7F, "e5m2": 0x7F}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts of a weight's blocks of 32.

    Attributes:
        total: all of them.
        saturated: with an element of the format's largest magnitude, 6 in e2m1: it was that large or was cut there.
        zero: with nothing but zeros, and no NaN.
        nan: with scale byte 255.
        scales: how many have each scale byte, 256 counts.
    """

    total: int
    saturated: int
    zero: int
    nan: int
    scales: tuple[int, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return the counts as JSON has them; of scale bytes those that occur."""
        occur = {str(byte): count for byte, count in enumerate(self.scales) if count}
        return {"blocks": self.total, "saturated": self.saturated, "zero": self.zero, "nan": self.nan, "scales": occur}


def blocks_of(weight: MXTensor) -> Blocks:
    """Count the blocks of a weight in any layout."""
    weight = weight.row_major()
    k, rows = weight.shape[-1], math.prod(weight.shape[:-1])
    data, scales = weight.data.reshape(rows, k // weight.format.pack), weight.scales.reshape(rows, k // BLOCK)
    saturated = zero = 0
    histogram = torch.zeros(E8M0_NAN + 1, dtype=torch.int64, device=weight.device)
    for part in row_chunks(rows, k):
        codes = data[part].reshape(-1, BLOCK // weight.format.pack)
        low, high = _magnitudes(codes, weight.format.name)
        largest = _LARGEST[weight.format.name]
        saturated += int(((low == largest) | (high == largest)).any(-1).sum())
        its = scales[part].flatten().to(torch.int64)
        zero += int((((low == 0) & (high == 0)).all(-1) & (its != E8M0_NAN)).sum())
        histogram += torch.bincount(its, minlength=E8M0_NAN + 1)
    counts = tuple(histogram.tolist())
    return Blocks(sum(counts), saturated, zero, counts[E8M0_NAN], counts)


def summary(checkpoint: Checkpoint) -> str:
    """Return a checkpoint in a line: format, counts, size, and what activations are rounded to, with the reason."""
    counts = {kind: sum(entry.kind == kind for entry in checkpoint.entries.values()) for kind in KINDS}
    held = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "empty"
    size = sum(entry.nbytes for entry in checkpoint.entries.values()) / 1e6
    line = f"{checkpoint.format}, {held}, {f'{size / 1e3:.2f} GB' if size >= 1e3 else f'{size:.2f} MB'}"
    schemes = Counter(entry.scheme for entry in checkpoint.entries.values() if entry.kind == "mx")
    for scheme, count in schemes.items():
        rounding = f", scales {scheme.scale_rounding}" if scheme.scale_rounding else ""
        of = f" of {count}" if len(schemes) > 1 else ""
        line += f"; activations{of}: {scheme.a_format or 'unknown'}{rounding} ({scheme.says})"
    return line


def describe(checkpoint: Checkpoint, entry: Entry, blocks: Blocks | None) -> Mapping[str, Any]:
    """Return what is known of a parameter, as JSON has it."""
    scheme = entry.scheme
    about: dict[str, Any] = {
        **{"name": entry.name, "kind": entry.kind, "type": entry.type, "shape": list(entry.shape)},
        **{"bytes": entry.nbytes, "layout": entry.layout, "file": checkpoint.description(entry.name).file.name},
    }
    if entry.kind == "mx":
        about |= {"a_format": scheme.a_format, "scale_rounding": scheme.scale_rounding, "says": scheme.says}
    if entry.note:
        about["note"] = entry.note
    return about if blocks is None else {**about, **blocks.to_mapping()}


def _magnitudes(codes: Tensor, format: str) -> tuple[Tensor, Tensor]:
    """Return the codes without their signs; of packed bytes low and high nibble, else the same twice."""
    mask = _MAGNITUDE[format]
    low = codes & mask
    return low, (codes >> 4) & mask if format == "e2m1" else low
