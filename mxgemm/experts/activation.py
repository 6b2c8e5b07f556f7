"""The activation between the two products of an expert: gated, clamped, in fp32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mxgemm.arguments import check_bool, shown


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """``h = gate * sigmoid(alpha * gate) * (up + offset)``, of gate and up in fp32.

    With a limit the gate is at most that, and up lies between its negative and it. The defaults are gpt-oss's (its
    model card's ``swiglu``: alpha 1.702, limit 7, up + 1, rows in turn); :meth:`plain` is what most others have.

    Attributes:
        alpha: factor inside the sigmoid.
        limit: None for no clamping.
        interleaved: rows of the first weight are gate and up in turn; otherwise all of gate, then all of up.
        offset: added to up.

    Raises:
        TypeError: a number that is none.
        ValueError: a number that is not finite, or a limit that is not above 0.
    """

    alpha: float = 1.702
    limit: float | None = 7.0
    interleaved: bool = True
    offset: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "limit", "offset"):
            value = getattr(self, name)
            if value is None and name == "limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"activation.{name}: got {shown(value)}, want a number")
            if not math.isfinite(value) or (name == "limit" and value <= 0):
                raise ValueError(f"activation.{name}: got {value}, want {'above 0' if name == 'limit' else 'finite'}")
        check_bool("activation.interleaved", self.interleaved)

    @classmethod
    def plain(cls, limit: float | None = None, *, interleaved: bool = False) -> SwiGLU:
        """Return ``silu(gate) * up``, as DeepSeek's and most other experts have it: all of gate, then all of up."""
        return cls(1.0, limit, interleaved, 0.0)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return gate and up of ``[..., 2 I]``, as views ``[..., I]``."""
        if self.interleaved:
            return x[..., 0::2], x[..., 1::2]
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def apply(self, x: Tensor) -> Tensor:
        """Return ``[..., I]`` of fp32 or float64 ``[..., 2 I]``, by torch; a NaN stays one."""
        gate, up = self.parts(x)
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(gate * self.alpha) * (up + self.offset)
