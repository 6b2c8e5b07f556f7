"""A stand-in for torch's product of MXFP4 operands on gfx950 and sm_100, which checks every rule that torch states.

It shares no code with the library: operands are read through index formulas of its own and multiplied in float64. What
a call asked for is in ``CALLS``. A test helper: nothing in the library knows it.
"""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.aiter_double import decode, rows_of, unshuffled

CALLS: list[str] = []
RAISES: dict[str, Exception] = {}
"""What a call raises, by the name under which it is in ``CALLS``."""

EXTENSION = "BlockWiseBlk32Ue8m0_32_8_EXT"
_RECIPES = ["TensorWise", "RowWise", "BlockWise1x32"]
_SWIZZLES = ["NO_SWIZZLE", "SWIZZLE_32_4_4"]
_NAMES = {
    "2.10": (_RECIPES, _SWIZZLES),
    "2.14": (_RECIPES, [*_SWIZZLES, "SWIZZLE_32_8"]),
    "main": ([*_RECIPES, EXTENSION], _SWIZZLES),
}


def install(monkeypatch: pytest.MonkeyPatch, torch_release: str, *, hip: str | None, cuda: str | None = None) -> None:
    """Make this torch look like a release built for ROCm or CUDA: "2.8", "2.10", "2.14", or a "main" of between."""
    CALLS.clear()
    RAISES.clear()
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch, "_scaled_mm", private)
    for name in ("SwizzleType", "ScalingType", "scaled_mm"):
        monkeypatch.delattr(functional, name, raising=False)
    if torch_release in _NAMES:
        for name, members in zip(("ScalingType", "SwizzleType"), _NAMES[torch_release], strict=True):
            monkeypatch.setattr(functional, name, enum.Enum(name, members), raising=False)
        monkeypatch.setattr(functional, "scaled_mm", scaled_mm, raising=False)


def scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_recipe_a: enum.Enum, scale_b: Tensor,
    scale_recipe_b: enum.Enum, swizzle_a: enum.Enum, swizzle_b: enum.Enum, bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """``torch.nn.functional.scaled_mm`` with a scale every 32 elements."""
    assert scale_recipe_a is scale_recipe_b
    assert swizzle_a is swizzle_b
    extension = scale_recipe_a.name == EXTENSION
    assert scale_recipe_a.name == (EXTENSION if extension else "BlockWise1x32")
    _asked(EXTENSION if extension else swizzle_a.name)
    m, n, k = _sizes(mat_a, mat_b)
    columns = k // 32
    if swizzle_a.name == "SWIZZLE_32_4_4" and not extension:
        assert torch.version.cuda
        assert k % 32 == 0
        read = _unswizzled
        _numel(scale_a, _up(m, 128) * _up(columns, 4))
        _numel(scale_b, _up(n, 128) * _up(columns, 4))
    else:
        assert torch.version.hip
        assert m % 32 == n % 32 == k // 2 % 32 == 0, (m, n, k)
        assert not extension or swizzle_a.name == "SWIZZLE_32_4_4"
        plain = swizzle_a.name == "NO_SWIZZLE"
        read = _plain if plain else _shuffled
        for scale, rows in ((scale_a, m), (scale_b, n)):
            _numel(scale, rows * columns if plain else _up(rows, 32) * _up(columns, 8))
    assert output_dtype in (torch.bfloat16, torch.float16)
    return _product(mat_a, mat_b, read(scale_a, m, columns), read(scale_b, n, columns), bias, output_dtype)


def private(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """``torch._scaled_mm`` of 2.8 and 2.9: row-major scales, padded as if they were swizzled."""
    _asked("_scaled_mm")
    m, n, k = _sizes(a, b)
    assert m % 16 == n % 16 == k % 128 == 0, (m, n, k)
    assert out_dtype == torch.bfloat16
    for scale, rows in ((scale_a, m), (scale_b, n)):
        _numel(scale, _up(rows, 128) * _up(k // 32, 4))
    left, right = (_plain(scale, rows, k // 32) for scale, rows in ((scale_a, m), (scale_b, n)))
    return _product(a, b, left, right, bias, out_dtype)


def _asked(name: str) -> None:
    CALLS.append(name)
    if name in RAISES:
        raise RAISES[name]


def _sizes(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    for tensor in (a, b):
        assert tensor.dtype == torch.float4_e2m1fn_x2
        assert tensor.dim() == 2
    assert a.is_contiguous(), "mat_a must be row-major"
    assert b.t().is_contiguous(), "mat_b must be column-major"
    assert a.shape[1] == b.shape[0]
    for tensor in (a, b):
        assert tensor.data_ptr() % 16 == 0
    return a.shape[0], b.shape[1], 2 * a.shape[1]


def _numel(scale: Tensor, want: int) -> None:
    assert scale.dtype == torch.float8_e8m0fnu
    assert scale.is_contiguous()
    assert scale.numel() == want, (scale.shape, want)


def _product(
    a: Tensor, b: Tensor, a_scales: np.ndarray, b_scales: np.ndarray, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    result = decode(rows_of(a), a_scales) @ decode(rows_of(b.t()), b_scales).T
    if bias is not None:
        assert bias.dtype == dtype == torch.bfloat16
        result = result + bias.double().cpu().numpy()
    return torch.from_numpy(result).to(torch.float32).to(dtype).to(a.device)


def _flat(scale: Tensor) -> np.ndarray:
    return rows_of(scale).reshape(-1)


def _plain(scale: Tensor, rows: int, columns: int) -> np.ndarray:
    return _flat(scale)[: rows * columns].reshape(rows, columns)


def _shuffled(scale: Tensor, rows: int, columns: int) -> np.ndarray:
    return unshuffled(scale.reshape(_up(rows, 32), _up(columns, 8)), rows, columns)


def _unswizzled(scale: Tensor, rows: int, columns: int) -> np.ndarray:
    r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    at = (r // 128 * (_up(columns, 4) // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    return _flat(scale)[at]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
