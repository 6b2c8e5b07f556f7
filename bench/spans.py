"""How far the block scales of a row spread: which rows of real and of outlier-ridden activations fold into e4m3.

    python bench/spans.py [-o bench/results/spans.json]        needs the examples extra; runs on a CPU

Real: the inputs of every linear layer of all-MiniLM-L6-v2 on 120 sentences, and its weights. Synthetic: N(0, 1) rows of
8192 with outlier channels, as language models have them, scaled by a power of two. A row folds up to a span of 14.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor, nn

import mxgemm
from examples.minilm import Experiment
from mxgemm.measure import output
from mxgemm.mx.fold import FOLD_SPAN, row_bases
from mxgemm.mx.formats import BLOCK, E8M0_NAN


def main() -> None:
    """Collect, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    arguments = parser.parse_args()
    keep = output.json_file(arguments, "mxgemm-spans")
    rows = {**minilm(), **synthetic()}
    document = {"kind": "mxgemm-spans", "fold_span": FOLD_SPAN, "scale_rounding": "even", "rows": rows}
    print(json.dumps(document, indent=1))
    keep(document)


def minilm() -> dict[str, Any]:
    """Return the spans of MiniLM's activations and weights."""
    experiment = Experiment("cpu")
    seen: list[Tensor] = []
    linears = [module for module in experiment.model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        linear.register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0].detach().reshape(-1, inputs[0].shape[-1]))
        )
        for linear in linears
    ]
    experiment.embed()
    for hook in hooks:
        hook.remove()
    return {"MiniLM activations": describe(seen), "MiniLM weights": describe([linear.weight for linear in linears])}


def synthetic() -> dict[str, Any]:
    """Return the spans of N(0, 1) rows with outlier channels."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for octaves in (4, 8, 12, 14, 16, 20):
        x = torch.randn(512, 8192, generator=generator)
        x[:, torch.randperm(8192, generator=generator)[:16]] *= 2.0**octaves
        found[f"N(0, 1), 16 of 8192 channels times 2^{octaves}"] = describe([x])
    return found


def describe(matrices: list[Tensor]) -> dict[str, float]:
    """Return the median and largest span over all rows, and the share that folds."""
    spans, folds = [], []
    for matrix in matrices:
        quantized = mxgemm.quantize(matrix.float())
        n, k = quantized.shape
        exponent = quantized.scales.int()
        live = (quantized.data.view(n, k // BLOCK, BLOCK // 2) & 0x77).amax(-1).ne(0)
        highest = torch.where(live, exponent, -1).amax(-1)
        lowest = torch.where(live, exponent, E8M0_NAN).amin(-1)
        spans.append((highest - lowest).clamp(min=0).double())
        folds.append(row_bases(quantized)[1].double())
    every = torch.cat(spans)
    return {
        "rows": len(every),
        "median": float(every.median()),
        "p99": float(every.quantile(0.99)),
        "largest": float(every.max()),
        "folds": round(float(torch.cat(folds).mean()), 5),
    }


if __name__ == "__main__":
    main()
