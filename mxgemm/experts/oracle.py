"""The oracle of grouped products and layers of experts: numpy and float64, from the definitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxgemm.experts.activation import SwiGLU
from mxgemm.mx import oracle

Float64 = NDArray[np.float64]


def weights(data: oracle.Bytes, scales: oracle.Bytes, fmt: str) -> Float64:
    """Decode a stack of weights ``[E, N, K/pack]`` to ``[E, N, K]``."""
    return np.stack([oracle.decode(one, its, fmt) for one, its in zip(data, scales, strict=True)])


def rounded(x: Float64, a_format: str, scale_rounding: str = "even") -> Float64:
    """Round activations to a format: bf16 to nearest even, or MX."""
    if a_format == "bf16":
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
        return kept.view(np.float32).astype(np.float64)
    return oracle.decode(*oracle.encode(x, a_format, scale_rounding), a_format)


def swiglu(x: Float64, activation: SwiGLU) -> Float64:
    """Apply an activation to ``[..., 2 I]``."""
    half = x.shape[-1] // 2
    gate, up = (x[..., 0::2], x[..., 1::2]) if activation.interleaved else (x[..., :half], x[..., half:])
    if activation.limit is not None:
        gate, up = np.minimum(gate, activation.limit), np.clip(up, -activation.limit, activation.limit)
    with np.errstate(over="ignore"):
        value: Float64 = gate / (1 + np.exp(-activation.alpha * gate)) * (up + activation.offset)
    return value


def layer(
    x: Float64,
    w13: Float64,
    w2: Float64,
    ids: Sequence[Sequence[int]],
    factors: Float64,
    activation: SwiGLU,
    a_format: str,
    b13: Float64 | None = None,
    b2: Float64 | None = None,
) -> Float64:
    """Return a layer's result ``[T, H]``, token by token and pair by pair; ids outside the experts add nothing."""
    result = np.zeros((len(x), w2.shape[1]))
    left = rounded(x, a_format)
    for token, chosen in enumerate(ids):
        for j, expert in enumerate(chosen):
            if not 0 <= expert < len(w13):
                continue
            h = left[token] @ w13[expert].T + (0 if b13 is None else b13[expert])
            h = rounded(swiglu(h[None], activation), a_format)[0]
            result[token] += factors[token, j] * (h @ w2[expert].T + (0 if b2 is None else b2[expert]))
    return result
