"""The small decoder that bench/soak.py serves: its products are those of a Llama block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Of the model, and of an answer."""

    width: int
    inner: int
    layers: int
    words: int
    tokens: int
    prompts: tuple[int, ...]
    head: int = 64
    groups: int = 4

    @property
    def length(self) -> int:
        """Positions that a sequence takes at most."""
        return max(self.prompts) + self.tokens


class Block(nn.Module):
    """Attention with fewer keys than queries, and a gated MLP: the seven products of a Llama block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner = sizes.width, sizes.inner
        self.sizes, keys = sizes, width // sizes.groups
        self.norm_a, self.norm_m = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, keys, keys))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, at: Tensor, seen: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """Process ``[batch, count, width]`` at positions ``at`` ``[count]``."""
        head, groups, h = self.sizes.head, self.sizes.groups, self.norm_a(x)
        q, k, v = (each(h).unflatten(-1, (-1, head)).transpose(1, 2) for each in (self.q, self.k, self.v))
        keys, values = cache
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        scores = (q @ keys.transpose(-1, -2)).float() * head**-0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(x.dtype)
        x = x + self.out((weights @ values).transpose(1, 2).flatten(2))
        h = self.norm_m(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, positions, blocks, output layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed, self.places = nn.Embedding(sizes.words, sizes.width), nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.lm_head = nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, ids: Tensor, at: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the logits ``[batch, words]`` after the last of ``ids`` ``[batch, count]`` at positions ``at``."""
        seen = torch.arange(self.sizes.length, device=at.device) <= at[:, None]
        x = self.embed(ids) + self.places(at)
        for block, own in zip(self.blocks, cache, strict=True):
            x = block(x, at, seen, own)
        return self.lm_head(self.norm(x[:, -1]))  # type: ignore[no-any-return]

    def cache(self, batch: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Return room for keys and values."""
        s = self.sizes
        shape = (batch, s.width // s.groups // s.head, s.length, s.head)

        def room() -> Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=device)

        return [(room(), room()) for _ in self.blocks]
