"""Minimum, maximum and median of floats, as AMD's CDNA4 pseudo-code has them.

-0 is below +0. The plain ones return the other operand where one is NaN; with MODE.IEEE a signalling NaN comes back
quieted instead. minimum3 and maximum3 return a NaN, quieted, where there is one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gfx950emu.numeric import F16, F32, F64, U16, U32, U64, Array

_BITS: Final[dict[Any, tuple[Any, int]]] = {np.dtype(F16): (U16, 9), np.dtype(F32): (U32, 22), np.dtype(F64): (U64, 51)}
"""Float type -> (unsigned type of its width, position of a NaN's quiet bit)."""


def quiet(x: Array) -> Array:
    """Set the quiet bit of NaNs."""
    nan = np.isnan(x)
    if not nan.any():
        return x
    unsigned, position = _BITS[x.dtype]
    return np.where(nan, x.view(unsigned) | unsigned(1 << position), x.view(unsigned)).view(x.dtype)


def is_signalling(x: Array) -> Array:
    """Say which are signalling NaNs."""
    unsigned, position = _BITS[x.dtype]
    return np.isnan(x) & (x.view(unsigned) >> unsigned(position) & unsigned(1) == 0)


def _lesser(a: Array, b: Array) -> Array:
    return np.where((a < b) | ((a == b) & np.signbit(a)), a, b)


def _greater(a: Array, b: Array) -> Array:
    return np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)


def _number(picked: Array, ieee: Array, a: Array, b: Array) -> Array:
    """Put right what comparison did with NaNs."""
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    if not (nan_a.any() or nan_b.any()):
        return picked
    result = np.where(nan_a, b, np.where(nan_b, a, picked))
    if not ieee:
        return result
    return np.where(is_signalling(a), quiet(a), np.where(is_signalling(b), quiet(b), result))


def minimum(ieee: Array, a: Array, b: Array) -> Array:
    """``v_min_f32`` and its like."""
    return _number(_lesser(a, b), ieee, a, b)


def maximum(ieee: Array, a: Array, b: Array) -> Array:
    """``v_max_f32`` and its like."""
    return _number(_greater(a, b), ieee, a, b)


def minimum3(ieee: Array, a: Array, b: Array, c: Array) -> Array:
    """``v_min3_f32`` and its like."""
    return minimum(ieee, minimum(ieee, a, b), c)


def maximum3(ieee: Array, a: Array, b: Array, c: Array) -> Array:
    """``v_max3_f32`` and its like."""
    return maximum(ieee, maximum(ieee, a, b), c)


def median(ieee: Array, a: Array, b: Array, c: Array) -> Array:
    """``v_med3_f32`` and its like: leave out the largest, of equal ones the first; with a NaN, the minimum."""
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    largest = maximum3(ieee, a, b, c)
    middle = np.where(
        largest == a, maximum(ieee, b, c), np.where(largest == b, maximum(ieee, a, c), maximum(ieee, a, b))
    )
    return np.where(nan, minimum3(ieee, a, b, c), middle)


def median_of_integers(a: Array, b: Array, c: Array) -> Array:
    """``v_med3_i32`` and its like."""
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _propagate(picked: Array, a: Array, b: Array) -> Array:
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    if not (nan_a.any() or nan_b.any()):
        return picked
    return quiet(np.where(nan_a, a, np.where(nan_b, b, picked)))


def propagating_minimum3(a: Array, b: Array, c: Array) -> Array:
    """``v_minimum3_f32`` and its like; of several NaNs the first."""
    lesser = _propagate(_lesser(a, b), a, b)
    return _propagate(_lesser(lesser, c), lesser, c)


def propagating_maximum3(a: Array, b: Array, c: Array) -> Array:
    """``v_maximum3_f32`` and its like; of several NaNs the first."""
    greater = _propagate(_greater(a, b), a, b)
    return _propagate(_greater(greater, c), greater, c)
