"""A decode loop over MXFP4 weights: one token at a time, on CUDA as one replayed graph a token.

    python examples/decode_loop.py --width 1024 --layers 8 --tokens 128

A small decoder with random weights, a static key-value cache and greedy choice, all of it on the device. The table has
the time of a token for bf16 weights and for MXFP4 by ``mxgemm.quantize_``, called eagerly and, on CUDA, replayed; and
how many tokens of the replayed loop are those of the eager one.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import mxgemm
from mxgemm.mx.formats import ACTIVATION_FORMATS

WARM_UP = 3
"""Steps before a graph is captured: they plan, compile, and let libraries allocate."""


class Block(nn.Module):
    """Attention with a cache of ``length`` positions, and an MLP."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, length: int, batch: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_m = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        shape = (batch, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(self, x: Tensor, at: Tensor, seen: Tensor) -> Tensor:
        """Process ``[batch, width]`` at position ``at`` ``[1]``; ``seen`` bool ``[length]`` says what may be read."""
        q, k, v = (part.unflatten(1, (self.heads, -1)).unsqueeze(2) for part in self.qkv(self.norm_a(x)).chunk(3, 1))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mixed = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen.view(1, 1, 1, -1))
        x = x + self.out(mixed.flatten(1))
        return x + self.down(nn.functional.silu(self.up(self.norm_m(x))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, positions, blocks, output layer."""

    def __init__(self, words: int, width: int, layers: int, heads: int, length: int, batch: int = 1) -> None:
        super().__init__()
        self.length = length
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length, batch) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return logits ``[batch, words]`` of the token after ``ids`` ``[batch]``, which stands at position ``at``."""
        seen = torch.arange(self.length, device=at.device) <= at
        x = self.embed(ids) + self.places(at)
        for block in self.blocks:
            x = block(x, at, seen)
        return self.lm_head(self.norm(x))  # type: ignore[no-any-return]


class Step:
    """One greedy step in place: reads ``ids`` and ``at``, writes the next token and the next position over them.

    Args:
        model: a decoder.
        prompt: ``[batch, count]``, count at least 1.
    """

    def __init__(self, model: Decoder, prompt: Tensor) -> None:
        self.model, self.prompt = model, prompt
        self.ids = prompt[:, 0].clone()
        self.at = torch.zeros(1, dtype=torch.long, device=prompt.device)
        self.run: Callable[[], object] = self.eager

    def eager(self) -> None:
        """Launch every kernel of a step."""
        self.ids.copy_(self.model(self.ids, self.at).argmax(-1))
        self.at.add_(1)

    def capture(self) -> None:
        """Record a step as a CUDA graph, which :meth:`decode` replays from then on.

        A replay runs no Python: weights that are written afterwards, or a form made anew, want another capture.
        """
        self.at.zero_()  # an earlier loop has left it behind the last position
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.eager()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.eager()
        self.run = graph.replay

    def decode(self, count: int) -> Tensor:
        """Read the prompt from position 0 and return the ``count`` tokens after it, ``[batch, count]``.

        Raises:
            ValueError: more positions than the cache has.
        """
        length = self.prompt.shape[1]
        if length + count - 1 > self.model.length:
            raise ValueError(f"count: got {count} after {length} tokens, want up to {self.model.length} positions")
        self.at.zero_()
        for i in range(length):
            self.ids.copy_(self.prompt[:, i])
            self.run()
        tokens = [self.ids.clone()]
        for _ in range(count - 1):
            self.run()
            tokens.append(self.ids.clone())
        return torch.stack(tokens, 1)


def timed(step: Step, count: int) -> tuple[Tensor, float]:
    """Return the tokens of a loop and microseconds a step, of the quicker of two."""
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        tokens = step.decode(count).cpu()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return tokens, best / (count + step.prompt.shape[1] - 1) * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="of the model; a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="to decode")
    parser.add_argument(
        "--a-format", choices=ACTIVATION_FORMATS, default="bf16", help="what activations are rounded to"
    )
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    prompt = torch.randint(0, 1000, (1, 8), device=device)
    plain = Decoder(1000, options.width, options.layers, options.width // 64, options.tokens + 8)
    plain = plain.to(device, torch.bfloat16).eval()
    packed = copy.deepcopy(plain)
    report = mxgemm.quantize_(packed, mxgemm.MXConfig(options.a_format, prepare="fast"))
    print(
        f"{len(report.quantized)} linear layers: {report.bytes_before:,} bytes in bf16, {report.bytes_after:,} in MXFP4"
    )
    print(f"{'weights':8}  {'eager, us a token':>18}  {'graph, us a token':>18}  same tokens")
    with torch.inference_mode():
        for name, model in (("bf16", plain), ("MXFP4", packed)):
            step = Step(model, prompt)
            tokens, eager = timed(step, options.tokens)
            if device == "cpu":
                print(f"{name:8}  {eager:18.1f}  {'CUDA only':>18}")
                continue
            step.capture()
            replayed, graph = timed(step, options.tokens)
            same = int((replayed == tokens).sum())
            print(f"{name:8}  {eager:18.1f}  {graph:18.1f}  {same} of {tokens.numel()}")


if __name__ == "__main__":
    main()
